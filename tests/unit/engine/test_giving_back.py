"""What an engine gives back, forgets and no longer trusts when a request ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.errors import BackendError
from pilotfish.prefixes import PrefixPool
from pilotfish.types import FloatArray, Segment
from support.engines import VOCAB, finish

PROMPT = [i % VOCAB for i in range(40)]


class Target(ScriptedModel):
    """A model that notes how many tokens each pass has, and breaks the rows of a text when told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(random_logits(VOCAB), vocab_size=VOCAB, **options)
        self.lengths: list[int] = []
        self.breaks = False

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        self.lengths.append(sum(len(segment.token_ids) for segment in segments))
        rows = super().forward(segments)
        if self.breaks:
            rows[0][:] = np.nan
        return rows


def engine_of(target: Target, drafter: Any = None, *, kept: int = 4) -> Engine:
    return Engine(
        target=target,
        drafter=drafter or NoDrafter(),
        controller=FixedController(2),
        prefixes=PrefixPool(target, most_sequences=kept),
    )


class Unforgetting(NoDrafter):
    """A drafter that cannot forget, and notes what it was asked to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.num_cleared = 0
        self.error = ValueError("it cannot forget")

    def forget(self, request_id: int) -> None:
        self.asked.append(request_id)
        raise self.error

    def clear(self) -> None:
        self.num_cleared += 1


def test_a_drafter_that_cannot_forget_costs_nobody_a_place() -> None:
    target, drafter = Target(max_sessions=1), Unforgetting()
    engine = engine_of(target, drafter, kept=0)
    for number in range(1, 4):
        session = finish(engine, PROMPT, max_tokens=3)
        assert session.error is None
        assert session.drafting_error is drafter.error
        engine.finish(session)
        assert drafter.asked[-1] == session.request_id == number
        assert target.open_caches == set()
    dropped = engine.start(PROMPT)
    del dropped
    # given back before the next pass, with nobody left to tell
    assert finish(engine, PROMPT, max_tokens=3).error is None
    assert drafter.asked[-2:] == [4, 5]


def test_clearing_forgets_prompts_and_what_the_drafter_keeps() -> None:
    target, drafter = Target(), Unforgetting()
    engine = engine_of(target, drafter)
    finish(engine, PROMPT, max_tokens=3)
    running = engine.start(PROMPT[::-1])
    assert (engine.prefixes.num_kept, drafter.num_cleared) == (1, 0)
    engine.clear()
    assert (engine.prefixes.num_kept, drafter.num_cleared) == (0, 1)
    assert len(target.open_caches) == 1
    engine.finish(running)
    # a drafter that keeps nothing has nothing to clear
    engine_of(Target()).clear()


def test_a_prompt_whose_pass_fails_ends_with_the_error_and_is_not_kept() -> None:
    target = Target(fail_at=2)
    engine = engine_of(target)
    session = engine.open(PROMPT)
    engine.read(session, most_tokens=20)
    with pytest.raises(BackendError, match="as told") as caught:
        engine.read(session, most_tokens=20)
    assert session.error is caught.value
    engine.finish(session)
    assert engine.prefixes.num_kept == 0
    assert target.open_caches == set()


def test_a_session_with_a_broken_row_is_not_kept_and_its_neighbour_is() -> None:
    target = Target()
    engine = engine_of(target)
    broken, whole = engine.start(PROMPT), engine.start(PROMPT[::-1])
    target.breaks = True
    engine.step([broken, whole])
    assert isinstance(broken.error, BackendError)
    assert whole.error is None
    for session in (broken, whole):
        engine.finish(session)
    assert engine.prefixes.num_kept == 1
    assert engine.prefixes.num_known(PROMPT) == 0
    assert engine.prefixes.num_known(PROMPT[::-1]) == len(PROMPT) - 1


def test_a_round_that_emits_nothing_yields_nothing() -> None:
    target = Target()
    engine = engine_of(target)
    session = engine.start(PROMPT)
    target.breaks = True
    with pytest.raises(BackendError, match="largest logit"):
        next(engine.run(session))
    assert (session.done, session.output_ids) == (True, [])


def test_short_passes_of_a_prompt_end_where_whole_ones_would() -> None:
    target = Target()
    engine = engine_of(target)
    session = engine.open([1] * 601)
    while not engine.read(session, most_tokens=100):
        pass
    assert target.lengths == [100, 100, 56, 100, 100, 56, 88]
    engine.finish(session)
    target.lengths.clear()
    engine.finish(engine.start([2] * 601))
    assert target.lengths == [256, 256, 88]
