"""Which schemas are taken, and what is said of the others."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

import pytest

from pilotfish.errors import ConfigError, MissingExtra
from pilotfish.grammar import JsonGrammars, check_schema
from pilotfish.grammar.library import load_library
from pilotfish.grammar.schema import DEEPEST_SCHEMA, LARGEST_SCHEMA_BYTES, schema_text
from support.json_words import json_tokenizer


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        types.MappingProxyType({"type": "object"}),
        {"properties": {"maxlength": {"type": "string"}, "not": True}},
        {"const": {"not": 1}, "title": "t", "description": "d", "default": 2, "x-order": 3},
        {"$ref": "#/$defs/list", "$defs": {"list": {"items": {"$ref": "#/$defs/list"}}}},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "string", "pattern": r"^[^\x00-\x1f\]\a]+$"},
        {"type": "string", "pattern": r"^[[:alpha:]\x01]$"},
        {"type": "string", "pattern": r"^\\x01$"},
        {"type": "string", "format": "date"},
        {"type": "object", "required": ["a"], "minProperties": 1},
        nested(DEEPEST_SCHEMA),
    ],
)
def test_what_can_be_enforced_is_taken(schema: Any) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (False, "no reply"),
        ([], "must be an object or true, got list"),
        ({"const": {1, 2}}, "not JSON"),
        ({"const": float("nan")}, "NaN is no number"),
        ({"const": "\ud800"}, "cannot be used"),
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "object", "required": "a"}, "required must be a list"),
        ({"not": {}}, "not is not enforced"),
        ({"properties": {"a": {"maxlength": 3}}}, "/properties/a: maxlength is not enforced"),
        ({"anyOf": [{"if": {}, "then": {}}]}, "/anyOf/0: if is not enforced"),
        ({"items": {"uniqueItems": True}}, "/items: uniqueItems is not enforced"),
        ({"bad\nname": 1}, r"bad\\nname is not enforced"),
        ({"x-guidance": {"lenient": True}}, "x-guidance is not enforced"),
        ({"minProperties": 2}, "minProperties"),
        ({"type": "string", "format": "nonsense"}, "nonsense"),
        ({"type": "string", "format": "int32"}, "format int32 is enforced for whole numbers only"),
        ({"type": "string", "required": True}, "required must be a list"),
        ({"const": "a\x01"}, "control character"),
        ({"enum": ["\x7f"]}, "control character"),
        ({"pattern": r"a\x01b"}, "control character"),
        ({"pattern": r"[^\x01]\x1F"}, "control character"),
        ({"patternProperties": {r"^\\\u0001": {}}}, "control character"),
        ({"pattern": r"^\a$"}, "control character"),
        ({"pattern": "["}, "regex parse error: .*unclosed"),
        ({"pattern": "(?=a)"}, "look-around"),
        ({"$ref": "http://example.com/schema"}, "http://example.com/schema"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"minimum": 2, "maximum": 1, "type": "integer"}, "greater than maximum"),
        ({"enum": []}, "empty"),
        ({"const": "x" * LARGEST_SCHEMA_BYTES}, "too large"),
        (nested(DEEPEST_SCHEMA + 1), "nested deeper"),
        (nested(5 * sys.getrecursionlimit()), "nested deeper"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_line(schema: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        check_schema(schema)
    assert "json_schema" in str(refusal.value)
    assert "\n" not in str(refusal.value) + refusal.value.hint
    assert len(str(refusal.value)) < 400


def test_a_schema_in_a_circle_of_objects_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(ConfigError, match="not JSON"):
        check_schema(schema)


def test_a_misspelt_keyword_is_told_its_name() -> None:
    with pytest.raises(ConfigError) as refusal:
        check_schema({"type": "string", "maxlength": 3})
    assert refusal.value.hint == "did you mean maxLength?"


def object_of(schema: Any, **more: Any) -> dict[str, Any]:
    properties = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return {**properties, "additionalProperties": False, **more}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        # without end, and without a value after the name
        object_of({"$ref": "#"}),
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        # these pieces write no such letter
        {"type": "string", "pattern": "^[xyz]$"},
        object_of({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"$ref": "#/$defs/x"}}}),
    ],
)
def test_a_schema_that_only_its_first_tokens_show_to_be_empty_is_refused(schema: Any) -> None:
    check_schema(schema)
    with pytest.raises(ConfigError, match="no reply satisfies it"):
        JsonGrammars(json_tokenizer()).compiled(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "a" * 999},
        {"enum": ["red"]},
        {"type": "array", "items": {"$ref": "#"}},
        object_of({"anyOf": [{"$ref": "#"}, {"type": "integer"}]}),
    ],
)
def test_a_schema_of_one_text_or_that_may_end_is_none_of_them(schema: Any) -> None:
    assert JsonGrammars(json_tokenizer()).compiled(schema)


def test_the_order_of_names_makes_another_text() -> None:
    def schema(*names: str) -> Mapping[str, Any]:
        return {"properties": {name: {"type": "string"} for name in names}}

    assert schema_text(schema("a", "b")) == schema_text(schema("a", "b"))
    assert schema_text(schema("a", "b")) != schema_text(schema("b", "a"))


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_library.cache_clear()
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra) as refusal:
        check_schema({"type": "object"})
    assert refusal.value.hint.endswith("scripts/install grammar")


def test_a_tokenizer_without_end_tokens_is_refused() -> None:
    tokenizer = json_tokenizer()
    tokenizer.end_ids = frozenset()
    with pytest.raises(ConfigError, match="a token that ends replies"):
        JsonGrammars(tokenizer).compiled({"type": "object"}).constraint()
