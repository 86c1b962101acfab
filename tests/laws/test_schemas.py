"""Whatever a schema asks for, every reply has it, or the schema is refused: against a validator."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from pilotfish.errors import ConfigError
from pilotfish.grammar.formats import INTEGER_FORMATS, TEXT_FORMATS
from pilotfish.grammar.keywords import ENFORCED
from support.schemas import SchemaMaker, random_reply

REPLIES = 6
SCHEMAS_IN_ALL = 240
# where other schemas are kept, and older names
NOT_MADE = {"$ref", "$defs", "definitions", "additionalItems"}


def keywords_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for name, value in schema.items():
            yield name
            yield from keywords_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keywords_in(value)


def has_infinity(value: Any) -> bool:
    """Return whether a number was written that no double holds, which JSON allows."""
    if isinstance(value, dict | list):
        return any(map(has_infinity, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and math.isinf(value)


@pytest.mark.parametrize("part", range(4))
def test_every_reply_satisfies_its_schema(part: int) -> None:
    num_ended, used = 0, set()
    for seed in range(part, SCHEMAS_IN_ALL, 4):
        schema = SchemaMaker(seed).schema()
        validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
        generator = np.random.default_rng(seed)
        for _ in range(REPLIES):
            try:
                text = random_reply(schema, generator)
            except ConfigError:
                break
            if text is None or has_infinity(value := json.loads(text)):
                continue
            assert validator.is_valid(value), (seed, schema, text)
            num_ended += 1
            used.update(keywords_in(schema))
    assert num_ended > 120
    # no keyword is refused wherever it stands
    assert part or ENFORCED.keys() - NOT_MADE - used == set()


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_every_text_of_a_format_has_it(name: str) -> None:
    schema = {"type": "string", "format": name}
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    generator = np.random.default_rng(1)
    texts = [random_reply(schema, generator) for _ in range(25)]
    ended = [text for text in texts if text is not None]
    assert len(ended) > 10
    for text in ended:
        assert validator.is_valid(json.loads(text)), text


@pytest.mark.parametrize("name", INTEGER_FORMATS)
def test_every_number_of_a_format_has_room_in_it(name: str) -> None:
    smallest, largest = INTEGER_FORMATS[name]
    generator = np.random.default_rng(2)
    for _ in range(20):
        text = random_reply({"type": ["integer", "null"], "format": name}, generator)
        assert text is not None
        assert text == "null" or smallest <= int(text) <= largest
