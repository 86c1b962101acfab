"""Says in one line, and in our words, why a request does not have the shape it should have."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from pilotfish.server.errors import ApiError

_MOST_SHOWN = 60
# kinds of failure in the words of pydantic -> in ours; in braces what it knows of them
_WORDS = {
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have {max_length} entries at most",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "none_required": "must be null",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "must be a token id, as text",
    "union_tag_invalid": "must have one of these as {discriminator}: {expected_tags}",
    "union_tag_not_found": "must have a field {discriminator}",
}


class UnknownField(ValueError):
    """A field nobody knows: `unsupported` says what to do in place of some of them."""

    def __init__(self, name: str, *, known: Iterable[str], unsupported: Mapping[str, str]) -> None:
        super().__init__(name)
        self.name = name
        self.known = known
        self.unsupported = unsupported


def described(error: ValidationError, value: Any, kind: type[BaseModel]) -> ApiError:
    """Return the first failure, that of the deepest field among those of a choice of types."""
    details = error.errors(include_url=False)
    located = [(resolved(one["loc"], value, one["type"] == "missing"), one) for one in details]
    same = [(steps, one) for steps, one in located if steps[:1] == located[0][0][:1]]
    steps, deepest = max(same, key=lambda pair: len(pair[0]))
    context = deepest.get("ctx", {})
    path = ""
    for step in steps:
        path = joined(path, step)
    own = context.get("error")
    if isinstance(own, UnknownField):
        return _unknown_field(path, own)
    if deepest["type"] == "missing":
        return ApiError(400, f"{path} is missing", param=path, code="missing_field")
    field = kind.model_fields.get(str(steps[0])) if steps else None
    if field is not None and field.description:  # of several types: all are named
        message = f"{steps[0]} must be {field.description}{shown(value.get(steps[0]))}"
        return ApiError(400, message, param=str(steps[0]), code="invalid_value")
    words = _WORDS.get(deepest["type"])
    text = words.format(**context) if words else _lowered(str(own or deepest["msg"]))
    message = f"{path[:200]} {text}{shown(deepest['input'])}"
    return ApiError(400, message, param=path[:200], code="invalid_value")


def joined(path: str, step: str | int) -> str:
    """Return the path of a value one step further in, as in `messages[0].content`."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


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


def shown(value: Any) -> str:
    """Return ", got ..." for values that can be shown in a line."""
    if not isinstance(value, str | int | float | bool | None):
        return ""
    try:
        text = json.dumps(value[: 2 * _MOST_SHOWN] if isinstance(value, str) else value)
    except ValueError:  # a whole number of thousands of digits
        return ""
    return f", got {text}" if len(text) <= _MOST_SHOWN else f", got {text[:_MOST_SHOWN]}..."


def _lowered(message: str) -> str:
    message = message.replace("Input should", "must", 1)
    return message[:1].lower() + message[1:]


def _unknown_field(path: str, field: UnknownField) -> ApiError:
    name = field.name
    where = joined(path, name if name.isidentifier() else json.dumps(name))[:200]
    if name in field.unsupported:
        message = f"{where} is not supported ({field.unsupported[name]})"
        return ApiError(400, message, param=where, code="unsupported_field")
    close = difflib.get_close_matches(name[:_MOST_SHOWN], field.known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return ApiError(400, f"unknown field: {where}{hint}", param=where, code="unknown_field")
