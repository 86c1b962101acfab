"""The controller in the real engine: several sessions, broken drafters, what stats say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.accounting.decisions import speculation_dict
from pilotfish.accounting.metrics import acceptance_rate
from pilotfish.backends.scripted import ScriptedModel
from pilotfish.control import reasons
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.model_choice import draft_can_pay
from pilotfish.control.reasons import MEASURING, MODEL_DOES_NOT_PAY, MODEL_PAYS, PROBING, TEXT_PAYS
from pilotfish.control.request_state import PassCost
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.session import Session
from pilotfish.types import FloatArray, Proposal, SamplingSettings, SessionView
from support.controlled import (
    CURVES,
    Controlled,
    controlled,
    plain_reply,
    progress,
    reply_token,
    seconds_for,
    wrong_token,
)
from support.drafters import FunctionDrafter, RaisingDrafter

HOPELESS_PROMPT = (5, 5, 5)
GOOD_PROMPT = (1, 2, 3)
GENTLE = CostCurve.flat(1.0, row_seconds=0.05, widest=128)
STEEP = CostCurve.from_ratios({n: 1.0 if n <= 4 else float(n - 3) for n in range(1, 129)})


def text(is_right: Callable[[SessionView, int], bool]) -> FunctionDrafter:
    """Return a text drafter that is right where the function says so."""

    def propose(view: SessionView, budget: int) -> list[int]:
        first = len(view.tokens)
        return [
            reply_token(n) if is_right(view, n) else wrong_token(n)
            for n in range(first, first + budget)
        ]

    return FunctionDrafter(propose, "suffix")


class Estimating(FunctionDrafter):
    """Proposes tokens with these estimates, to requests of one prompt or to all."""

    def __init__(self, *estimates: float, prompt: tuple[int, ...] = ()) -> None:
        super().__init__(lambda view, budget: [0] * len(estimates), "suffix")
        self._estimates = estimates
        self._prompt = prompt

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        offers = super().propose(views, budgets)
        return [
            replace(offer, probabilities=self._estimates[: len(offer.token_ids)])
            if tuple(view.tokens[: len(self._prompt)]) == self._prompt
            else Proposal.empty()
            for view, offer in zip(views, offers, strict=True)
        ]


def good_only(view: SessionView, length: int) -> bool:
    return tuple(view.tokens[:3]) == GOOD_PROMPT


def together(pair: Controlled, prompts: list[tuple[int, ...]], max_tokens: int) -> list[Session]:
    sessions = [pair.engine.start(prompt, max_tokens=max_tokens, seed=7) for prompt in prompts]
    pair.engine.run_together(sessions)
    return sessions


def mean_drafted(session: Session, *, first: int = 0, num_sessions: int | None = None) -> float:
    """Return the draft tokens a round, from the `first` round on, of passes so many shared."""
    records = [r for r in session.records[first:] if num_sessions in (None, r.num_sessions)]
    return sum(record.num_drafted for record in records) / len(records)


def test_the_cost_of_a_pass_is_divided_by_rows_and_draft_passes() -> None:
    seconds = [0.0, *(1.0 + 0.1 * n for n in range(20))]
    cost = PassCost(seconds=seconds, num_sessions=2, num_drafted=6, draft_seconds=0.5)
    assert cost.step == pytest.approx(1.1)
    assert cost.extra_steps == pytest.approx((0.6 + 0.5) / 1.1)
    parts = [cost.extra_steps_of(*part) for part in ((4, 0.5), (2, 0.0))]
    assert parts == pytest.approx([(0.4 + 0.5) / 1.1, 0.2 / 1.1])
    plain = PassCost(seconds=seconds, num_sessions=40, num_drafted=0, draft_seconds=0.0)
    assert plain.extra_steps == plain.extra_steps_of(0, 0.0) == 0.0


# --- several sessions


@pytest.mark.parametrize("number", [3, 8])
@pytest.mark.parametrize("with_model", [False, True])
def test_sessions_that_share_a_pass_keep_their_text(number: int, with_model: bool) -> None:
    prompts = [HOPELESS_PROMPT, *[GOOD_PROMPT] * (number - 1)]
    pair = controlled(
        curve=GENTLE,
        draft_seconds=0.2 if with_model else None,
        is_right=lambda length: length % 5 != 0,
        text=text(good_only),
    )
    sessions = together(pair, prompts, 120)
    for session, prompt in zip(sessions, prompts, strict=True):
        assert session.output_ids == plain_reply(120, prompt)


def test_a_hopeless_session_does_not_stop_a_good_one() -> None:
    pair = controlled(curve=GENTLE, text=text(good_only))
    hopeless, good = together(pair, [HOPELESS_PROMPT, GOOD_PROMPT], 200)
    assert len(good.records) <= 200 / 4
    assert len(hopeless.records) == 200
    assert mean_drafted(hopeless, first=20) < 0.15
    alone = controlled(curve=GENTLE, text=text(good_only))
    (single,) = together(alone, [GOOD_PROMPT], 200)
    assert len(good.records) <= len(single.records) + 10


def test_where_rows_are_dear_many_sessions_draft_nothing() -> None:
    """Four rows cost what one does, and each further one a whole step: a session alone fills the
    step, eight together have passed it."""
    pair = controlled(curve=STEEP, text=text(lambda view, length: length % 4 != 0))
    (single,) = together(pair, [GOOD_PROMPT], 100)
    assert mean_drafted(single) > 1.5
    assert max(record.num_drafted for record in single.records) <= 3
    many = together(pair, [GOOD_PROMPT] * 8, 100)
    assert sum(mean_drafted(session) for session in many) == 0


def test_rows_go_to_the_session_that_makes_most_of_them() -> None:
    pair = controlled(curve=STEEP, text=text(good_only))
    hopeless, good = together(pair, [HOPELESS_PROMPT, GOOD_PROMPT], 150)
    assert mean_drafted(good, first=5) > 1.8
    assert mean_drafted(hopeless, first=5, num_sessions=2) < 0.2


def test_a_session_among_others_begins_its_draft_as_it_would_alone() -> None:
    """A long draft behind an uncertain beginning: alone, and beside three sessions without drafts
    whose rows cost a step each."""
    drafted = []
    for number in (1, 4):
        first, last = float(number), number + 0.15 * (64 - number)
        widths, seconds = (
            ((1, 64), (1.0, last)) if number == 1 else ((1, 4, 64), (1.0, first, last))
        )
        curve = CostCurve(widths=widths, contexts=(0,), seconds=(seconds,))
        pair = controlled(curve=curve, text=Estimating(0.6, *[0.95] * 8, prompt=GOOD_PROMPT))
        prompts = [GOOD_PROMPT, *[HOPELESS_PROMPT] * (number - 1)]
        drafted.append(together(pair, prompts, 40)[0].records[0].num_drafted)
    assert drafted[0] == drafted[1] == 1


def test_sessions_share_the_passes_of_the_draft_model() -> None:
    """A draft token takes a fifth of a step for one session and for four: four gain as much."""
    speeds = []
    for number in (1, 4):
        pair = controlled(curve=CURVES["flat"], draft_seconds=0.2)
        sessions = together(pair, [GOOD_PROMPT] * number, 200)
        speeds.append(200 / seconds_for(sessions[-1], 0, 200))
    assert speeds[0] > 3
    assert speeds[1] > 0.9 * speeds[0]


def test_two_sessions_fill_the_steps_of_a_staircase_together() -> None:
    pair = controlled(
        curve=CURVES["staircase"], draft_seconds=0.05, is_right=lambda length: length % 7 != 0
    )
    sessions = together(pair, [GOOD_PROMPT] * 2, 300)
    assert seconds_for(sessions[0], 0, 300) <= 300 / 1.8


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("number", [3, 8])
@pytest.mark.parametrize("right_when_idle", [False, True])
def test_several_hostile_sessions_stay_within_the_budget_of_one(
    curve: str, number: int, right_when_idle: bool
) -> None:
    def is_right(length: int) -> bool:
        widths = pair.target.log.widths
        return right_when_idle and (not widths or sum(widths[-1]) <= number)

    pair = controlled(curve=CURVES[curve], draft_seconds=0.3, is_right=is_right)
    sessions = together(pair, [GOOD_PROMPT] * number, 300)
    steps = seconds_for(sessions[0], 0, 300) / CURVES[curve].at(number)
    assert 290 <= steps <= 1.02 * 300 + 6


def test_sessions_that_draft_together_are_faster_than_without() -> None:
    pair = controlled(curve=GENTLE, draft_seconds=0.2, text=text(lambda view, length: False))
    sessions = together(pair, [GOOD_PROMPT] * 3, 150)
    assert seconds_for(sessions[0], 0, 150) <= 150 * GENTLE.at(3) / 1.8


# --- what goes wrong


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_drafter_that_raises_costs_drafts_never_the_reply(after: int) -> None:
    pair = controlled(curve=GENTLE, draft_seconds=0.2, text=RaisingDrafter(after=after))
    session = pair.reply(max_tokens=60)
    assert session.output_ids == plain_reply(60)
    assert isinstance(session.drafting_error, RuntimeError)
    for record in session.records[after + 1 :]:
        assert (record.reason, record.round_seconds) == ("", pytest.approx(1.0))


def test_a_session_whose_drafter_raises_leaves_the_others_theirs() -> None:
    def propose(view: SessionView, budget: int) -> list[int]:
        if tuple(view.tokens[:3]) == HOPELESS_PROMPT:
            raise RuntimeError("the drafter broke")
        return [reply_token(n) for n in range(len(view.tokens), len(view.tokens) + budget)]

    pair = controlled(curve=GENTLE, text=FunctionDrafter(propose, "suffix"))
    broken, good = together(pair, [HOPELESS_PROMPT, GOOD_PROMPT], 100)
    assert broken.drafting_error is not None
    assert good.drafting_error is None
    assert len(good.records) < 50
    assert good.output_ids == plain_reply(100)
    assert broken.output_ids == plain_reply(100, HOPELESS_PROMPT)


@pytest.mark.parametrize("every", [1, 7])
def test_broken_rows_of_the_draft_end_the_draft_and_are_paid_for(every: int) -> None:
    pair = controlled(curve=GENTLE, draft_seconds=0.4)
    assert pair.draft is not None
    rows = pair.draft._logits

    def broken(prefix: tuple[int, ...]) -> FloatArray:
        return np.full(32, np.nan, dtype=np.float32) if len(prefix) % every == 0 else rows(prefix)

    pair.draft._logits = broken
    session = pair.reply(max_tokens=300)
    assert session.output_ids == plain_reply(300)
    assert session.drafting_error is None
    for num_tokens, seconds in progress(session):
        assert seconds <= 1.02 * num_tokens + 6
    if every == 7:
        assert session.records[-2].num_drafted > 0 or len(session.records) < 200


def test_a_draft_model_whose_context_is_full_is_not_asked() -> None:
    def propose(view: SessionView, budget: int) -> list[int]:
        pair.clock.advance(1e-3)  # looking takes its time, too
        return []

    pair = controlled(
        curve=GENTLE, draft_seconds=0.2, text=FunctionDrafter(propose, source="suffix")
    )
    assert pair.draft is not None
    pair.draft.context_size = 60
    session = pair.reply(max_tokens=200)
    assert session.output_ids == plain_reply(200)
    late = [r for r, (n, _) in zip(session.records, progress(session), strict=True) if n > 70]
    assert sum(record.num_drafted for record in late) == 0
    # passes that were not made teach nothing about what they cost
    assert pair.controller.costs.draft(1, 0) == pytest.approx(0.2, rel=0.02)
    assert MODEL_PAYS not in {record.reason for record in late}


def test_the_last_round_teaches_nothing_as_no_draft_was_asked_for() -> None:
    """A reply that ends at its limit has a last round without room for drafts."""
    pair = controlled(curve=GENTLE, draft_seconds=0.2, num_speculative_tokens=4)
    for _ in range(60):
        last = pair.reply(max_tokens=6).records[-1]
        assert (last.num_drafted, last.reason) == (0, "")
    table = pair.controller._experience.table("model", greedy=True)
    # every draft stood; nothing may count as rejected
    for estimate in (0.9, 0.99, 0.999):
        assert table.chance(estimate) >= estimate - 1e-9


@pytest.mark.parametrize("source", ["suffix", "model"])
def test_tokens_after_a_wrong_one_were_never_tried(source: str) -> None:
    pair = controlled(
        curve=CURVES["flat"],
        draft_seconds=0.001 if source == "model" else None,
        is_right=lambda length: length % 4 != 0,
        text=text(lambda view, length: length % 4 != 0) if source == "suffix" else None,
    )
    session = pair.reply(max_tokens=400)
    table = pair.controller._experience.table(source, greedy=True)
    estimate = 0.75 if source == "suffix" else 0.999
    # of the tokens tried three of four were right, of all that were drafted far fewer
    assert table.chance(estimate) == pytest.approx(0.75, abs=0.06)
    rate = acceptance_rate(session.records)
    assert rate is not None
    assert rate < 0.5


def test_probes_are_scored_and_so_a_hopeless_draft_model_is_known_to_be_one() -> None:
    answers = {"is_right": False}
    pair = controlled(curve=GENTLE, draft_seconds=0.3, is_right=lambda n: answers["is_right"])
    for _ in range(8):
        session = pair.reply(max_tokens=300)
    probes = [record for record in session.records if record.reason == PROBING]
    assert probes
    assert all(record.num_drafted == 1 for record in probes)
    answers["is_right"] = True
    records = pair.reply(max_tokens=300).records
    assert mean_drafted(session) < 0.1
    assert sum(record.num_drafted > 0 for record in records) > len(records) - 60


@pytest.mark.parametrize("needs_laws", [False, True])
def test_under_the_token_rule_no_drawn_token_is_dropped(needs_laws: bool) -> None:
    """The fourth token begins a dear step of the staircase, in the hope of more; when none comes
    it is not worth its row any more. It may go unless it was drawn from a law."""
    chances = (0.95, 0.95, 0.95, 0.5, 0.04)

    def rows(prefix: tuple[int, ...]) -> FloatArray:
        chance = chances[min(len(prefix) - 3, 4)]
        row = np.full(32, np.log((1 - chance) / 31), dtype=np.float32)
        row[5] = np.log(chance)
        return row

    costs = PairCosts(target=CURVES["staircase"], draft=CostCurve.flat(0.02))
    model = ModelDrafter(ScriptedModel(rows, vocab_size=32), vocab_size=32)
    controller = CostAwareController(costs, model=model)
    settings = SamplingSettings(temperature=1.0)
    view = SessionView(1, [1, 2, 3], 3, settings, 7, 0, frozenset(), needs_laws)
    controller.prepare(view)
    (proposal,) = controller.propose([view], [8])
    assert len(proposal.token_ids) == (5 if needs_laws else 3)


# --- what stats say


def test_decisions_are_those_of_the_rounds() -> None:
    pair = controlled(
        curve=CURVES["staircase"],
        draft_seconds=0.3,
        is_right=lambda length: length // 60 % 2 == 0,
        text=text(lambda view, length: length // 30 % 3 == 0),
    )
    session = pair.reply(max_tokens=400)
    told = speculation_dict(session.records, on=True, reason="")
    counted = Counter(record.reason for record in session.records if record.reason)
    assert told["decisions"] == dict(counted)
    known = {
        value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)
    }
    assert set(counted) <= known
    assert len(counted) >= 3
    for record in session.records:
        if record.num_drafted:
            assert record.reason in (
                TEXT_PAYS,
                MODEL_PAYS,
                PROBING,
            )
            assert record.source == ("suffix" if record.reason == TEXT_PAYS else "model")
        else:
            assert record.reason != TEXT_PAYS


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_loss_of_acceptance_is_visible(share: float) -> None:
    generator = np.random.default_rng(4)
    right = generator.random(1000) < share
    pair = controlled(curve=GENTLE, draft_seconds=0.1, is_right=lambda length: bool(right[length]))
    session = pair.reply(max_tokens=600)
    rate = acceptance_rate(session.records)
    assert rate is not None
    assert (rate == 1.0) if share == 1.0 else (0.2 < rate < 0.6)


def test_plain_steps_are_run_now_and_then_so_that_their_price_stays_known() -> None:
    right = text(lambda view, length: True)
    pair = controlled(curve=CURVES["flat"], text=right, num_speculative_tokens=3)
    session = pair.reply(max_tokens=2000)
    plain = [place for place, record in enumerate(session.records) if not record.num_drafted]
    assert [record.reason for record in session.records].count(MEASURING) >= 2
    assert max(np.diff([0, *plain])) <= 201
    assert len(plain) <= 6


def test_the_ceiling_of_a_request_is_its_own() -> None:
    for most in (1, 2, 5):
        pair = controlled(curve=CURVES["flat"], draft_seconds=0.05, num_speculative_tokens=most)
        session = pair.reply(max_tokens=100)
        assert max(record.num_drafted for record in session.records) == most


def test_what_a_round_costs_besides_its_pass_makes_rows_cheaper() -> None:
    """A row of 0.1 beside a step of 1.0: a token must be accepted with 0.13, at the rate first
    believed in; beside a step of 1.0 and 0.5 for the round with less than 0.09."""
    for overhead, drafts in ((0.0, False), (0.5, True)):
        costs = PairCosts(target=CostCurve.flat(1.0, row_seconds=0.1), overhead_seconds=overhead)
        controller = CostAwareController(costs, text=Estimating(0.11))
        view = SessionView(1, [1, 2, 3], 3, SamplingSettings(), 7, 0, frozenset())
        controller.prepare(view)
        (proposal,) = controller.propose([view], controller.draft_budgets([view]))
        assert bool(proposal.token_ids) == drafts
        assert (proposal.reason == TEXT_PAYS) == drafts


# --- whether the draft model reads the prompt


def test_a_draft_model_that_can_never_pay_reads_no_prompt() -> None:
    pair = controlled(curve=GENTLE, draft_seconds=1.2)
    session = pair.reply(max_tokens=60)
    assert pair.draft is not None
    assert pair.draft.log.evaluations == []
    assert session.records[10].reason == MODEL_DOES_NOT_PAY


def test_whether_a_draft_can_pay_is_a_matter_of_its_cost() -> None:
    def pays(draft_seconds: float | None, row_seconds: float) -> bool:
        draft = None if draft_seconds is None else CostCurve.flat(draft_seconds)
        costs = PairCosts(target=CostCurve.flat(1.0, row_seconds=row_seconds), draft=draft)
        return draft_can_pay(costs, 8)

    assert pays(0.1, 0.05)
    assert pays(0.5, 0.3)
    assert not pays(0.8, 0.3)
    assert not pays(1.0, 0.0)
    assert not pays(None, 0.0)


def test_requests_are_forgotten_with_their_drafters() -> None:
    source = text(lambda view, length: True)
    pair = controlled(curve=GENTLE, draft_seconds=0.2, text=source)
    first, second = pair.reply(max_tokens=5), pair.reply(max_tokens=5)
    assert source.forgotten == [first.request_id, second.request_id]
    assert not pair.controller._requests
    assert not pair.draft.open_caches  # type: ignore[union-attr]
    pair.controller.forget(99)  # never seen


def test_sampled_and_greedy_requests_learn_apart() -> None:
    pair = controlled(curve=GENTLE, text=text(lambda view, length: True))
    pair.reply(max_tokens=100)
    experience = pair.controller._experience
    greedy, sampled = (
        experience.table("suffix", greedy=kind).chance(0.75) for kind in (True, False)
    )
    assert greedy > 0.9 > sampled == 0.75
    pair.reply(max_tokens=100, settings=SamplingSettings(temperature=1.0))
    assert experience.table("suffix", greedy=False).chance(0.75) != 0.75
