"""What plain decoding would have taken: an estimate from records, held against the true time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotfish.accounting.metrics import plain_seconds_estimate, reply_stats, saved_seconds
from pilotfish.backends.scripted import FakeClock, ScriptedCosts, ScriptedModel, random_logits
from pilotfish.control.fixed import FixedController
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.types import DraftWish, RoundRecord
from support.controlled import CURVES, Controlled, controlled, reply_token, wrong_token
from support.drafters import FunctionDrafter
from support.engines import VOCAB, finish

PLAIN = RoundRecord(1, "none", 0, 0, 1, 1, 0.0, 1.0, 1.5, plain_seconds=1.5)
DRAFTED = RoundRecord(1, "model", 4, 2, 3, 1, 0.5, 1.5, 2.5, plain_seconds=1.25)


def decode_seconds(session: Session) -> float:
    return sum(record.round_seconds for record in session.records)


def three_quarters(length: int) -> bool:
    return length % 4 != 0


def copying() -> FunctionDrafter:
    """Return a text drafter that is right in three places of four."""

    def propose(view: object, budget: int) -> list[int]:
        first = len(view.tokens)  # type: ignore[attr-defined]
        places = range(first, first + min(budget, 6))
        return [reply_token(n) if three_quarters(n) else wrong_token(n) for n in places]

    return FunctionDrafter(propose, "suffix")


def test_figures_by_hand() -> None:
    assert plain_seconds_estimate([PLAIN, DRAFTED]) == 1 * 1.5 + 3 * 1.25
    assert saved_seconds([PLAIN, DRAFTED]) == pytest.approx(5.25 - 4.0)
    assert saved_seconds([replace(DRAFTED, num_accepted=0, num_emitted=1)]) == 1.25 - 2.5
    stats = reply_stats([PLAIN, DRAFTED], prefill_seconds=9.0, speculation={})
    assert stats.to_dict()["plain_seconds_estimate"] == 5.25


def test_one_round_that_does_not_know_makes_the_whole_unknown() -> None:
    unknown = [PLAIN, replace(DRAFTED, plain_seconds=None)]
    assert plain_seconds_estimate(unknown) is saved_seconds(unknown) is None
    assert plain_seconds_estimate([]) is saved_seconds([]) is None


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("drafts", ["text", "model", "both"])
def test_where_passes_cost_what_they_were_measured_to_the_estimate_is_the_true_plain_time(
    curve: str, drafts: str
) -> None:
    def pair(*, drafting: bool) -> Controlled:
        return controlled(
            curve=CURVES[curve],
            draft_seconds=0.1 if drafting and drafts != "text" else None,
            is_right=three_quarters,
            text=copying() if drafting and drafts != "model" else None,
        )

    session = pair(drafting=True).reply(max_tokens=300)
    plain = pair(drafting=False).reply(max_tokens=300)
    assert session.output_ids == plain.output_ids
    assert any(record.num_accepted for record in session.records)
    estimate = plain_seconds_estimate(session.records)
    assert estimate == pytest.approx(decode_seconds(plain), rel=1e-9)
    saved = saved_seconds(session.records)
    assert saved == pytest.approx(decode_seconds(plain) - decode_seconds(session), rel=1e-9)
    assert plain_seconds_estimate(plain.records) == decode_seconds(plain)


@pytest.mark.parametrize("believed", [0.5, 2.0])
def test_most_of_a_wrong_calibration_is_corrected_as_passes_are_seen(believed: float) -> None:
    pair = controlled(curve=CURVES["staircase"], text=copying(), believed=believed)
    session = pair.reply(max_tokens=2000)
    late = session.records[len(session.records) // 2 :]
    num_tokens = sum(record.num_emitted for record in late)
    # passes of one width alone cannot tell a slow machine from a dear width
    assert plain_seconds_estimate(late) == pytest.approx(num_tokens * 1.0, rel=0.2)
    assert late[0].plain_seconds != pytest.approx(believed, rel=0.4)


def test_sessions_that_share_a_pass_know_what_a_plain_pass_of_all_of_them_takes() -> None:
    curve = CURVES["linear"]
    pair = controlled(curve=curve, text=copying())
    sessions = [pair.engine.start((1, 2, 3), max_tokens=number) for number in (30, 60, 90)]
    pair.engine.run_together(sessions)
    records = [record for session in sessions for record in session.records]
    assert {record.num_sessions for record in records} == {1, 2, 3}
    assert any(record.num_drafted for record in records)
    for record in records:
        assert record.plain_seconds == pytest.approx(curve.at(record.num_sessions), rel=1e-9)


def fixed_engine(drafter: FunctionDrafter, clock: FakeClock) -> Engine:
    logits = random_logits(VOCAB, seed=3)
    costs = ScriptedCosts(step_seconds=2.0, extra_row_seconds=0.5)
    target = ScriptedModel(logits, vocab_size=VOCAB, clock=clock, costs=costs)
    return Engine(target=target, drafter=drafter, controller=FixedController(4), clock=clock)


def test_a_fixed_number_of_drafts_knows_no_plain_time_and_a_request_without_drafts_does() -> None:
    engine = fixed_engine(FunctionDrafter(lambda view, budget: [0] * budget), FakeClock())
    assert plain_seconds_estimate(finish(engine).records) is None
    plain = finish(engine, wish=DraftWish(drafter="none")).records
    assert plain_seconds_estimate(plain) == 40 * 2.0
    assert saved_seconds(plain) == 0.0


def test_asking_a_drafter_that_has_nothing_is_time_lost_against_plain_decoding() -> None:
    clock = FakeClock()

    def propose(view: object, budget: int) -> list[int]:
        clock.advance(0.25)
        return []

    records = finish(fixed_engine(FunctionDrafter(propose), clock)).records
    # the last token needs no draft, so that nobody is asked for one
    assert plain_seconds_estimate(records) == pytest.approx(40 * 2.0)
    assert saved_seconds(records) == pytest.approx(-39 * 0.25)
