"""Makes requests of bodies: JSON as the standard has it, then the shape of the request."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from pilotfish.server.complaints import described, joined
from pilotfish.server.errors import ApiError
from pilotfish.server.ignored import IgnoredFields

T = TypeVar("T", bound=BaseModel)

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TOO_DEEP = "the body is nested too deeply"


def check_kind(request: Request) -> None:
    """Raise ApiError unless a body says that it is JSON, and not compressed."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # pages of other sites can send any other type without asking the browser first
    if media_type != "application/json":
        raise ApiError(
            415,
            "the body must be JSON (send the header Content-Type: application/json)",
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(
            415,
            f"the body is packed as {encoding[:40]!a} (send it as it is, without Content-Encoding)",
            code="unsupported_encoding",
            headers={"Accept-Encoding": "identity"},
        )


def parsed(data: bytes | bytearray) -> Any:
    """Return the values of a JSON text. NaN, infinities and lone surrogates are none."""
    if not data.strip():
        raise ApiError(400, "the body is empty", code="invalid_json")
    try:
        text = data.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        raise ApiError(400, message, code="invalid_json") from error
    except RecursionError as error:
        raise ApiError(400, _TOO_DEEP, code="invalid_json") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"the body is not JSON: {error.msg} at {where}"
        raise ApiError(400, message, code="invalid_json") from error
    except ValueError as error:
        # whole numbers of thousands of digits are Python's to refuse, in words of its own
        reason = "a number is too large" if "digits" in str(error) else str(error)
        message = f"the body is not JSON: {reason}"
        raise ApiError(400, message, code="invalid_json") from error
    if _SURROGATE_ESCAPE.search(text):
        _refuse_surrogates(value)
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _refuse_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ApiError(400, _TOO_DEEP, code="invalid_json") from error
    except UnicodeEncodeError as error:
        path = next(path for path, text in _strings(value, "") if _SURROGATE.search(text))
        message = f"{path or 'a name'} is not valid text: it holds a lone surrogate"
        raise ApiError(400, message, param=path or None, code="invalid_value") from error


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON value, with where it is."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield path, key
            yield from _strings(item, joined(path, key) if key.isidentifier() else path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, joined(path, index))


def validated(value: Any, kind: type[T]) -> T:
    """Return the request a JSON value stands for; ApiError names the field that is wrong."""
    if not isinstance(value, Mapping):
        raise ApiError(400, "the body must be a JSON object", code="invalid_value")
    try:
        return kind.model_validate(value, context=IgnoredFields())
    except ValidationError as error:
        raise described(error, value, kind) from error
    except RecursionError as error:
        raise ApiError(400, _TOO_DEEP, code="invalid_json") from error
