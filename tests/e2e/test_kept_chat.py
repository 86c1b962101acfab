"""A chat with the real pair, whose turns take over what the turns before them have read."""

from __future__ import annotations

import itertools

import pytest

from pilotfish import load_engine
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET

pytestmark = pytest.mark.models

SYSTEM = (
    "You answer questions about a small program. It reads a file of recipes, one a line, with the "
    "name before the first colon and the ingredients, divided by commas, behind it. It counts how "
    "often each ingredient occurs and prints the ten most frequent ones."
)
TURNS = [
    "Write the function that parses a line.",
    "Give it type hints, please.",
    "Now call it for every line.",
]


def test_a_chat_says_the_same_and_reads_less() -> None:
    config = EngineConfig(
        target=ModelConfig(reference=DEFAULT_TARGET, backend="native", context_size=1024),
        draft=ModelConfig(reference=DEFAULT_DRAFT, backend="native", context_size=1024),
        # whether drafts pay here is not the question: they are made
        speculation=SpeculationConfig(controller="fixed", num_speculative_tokens=4),
        kept_sequences=1,
    )
    with load_engine(config) as engine:
        messages = [{"role": "system", "content": SYSTEM}]
        asked, replies = [], []
        for turn in TURNS:
            messages.append({"role": "user", "content": turn})
            replies.append(engine.generate(messages, max_tokens=24))
            asked.append(list(messages))
            messages.append({"role": "assistant", "content": replies[-1].text})
        assert replies[0].usage.cached_tokens == 0
        for before, after in itertools.pairwise(replies):
            cached = after.usage.cached_tokens
            assert before.usage.prompt_tokens - 1 <= cached < after.usage.prompt_tokens
        for prompt, reply in zip(asked, replies, strict=True):
            engine.engine.prefixes.clear()
            again = engine.generate(prompt, max_tokens=24)
            assert again.usage.cached_tokens == 0
            assert again.token_ids == reply.token_ids
        assert sum(reply.stats.accepted for reply in replies) > 0
