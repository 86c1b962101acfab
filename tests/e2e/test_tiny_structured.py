"""JSON by a schema from tiny GGUF pairs: every drafter and both rules, on both backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pilotfish import TextEngine, load_engine
from pilotfish.config import DRAFTERS, EngineConfig, ModelConfig, SpeculationConfig

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}


def engine_of(tiny_pair: Any, backend: str, **speculation: Any) -> TextEngine:
    def one(path: Path) -> ModelConfig:
        return ModelConfig(reference=str(path), backend=backend, threads=1, context_size=256)

    settings = SpeculationConfig(
        **{"controller": "fixed", "num_speculative_tokens": 5, **speculation}
    )
    return load_engine(
        EngineConfig(target=one(tiny_pair.target), draft=one(tiny_pair.draft), speculation=settings)
    )


def replies(engine: TextEngine) -> list[Any]:
    return [
        engine.generate("Go:", raw=True, json_schema=SCHEMA, temperature=temperature, seed=seed)
        for temperature in (0.0, 1.0)
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("backend", "drafter"), [*(("native", drafter) for drafter in DRAFTERS), ("llama", "auto")]
)
def test_every_drafter_gives_the_valid_reply_of_plain_decoding(
    tiny_pair: Any, backend: str, drafter: str
) -> None:
    with engine_of(tiny_pair, backend, drafter="none") as engine:
        plain = replies(engine)
    with engine_of(tiny_pair, backend, drafter=drafter) as engine:
        drafted = replies(engine)
    for reply, expected in zip(drafted, plain, strict=True):
        assert json.loads(reply.text)["answer"] in ("yes", "no")
        assert reply.token_ids == expected.token_ids
        assert bool(reply.stats.by_drafter) == (drafter != "none")


def test_the_token_rule_keeps_to_the_schema_too(tiny_pair: Any) -> None:
    with engine_of(tiny_pair, "native", verify="token") as engine:
        for reply in replies(engine):
            assert json.loads(reply.text).keys() == {"answer", "sure"}
            assert reply.stats.by_drafter["forced"].accepted > 0
