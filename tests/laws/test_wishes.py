"""A request may narrow its drafting, on any engine: the text stays, the drafts are those it allows,
and the drafts of others become neither better nor worse."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from pilotfish import build
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.accounting.decisions import TURNED_OFF
from pilotfish.backends.scripted import FakeClock, ScriptedCosts, ScriptedModel, random_logits
from pilotfish.config import SpeculationConfig
from pilotfish.control import cost_aware
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.types import DraftWish, FloatArray
from support.controlled import Controlled, controlled, plain_reply
from support.engines import SETTINGS, VOCAB, finish, scripted_engine

# rows that cost next to nothing: whatever is offered is tried
CHEAP = PairCosts(
    target=CostCurve.flat(1.0, row_seconds=1e-4), draft=CostCurve.flat(1e-4), overhead_seconds=1e-3
)
PROMPT = (1, 2, 3, 1, 2)
DRAFTERS = ["auto", "none", "suffix", "ngram", "model"]
KINDS = [
    *(("fixed", drafter) for drafter in ("auto", "suffix", "model")),
    *(("auto", drafter) for drafter in ("auto", "none", "ngram", "model")),
]
WISHES = [
    *(DraftWish(drafter=drafter) for drafter in DRAFTERS),
    *(DraftWish(num_speculative_tokens=number) for number in (0, 1, 2, 100)),
    *(DraftWish(drafter=drafter, num_speculative_tokens=2) for drafter in ("suffix", "model")),
]


def engine_of(controller: str, drafter: str) -> Engine:
    speculation = SpeculationConfig(
        controller=controller, drafter=drafter, num_speculative_tokens=4
    )
    clock = FakeClock()

    def model(seconds: CostCurve) -> ScriptedModel:
        costs = ScriptedCosts(cost_of=seconds.at)
        return ScriptedModel(logits, vocab_size=VOCAB, clock=clock, costs=costs)

    assert CHEAP.draft is not None
    target, draft = model(CHEAP.target), model(CHEAP.draft)
    parts = build.make_parts(target, draft, speculation, backend="native", costs=lambda: CHEAP)
    return Engine(target=target, drafter=parts[0], controller=parts[1], clock=clock)


@functools.cache
def cached_row(recent: tuple[int, ...]) -> FloatArray:
    return np.asarray(random_logits(VOCAB)(recent))


def logits(prefix: tuple[int, ...]) -> FloatArray:
    return cached_row(prefix[-3:])


def allowed_sources(drafter: str, wish: DraftWish) -> set[str]:
    there = {"auto": {"suffix", "model"}, "none": set()}.get(drafter, {drafter})
    return set() if wish.is_off else there & ({wish.drafter} if wish.drafter != "auto" else there)


def check(session: Session, drafter: str, wish: DraftWish) -> None:
    sources = {record.source for record in session.records if record.num_drafted}
    allowed = allowed_sources(drafter, wish)
    assert sources <= allowed
    assert bool(sources) == bool(allowed)
    ceiling = 4 if wish.num_speculative_tokens is None else min(4, wish.num_speculative_tokens)
    assert max(record.num_drafted for record in session.records) <= ceiling
    assert session.drafting_error is None


@pytest.mark.parametrize(("controller", "drafter"), KINDS)
@pytest.mark.parametrize("together", [False, True])
def test_a_narrowed_request_says_the_same_with_the_drafts_it_allows(
    controller: str, drafter: str, together: bool
) -> None:
    settings = SETTINGS["penalised" if together else "greedy"]
    options = {"settings": settings, "max_tokens": 40}
    reference = finish(scripted_engine(), PROMPT, **options).output_ids
    engine = engine_of(controller, drafter)
    if together:
        sessions = [engine.start(PROMPT, wish=wish, seed=7, **options) for wish in WISHES]
        engine.run_together(sessions)
    else:
        sessions = [finish(engine, PROMPT, wish=wish, **options) for wish in WISHES]
    for session, wish in zip(sessions, WISHES, strict=True):
        assert session.output_ids == reference
        check(session, drafter, wish)


# --- what the controller learns


NARROWED = [
    DraftWish(drafter="none"),
    DraftWish(num_speculative_tokens=0),
    DraftWish(drafter="suffix"),
    DraftWish(num_speculative_tokens=1),
]


def pair(*, keeps: bool = False) -> Controlled:
    return controlled(
        keeps=keeps,
        curve=CostCurve.flat(1.0, row_seconds=0.05, widest=128),
        draft_seconds=0.2,
        is_right=lambda length: length % 6 != 0,
    )


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("wish", NARROWED)
def test_requests_that_may_not_draft_as_they_like_teach_the_others_nothing(
    wish: DraftWish, together: bool
) -> None:
    one, other = pair(), pair()
    for _ in range(5):
        if not together:
            narrowed = one.reply(max_tokens=50, wish=wish)
            assert narrowed.output_ids == plain_reply(50)
            continue
        sessions = [
            one.engine.start((1, 2, 3), max_tokens=50, seed=7, wish=each)
            for each in (wish, wish, wish)
        ]
        one.engine.run_together(sessions)
    expected, session = other.reply(max_tokens=120), one.reply(max_tokens=120)
    assert session.output_ids == expected.output_ids
    drafts = [[(r.num_drafted, r.reason) for r in each.records] for each in (session, expected)]
    if wish.num_speculative_tokens == 1:
        # they teach how far the draft model can be believed, which is true of it for all
        assert len(session.records) <= len(expected.records) * 1.1
    else:
        assert drafts[0] == drafts[1]


def test_those_that_ask_alike_learn_from_each_other() -> None:
    one, wish = pair(), DraftWish(num_speculative_tokens=2)
    first = one.reply(max_tokens=100, wish=wish)
    for _ in range(3):
        last = one.reply(max_tokens=100, wish=wish)
    assert max(record.num_drafted for record in last.records) == 2
    assert len(last.records) <= len(first.records)
    rates = one.controller._experience_of(wish).averages
    assert rates.tokens.value(0.0) / rates.steps.value(1.0) > 1.5


def test_a_ceiling_that_narrows_nothing_is_no_wish_of_its_own() -> None:
    controller = pair().controller
    assert controller._experience_of(DraftWish(num_speculative_tokens=16)) is controller._experience
    assert controller._experience_of(DraftWish()) is controller._experience
    assert controller._experience_of(DraftWish(num_speculative_tokens=15)) is not (
        controller._experience
    )


def test_whether_a_prompt_is_read_follows_what_the_ceiling_leaves_of_the_gain() -> None:
    """The first row of a draft is dear and others cost nothing: one draft a round never pays."""
    curve = CostCurve.from_ratios({n: 1.0 if n == 1 else 1.6 for n in range(1, 129)})
    dear = controlled(curve=curve, draft_seconds=0.2)
    assert dear.draft is not None
    dear.engine.start((1, 2, 3), wish=DraftWish(num_speculative_tokens=1))
    alone = len(dear.draft.log.evaluations)
    dear.engine.start((1, 2, 3))
    assert (alone, len(dear.draft.log.evaluations) > 0) == (0, True)


def test_beside_others_a_request_without_drafts_says_that_it_asked_for_none() -> None:
    one = pair()
    sessions = [
        one.engine.start((1, 2, 3), max_tokens=40, seed=7, wish=DraftWish(drafter=drafter))
        for drafter in ("none", "auto")
    ]
    one.engine.run_together(sessions)
    assert {record.reason for record in sessions[0].records[:10]} == {TURNED_OFF}
    assert cost_aware.MODEL_PAYS in {record.reason for record in sessions[1].records}
    # its plain rounds are not what others are to expect
    taught = one.controller._experience.averages.tokens.value(1.0)
    assert taught == pytest.approx((40 + 4) / (len(sessions[1].records) + 4), rel=0.05)


def test_what_need_not_be_read_again_makes_reading_pay() -> None:
    """A prompt so long that for a short reply the draft model had better not read it."""
    prompt = tuple(range(10)) * 200

    def num_read_for_a_short_reply(*, after_a_long_one: bool) -> int:
        one = pair(keeps=True)
        assert one.draft is not None
        if after_a_long_one:
            one.reply(prompt=prompt, max_tokens=200)
        before = len(one.draft.log.evaluations)
        session = one.reply(prompt=(*prompt, 3), max_tokens=6)
        assert sum(record.num_drafted for record in session.records) > 0 or not after_a_long_one
        return len(one.draft.log.evaluations) - before

    assert num_read_for_a_short_reply(after_a_long_one=False) == 0
    assert 0 < num_read_for_a_short_reply(after_a_long_one=True) < 20
