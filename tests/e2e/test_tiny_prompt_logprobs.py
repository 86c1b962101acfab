"""Log-probabilities of prompts on tiny files: asking for them changes no reply, on any backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pilotfish import TextEngine, load_engine
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.types import SamplingSettings, TokenLogprobs
from support.tiny_gguf import write_tiny

CONTEXT = 1024
LETTERS = np.array(list("abcdefgh .,"))
PROMPT = "".join(LETTERS[np.random.default_rng(1).integers(0, len(LETTERS), 330)])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("one") / "target.gguf", context=CONTEXT)


def loaded(path: Path, backend: str) -> TextEngine:
    name, _, strict = backend.partition("-")
    target = ModelConfig(
        reference=str(path), backend=name, context_size=CONTEXT, threads=1, cache_type="f16"
    )
    # where rows depend on the pass, drafts alone change bits
    drafter = "none" if backend == "llama" else "suffix"
    speculation = SpeculationConfig(
        drafter=drafter, controller="fixed", num_speculative_tokens=3, strict=bool(strict)
    )
    return load_engine(EngineConfig(target=target, speculation=speculation, kept_sequences=1))


@pytest.mark.parametrize("backend", ["native", "llama", "llama-strict"])
def test_asking_for_them_changes_no_reply(path: Path, backend: str) -> None:
    with loaded(path, backend) as engine:
        options = {"raw": True, "max_tokens": 24, "temperature": 0.8, "seed": 3, "logprobs": 2}
        plain = engine.generate(PROMPT, **options)
        asked = engine.generate(PROMPT, **options, prompt_logprobs=2)
        assert asked.token_ids == plain.token_ids
        assert [one.logprobs for one in asked.tokens] == [one.logprobs for one in plain.tokens]
        assert len(asked.prompt_logprobs) == asked.usage.prompt_tokens - 1
        assert asked.usage.cached_tokens == 0
        assert plain.prompt_logprobs == ()


def test_on_the_native_backend_their_bits_depend_on_the_text_alone(path: Path) -> None:
    """They are those of the same tokens as parts of a reply, whatever the passes."""
    with loaded(path, "native") as engine:
        reply = engine.generate(PROMPT, raw=True, max_tokens=24, logprobs=2)
        ids = engine.tokenizer.encode(PROMPT, parse_special=True) + reply.token_ids

        def of_prompt(most_tokens: int | None) -> list[TokenLogprobs]:
            settings = SamplingSettings(prompt_logprobs=2)
            session = engine.engine.open(ids, settings=settings, max_tokens=1)
            while not engine.engine.read(session, most_tokens=most_tokens):
                pass
            engine.engine.finish(session)
            return session.prompt_logprobs

        first = of_prompt(None)
        assert first[-len(reply.tokens) :] == [one.logprobs for one in reply.tokens]
        assert of_prompt(5) == first
