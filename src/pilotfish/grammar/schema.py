"""Reads JSON schemas: what cannot be enforced is refused by name, what is exact only otherwise
written is written so, and what asks for nothing is left out."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from pilotfish.errors import ConfigError
from pilotfish.grammar.formats import with_format
from pilotfish.grammar.keywords import ENFORCED, NAMING, REFUSED, asks_nothing
from pilotfish.grammar.numbers import (
    check_multiple,
    check_multiples_together,
    has_whole_numbers,
    has_wide_number,
    with_counts,
    with_exact_bounds,
)
from pilotfish.grammar.property_names import with_property_names

Schema: TypeAlias = Mapping[str, Any] | bool

LARGEST_SCHEMA_BYTES = 256 * 1024
DEEPEST_SCHEMA = 64
_CONTROL_CHARACTER = re.compile(r"\x7f|(?<!\\)(?:\\\\)*\\u00(?:[01]|7f)")
# a pattern, piece by piece: ways to write such a character, other escapes, brackets, all the rest
_PIECE = re.compile(
    r"(?P<control>\\(?:(?:u00|x)(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|[av]))|\\.|(?P<bracket>[][])|.",
    re.DOTALL,
)


def schema_text(schema: Schema) -> str:
    """Return a schema as the compiler is to have it, in JSON: the same for schemas that ask for the
    same in the same order.

    Raises ConfigError for what is no JSON, too large or too deep, and for what would not be
    enforced.
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
    result = _enforceable(read, read)
    try:
        check_multiples_together(result)
    except ConfigError as error:
        raise ConfigError(f"json_schema: {error}", hint=error.hint) from error
    return json.dumps(result, separators=(",", ":"))


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _enforceable(schema: Any, root: Any, *, where: str = "", depth: int = 0) -> Any:
    """Return a schema, and all below it, as the compiler enforces it; `root` is what references
    are in. Raises ConfigError with the place of what cannot be."""
    if depth > DEEPEST_SCHEMA:
        raise _too_deep()
    if not isinstance(schema, dict):
        return schema  # true, false, or what the compiler refuses
    try:
        result = _here(schema, root)
    except ConfigError as error:
        raise ConfigError(f"json_schema{where}: {error}", hint=error.hint) from error

    def below(step: str, part: Any) -> Any:
        return _enforceable(part, root, where=f"{where}/{_shown(step)}", depth=depth + 1)

    for keyword, value in result.items():
        holds = ENFORCED[keyword].holds if keyword in ENFORCED else ()
        if "named" in holds and isinstance(value, dict):
            result[keyword] = {name: below(f"{keyword}/{name}", value[name]) for name in value}
        elif "list" in holds and isinstance(value, list):
            result[keyword] = [below(f"{keyword}/{i}", part) for i, part in enumerate(value)]
        elif "one" in holds:
            result[keyword] = below(keyword, value)
    return result


def _here(schema: Mapping[str, Any], root: Any) -> dict[str, Any]:
    """Return a schema, without what is below it, as the compiler enforces it."""
    result = {name: schema[name] for name in schema if not asks_nothing(name, schema[name], schema)}
    for keyword in result:
        if keyword not in ENFORCED and keyword not in NAMING:
            raise _not_enforced(keyword)
    _check_values(result)
    result = with_counts(with_format(with_property_names(result, root)))
    return with_exact_bounds(result, is_whole=has_whole_numbers(result))


def _check_values(schema: Mapping[str, Any]) -> None:
    """Raise ConfigError for a keyword whose value cannot be enforced."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    if not isinstance(required, list):
        raise ConfigError("required must be a list of names")
    # a name that comes twice would count twice
    if isinstance(least, int | float) and least > len(required):
        raise ConfigError("minProperties is not enforced", hint="name the properties in required")
    if any(map(_asks_for_a_control_character, _patterns(schema))):
        raise ConfigError("a pattern asks for a control character")
    if "multipleOf" in schema:
        check_multiple(schema["multipleOf"])
    for keyword in ("const", "enum"):
        if has_wide_number(schema.get(keyword)):
            raise ConfigError(
                f"{keyword} has a number of too many digits", hint="ask for it as text"
            )


def _patterns(schema: Mapping[str, Any]) -> list[str]:
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


def _not_enforced(keyword: str) -> ConfigError:
    if keyword in REFUSED:
        hint = f"{REFUSED[keyword].instead}; it may be left in where it asks for nothing"
    else:
        # only what is nearly the same is a slip of the pen
        close = difflib.get_close_matches(keyword[:60], ENFORCED, n=1, cutoff=0.8)
        hint = f"did you mean {close[0]}?" if close else "leave it out, or say it in the prompt"
    return ConfigError(f"{_shown(keyword)} is not enforced", hint=hint)


def _shown(name: str) -> str:
    """Return a user's name fit for a message of one line."""
    return json.dumps(name)[1:-1][:60]


def _too_deep() -> ConfigError:
    return ConfigError(f"json_schema is nested deeper than {DEEPEST_SCHEMA} levels")
