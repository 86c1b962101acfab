from __future__ import annotations

import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.reasons import MODEL_PAYS, PROBING
from pilotfish.engine.session import Session
from pilotfish.types import DraftWish, RoundRecord
from support.controlled import CURVES, Controlled, controlled


def together(pair: Controlled, wishes: list[DraftWish], max_tokens: int) -> list[Session]:
    """Run one request for each wish, all at once."""
    sessions = [
        pair.engine.start((1, 2, 3), max_tokens=max_tokens, seed=7, wish=wish) for wish in wishes
    ]
    pair.engine.run_together(sessions)
    return sessions


def asked(session: Session) -> int:
    return sum(record.reason in (MODEL_PAYS, PROBING) for record in session.records)


@pytest.mark.parametrize("askers", [1, 4])
def test_the_fewer_ask_the_draft_model_the_more_it_must_bring(askers: int) -> None:
    """A draft token takes half a step. For four sessions that share it, it pays; for one among
    four, whose neighbours wait for it, it takes two of their tokens to make one."""
    pair = controlled(curve=CURVES["flat"], draft_seconds=0.5)
    wishes = [DraftWish()] * askers + [DraftWish(drafter="none")] * (4 - askers)
    sessions = together(pair, wishes, 120)
    rounds = sum(len(session.records) for session in sessions[:askers])
    share = sum(asked(session) for session in sessions[:askers]) / rounds
    assert share > 0.9 if askers == 4 else share < 0.2


def test_a_prompt_is_read_for_drafts_only_where_it_pays_among_those_that_run() -> None:
    """Alone the draft model is worth its reading; beside seven others it is not even if right."""
    for number, is_read in ((1, True), (8, False)):
        pair = controlled(curve=CURVES["flat"], draft_seconds=0.5)
        wishes = [DraftWish(drafter="none")] * (number - 1) + [DraftWish()]
        running = [pair.engine.start((1, 2, 3), max_tokens=200, wish=wish) for wish in wishes]
        assert len(running) == number
        assert pair.draft is not None
        assert bool(pair.draft.log.evaluations) == is_read


def test_a_session_is_charged_for_its_own_drafts_and_for_all_that_wait_for_them() -> None:
    """Two rows of one session and none of the other, each row a quarter of a step: the first has
    lost one token of its own and one of the other for the one it gained."""
    curve = CostCurve.flat(1.0, row_seconds=0.25)
    controller = CostAwareController(PairCosts(target=curve))
    records = [
        RoundRecord(
            request_id=number,
            source="suffix",
            num_drafted=drafted,
            num_accepted=accepted,
            num_emitted=accepted + 1,
            num_sessions=2,
            draft_seconds=0.0,
            target_seconds=1.75,
            round_seconds=1.75,
        )
        for number, drafted, accepted in ((1, 2, 1), (2, 0, 0))
    ]
    views = [controlled(curve=curve).engine.start((1, 2, 3), max_tokens=50).view() for _ in records]
    for view, record in zip(views, records, strict=True):
        object.__setattr__(view, "request_id", record.request_id)
    controller.propose(views, [8, 8])
    guards = [controller._requests[number].guard for number in (1, 2)]
    before = [guard.allowance for guard in guards]
    controller.observe(records)
    spent = [old - guard.allowance for old, guard in zip(before, guards, strict=True)]
    # a plain round of both takes 1.25; two more rows make it 1.4 times as long
    growth = [tokens / 150 + 0.02 * tokens for tokens in (2, 1)]
    assert spent[0] == pytest.approx(1 + 2 * 0.4 - 2 - growth[0])
    assert spent[1] == pytest.approx(-growth[1])
