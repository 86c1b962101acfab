"""Which JSON schemas are understood, and the one text of each: nothing is silently left out."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pilotfish.errors import ConfigError

Schema: TypeAlias = Mapping[str, Any] | bool

LARGEST_SCHEMA_BYTES = 256 * 1024
DEEPEST_SCHEMA = 64

# keywords by where schemas are found in them
_ONE = ("additionalProperties", "additionalItems", "items")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_PLAIN = (
    *("type", "enum", "const", "$ref", "required", "minProperties", "maxProperties"),
    *("minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)
# these ask for nothing
_REMARKS = (
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
    *("writeOnly", "$comment", "$schema", "$id", "id", "$anchor", "contentEncoding"),
    *("contentMediaType", "contentSchema", "discriminator"),
)
_ENFORCED = frozenset({*_ONE, *_LISTS, *_NAMED, *_PLAIN})
_KNOWN = _ENFORCED | frozenset(_REMARKS)
_CONTROL_CHARACTER = re.compile(r"\x7f|(?<!\\)(?:\\\\)*\\u00(?:[01]|7f)")
# a pattern, piece by piece: ways to write such a character, other escapes, brackets, all the rest
_PIECE = re.compile(
    r"(?P<control>\\(?:(?:u00|x)(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|[av]))|\\.|(?P<bracket>[][])|.",
    re.DOTALL,
)


def schema_text(schema: Schema) -> str:
    """Return a schema as JSON text, equal for equal schemas with their names in equal order.

    Raises ConfigError for what is no JSON, too large or too deep, and for keywords that would not
    be enforced.
    """
    if not isinstance(schema, Mapping | bool):
        raise ConfigError(f"json_schema must be an object or true, got {type(schema).__name__}")
    if schema is False:
        raise ConfigError("json_schema cannot be used: false allows no reply")
    try:
        text = json.dumps({} if schema is True else dict(schema), separators=(",", ":"))
        # what only Python's reader takes, such as NaN, is refused
        read = json.loads(text, parse_constant=_no_number)
    except RecursionError as error:
        raise _too_deep() from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"json_schema is not JSON: {error}") from error
    if len(text) > LARGEST_SCHEMA_BYTES:
        raise ConfigError(
            f"json_schema is too large: {len(text):,} bytes, at most {LARGEST_SCHEMA_BYTES:,}"
        )
    if _CONTROL_CHARACTER.search(text):
        raise ConfigError("json_schema has a control character, which replies never have")
    _check(read, where="")
    return text


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _check(schema: Any, *, where: str, depth: int = 0) -> None:
    """Raise ConfigError for a keyword, here or below, that would not be enforced."""
    if depth > DEEPEST_SCHEMA:
        raise _too_deep()
    if not isinstance(schema, dict):
        return  # true, false, or what the compiler refuses
    for keyword in schema:
        if keyword not in _KNOWN and (not keyword.startswith("x-") or keyword == "x-guidance"):
            raise _not_enforced(keyword, where)
    if _promises_too_much(schema):
        hint = "name the properties in required"
        raise ConfigError(f"json_schema{where}: minProperties is not enforced", hint=hint)
    if "format" in schema and "string" not in _types(schema):
        raise ConfigError(f"json_schema{where}: format is enforced for strings only")
    if not isinstance(schema.get("required", []), list):
        raise ConfigError(f"json_schema{where}: required must be a list of names")
    for pattern in _patterns(schema):
        if _asks_for_a_control_character(pattern):
            raise ConfigError(f"json_schema{where}: a pattern asks for a control character")
    for path, below in _schemas_in(schema):
        _check(below, where=f"{where}/{_shown(path)}", depth=depth + 1)


def _promises_too_much(schema: dict[str, Any]) -> bool:
    # a name that comes twice would count twice
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    return isinstance(least, int) and isinstance(required, list) and least > len(required)


def _types(schema: dict[str, Any]) -> list[Any]:
    types = schema.get("type", "string")
    return types if isinstance(types, list) else [types]


def _patterns(schema: dict[str, Any]) -> list[str]:
    named = schema.get("patternProperties", {})
    patterns = [schema.get("pattern"), *(named if isinstance(named, dict) else ())]
    return [pattern for pattern in patterns if isinstance(pattern, str)]


def _asks_for_a_control_character(pattern: str) -> bool:
    """Return whether a pattern has one outside its classes: those a class has too many do no
    harm."""
    depth = 0  # classes may have classes in them
    for piece in _PIECE.finditer(pattern):
        if piece["control"] and depth == 0:
            return True
        if piece["bracket"]:
            depth = depth + 1 if piece["bracket"] == "[" else max(0, depth - 1)
    return False


def _schemas_in(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (place, schema) for each schema that is a part of this one."""
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            yield from ((f"{keyword}/{name}", below) for name, below in value.items())
        elif keyword in _LISTS and isinstance(value, list):
            yield from ((f"{keyword}/{index}", below) for index, below in enumerate(value))
        elif keyword in _ONE:
            yield keyword, value


def _not_enforced(keyword: str, where: str) -> ConfigError:
    close = difflib.get_close_matches(keyword, _ENFORCED, n=1)
    hint = f"did you mean {close[0]}?" if close else "leave it out, or say it in the prompt"
    return ConfigError(f"json_schema{where}: {_shown(keyword)} is not enforced", hint=hint)


def _shown(name: str) -> str:
    """Return a user's name fit for a message of one line."""
    return json.dumps(name)[1:-1][:60]


def _too_deep() -> ConfigError:
    return ConfigError(f"json_schema is nested deeper than {DEEPEST_SCHEMA} levels")
