"""Replays: hand-counted times on simple curves, and the text is the recording's, always."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pilotfish import build
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.bench.recording import NO_DRAFT, Recording
from pilotfish.bench.replay import Pace, Replay, plain_seconds
from pilotfish.bench.runner import Mode
from pilotfish.config import SpeculationConfig
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.protocols import Controller, Drafter, TargetModel

FLAT = CostCurve.flat(1.0)
STEPS_OF_FOUR = CostCurve.from_ratios({w: 1.0 + 0.5 * ((w - 1) // 4) for w in range(1, 33)})
FLAT_DRAFT = CostCurve.flat(0.25)


def recording(reply: Sequence[int] = range(10, 22), **options: Any) -> Recording:
    values: dict[str, Any] = {"id": "r", "category": "chat", "prompt": (1, 2, 3)} | options
    return Recording(reply=tuple(reply), **values)


def sure(reply: Sequence[int], *, wrong_at: Sequence[int] = ()) -> dict[str, Any]:
    """Return what a draft model says that is right and sure of it, but in some places."""
    draft = tuple(99 if i in wrong_at else token for i, token in enumerate(reply))
    return {"draft": draft, "draft_probabilities": (0.9,) * len(draft)}


def fixed_model(number: int) -> Any:
    def make(target: TargetModel, draft: TargetModel | None) -> tuple[Drafter, Controller]:
        assert draft is not None
        drafter = ModelDrafter(draft, vocab_size=target.vocab_size, min_survival=0.0)
        return drafter, FixedController(number)

    return make


def plain(target: TargetModel, draft: TargetModel | None) -> tuple[Drafter, Controller]:
    return NoDrafter(), FixedController(0)


def parts_of(mode: Mode, costs: PairCosts) -> Any:
    def make(target: TargetModel, draft: TargetModel | None) -> tuple[Drafter, Controller]:
        return build.make_parts(
            target,
            draft,
            mode.speculation(SpeculationConfig()),
            backend="native",
            costs=lambda: costs,
        )

    return make


def test_plain_decoding_takes_a_step_a_token() -> None:
    one = recording()
    costs = PairCosts(target=FLAT, overhead_seconds=0.125)
    replayed = Replay([one], costs, plain).run(one)
    assert replayed.seconds == pytest.approx(12 * 1.125)
    assert plain_seconds(one, costs) == pytest.approx(12 * 1.125)
    assert len(replayed.session.records) == 12


def test_rounds_of_a_draft_model_that_is_always_right_are_counted_by_hand() -> None:
    reply = range(10, 22)
    one = recording(reply, **sure(reply))
    costs = PairCosts(
        target=STEPS_OF_FOUR, draft=FLAT_DRAFT, overhead_seconds=0.0625, draft_overhead_seconds=0.01
    )
    replayed = Replay([one], costs, fixed_model(3)).run(one)
    # three rounds of three drafts and the target's own token: a pass of four rows costs one step
    assert [r.num_drafted for r in replayed.session.records] == [3, 3, 3]
    assert [r.num_emitted for r in replayed.session.records] == [4, 4, 4]
    assert replayed.seconds == pytest.approx(3 * (1.0 + 0.0625 + 3 * (0.25 + 0.01)))
    five = Replay([one], costs, fixed_model(5)).run(one)
    # six rows cost a step and a half
    assert five.seconds == pytest.approx(2 * (1.5 + 0.0625 + 5 * 0.26))


def test_a_wrong_draft_ends_the_round_and_is_wrong_from_there_on() -> None:
    reply = range(10, 22)
    one = recording(reply, **sure(reply, wrong_at=[1, 7]))
    costs = PairCosts(target=FLAT, draft=FLAT_DRAFT)
    records = Replay([one], costs, fixed_model(3)).run(one).session.records
    # token 1 is the target's own, so is token 7
    assert [r.num_accepted for r in records] == [1, 3, 1, 3]
    assert [r.num_drafted for r in records] == [3, 3, 3, 3]


def test_passes_cost_what_they_cost_at_their_context() -> None:
    curve = CostCurve(widths=(1,), contexts=(0, 100), seconds=((1.0,), (2.0,)))
    one = recording(range(10, 13), prompt=tuple(range(1, 52)))
    expected = sum(1 + context / 100 for context in (50, 51, 52))
    costs = PairCosts(target=curve)
    assert Replay([one], costs, plain).run(one).seconds == pytest.approx(expected)
    assert plain_seconds(one, costs) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("pace", "target_seconds", "draft_seconds"),
    [
        # 40 tokens before the last: passes of 32 tokens each cost 4.5
        (Pace(), 4.5 * 40 / 32, 0.25),
        (Pace(reading_seconds=0.5, draft_reading_seconds=0.125), 20.0, 5.0),
    ],
)
def test_the_prompt_is_read_by_both_models_and_is_no_decoding(
    pace: Pace, target_seconds: float, draft_seconds: float
) -> None:
    reply = range(10, 14)
    one = recording(reply, prompt=tuple(range(100, 141)), **sure(reply))
    costs = PairCosts(target=STEPS_OF_FOUR, draft=FLAT_DRAFT, draft_overhead_seconds=9.0)
    with_model = Replay([one], costs, fixed_model(3), pace=pace).run(one)
    alone = Replay([one], costs, plain, pace=pace).run(one)
    assert alone.total_seconds - alone.seconds == pytest.approx(target_seconds)
    reading = with_model.total_seconds - with_model.seconds
    assert reading == pytest.approx(target_seconds + draft_seconds)


def test_drafting_from_text_takes_the_pace_s_seconds_in_every_round() -> None:
    one = recording([5, 6, 7, 8] * 4)
    costs = PairCosts(target=FLAT, overhead_seconds=0.5)
    make = parts_of(Mode("suffix", 3), costs)
    quick = Replay([one], costs, make).run(one)
    slow = Replay([one], costs, make, pace=Pace(drafting_seconds=0.25)).run(one)
    num_rounds = len(quick.session.records)
    assert num_rounds < 16
    assert quick.seconds == pytest.approx(num_rounds * 1.5)
    assert slow.seconds == pytest.approx(num_rounds * 1.75)
    assert sum(r.draft_seconds for r in slow.session.records) == pytest.approx(num_rounds * 0.25)


class Timer:
    """A timer that shows another second at each look."""

    def __init__(self) -> None:
        self.looks = 0.0

    def __call__(self) -> float:
        self.looks += 1.0
        return self.looks


def test_own_work_is_timed_but_for_rounds_of_the_draft_model() -> None:
    reply = range(10, 22)
    one = recording(reply, **sure(reply))
    costs = PairCosts(target=FLAT, draft=FLAT_DRAFT)
    text = Replay([one], costs, parts_of(Mode("suffix", 3), costs), timer=Timer())
    text.run(one)
    # a plan, a draft and what is learnt: a second each, but where nothing is left to draft
    assert text.own_seconds == [3.0] * 11 + [2.0]
    model = Replay([one], costs, fixed_model(3), timer=Timer())
    model.run(one)
    assert model.own_seconds == []


def random_recording(seed: int) -> Recording:
    """Return a reply that repeats itself in part, with drafts that are right in part."""
    generator = np.random.default_rng(seed)
    reply = [*generator.integers(3, 9, 30).tolist(), 2]
    draft = [t if generator.random() < 0.7 else 1_000_000 for t in reply]
    draft[5] = NO_DRAFT
    return recording(
        reply,
        id=str(seed),
        prompt=tuple(generator.integers(3, 9, 12).tolist()),
        draft=tuple(draft),
        draft_probabilities=tuple(generator.random(31).tolist()),
        end_ids=(2, 1_000_000),
        max_tokens=40,
    )


@pytest.mark.parametrize(
    "mode", [Mode("auto"), Mode("suffix"), Mode("model"), Mode("ngram", 4), Mode("auto", 7)]
)
def test_no_drafter_changes_the_text(mode: Mode) -> None:
    recordings = [random_recording(seed) for seed in range(8)]
    costs = PairCosts(target=STEPS_OF_FOUR, draft=FLAT_DRAFT)
    replay = Replay(recordings, costs, parts_of(mode, costs))
    num_rounds = 0
    for one in recordings:
        records = replay.run(one).session.records  # it asserts that the text is the recording's
        assert sum(record.num_emitted for record in records) == len(one.reply)
        num_rounds += len(records)
    assert num_rounds < sum(len(one.reply) for one in recordings), "some drafts stood"


def test_a_controller_learns_from_one_recording_to_the_next_and_replies_can_be_forgotten() -> None:
    one = recording(range(10, 40))
    costs = PairCosts(target=FLAT)
    replay = Replay([one], costs, parts_of(Mode("suffix", 7), costs))
    first = len(replay.run(one).session.records)
    assert len(replay.run(one).session.records) < first, "the reply is remembered"
    replay.clear()
    assert len(replay.run(one).session.records) == first


def test_a_reply_that_ended_by_itself_could_have_gone_on() -> None:
    left: list[int] = []

    class Watching(FixedController):
        def draft_budgets(self, views: Any) -> list[int]:
            left.append(views[0].num_tokens_left)
            return super().draft_budgets(views)

    one = recording([10, 11, 2], end_ids=(2,), max_tokens=50)
    costs = PairCosts(target=FLAT)
    Replay([one], costs, lambda target, draft: (NoDrafter(), Watching(0))).run(one)
    assert left == [50, 49, 48]
