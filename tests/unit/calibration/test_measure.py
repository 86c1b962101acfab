"""Measured curves are the scripted costs, in whatever order and noise the passes came."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pilotfish.backends.scripted import (
    FakeClock,
    ScriptedCosts,
    ScriptedModel,
    random_logits,
)
from pilotfish.calibration import (
    FULL,
    QUICK,
    MeasurePlan,
    measure,
)
from pilotfish.errors import BackendError, ConfigError
from pilotfish.types import FloatArray, Segment

VOCABULARY = 16
PLAN = MeasurePlan(name="test", widths=(1, 2, 3, 4, 8), contexts=(8,), rounds=5)
# a staircase in 64ths of a second, which clocks add up without an error
COSTS = {1: 64 / 64, 2: 65 / 64, 3: 90 / 64, 4: 71 / 64, 8: 150 / 64}
DRAFT_COSTS = {width: cost / 4 for width, cost in COSTS.items()}


def staircase(costs: dict[int, float]) -> Callable[[int], float]:
    """Return the cost of a pass by its tokens; reading a context costs a second a token."""
    return lambda tokens: costs.get(tokens, float(tokens))


def model(clock: FakeClock, cost_of: Callable[[int], float], **options: int) -> ScriptedModel:
    costs = ScriptedCosts(cost_of=cost_of)
    logits = random_logits(VOCABULARY)
    return ScriptedModel(logits, vocab_size=VOCABULARY, clock=clock, costs=costs, **options)


class GrowingModel(ScriptedModel):
    """Passes also cost 1/64 of a second for each token of context, and 1/1024 more for each row."""

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        (segment,) = segments
        assert self._clock is not None
        self._clock.advance(added(len(segment.cache), len(segment.token_ids)))
        return super().forward(segments)


def added(context: int, width: int) -> float:
    return context / 64 + context * width / 1024


def growing(clock: FakeClock, **options: int) -> GrowingModel:
    costs = ScriptedCosts(cost_of=staircase(COSTS))
    return GrowingModel(
        random_logits(VOCABULARY), vocab_size=VOCABULARY, clock=clock, costs=costs, **options
    )


def test_a_curve_is_what_passes_cost() -> None:
    clock = FakeClock()
    target, draft = model(clock, staircase(COSTS)), model(clock, staircase(DRAFT_COSTS))
    found = measure(target, draft, plan=PLAN, clock=clock)
    assert found.costs.target.to_dict() == {
        "widths": list(COSTS),
        "contexts": [8],
        "seconds": [list(COSTS.values())],
    }
    assert found.minima == found.costs.target
    assert found.costs.draft is not None
    assert found.costs.draft.seconds == (tuple(DRAFT_COSTS.values()),)
    assert found.draft_minima == found.costs.draft
    assert (found.rounds, found.steady, found.plan) == (PLAN.rounds, True, "test")


def test_rounds_have_a_turn_of_every_width_in_alternating_order() -> None:
    clock = FakeClock()
    target, draft = model(clock, staircase(COSTS)), model(clock, staircase(DRAFT_COSTS))
    measure(target, draft, plan=PLAN, clock=clock)
    down, up = PLAN.widths[::-1], PLAN.widths
    assert target.log.widths == [(width,) for width in (*down, *up, *down, *up, *down, *up)]
    # of the draft's passes the last row alone is wanted
    assert draft.log.widths == [(1,)] * len(target.log.widths)
    lengths = [length for _, length in draft.log.truncations]
    assert lengths == [8] * len(target.log.widths)


def test_every_pass_comes_after_the_same_context_with_the_same_tokens() -> None:
    clock = FakeClock()
    target = model(clock, staircase(COSTS))
    measure(target, plan=PLAN, clock=clock)
    by_place = {(position, token) for _, position, token in target.log.evaluations}
    assert len(by_place) == 8 + max(PLAN.widths)


def test_nothing_is_left_open_and_the_first_pass_of_a_width_does_not_count() -> None:
    clock = FakeClock()
    seen: set[int] = set()

    def slow_at_first(tokens: int) -> float:
        slow = 100.0 if tokens not in seen else 0.0
        seen.add(tokens)
        return COSTS.get(tokens, 1.0) + slow

    target = model(clock, slow_at_first, max_sessions=1)
    found = measure(target, plan=replace(PLAN, contexts=(5,)), clock=clock)
    assert found.costs.target.seconds == (tuple(COSTS.values()),)
    assert not target.open_caches


@pytest.mark.parametrize("disturbed", [*itertools.combinations(range(1, 6), 2)])
@pytest.mark.parametrize("part", [slice(None), slice(0, 3), slice(2, None)])
def test_disturbed_rounds_do_not_bend_the_curve(disturbed: tuple[int, ...], part: slice) -> None:
    clock = FakeClock()
    passes = itertools.count(-1)  # the context is read in one pass before the warm-up
    slow_widths = PLAN.widths[part]

    def cost(tokens: int) -> float:
        number = next(passes)
        slow = number // len(PLAN.widths) in disturbed and tokens in slow_widths
        return COSTS.get(tokens, 1.0) * (8 if slow else 1)

    found = measure(model(clock, cost), plan=replace(PLAN, contexts=(5,)), clock=clock)
    assert found.costs.target.seconds == (tuple(COSTS.values()),)
    assert found.minima == found.costs.target


def test_rounds_are_added_while_they_disagree_and_no_more_than_as_many_again() -> None:
    clock = FakeClock()
    noise = random.Random(7)

    def uneven(tokens: int) -> float:
        return COSTS.get(tokens, 1.0) * noise.uniform(1, 5)

    found = measure(model(clock, uneven), plan=PLAN, clock=clock)
    assert (found.rounds, found.steady) == (2 * PLAN.rounds, False)
    assert found.costs.target == found.minima, "medians of disturbed rounds say little"


def test_contexts_are_measured_in_the_same_rounds() -> None:
    clock = FakeClock()
    plan = replace(PLAN, contexts=(8, 64))
    target = growing(clock)
    found = measure(target, plan=plan, clock=clock).costs.target
    assert found.contexts == (8, 64)
    for context in plan.contexts:
        for width, cost in COSTS.items():
            assert found.at(width, context) == cost + added(context, width)
    sequences = [sequence for sequence, _ in target.log.truncations]
    assert sequences == [1, 2] * (len(sequences) // 2)


def test_widths_left_out_at_a_far_context_are_on_a_straight_line_of_what_it_adds() -> None:
    clock = FakeClock()
    plan = replace(PLAN, contexts=(8, 64), far_widths=(1, 8))
    found = measure(growing(clock), plan=plan, clock=clock).costs.target
    for width, cost in COSTS.items():
        assert found.at(width, 64) == pytest.approx(cost + added(64, width), rel=1e-12)


def test_a_far_context_needs_a_place_and_little_enough_reading() -> None:
    clock = FakeClock()
    plan = replace(PLAN, contexts=(8, 64))
    alone = growing(clock, max_sessions=1)
    assert measure(alone, plan=plan, clock=clock).costs.target.contexts == (8,)
    assert not alone.open_caches
    # the first 8 tokens take 150/64 s: 64 at that pace take 18.75 s
    for most_seconds, contexts in ((18.7, (8,)), (18.8, (8, 64))):
        limited = replace(plan, most_reading_seconds=most_seconds)
        found = measure(growing(clock), plan=limited, clock=clock)
        assert found.costs.target.contexts == contexts


def test_one_model_without_a_place_leaves_the_far_context_out_for_both() -> None:
    clock = FakeClock()
    target, draft = growing(clock), growing(clock, max_sessions=1)
    found = measure(target, draft, plan=replace(PLAN, contexts=(8, 64)), clock=clock)
    assert found.costs.target.contexts == (8,)
    assert not target.open_caches | draft.open_caches


@pytest.mark.parametrize(
    ("options", "widths", "contexts"),
    [
        ({"context_size": 4096}, FULL.widths, (256, 2000)),
        ({"context_size": 1024}, FULL.widths, (256, 992)),
        ({"context_size": 300}, FULL.widths, (256,)),
        ({"context_size": 40}, tuple(range(1, 17)), (24,)),
        ({"max_width": 6}, (1, 2, 3, 4, 5, 6), (256, 2000)),
        ({"context_size": 1}, (1,), (0,)),
    ],
)
def test_plans_are_cut_to_what_the_models_hold(
    options: dict[str, int], widths: tuple[int, ...], contexts: tuple[int, ...]
) -> None:
    clock = FakeClock()
    target = ScriptedModel(
        lambda prefix: [0.0], vocab_size=1, clock=clock, **({"context_size": 4096} | options)
    )
    found = measure(target, plan=replace(FULL, rounds=1), clock=clock).costs.target
    assert (found.widths, found.contexts) == (widths, contexts)


def test_without_a_place_there_is_an_error_and_a_failed_pass_gives_places_back() -> None:
    clock = FakeClock()
    full = model(clock, staircase(COSTS), max_sessions=1)
    held = full.new_cache()
    with pytest.raises(BackendError, match="in use"):
        measure(full, plan=PLAN, clock=clock)
    held.close()
    failing = model(clock, staircase(COSTS), fail_at=4)
    with pytest.raises(BackendError, match="as told"):
        measure(failing, plan=PLAN, clock=clock)
    assert not failing.open_caches


def test_progress_grows_to_the_whole() -> None:
    clock = FakeClock()
    told: list[tuple[str, float]] = []
    measure(
        model(clock, staircase(COSTS)),
        plan=PLAN,
        clock=clock,
        progress=lambda label, share: told.append((label, share)),
    )
    labels, shares = zip(*told, strict=True)
    assert labels[:3] == ("reading 8 tokens", "warming up", "round 1")
    assert list(shares) == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1


@pytest.mark.parametrize("rounds", [0, -1, 2.5, "three"])
def test_a_number_of_rounds_that_is_none_is_refused(rounds: object) -> None:
    with pytest.raises(ConfigError, match=r"rounds must be a whole number above 0"):
        replace(QUICK, rounds=rounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(("most_seconds", "rounds"), [(None, 10), (0.0, 5), (165.0, 6)])
def test_rounds_that_disagree_go_on_only_as_long_as_the_plan_has_time(
    most_seconds: float | None, rounds: int
) -> None:
    clock = FakeClock()
    turns = itertools.count()

    def never_alike(tokens: int) -> float:
        return COSTS.get(tokens, 1.0) * (1 + next(turns) % 7)

    plan = replace(PLAN, most_seconds=most_seconds)
    found = measure(model(clock, never_alike), plan=plan, clock=clock)
    assert not found.steady
    assert found.rounds == rounds
