"""JSON in tags: fixed texts around values, one or several, or else another value."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.errors import ConfigError
from pilotfish.grammar import JsonGrammars, check_schema
from pilotfish.types import StructuralTag, StructuralTags
from support.text_engines import END, tokenizer

WORDS = tokenizer(b"<<a:", b":>")
GRAMMARS = JsonGrammars(WORDS)
NUMBER = StructuralTag("<<a:", {"type": "integer"}, ":>>")
WORD = StructuralTag('<<"\\b\n', {"$ref": "#/$defs/w", "$defs": {"w": {"enum": ["x", "y"]}}}, "»")
ONE = StructuralTags((NUMBER, WORD))
SOME = StructuralTags((NUMBER, WORD), separator="\n")
OTHERWISE = StructuralTags((NUMBER,), separator=",", otherwise={"type": "boolean"})


def is_whole(tags: StructuralTags, text: str) -> bool:
    """Return whether a reply may be the text, and end there."""
    ids = [*WORDS.encode(text, parse_special=False), END]
    return GRAMMARS.compiled(tags).constraint().num_legal([], ids) == len(ids)


WHOLE: list[tuple[StructuralTags, str, bool]] = [
    (ONE, "<<a:5:>>", True),
    (ONE, '<<"\\b\n"y"»', True),
    (ONE, "<<a:5:>>\n<<a:6:>>", False),
    (ONE, "<<a:5", False),
    (ONE, '<<a:"x":>>', False),
    (ONE, "5", False),
    (ONE, "", False),
    (SOME, '<<a:5:>>\n<<"\\b\n"x"»\n<<a:-1:>>', True),
    (SOME, "<<a:5:>>\n", False),
    (SOME, "<<a:5:>><<a:6:>>", False),
    (OTHERWISE, "<<a:5:>>,<<a:6:>>", True),
    (OTHERWISE, "true", True),
    (OTHERWISE, "true,<<a:6:>>", False),
    (OTHERWISE, "<<a:true:>>", False),
]


@pytest.mark.parametrize(("tags", "text", "expected"), WHOLE)
def test_a_reply_is_values_in_tags_or_the_other_value(
    tags: StructuralTags, text: str, expected: bool
) -> None:
    assert is_whole(tags, text) == expected


def forced_text(tags: StructuralTags, before: str) -> bytes:
    constraint = GRAMMARS.compiled(tags).constraint()
    forced = constraint.forced(WORDS.encode(before, parse_special=False))
    return b"".join(WORDS.token_bytes(token) for token in forced)


def test_fixed_text_is_forced_up_to_where_tags_differ() -> None:
    assert forced_text(ONE, "<") == b"<"
    assert forced_text(ONE, "<<a") == b":"
    assert forced_text(ONE, "<<a:5:") == b">>"
    assert forced_text(SOME, "<<a:5:>>\n<") == b"<"
    assert forced_text(OTHERWISE, "") == b""
    assert forced_text(OTHERWISE, "<") == b"<a:"


def test_values_in_tags_have_the_blanks_that_templates_write() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}}
    schema = {"type": "object", "properties": {"a": numbers}, "required": ["a"]}
    tags = StructuralTags((StructuralTag("<", schema, ">"),), otherwise=schema)
    assert is_whole(tags, '<{"a": [1, 2]}>')
    assert not is_whole(tags, '<{"a":[1,2]}>')
    assert is_whole(tags, '{"a":[1,2]}')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {}}, "not is not enforced"),
        ({"type": "nothing"}, "cannot be used"),
        ({"$ref": "#"}, "no reply satisfies it"),
        (False, "false allows no reply"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_in_a_tag_as_elsewhere(
    schema: Any, reason: str
) -> None:
    in_tag = StructuralTags((NUMBER, StructuralTag("<<b:", schema, ">>")))
    beside = StructuralTags((NUMBER,), otherwise=schema)
    for tags in (in_tag, beside):
        with pytest.raises(ConfigError, match=reason):
            GRAMMARS.compiled(tags)


def test_tags_are_checked_without_a_tokenizer_and_compiled_once() -> None:
    check_schema(OTHERWISE)
    with pytest.raises(ConfigError):
        check_schema(StructuralTags((StructuralTag("<", {"not": {}}, ">"),)))
    equal = StructuralTags((NUMBER, WORD), separator="\n")
    assert GRAMMARS.compiled(equal) is GRAMMARS.compiled(SOME)
    assert GRAMMARS.compiled(ONE) is not GRAMMARS.compiled(SOME)
