"""Measured costs that follow the machine."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.control.live_costs import LiveCosts

TARGET = CostCurve(
    widths=(1, 2, 4, 8, 16),
    contexts=(100, 2000),
    seconds=((1.0, 1.1, 1.2, 2.0, 3.5), (1.4, 1.6, 1.9, 3.0, 5.0)),
)
DRAFT = CostCurve(widths=(1, 8), contexts=(100,), seconds=((0.3, 0.6),))


def live() -> LiveCosts:
    costs = PairCosts(
        target=TARGET, draft=DRAFT, overhead_seconds=0.05, draft_overhead_seconds=0.02
    )
    return LiveCosts(costs, max_width=16)


def observe(costs: LiveCosts, widths: Iterable[int], factor: float = 1.0) -> None:
    for width in widths:
        costs.observe_target(width, 100, factor * TARGET.at(width, 64))


def test_before_any_pass_the_costs_are_the_calibrations() -> None:
    costs = live()
    # contexts are taken in steps of 128, each at its middle
    for context, middle in ((0, 64), (100, 64), (1000, 960), (5000, 5056)):
        assert costs.target(context) == pytest.approx(TARGET.row(16, middle))
        assert costs.rounds(context)[1] == pytest.approx(TARGET.at(1, middle) + 0.05)
    assert costs.draft(1, 100) == pytest.approx(0.32)
    assert costs.has_draft
    assert not LiveCosts(PairCosts(target=TARGET), max_width=4).has_draft
    assert not costs.drifted


def test_passes_as_expected_change_nothing() -> None:
    costs = live()
    observe(costs, [1, 2, 3, 4, 8, 16] * 20)
    assert costs.target(100) == pytest.approx(TARGET.row(16, 64))
    assert not costs.drifted


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("widths", [[1], [1, 2, 4], [8]])
def test_a_machine_of_another_speed_is_followed(factor: float, widths: list[int]) -> None:
    costs = live()
    observe(costs, widths * (60 // len(widths)), factor)
    for width in widths:
        seconds = costs.target(100)[width]
        assert seconds == pytest.approx(factor * TARGET.at(width, 64), rel=0.05)
    # what was not run, and other contexts, follow too
    assert costs.target(1900)[1] / TARGET.at(1, 1856) == pytest.approx(factor, rel=0.35)


def test_one_disturbed_pass_moves_little() -> None:
    for seconds in (50.0, 0.001):
        costs = live()
        observe(costs, [1, 2, 4] * 4)
        costs.observe_target(4, 100, seconds)
        for width in range(1, 17):
            assert costs.target(100)[width] == pytest.approx(TARGET.at(width, 64), rel=0.06)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_machine_of_another_speed_is_known_after_a_few_passes(factor: float) -> None:
    """What was measured in another hour must not look like drafts that lose."""
    costs = live()
    observe(costs, [1, 4, 1, 2, 1, 4], factor)
    for width in (1, 4, 8):
        assert costs.target(100)[width] == pytest.approx(factor * TARGET.at(width, 64), rel=0.2)


def test_the_shape_of_one_width_is_followed() -> None:
    costs = live()
    for _ in range(150):
        observe(costs, [1, 2])
        observe(costs, [4], 1.6)
        observe(costs, [1])
    row = costs.target(100)
    assert row[4] == pytest.approx(1.6 * TARGET.at(4, 64), rel=0.1)
    assert row[1] == pytest.approx(TARGET.at(1, 64), rel=0.05)
    assert row[2] == pytest.approx(TARGET.at(2, 64), rel=0.1)
    # the width beside it was not seen
    assert row[8] == pytest.approx(TARGET.at(8, 64), rel=0.1)


def test_drift_is_what_lasts() -> None:
    costs = live()
    for _ in range(90):
        observe(costs, [1, 4, 1], 1.0)
        observe(costs, [8], 1.5)
    assert not costs.drifted  # too few passes of that width to say
    for _ in range(20):
        observe(costs, [1, 4, 1], 1.0)
        observe(costs, [8], 1.5)
    assert costs.drifted
    for _ in range(60):
        observe(costs, [1, 8, 1, 4])
    assert not costs.drifted  # the curve is as it was
    noisy = live()
    for number in range(300):
        observe(noisy, [1 + number % 4], 3.0 if number % 10 == 0 else 1.0)
    assert not noisy.drifted  # a busy neighbour now and then


def test_a_slow_machine_has_not_drifted_but_a_draft_model_that_became_dear_has() -> None:
    costs = live()
    observe(costs, [1, 2, 4] * 200, 2.0)
    for _ in range(200):
        costs.observe_draft(costs.draft(1, 100), 2.0 * 0.32)
    assert not costs.drifted  # whatever is decided rests on ratios
    for _ in range(200):
        costs.observe_draft(costs.draft(1, 100), 3.0 * 0.32)
    assert costs.drifted


@pytest.mark.parametrize(("width", "seconds"), [(0, 1.0), (17, 1.0), (3, 0.0), (3, -1.0)])
def test_passes_that_say_nothing_are_left_out(width: int, seconds: float) -> None:
    costs = live()
    costs.observe_target(width, 100, seconds)
    assert costs.target(100) == pytest.approx(TARGET.row(16, 64))


def test_the_draft_models_speed_is_followed() -> None:
    costs = live()
    for _ in range(60):
        costs.observe_draft(costs.draft(1, 100), 2 * 0.32)
    assert costs.draft(1, 100) == pytest.approx(0.64, rel=0.02)
    costs.observe_draft(0.0, 1.0)
    costs.observe_draft(1.0, 0.0)
    assert costs.draft(1, 100) == pytest.approx(0.64, rel=0.02)


def test_reading_is_one_pass_or_many_wide_ones() -> None:
    costs = live()
    assert costs.reading(0, 100) == costs.reading(1, 100) == costs.draft(1, 100)
    assert costs.reading(8, 100) == costs.draft(8, 100)
    assert costs.reading(80, 100) == pytest.approx(10 * costs.draft(8, 100))
    lengths = [costs.reading(n, 100) for n in range(1, 40)]
    assert lengths == sorted(lengths)
    assert all(math.isfinite(seconds) for seconds in lengths)
