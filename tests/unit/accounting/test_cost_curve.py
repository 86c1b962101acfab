"""What lies between measured passes, and beyond them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.accounting.cost_curve import CostCurve, PairCosts

CURVE = CostCurve(
    widths=(1, 2, 4, 8),
    contexts=(100, 300),
    seconds=((1.0, 1.2, 1.4, 2.2), (1.5, 1.7, 2.3, 3.9)),
)
positive = st.floats(1e-6, 1e6)


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    widths = [1, *draw(st.lists(st.integers(2, 64), unique=True, max_size=6).map(sorted))]
    contexts = draw(st.lists(st.integers(0, 9000), unique=True, min_size=1, max_size=3))
    row = st.lists(positive, min_size=len(widths), max_size=len(widths)).map(tuple)
    seconds = draw(st.lists(row, min_size=len(contexts), max_size=len(contexts)).map(tuple))
    return CostCurve(widths=tuple(widths), contexts=tuple(sorted(contexts)), seconds=seconds)


def test_a_measured_pass_costs_what_was_measured() -> None:
    for context, row in zip(CURVE.contexts, CURVE.seconds, strict=True):
        for width, seconds in zip(CURVE.widths, row, strict=True):
            assert CURVE.at(width, context) == pytest.approx(seconds)


def test_between_measured_passes_a_straight_line_is_drawn() -> None:
    assert CURVE.at(3, 100) == pytest.approx(1.3)
    assert CURVE.at(6, 100) == pytest.approx(1.8)
    assert CURVE.at(1, 200) == pytest.approx(1.25)
    assert CURVE.at(3, 250) == pytest.approx(1.3 + 0.75 * (2.0 - 1.3))


def test_beyond_measured_passes_the_last_slope_goes_on() -> None:
    assert CURVE.at(12, 100) == pytest.approx(3.0)
    assert CURVE.at(1, 500) == pytest.approx(2.0)
    assert CURVE.at(1, 0) == pytest.approx(0.75)


def test_no_pass_costs_less_than_a_quarter_of_a_measured_one() -> None:
    falling = CostCurve(widths=(1,), contexts=(100, 200), seconds=((2.0,), (1.0,)))
    assert falling.at(1, 5000) == pytest.approx(0.25)


@given(curves(), st.integers(1, 200), st.integers(0, 20000))
def test_every_pass_costs_a_positive_time_or_is_bounded_by_its_row(
    curve: CostCurve, width: int, context: int
) -> None:
    inside = width <= curve.widths[-1] and curve.contexts[0] <= context <= curve.contexts[-1]
    if inside:
        every = [seconds for row in curve.seconds for seconds in row]
        assert 0.99 * min(every) <= curve.at(width, context) <= 1.01 * max(every)
    row = curve.row(min(width, curve.widths[-1]), curve.contexts[0])
    assert row[0] == 0.0
    assert all(seconds > 0 for seconds in row[1:])


def test_a_single_width_or_context_says_the_same_everywhere() -> None:
    one = CostCurve(widths=(1,), contexts=(256,), seconds=((0.5,),))
    assert {one.at(w, c) for w in (1, 7, 100) for c in (0, 256, 4000)} == {0.5}


def test_a_straight_line_needs_only_its_ends() -> None:
    line = CostCurve.flat(1.0, row_seconds=0.05)
    for width in (1, 2, 33, 64, 100):
        assert line.at(width) == pytest.approx(1 + 0.05 * (width - 1))
    assert CostCurve.flat(2.0, widest=8).row(8) == pytest.approx([0.0, *[2.0] * 8])


def test_ratios_and_scales() -> None:
    curve = CostCurve.from_ratios({4: 1.8, 1: 1.0, 2: 1.5}, step_seconds=0.02)
    assert curve.widths == (1, 2, 4)
    assert curve.at(4) == pytest.approx(0.036)
    assert curve.ratios() == pytest.approx({1: 1.0, 2: 1.5, 4: 1.8})
    assert CURVE.ratios()[8] == pytest.approx(2.2)
    assert CURVE.ratios(300)[8] == pytest.approx(2.6)
    assert CURVE.scaled(3.0).at(3, 250) == pytest.approx(3 * CURVE.at(3, 250))


@given(curves())
def test_a_curve_survives_json(curve: CostCurve) -> None:
    assert CostCurve.from_dict(json.loads(json.dumps(curve.to_dict()))) == curve


GOOD: dict[str, Any] = {"widths": [1, 2], "contexts": [256], "seconds": [[1.0, 1.1]]}
DAMAGE: dict[str, dict[str, Any]] = {
    "no widths": {"widths": [], "seconds": [[]]},
    "widths from 2": {"widths": [2, 3]},
    "widths that fall": {"widths": [1, 1]},
    "no contexts": {"contexts": [], "seconds": []},
    "contexts that fall": {"contexts": [256, 100], "seconds": [[1.0, 1.1]] * 2},
    "too few rows": {"contexts": [256, 300]},
    "too short a row": {"seconds": [[1.0]]},
    "zero": {"seconds": [[1.0, 0.0]]},
    "below zero": {"seconds": [[-1.0, 1.0]]},
    "not a number": {"seconds": [[1.0, float("nan")]]},
    "infinite": {"seconds": [[1.0, float("inf")]]},
    "words": {"seconds": [["fast", "slow"]]},
    "nothing": {"seconds": None},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_curve_is_refused(name: str) -> None:
    assert CostCurve.from_dict(GOOD).at(2) == 1.1
    with pytest.raises((ValueError, TypeError)):
        CostCurve.from_dict({**GOOD, **DAMAGE[name]})


@pytest.mark.parametrize("name", GOOD)
def test_a_curve_with_a_part_missing_is_refused(name: str) -> None:
    with pytest.raises(KeyError):
        CostCurve.from_dict({key: value for key, value in GOOD.items() if key != name})


def test_the_draft_cost_ratio_is_of_one_token_at_the_shortest_context() -> None:
    draft = CostCurve(widths=(1, 4), contexts=(100,), seconds=((0.2, 0.3),))
    pair = PairCosts(target=CURVE, draft=draft, draft_overhead_seconds=0.05)
    assert pair.draft_cost_ratio == pytest.approx(0.25)
    assert PairCosts(target=CURVE).draft_cost_ratio is None


def test_a_flat_last_step_says_nothing_about_wider_passes() -> None:
    # measured on llama.cpp: sixteen rows fill whole groups and cost less than twelve
    staircase = CostCurve.from_ratios({1: 1.0, 4: 2.56, 8: 4.44, 12: 5.29, 16: 5.04})
    mean_slope = (5.04 - 1.0) / 15
    for width in (17, 24, 32):
        assert staircase.at(width) == pytest.approx(5.04 + mean_slope * (width - 16))
    rising = CostCurve.from_ratios({1: 1.0, 8: 1.2, 16: 3.2})
    assert rising.at(24) == pytest.approx(5.2)  # the last slope, where that is the steeper one
    assert CostCurve.from_ratios({1: 1.0}).at(9) == 1.0
