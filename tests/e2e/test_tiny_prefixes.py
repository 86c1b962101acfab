"""Tiny GGUF pairs that keep what they have read: the replies of pairs that keep nothing, in less
time, in no more memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotfish import Reply, TextEngine, load_engine
from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.native import NativeModel
from pilotfish.bench.runner import Mode, mode_engines
from pilotfish.build import load_pair
from pilotfish.config import EngineConfig, ModelConfig, Request, SpeculationConfig
from pilotfish.types import Segment
from support.memory import growth
from support.tiny_gguf import write_tiny

CONTEXT = 1024
LETTERS = np.array(list("abcdefgh .,"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    target = write_tiny(folder / "target.gguf", context=CONTEXT)
    return target, write_tiny(folder / "draft.gguf", seed=2, context=CONTEXT)


def letters(length: int, seed: int) -> str:
    return "".join(LETTERS[np.random.default_rng(seed).integers(0, len(LETTERS), length)])


SYSTEM = letters(330, seed=1)
QUESTIONS = [f"{number}: {letters(20, seed=2 + number)}" for number in range(5)]
# a turn in the middle is asked otherwise
EDITED = [SYSTEM[:290] + "?" + SYSTEM[291:] + QUESTIONS[0], SYSTEM + QUESTIONS[1][:9] + "?"]


def engine(
    files: tuple[Path, Path], backend: str, drafter: str, *, kept: int, strict: bool = False
) -> TextEngine:
    sides = [
        ModelConfig(
            reference=str(path),
            backend=backend,
            context_size=CONTEXT,
            threads=1,
            cache_type="f16" if strict else "f32",
        )
        for path in files
    ]
    # whether drafts pay is not the question here: they are made
    speculation = SpeculationConfig(
        drafter=drafter, controller="fixed", num_speculative_tokens=3, strict=strict
    )
    return load_engine(
        EngineConfig(
            target=sides[0],
            draft=None if drafter in ("none", "suffix") else sides[1],
            speculation=speculation,
            kept_sequences=kept,
        )
    )


def ask(engine: TextEngine, prompt: str, **options: Any) -> Reply:
    return engine.generate(prompt, raw=True, max_tokens=24, **options)


def num_common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.mark.parametrize(
    ("backend", "drafter"),
    [
        *(("native", drafter) for drafter in ("none", "suffix", "model", "auto")),
        *(("llama", "none"), ("llama", "auto"), ("llama-strict", "auto")),
    ],
)
def test_a_long_beginning_in_common_is_read_once_and_changes_no_reply(
    files: tuple[Path, Path], backend: str, drafter: str
) -> None:
    strict, name = backend == "llama-strict", backend.partition("-")[0]
    with (
        engine(files, name, drafter, kept=0, strict=strict) as plain,
        engine(files, name, drafter, kept=2, strict=strict) as keeping,
    ):
        earlier: list[list[int]] = []
        for number, prompt in enumerate([SYSTEM + question for question in QUESTIONS] + EDITED):
            settings: dict[str, Any] = {"temperature": 0.8 * (number % 2), "seed": number}
            # the draft model has not read the beginning when it is first asked
            settings["drafter"] = "none" if number == 0 else "auto"
            expected, reply = ask(plain, prompt, **settings), ask(keeping, prompt, **settings)
            assert reply.token_ids == expected.token_ids
            assert reply.stats.accepted == expected.stats.accepted
            assert (reply.stats.drafted > 0) == (number > 0 and drafter != "none")
            ids = keeping.prompt_ids(prompt, Request(raw=True))
            known = max((num_common(ids[:-1], text) for text in earlier[-2:]), default=0)
            assert known >= 256 or number == 0
            assert reply.usage.cached_tokens == (known if name == "native" else known // 256 * 256)
            assert reply.usage.prompt_tokens == expected.usage.prompt_tokens == len(ids)
            assert expected.usage.cached_tokens == 0
            earlier.append([*ids, *reply.token_ids][:-1])


def test_requests_that_come_and_go_hold_no_memory(files: tuple[Path, Path]) -> None:
    """Two hundred: some share a beginning, some do not; kept texts push each other out."""
    with engine(files, "native", "model", kept=2) as keeping:

        def requests() -> None:
            for number in range(20):
                beginning = SYSTEM[:200] if number % 2 else letters(200, seed=number)
                prompt = beginning + QUESTIONS[number % 5]
                keeping.generate(prompt, raw=True, max_tokens=2)

        assert growth(requests, rounds=10, warm_up=1).resident_bytes < 2**20
        assert keeping.engine.prefixes.num_kept == 2


@pytest.mark.parametrize("make", [NativeModel, LlamaModel])
def test_copies_that_come_and_go_hold_no_memory(
    files: tuple[Path, Path], make: type[NativeModel] | type[LlamaModel]
) -> None:
    text = list(range(100))
    with make(files[0], context_size=128, max_sessions=3, threads=1) as model:

        def copies() -> None:
            for length in range(0, 100, 5):
                origin = model.new_cache()
                model.forward([Segment(origin, text, first_row=100)])
                copy = origin.prefix(length)
                origin.close()
                model.forward([Segment(copy, [1, 2])])
                copy.close()

        assert growth(copies, rounds=5, warm_up=1).resident_bytes < 2**20


def test_engines_that_are_compared_keep_nothing_and_leave_each_other_their_places(
    files: tuple[Path, Path],
) -> None:
    config = EngineConfig(
        target=ModelConfig(reference=str(files[0]), context_size=CONTEXT, threads=1),
        kept_sequences=2,
    )
    pair = load_pair(config)
    engines = mode_engines(pair, [Mode("suffix", 3), Mode("ngram", 2)], config.speculation)
    for _ in range(2):
        for one in engines.values():
            assert ask(one, SYSTEM).usage.cached_tokens == 0
    pair.close()


@pytest.mark.parametrize("backend", ["native", "llama"])
def test_memory_is_said_to_be_needed_for_what_may_be_kept(
    files: tuple[Path, Path], backend: str
) -> None:
    """Native caches grow with their use, so that a limit of tokens is one of memory; llama.cpp
    sets a context aside for each sequence."""

    def needed(sessions: int, kept: int, tokens: int = 10_000) -> int:
        config = EngineConfig(
            target=ModelConfig(
                reference=str(files[0]),
                backend=backend,
                context_size=CONTEXT,
                threads=1,
                cache_type="f32",
            ),
            speculation=SpeculationConfig(drafter="none"),
            max_sessions=sessions,
            kept_sequences=kept,
            kept_tokens=tokens,
        )
        with load_engine(config) as loaded:
            memory: int = loaded.facts.models["target"]["memory_bytes"]
        return memory

    alone, context = needed(2, 0), needed(3, 0) - needed(2, 0)
    # the first kept text lies in the place of a reply that is not made
    assert needed(2, 1) == alone
    assert needed(2, 4) == alone + 3 * context
    limited = needed(2, 4, tokens=CONTEXT // 4) - alone
    assert limited == (context // 4 if backend == "native" else 3 * context)


def test_a_model_that_cannot_forget_keeps_nothing_and_answers(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "recurrent.gguf", recurrent=True, context=CONTEXT)
    with engine((path, path), "auto", "none", kept=2) as keeping:
        first = ask(keeping, SYSTEM)
        assert ask(keeping, SYSTEM).token_ids == first.token_ids
        assert ask(keeping, SYSTEM + "b").usage.cached_tokens == 0
