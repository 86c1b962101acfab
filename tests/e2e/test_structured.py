"""JSON by schemas from the real pair: valid, plain decoding's own, partly drafted for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

import pilotfish
from pilotfish.generation import TextEngine
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET

pytestmark = pytest.mark.models

TEXT = {"type": "string", "maxLength": 20}
SCHEMAS: list[tuple[str, dict[str, Any]]] = [
    (
        "Is this friendly? I like your boat.",
        {
            "type": "object",
            "properties": {"tone": {"enum": ["friendly", "angry"]}, "sure": {"type": "boolean"}},
            "required": ["tone", "sure"],
            "additionalProperties": False,
        },
    ),
    (
        "Invent a sailor.",
        {
            "type": "object",
            "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    ),
    (
        "Name two fish and how long they are in centimetres.",
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"fish": TEXT, "length": {"type": "integer", "maximum": 999}},
                "required": ["fish", "length"],
                "additionalProperties": False,
            },
            "minItems": 2,
            "maxItems": 2,
        },
    ),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[TextEngine]:
    with pilotfish.load(DEFAULT_TARGET, draft=DEFAULT_DRAFT, context_size=256) as loaded:
        yield loaded


@pytest.mark.parametrize(("prompt", "schema"), SCHEMAS)
def test_replies_satisfy_their_schema_and_are_those_of_plain_decoding(
    engine: TextEngine, prompt: str, schema: dict[str, Any]
) -> None:
    for temperature, seed in ((0.0, 0), (1.0, 1)):
        options: dict[str, Any] = {
            "json_schema": schema,
            "temperature": temperature,
            "seed": seed,
            "max_tokens": 60,
        }
        reply = engine.generate(prompt, **options)
        plain = engine.generate(prompt, drafter="none", **options)
        assert reply.finish_reason == "stop"
        assert jsonschema_rs.is_valid(schema, json.loads(reply.text))
        assert reply.token_ids == plain.token_ids
        assert reply.stats.by_drafter["forced"].accepted > 0
