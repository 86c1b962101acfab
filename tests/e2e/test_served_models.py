"""Requests served together on models from files: the same bits as alone, on the native backend.

Log-probabilities are functions of whole rows: where they are the same, the rows are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pilotfish import TextEngine, load_engine
from pilotfish.config import EngineConfig, ModelConfig, Request, SpeculationConfig
from pilotfish.generation import Reply
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET
from pilotfish.server.service import Service, ServiceLimits
from support.tiny_gguf import write_tiny


def served(engine: TextEngine, asked: Sequence[tuple[list[int], Request]]) -> list[Reply]:
    """Return the replies to requests that are served together."""

    async def ask() -> list[Reply]:
        service = Service(engine, ServiceLimits(max_running=8))
        service.start()
        try:
            generations = [service.submit(prompt, [request])[0] for prompt, request in asked]
            return await asyncio.gather(*(generation.wait() for generation in generations))
        finally:
            await service.drain(60)

    return asyncio.run(ask())


def bits(reply: Reply) -> list[Any]:
    """Return the tokens with their log-probabilities, every digit of them."""
    return [(token.token_id, token.logprobs) for token in reply.tokens]


def tiny(folder: Path, **options: Any) -> TextEngine:
    def side(seed: int) -> ModelConfig:
        path = folder / f"{seed}.gguf"
        if not path.exists():
            write_tiny(path, seed=seed, quantised=True, context=512)
        return ModelConfig(reference=str(path), backend="native", threads=1)

    return load_engine(
        EngineConfig(
            target=side(1),
            draft=side(2),
            speculation=SpeculationConfig(controller="fixed", num_speculative_tokens=3),
            max_sessions=8,
            **options,
        )
    )


def requests_on(prompts: Sequence[list[int]], max_tokens: int) -> list[tuple[list[int], Request]]:
    """Return a request for each prompt, of settings that differ."""
    settings = [
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.5},
        {"temperature": 0.7, "presence_penalty": 0.5, "min_p": 0.02},
    ]
    return [
        (
            prompt,
            Request.from_options(
                {"max_tokens": max_tokens + 3 * i, "seed": i, "logprobs": 3} | settings[i % 4]
            ),
        )
        for i, prompt in enumerate(prompts)
    ]


def test_a_reply_has_the_same_bits_alone_among_others_and_after_a_kept_beginning(
    tmp_path: Path,
) -> None:
    common = [(7 * i * i + 3) % 256 for i in range(150)]
    prompts = [[*common, *range(i, i + 1 + 9 * i)] for i in range(6)] + [[17], common[:100]]
    asked = requests_on(prompts, 12)
    with tiny(tmp_path) as engine:
        alone = [served(engine, [each])[0] for each in asked]
        assert all(reply.usage.cached_tokens == 0 for reply in alone)
        together = served(engine, asked)
    with tiny(tmp_path, kept_sequences=4) as engine:
        sharing = served(engine, asked)
        again = [served(engine, [each])[0] for each in reversed(asked)][::-1]
    for replies in (together, sharing, again):
        assert [bits(reply) for reply in replies] == [bits(reply) for reply in alone]
    assert sum(reply.usage.cached_tokens for reply in sharing) >= 5 * len(common)
    assert all(reply.stats.drafted for reply in together)


@pytest.mark.models
def test_eight_requests_to_the_real_pair_are_each_what_it_is_alone() -> None:
    texts = [
        "Write a Python function that adds two numbers.",
        "Write a Python function that multiplies two numbers.",
        "请用一句话介绍鲨鱼。",
        "a",
        "Repeat: one two three one two three one two",
        "What is a pilot fish?",
        "Name three colours.",
        "Write a Python function that adds two numbers.",
    ]

    def side(reference: str) -> ModelConfig:
        return ModelConfig(reference=reference, backend="native", context_size=512)

    config = EngineConfig(
        target=side(DEFAULT_TARGET), draft=side(DEFAULT_DRAFT), max_sessions=8, kept_sequences=2
    )
    with load_engine(config) as engine:
        prompts = [engine.prompt_ids(text, Request()) for text in texts]
        asked = requests_on(prompts, 8)
        together = served(engine, asked)
        alone = [served(engine, [each])[0] for each in asked]
    assert [bits(reply) for reply in together] == [bits(reply) for reply in alone]
