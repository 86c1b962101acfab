#!/usr/bin/env python
"""Measure what the engine itself costs.

1. Plain decoding through the engine against a bare loop on the same library (llama_decode
   on one token, argmax in NumPy), token by token in turn: ratio of the median times per round.
2. Engine time per round outside the models at the target's vocabulary: greedy, seeded choice over
   the full vocabulary, and one suffix proposal.

    python scripts/measure/overhead.py qwen2.5-coder-1.5b --rounds 9
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from pilotfish.backends.scripted import ScriptedModel
from pilotfish.build import load_model
from pilotfish.config import EngineConfig, ModelConfig
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.models import resolve
from pilotfish.types import SamplingSettings, SessionView

CONTEXT, PROMPT_TOKENS = 1024, 200


class BareLoop:
    """The least a program can do with the library: no Python objects of ours."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self.library = llama_cpp
        parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = CONTEXT
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, ids: list[int]) -> int:
        array = (ctypes.c_int32 * len(ids))(*ids)
        batch = self.library.llama_batch_get_one(array, len(ids))
        assert self.library.llama_decode(self.context, batch) == 0
        pointer = self.library.llama_get_logits_ith(self.context, -1)
        return int(np.argmax(np.ctypeslib.as_array(pointer, shape=(self.vocab,))))

    def read(self, prompt: list[int]) -> None:
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), True)
        self.decode(prompt[:-1])


def seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare_with_bare_loop(reference: str, rounds: int, tokens: int) -> dict[str, Any]:
    # the bare loop is llama.cpp's
    config = ModelConfig(reference=reference, context_size=CONTEXT, backend="llama")
    model = load_model(config, EngineConfig(target=config), strict=False)
    bare = BareLoop(str(resolve(reference)), model.facts.threads)
    engine = Engine(target=model, drafter=NoDrafter(), controller=FixedController(0))
    text = "The quick brown fox jumps over the lazy dog near the river bank. " * 40
    prompt = model.tokenizer.encode(text, parse_special=False)[:PROMPT_TOKENS]
    ratios, bare_times, engine_times, same = [], [], [], True
    for index in range(rounds + 1):
        session = engine.start(prompt, max_tokens=tokens)
        bare.read(prompt)
        ours, theirs, reply, token = [], [], [], prompt[-1]
        # token by token in turn, so that whatever else the machine does hits both alike
        while not session.done:
            ours.append(seconds(lambda: engine.step([session])))  # noqa: B023
            start = time.perf_counter()
            token = bare.decode([token])
            reply.append(token)
            theirs.append(time.perf_counter() - start)
        engine.finish(session)
        same = same and reply == session.output_ids
        if index:  # the first round warms up
            ratios.append(statistics.median(ours) / statistics.median(theirs))
            engine_times += ours
            bare_times += theirs
    return {
        "model": reference,
        "tokens": tokens,
        "rounds": rounds,
        "ratio": {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)},
        "engine_ms_per_token": 1e3 * statistics.median(engine_times),
        "bare_ms_per_token": 1e3 * statistics.median(bare_times),
        "same_ids": same,
    }


def engine_time_per_round(vocab_size: int, rounds: int) -> dict[str, float]:
    rows = np.random.default_rng(0).normal(size=(64, vocab_size)).astype(np.float32) * 2.5

    class Rows(ScriptedModel):
        """Gives out ready rows, so that only the engine takes time."""

        def forward(self, segments):  # type: ignore[no-untyped-def]
            for segment in segments:
                segment.cache.tokens.extend(segment.token_ids)
            return [rows[: segment.num_rows] for segment in segments]

    result = {}
    for name, settings in {
        "greedy": SamplingSettings(),
        "seeded, full vocabulary, T=1": SamplingSettings(temperature=1.0),
        "seeded, top-k 40, top-p 0.95": SamplingSettings(temperature=0.8, top_k=40, top_p=0.95),
    }.items():
        target = Rows(lambda prefix: rows[0], vocab_size=vocab_size, context_size=10**6)
        engine = Engine(target=target, drafter=NoDrafter(), controller=FixedController(0))
        session = engine.start([1] * 500, settings=settings, seed=1, max_tokens=rounds)
        times = []
        while not session.done:
            start = time.perf_counter()
            engine.step([session])
            times.append(time.perf_counter() - start)
        result[name] = 1e3 * statistics.median(times)
    return result


def suffix_proposal_microseconds(context_tokens: int, rounds: int) -> float:
    generator = np.random.default_rng(1)
    words = [list(generator.integers(0, 150_000, 12)) for _ in range(60)]
    tokens = [int(t) for i in generator.integers(0, 60, context_tokens // 12) for t in words[i]]
    drafter, times = SuffixDrafter(), []
    growing = tokens[:-rounds]
    for index in range(rounds):
        view = SessionView(1, growing, 10, SamplingSettings(), 0, index, frozenset())
        start = time.perf_counter()
        drafter.propose([view], [8])
        times.append(time.perf_counter() - start)
        growing.append(tokens[len(tokens) - rounds + index])
    return 1e6 * statistics.median(times[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="named models or paths to compare a bare loop on")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=60)
    args = parser.parse_args()
    print(
        json.dumps(
            {
                "bare_loop": [
                    compare_with_bare_loop(m, args.rounds, args.tokens) for m in args.models
                ],
                "engine_ms_per_round": engine_time_per_round(151_936, 300),
                "suffix_proposal_microseconds": suffix_proposal_microseconds(2_000, 300),
            },
            indent=1,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
