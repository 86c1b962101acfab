"""The llama backend on the 135M file: what only real weights can show."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pilotfish import models
from pilotfish.backends.llama import LlamaModel
from pilotfish.types import FloatArray, Segment

pytestmark = pytest.mark.models

TEXT = "The pilot fish swims ahead of the shark, and the shark decides where they go. " * 6


@pytest.fixture(scope="module")
def path() -> Path:
    return models.resolve("smollm2-135m")


@pytest.fixture(scope="module")
def strict_model(path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(path, context_size=512, max_sessions=2, threads=1, strict=True) as model:
        yield model


def prompt_of(model: LlamaModel, num_tokens: int) -> list[int]:
    """Return the first ids of TEXT."""
    return model.tokenizer.encode(TEXT, parse_special=False)[:num_tokens]


def greedy(model: LlamaModel, prompt: list[int], num_tokens: int, *, drafts: int) -> list[int]:
    """Return a greedy reply; every pass carries `drafts` ids of which most are rejected."""
    cache = model.new_cache()
    model.forward([Segment(cache, prompt[:-1], first_row=len(prompt) - 1)])
    reply = [prompt[-1]]
    while len(reply) <= num_tokens:
        drafted = [reply[-1], *[(37 * len(reply) + i) % 1000 for i in range(drafts)]]
        (rows,) = model.forward([Segment(cache, drafted)])
        reply.append(int(rows[0].argmax()))
        cache.truncate(len(prompt) + len(reply) - 2)
    cache.close()
    return reply[1:]


def test_strict_text_is_the_same_for_every_number_of_drafts(strict_model: LlamaModel):
    prompt = prompt_of(strict_model, 40)
    plain = greedy(strict_model, prompt, 16, drafts=0)
    for drafts in (1, 2, strict_model.max_width - 1):
        assert greedy(strict_model, prompt, 16, drafts=drafts) == plain
    assert len(set(plain)) > 5


def test_strict_rows_have_the_same_bits_beside_another_session(strict_model: LlamaModel):
    def rows(num_drafts: int) -> FloatArray:
        cache = strict_model.new_cache()
        strict_model.forward([Segment(cache, prompt, first_row=len(prompt))])
        ids = prompt[: 1 + num_drafts]
        (scored,) = strict_model.forward([Segment(cache, ids)])
        first: FloatArray = scored[0].copy()
        cache.close()
        return first

    prompt = prompt_of(strict_model, 60)
    alone = rows(0)
    other = strict_model.new_cache()
    strict_model.forward([Segment(other, prompt * 2, first_row=len(prompt) * 2)])
    for num_drafts in (0, 1, strict_model.max_width - 1):
        np.testing.assert_array_equal(rows(num_drafts), alone)
    other.close()


def test_ragged_sequences_agree_with_each_alone(path: Path):
    with LlamaModel(path, context_size=256, max_sessions=3, threads=1) as model:
        prompt = prompt_of(model, 30)
        caches = [model.new_cache() for _ in range(3)]
        lengths = (1, 5, 3)
        together = [
            rows.copy()
            for rows in model.forward(
                [Segment(cache, prompt[:n]) for cache, n in zip(caches, lengths, strict=True)]
            )
        ]
        for cache in caches:
            cache.truncate(0)
        for cache, rows, n in zip(caches, together, lengths, strict=True):
            (alone,) = model.forward([Segment(cache, prompt[:n])])
            # quantised activations make noise, not other texts
            assert np.abs(rows - alone).max() < 1.0
            assert (rows.argmax(axis=1) == alone.argmax(axis=1)).mean() > 0.6


def test_a_pass_costs_little_more_than_llama_decode(path: Path):
    with LlamaModel(path, context_size=128, threads=1) as model:
        cache = model.new_cache()
        model.forward([Segment(cache, prompt_of(model, 20), first_row=20)])
        extra = []
        for token_id in range(30):
            start = time.perf_counter()
            model.forward([Segment(cache, [token_id + 100])])
            inside = model._context.pass_seconds
            extra.append((time.perf_counter() - start - inside) / inside)
        # a share of the pass, since absolute times say nothing on a busy machine; 1 % is usual
        assert sorted(extra)[len(extra) // 2] < 0.05


def test_the_tokenizer_knows_the_file(path: Path):
    with LlamaModel(path, context_size=128, threads=1) as model:
        tokenizer = model.tokenizer
        assert len(tokenizer.all_token_texts()) == model.vocab_size == 49152
        text = "naïve 🐟 <|im_end|>\n\tx = 1"
        ids = tokenizer.encode(text, parse_special=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert "<|im_end|>" in tokenizer.special_texts
        assert tokenizer.encode("<|im_end|>", parse_special=True)[0] in tokenizer.end_ids
        assert "im_start" in (tokenizer.chat_template or "")
