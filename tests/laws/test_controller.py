"""Never a loss, and nearly the best: the cost-aware controller on a fake clock."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.accounting.decisions import speculation_dict
from pilotfish.bench.recording import Recording
from pilotfish.bench.replay import Replay
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.guard import LossGuard
from pilotfish.control.reasons import MODEL_DOES_NOT_PAY, PAUSED
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.session import Session
from pilotfish.protocols import Controller, Drafter, TargetModel
from pilotfish.types import SessionView
from support.controlled import (
    CURVES,
    Controlled,
    IsRight,
    controlled,
    plain_reply,
    progress,
    reply_token,
    seconds_for,
    wrong_token,
)
from support.drafters import FunctionDrafter

# a plain round: a step of the target and what a round costs besides
STEP = 1.0 + 0.2
NUM_PROMPT_TOKENS = 3


# --- slower with speculation than without: a step 1.0, a row 0.05, a draft token 0.3, a round 0.2


def small_pair(is_right: IsRight, *, believed: float = 1.0, text: bool = False) -> Controlled:
    return controlled(
        curve=CostCurve.flat(STEP, row_seconds=0.05, widest=128),
        draft_seconds=0.3,
        is_right=is_right,
        text=SuffixDrafter() if text else None,
        believed=believed,
        num_speculative_tokens=4,
    )


def never(length: int) -> bool:
    return False


def always(length: int) -> bool:
    return True


BELIEFS = pytest.mark.parametrize("believed", [1.0, 0.5, 2.0])
WITH_TEXT = pytest.mark.parametrize("text", [False, True])


@BELIEFS
@WITH_TEXT
def test_a_draft_that_never_stands_costs_next_to_nothing(believed: float, text: bool) -> None:
    pair = small_pair(never, believed=believed, text=text)
    session = pair.reply(max_tokens=564)
    assert session.output_ids == plain_reply(564)
    assert seconds_for(session, 64, 564) <= 1.04 * 500 * STEP
    assert seconds_for(session, 0, 564) <= 1.05 * 564 * STEP
    # costs that were wrong are known by now
    assert pair.controller.costs.target(564)[1] == pytest.approx(STEP, rel=0.02)
    for records in (session.records[:64], session.records):
        assert speculation_dict(records, on=True, reason="")["reason"] in (
            MODEL_DOES_NOT_PAY,
            PAUSED,
        )
    if believed == 1.0:
        assert session.records[0].num_drafted > 0
        assert_within_the_bound(session, STEP)


@BELIEFS
@WITH_TEXT
def test_a_draft_that_always_stands_pays(believed: float, text: bool) -> None:
    session = small_pair(always, believed=believed, text=text).reply(max_tokens=564)
    assert session.output_ids == plain_reply(564)
    assert seconds_for(session, 0, 564) <= 564 * STEP / 1.5
    assert max(record.num_drafted for record in session.records) <= 4


@BELIEFS
@WITH_TEXT
@pytest.mark.parametrize("change", [500, 530])
def test_drafting_comes_back_when_drafts_begin_to_stand(
    believed: float, text: bool, change: int
) -> None:
    pair = small_pair(
        lambda length: length >= NUM_PROMPT_TOKENS + change, believed=believed, text=text
    )
    session = pair.reply(max_tokens=change + 500)
    assert session.output_ids == plain_reply(change + 500)
    marks = [num_tokens for num_tokens, _ in progress(session)]
    drafted = [record.num_drafted > 0 for record in session.records]
    back = [d for mark, d in zip(marks, drafted, strict=True) if change + 64 < mark < change + 490]
    assert sum(back) >= len(back) - 2, "drafting is on, but for a plain step now and then"
    assert seconds_for(session, change + 128, change + 500) <= 372 * STEP / 1.5


@WITH_TEXT
def test_a_new_request_is_not_stuck_where_the_last_one_ended(text: bool) -> None:
    answers = {"is_right": False}
    pair = small_pair(lambda length: answers["is_right"], text=text)
    hopeless = pair.reply(max_tokens=564, seed=1)
    answers["is_right"] = True
    pair.controller.clear()  # a repeated reply would be drafted from the last one
    session = pair.reply(max_tokens=300, seed=2)
    assert hopeless.output_ids[:300] == session.output_ids == plain_reply(300)
    assert seconds_for(session, 0, 300) <= 300 * STEP / 1.4


# --- the loss budget, against drafters that know the controller


class Adversary:
    """Says whether the next draft is right, having seen how many tokens the last pass scored."""

    def __init__(self, style: str) -> None:
        self._style = style
        self._pair: Controlled | None = None
        self._noise = np.random.default_rng(3).random(8192)

    def watch(self, pair: Controlled) -> None:
        """Look at the passes of this engine from now on."""
        self._pair = pair

    def is_right(self, length: int) -> bool:
        """Return whether the token after `length` tokens is drafted as the reply has it."""
        assert self._pair is not None
        widths = self._pair.target.log.widths
        last = sum(widths[-1]) - 1 if widths else 0
        place = length - NUM_PROMPT_TOKENS
        return {
            "never": False,
            "right while little is drafted": last <= 1,
            "right while nothing is drafted": last == 0,
            "seldom right when used": last == 0 or self._noise[length] < 0.2,
            "right for long, then never": place < 300,
            "by turns": place // 40 % 2 == 0,
        }[self._style]


STYLES = (
    "never",
    "right while little is drafted",
    "right while nothing is drafted",
    "seldom right when used",
    "right for long, then never",
    "by turns",
)


def hostile(style: str, curve: str, source: str, num_tokens: int) -> Session:
    adversary = Adversary(style)

    def propose(view: SessionView, budget: int) -> list[int]:
        first = len(view.tokens)
        return [
            reply_token(n) if adversary.is_right(n) else wrong_token(n)
            for n in range(first, first + budget)
        ]

    pair = controlled(
        curve=CURVES[curve],
        draft_seconds=0.3 if source == "model" else None,
        is_right=adversary.is_right,
        text=FunctionDrafter(propose, "suffix") if source == "text" else None,
    )
    adversary.watch(pair)
    return pair.reply(max_tokens=num_tokens)


def assert_within_the_bound(session: Session, step: float) -> None:
    """Check at every round that the reply so far took at most 1.02 N + 6 steps, and 1.04 at 200."""
    for num_tokens, seconds in progress(session):
        assert seconds / step <= 1.02 * num_tokens + 6 + 1e-6, num_tokens
        if num_tokens >= 200:
            assert seconds / step <= 1.04 * num_tokens + 1e-6, num_tokens


@pytest.mark.parametrize("curve", ["staircase", "linear"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("source", ["text", "model"])
def test_no_adversary_takes_more_than_the_budget(style: str, curve: str, source: str) -> None:
    session = hostile(style, curve, source, 300)
    assert_within_the_bound(session, 1.0)
    assert session.output_ids == plain_reply(300)


def test_the_budget_holds_for_long_replies() -> None:
    session = hostile("seldom right when used", "flat", "model", 4000)
    assert_within_the_bound(session, 1.0)


@pytest.mark.parametrize("source", ["text", "model"])
def test_without_the_guard_the_budget_is_exceeded(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LossGuard, "allowance", float("inf"))
    session = hostile("right while nothing is drafted", "linear", source, 400)
    with pytest.raises(AssertionError):
        assert_within_the_bound(session, 1.0)


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 0.85])
def test_a_busy_neighbour_neither_ends_drafting_nor_hides_a_loss(acceptance: float) -> None:
    """One pass in fourteen takes four times as long, of plain passes and others alike: what the
    drafts are worth, counted in passes that nothing disturbs, stays what it is."""
    right = np.random.default_rng(5).random(2000) < acceptance
    generator = np.random.default_rng(8)

    def disturbance() -> float:
        return float(np.exp(generator.normal(0, 0.1)) * (4 if generator.random() < 0.07 else 1))

    speeds = []
    for busy in (False, True):
        pair = controlled(
            curve=CURVES["linear"],
            draft_seconds=0.15,
            is_right=lambda length: bool(right[length]),
            disturbance=disturbance if busy else lambda: 1.0,
        )
        records = pair.reply(max_tokens=1500).records
        passes = sum(CURVES["linear"].at(record.num_drafted + 1) for record in records)
        speeds.append(1500 / (passes + sum(record.draft_seconds for record in records)))
    assert speeds[1] >= 0.92 * speeds[0]
    assert speeds[1] >= 0.975
    assert (speeds[1] > 1.1) == (acceptance > 0)


# --- nearly the best fixed length in hindsight


def recorded(right: np.ndarray, chances: np.ndarray) -> Recording:
    reply = [i % 16 for i in range(len(right))]
    pairs = zip(reply, right, strict=True)
    draft = [token if is_right else (token + 1) % 16 for token, is_right in pairs]
    return Recording(
        id="stream",
        category="synthetic",
        prompt=(0, 0),
        reply=tuple(reply),
        draft=tuple(draft),
        draft_probabilities=tuple(map(float, chances)),
    )


def fixed_seconds(right: np.ndarray, length: int, costs: PairCosts) -> float:
    """Return the seconds of a reply with drafts of one length, by counting."""
    assert costs.draft is not None
    seconds, place = 0.0, 0
    while place < len(right):
        drafted = min(length, len(right) - place - 1)
        wrong = np.flatnonzero(~right[place : place + drafted])
        seconds += costs.target.at(1 + drafted) + drafted * costs.draft.at(1)
        place += 1 + (int(wrong[0]) if len(wrong) else drafted)
    return seconds


def controlled_seconds(recording: Recording, costs: PairCosts) -> float:
    def parts(target: TargetModel, draft: TargetModel | None) -> tuple[Drafter, Controller]:
        assert draft is not None
        model = ModelDrafter(draft, vocab_size=target.vocab_size)
        controller = CostAwareController(costs, model=model, num_speculative_tokens=16)
        return controller, controller

    return Replay([recording], costs, parts).run(recording).seconds


STATIONARY = [
    *itertools.product(CURVES, [0.3, 0.85], [0.15]),
    ("flat", 0.7, 0.02),
    ("linear", 0.7, 0.4),
]


@pytest.mark.parametrize(("curve", "acceptance", "ratio"), STATIONARY)
def test_a_stationary_stream_is_decoded_nearly_as_fast_as_by_the_best_fixed_length(
    curve: str, acceptance: float, ratio: float
) -> None:
    costs = PairCosts(target=CURVES[curve], draft=CostCurve.flat(ratio, widest=128))
    right = np.random.default_rng(11).random(2500) < acceptance
    best = min(fixed_seconds(right, length, costs) for length in range(17))
    # the draft model says nothing about its chances: what they are has to be learned
    taken = controlled_seconds(recorded(right, np.full(len(right), 0.75)), costs)
    assert best / taken >= 0.97


def test_a_drafter_that_knows_its_chances_beats_every_fixed_length() -> None:
    generator = np.random.default_rng(5)
    chances = np.clip(generator.beta(1.4, 0.6, 2000), 0.01, 0.99)
    right = generator.random(2000) < chances
    costs = PairCosts(target=CURVES["linear"], draft=CostCurve.flat(0.15, widest=128))
    best = min(fixed_seconds(right, length, costs) for length in range(17))
    assert best / controlled_seconds(recorded(right, chances), costs) >= 1.03


def test_a_stream_that_changes_is_followed() -> None:
    acceptance = np.where(np.arange(3000) // 100 % 2 == 0, 0.9, 0.2)
    right = np.random.default_rng(5).random(3000) < acceptance
    costs = PairCosts(target=CURVES["linear"], draft=CostCurve.flat(0.4, widest=128))
    best = min(fixed_seconds(right, length, costs) for length in range(17))
    assert best / controlled_seconds(recorded(right, np.full(3000, 0.75)), costs) >= 1.0
