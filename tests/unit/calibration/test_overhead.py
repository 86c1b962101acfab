"""Overheads are what is left of rounds and drafts when the passes are taken away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pilotfish.backends.scripted import FakeClock, ScriptedCosts, ScriptedModel, random_logits
from pilotfish.calibration import TimedModel, measure_draft_overhead, measure_overhead
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.engine import Engine
from pilotfish.types import Proposal, RoundRecord, SessionView

VOCABULARY = 16


def model(clock: FakeClock, step_seconds: float) -> ScriptedModel:
    costs = ScriptedCosts(step_seconds=step_seconds, extra_row_seconds=1 / 64)
    logits = random_logits(VOCABULARY)
    return ScriptedModel(logits, vocab_size=VOCABULARY, clock=clock, costs=costs)


def record(source: str, *, draft: float, target: float, whole: float) -> RoundRecord:
    return RoundRecord(1, source, 1, 0, 1, 1, draft, target, whole)


@pytest.mark.parametrize(
    ("source", "expected"), [("model", 0.25), ("suffix", 0.75), ("none", 0.75)]
)
def test_overhead_is_what_a_round_takes_outside_the_models(source: str, expected: float) -> None:
    warm_up = [record(source, draft=0.0, target=1.0, whole=9.0)]
    rounds = [record(source, draft=0.5, target=1.0, whole=1.75)] * 3
    disturbed = [record(source, draft=0.5, target=1.0, whole=80.0)]
    replies = iter([warm_up, rounds + disturbed])
    assert measure_overhead(lambda: next(replies)) == expected
    assert measure_overhead(list) > 0, "a guess where nothing was generated"


class SlowDrafter(ModelDrafter):
    """Takes 1/8 of a second for each token, besides the passes."""

    clock: FakeClock

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        proposals = super().propose(views, budgets)
        self.clock.advance(sum(len(proposal.token_ids) for proposal in proposals) / 8)
        return proposals


def test_the_overhead_of_a_draft_token_is_what_is_no_pass_of_the_draft_model() -> None:
    clock = FakeClock()
    draft = model(clock, 0.25)
    timed = TimedModel(draft, clock=clock)
    drafter = SlowDrafter(timed, vocab_size=VOCABULARY, min_survival=0.0)
    drafter.clock = clock
    engine = Engine(
        target=model(clock, 1.0),
        drafter=drafter,
        controller=FixedController(3),
        clock=clock,
    )

    def reply() -> Sequence[RoundRecord]:
        session = engine.start([1] * 40, max_tokens=12)
        for _ in engine.run(session):
            pass
        return session.records

    assert any(one.num_drafted for one in reply())
    assert measure_draft_overhead(reply, timed) == 1 / 8
    assert measure_draft_overhead(list, timed) > 0, "a guess where nothing was drafted"
