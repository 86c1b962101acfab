"""Reads request bodies: JSON as the standard has it, then the shape of the request."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from pilotfish.server.errors import ApiError

T = TypeVar("T", bound=BaseModel)

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_TOO_DEEP = ApiError(400, "the body is nested too deeply", code="invalid_json")
_MOST_SHOWN = 60


async def read_body(request: Request, kind: type[T]) -> T:
    """Return the body of a request, checked; ApiError says what is wrong with it, in one line."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # pages of other sites can send any other type without asking the browser first
    if media_type != "application/json":
        raise ApiError(
            415,
            "the body must be JSON (send the header Content-Type: application/json)",
            code="unsupported_media_type",
        )
    try:
        data = await request.body()
    except ClientDisconnect as error:
        raise ApiError(400, "the body is incomplete", code="invalid_json") from error
    try:
        return validated(parsed(data), kind)
    except RecursionError as error:
        raise _TOO_DEEP from error


def parsed(data: bytes) -> Any:
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
        raise _TOO_DEEP from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"the body is not JSON: {error.msg} at {where}"
        raise ApiError(400, message, code="invalid_json") from error
    except ValueError as error:
        message = f"the body is not JSON: {error}"[:200]
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
    for path, text in _strings(value, ""):
        if _SURROGATE.search(text):
            message = f"{path or 'a key'} is not valid text: it holds a lone surrogate"
            raise ApiError(400, message, param=path or None, code="invalid_value")


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield path, key
            yield from _strings(item, joined(path, key) if key.isidentifier() else path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(item, joined(path, index))


def joined(path: str, step: str | int) -> str:
    """Return the path of a value one step further in, as in `messages[0].content`."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def validated(value: Any, kind: type[T]) -> T:
    """Return the request a JSON value stands for; ApiError names the field that is wrong."""
    if not isinstance(value, Mapping):
        raise ApiError(400, "the body must be a JSON object", code="invalid_value")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _described(error, value, kind) from error


def _described(error: ValidationError, value: Any, kind: type[BaseModel]) -> ApiError:
    """Return the first failure, that of the deepest field among those of a choice of types."""
    details = error.errors(include_url=False, include_context=True)
    located = [(resolved(one["loc"], value, one["type"] == "missing"), one) for one in details]
    same = [(steps, one) for steps, one in located if steps[:1] == located[0][0][:1]]
    steps, deepest = max(same, key=lambda pair: len(pair[0]))
    field = kind.model_fields.get(str(steps[0])) if steps else None
    if field is not None and field.description:  # of several types: all are named
        message = f"{steps[0]} must be {field.description}{shown(value.get(steps[0]))}"
        return ApiError(400, message, param=str(steps[0]), code="invalid_value")
    path = ""
    for step in steps:
        path = joined(path, step)
    if deepest["type"] == "extra_forbidden":
        return _unknown_field(path, steps, kind)
    if deepest["type"] == "missing":
        return ApiError(400, f"{path} is missing", param=path, code="missing_field")
    message = f"{path} {_lowered(deepest['msg'])}{shown(deepest['input'])}"
    return ApiError(400, message, param=path, code="invalid_value")


def resolved(
    location: Sequence[str | int], value: Any, is_missing: bool = False
) -> list[str | int]:
    """Return a location without the names of types that were tried on the way."""
    steps: list[str | int] = []
    for index, step in enumerate(location):
        may_lack = is_missing and index == len(location) - 1
        if isinstance(value, dict) and isinstance(step, str) and (step in value or may_lack):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            continue
        steps.append(step)
    return steps


def _lowered(message: str) -> str:
    message = message.replace("Input should", "must", 1)
    return message[:1].lower() + message[1:]


def shown(value: Any) -> str:
    """Return ", got ..." for values that can be shown in a line."""
    if not isinstance(value, str | int | float | bool | None):
        return ""
    try:
        text = json.dumps(value)
    except ValueError:  # a whole number of thousands of digits
        return ""
    return f", got {text}" if len(text) <= _MOST_SHOWN else f", got {text[:_MOST_SHOWN]}..."


def _unknown_field(path: str, steps: Sequence[str | int], kind: type[BaseModel]) -> ApiError:
    name = str(steps[-1])
    unsupported: Mapping[str, str] = getattr(kind, "UNSUPPORTED", {})
    if len(steps) == 1 and name in unsupported:
        message = f"{path} is not supported ({unsupported[name]})"
        return ApiError(400, message, param=path, code="unsupported_field")
    shown_name = json.dumps(name) if not name.isidentifier() or len(name) > _MOST_SHOWN else name
    close = difflib.get_close_matches(name[:_MOST_SHOWN], kind.model_fields, n=1)
    hint = f" (did you mean {close[0]}?)" if close and len(steps) == 1 else ""
    message = f"unknown field: {shown_name[:200]}{hint}"
    param = path if len(path) <= 200 else None
    return ApiError(400, message, param=param, code="unknown_field")
