"""Keywords that ask for nothing are left out, those that are written otherwise are, and the rest is
refused with a hint that helps."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.errors import ConfigError
from pilotfish.grammar import check_schema
from pilotfish.grammar.formats import INTEGER_FORMATS, TEXT_FORMATS
from pilotfish.grammar.keywords import ENFORCED, NAMING, REFUSED, REMARKS
from pilotfish.grammar.schema import schema_text
from support.schemas import is_accepted

TEXT = {"type": "string"}


def refusal(schema: Any) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        check_schema(schema)
    return refused.value


@pytest.mark.parametrize(
    "schema",
    [
        *({"uniqueItems": False}, {"not": False}, {"nullable": False}, {"if": {}}, {"then": {}}),
        *({"else": False}, {"dependentRequired": {}}, {"dependentSchemas": {}}),
        *({"dependencies": {}}, {"unevaluatedItems": True}, {"unevaluatedProperties": {}}),
        *({"contains": {}, "minContains": 0}, {"minContains": 3}, {"maxContains": 3}),
        *({"propertyNames": {}}, {"propertyNames": True}, {"propertyNames": TEXT}),
        *({"format": "password"}, {"format": "double"}, {"minLength": None}, {"not": None}),
        *({"$dynamicRef": None}, {"properties": None}, {"x-order": 3}, {"required": None}),
        *({name: {"anything": 1}} for name in REMARKS),
    ],
    ids=str,
)
def test_what_asks_for_nothing_is_left_out(schema: dict[str, Any]) -> None:
    assert schema_text(schema) == "{}"
    check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        *({"uniqueItems": True}, {"not": {}}, {"nullable": True}, {"if": {}, "then": {}}),
        *({"then": {}, "if": True}, {"else": {}, "if": {}}, {"dependentRequired": {"a": ["b"]}}),
        *({"dependentSchemas": {"a": {}}}, {"dependencies": {"a": []}}),
        *({"unevaluatedItems": False}, {"unevaluatedProperties": {"type": "null"}}),
        *({"contains": {}}, {"contains": {}, "minContains": 0, "maxContains": 1}),
        *({"contains": {}, "minContains": 0.5}, {"$dynamicRef": "#"}, {"$recursiveRef": "#"}),
    ],
    ids=str,
)
def test_what_asks_for_something_else_is_refused_and_told_what_to_do(
    schema: dict[str, Any],
) -> None:
    error = refusal({"items": schema})
    keyword = next(name for name in schema if f"/items: {name} is not enforced" in str(error))
    assert error.hint == (
        f"{REFUSED[keyword].instead}; it may be left in where it asks for nothing"
    )


def test_each_refused_keyword_is_in_these_tests_and_no_keyword_is_in_two_tables() -> None:
    tables = [ENFORCED, NAMING, REMARKS, REFUSED]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))


def test_a_hint_is_given_only_where_a_name_is_nearly_right() -> None:
    assert refusal({"maxlength": 3}).hint == "did you mean maxLength?"
    assert refusal({"propertyOrder": 3}).hint == "leave it out, or say it in the prompt"
    assert refusal({"x" * 100_000: 3}).hint == "leave it out, or say it in the prompt"


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        ({"pattern": "^[ab]"}, '{"bc":1}', '{"c":1}'),
        ({"enum": ["a", "b", 3]}, '{"b":1}', '{"c":1}'),
        ({"type": "string", "const": "a", "title": "t"}, '{"a":1}', '{"b":1}'),
        ({"$ref": "#/$defs/name"}, '{"a":1}', '{"b":1}'),
    ],
)
def test_names_are_held_to_their_schema(names: dict[str, Any], good: str, bad: str) -> None:
    schema = {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": {"type": "integer"},
        "$defs": {"name": {"enum": ["a"]}},
    }
    assert is_accepted(schema, good)
    assert is_accepted(schema, "{}")
    assert not is_accepted(schema, bad)
    assert not is_accepted(schema, good.replace("1", "true"))


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": "a"}, "properties": {"b": {}}},
        {"propertyNames": {"pattern": "a", "maxLength": 3}},
        {"propertyNames": {"not": {}}},
        {"propertyNames": False},
        {"propertyNames": {"$ref": "#/nowhere"}},
    ],
)
def test_names_that_cannot_be_held_are_refused(schema: dict[str, Any]) -> None:
    assert "propertyNames is" in str(refusal(schema))
    assert "patternProperties" in refusal(schema).hint


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29"], ["2023-02-29", "1900-02-29", "2024-04-31"]),
        ("time", ["23:59:59.5Z", "00:00:00+01:00"], ["23:59:60Z", "24:00:00Z", "10:00:00"]),
        ("date-time", ["2024-02-29T10:00:00Z"], ["2023-02-29T10:00:00Z", "2024-02-29 10:00:00Z"]),
        ("email", ["a.b@example.org"], [".a@b.c", "a@b@c", "a" * 65 + "@b.c", "a@" + "b" * 64]),
        ("hostname", ["a-b.example"], ["-a", "a..b", "a--b", "b" * 64, "a." * 127 + "a"]),
        ("ipv4", ["127.0.0.1"], ["256.0.0.1", "127.0.0.01"]),
    ],
)
def test_formats_are_held_in_their_value_not_only_their_looks(
    name: str, good: list[str], bad: list[str]
) -> None:
    schema = {"type": ["string", "null"], "format": name}
    assert all(is_accepted(schema, f'"{text}"') for text in good)
    assert not any(is_accepted(schema, f'"{text}"') for text in bad)
    assert is_accepted(schema, "null")
    assert not is_accepted({**schema, "pattern": "^x"}, f'"{good[0]}"')


def test_a_format_beside_a_pattern_and_other_parts_holds_with_them() -> None:
    schema = {**TEXT, "format": "date", "pattern": "^2", "allOf": [{"pattern": "9$"}]}
    assert is_accepted(schema, '"2024-02-29"')
    for text in ("2023-02-29", "1924-02-29", "2024-02-28"):
        assert not is_accepted(schema, f'"{text}"')


def test_a_format_that_is_not_enforced_is_told_those_that_are() -> None:
    error = refusal({**TEXT, "format": "base64"})
    assert str(error) == 'json_schema: format "base64" is not enforced'
    assert all(name in error.hint for name in (*TEXT_FORMATS, *INTEGER_FORMATS))
    assert "whole numbers only" in str(refusal({"type": "number", "format": "int32"}))
    assert "texts only" in str(refusal({"type": "integer", "format": "date"}))
