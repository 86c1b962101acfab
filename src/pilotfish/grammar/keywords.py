"""The keywords of JSON Schema: which are enforced, which ask for nothing, which are refused.

The code that reads schemas, its errors and the reference page are made of these tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Keyword:
    """A keyword that is enforced.

    holds   how schemas are found in it: "one", "list", "named" or several of these
    counts  whether it is a whole number, 0 or more
    limit   where not all of it is
    """

    about: str
    holds: tuple[str, ...] = ()
    counts: bool = False
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A keyword that is not enforced, and so refused unless it asks for nothing.

    neutral  when it does, in words and as a test of its value and of the schema it is in
    instead  what to do in its place
    """

    instead: str
    neutral: str
    asks_nothing: Callable[[Any, Mapping[str, Any]], bool]


_BOUND = "to the last digit; within 64 bits"
_LITERAL = "numbers within 64 bits, of 15 digits or doubles"
ENFORCED: Mapping[str, Keyword] = {
    "type": Keyword("all"),
    "enum": Keyword("all", limit=_LITERAL),
    "const": Keyword("all", limit=_LITERAL),
    "anyOf": Keyword("all", ("list",)),
    "allOf": Keyword("all", ("list",)),
    "oneOf": Keyword("all", ("list",), limit="if no two can hold at once"),
    "$ref": Keyword("all", limit="within the schema"),
    "$defs": Keyword("all", ("named",)),
    "definitions": Keyword("all", ("named",)),
    "properties": Keyword("objects", ("named",)),
    "required": Keyword("objects"),
    "additionalProperties": Keyword("objects", ("one",)),
    "patternProperties": Keyword("objects", ("named",), limit="if no two patterns fit one name"),
    "propertyNames": Keyword(
        "objects", limit="`enum`, `const` or `pattern`, without properties beside it"
    ),
    "minProperties": Keyword("objects", counts=True, limit="no more than `required` names"),
    "maxProperties": Keyword(
        "objects", counts=True, limit="if all of `properties` are in `required`"
    ),
    "items": Keyword("lists", ("one", "list")),
    "prefixItems": Keyword("lists", ("list",)),
    "additionalItems": Keyword("lists", ("one",)),
    "minItems": Keyword("lists", counts=True),
    "maxItems": Keyword("lists", counts=True),
    "minLength": Keyword("texts", counts=True),
    "maxLength": Keyword("texts", counts=True),
    "pattern": Keyword("texts", limit="without look-around and backreferences"),
    "format": Keyword("texts and numbers", limit="those below"),
    "minimum": Keyword("numbers", limit=_BOUND),
    "maximum": Keyword("numbers", limit=_BOUND),
    "exclusiveMinimum": Keyword("numbers", limit=_BOUND),
    "exclusiveMaximum": Keyword("numbers", limit=_BOUND),
    "multipleOf": Keyword("numbers", limit="few digits"),
}
# the compiler reads these, too: they say what a `$ref` means
NAMING = ("$id", "$schema", "$anchor", "id")
REMARKS = (
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
    *("writeOnly", "$comment", "$vocabulary", "$dynamicAnchor", "$recursiveAnchor"),
    *("contentEncoding", "contentMediaType", "contentSchema", "discriminator", "enumNames"),
    *("enumDescriptions", "externalDocs", "markdownDescription", "propertyOrdering", "xml"),
)


def _is(*values: Any) -> Callable[[Any, Mapping[str, Any]], bool]:
    # true and 1 are different values in JSON
    texts = [json.dumps(value) for value in values]
    return lambda value, schema: json.dumps(value) in texts


def _lacks(*names: str) -> Callable[[Any, Mapping[str, Any]], bool]:
    return lambda value, schema: not any(name in schema for name in names)


_CASES = "write `anyOf` of the cases"
REFUSED: Mapping[str, Refused] = {
    "not": Refused("say what it may be with `enum`, `pattern` or `anyOf`", "`false`", _is(False)),
    "if": Refused(_CASES, "without `then` and `else`", _lacks("then", "else")),
    "then": Refused(_CASES, "without `if`", _lacks("if")),
    "else": Refused(_CASES, "without `if`", _lacks("if")),
    "dependentRequired": Refused(_CASES, "`{}`", _is({})),
    "dependentSchemas": Refused(_CASES, "`{}`", _is({})),
    "dependencies": Refused(_CASES, "`{}`", _is({})),
    "uniqueItems": Refused("ask for it in the prompt", "`false`", _is(False)),
    "contains": Refused(
        "use `prefixItems` or `items`",
        "with `minContains` 0 and no `maxContains`",
        lambda value, schema: _is(0)(schema.get("minContains"), {}) and "maxContains" not in schema,
    ),
    "minContains": Refused(
        "use `minItems`",
        "0, or without `contains`",
        lambda value, schema: value == 0 or "contains" not in schema,
    ),
    "maxContains": Refused("use `maxItems`", "without `contains`", _lacks("contains")),
    "unevaluatedItems": Refused("use `items` or `additionalItems`", "`true`, `{}`", _is(True, {})),
    "unevaluatedProperties": Refused("use `additionalProperties`", "`true`, `{}`", _is(True, {})),
    "nullable": Refused('write `"type": [..., "null"]`', "`false`", _is(False)),
    "$dynamicRef": Refused("use `$ref`", "never", lambda value, schema: False),
    "$recursiveRef": Refused("use `$ref`", "never", lambda value, schema: False),
}


def asks_nothing(keyword: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a keyword of a schema says nothing about replies."""
    if value is None and keyword not in ("const", "enum"):
        return True
    if keyword in REMARKS or (keyword.startswith("x-") and keyword != "x-guidance"):
        return True
    return keyword in REFUSED and REFUSED[keyword].asks_nothing(value, schema)
