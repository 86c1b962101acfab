"""How far estimates are believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.control.reliability import Reliability

probabilities = st.floats(0.0, 1.0)


@given(probabilities)
def test_without_experience_an_estimate_is_believed(estimate: float) -> None:
    assert Reliability().chance(estimate) == pytest.approx(estimate)
    assert Reliability(Reliability()).chance(estimate) == pytest.approx(estimate)


@given(st.lists(st.booleans(), max_size=60), st.floats(0.5, 1.0), st.floats(0.5, 20.0))
def test_counts_fade_and_weigh_against_the_estimate(
    outcomes: list[bool], fading: float, weight: float
) -> None:
    table = Reliability(weight=weight, fading=fading)
    for outcome in outcomes:
        table.record(0.7, outcome)
    ages = [fading**age for age in range(len(outcomes))][::-1]
    accepted = sum(age for age, outcome in zip(ages, outcomes, strict=True) if outcome)
    left = max(weight / 3, weight * fading ** len(outcomes))
    expected = (accepted + left * 0.7) / (sum(ages) + left)
    assert table.chance(0.7) == pytest.approx(expected)


@given(st.lists(st.tuples(probabilities, st.booleans()), max_size=40), probabilities)
def test_a_chance_is_a_probability(records: list[tuple[float, bool]], estimate: float) -> None:
    table = Reliability(Reliability())
    for recorded, outcome in records:
        table.record(recorded, outcome)
    assert 0.0 <= table.chance(estimate) <= 1.0 + 1e-12
    assert table.chances([estimate, estimate]) == [table.chance(estimate)] * 2


def test_what_was_seen_often_is_believed_against_any_estimate() -> None:
    table = Reliability(Reliability(), weight=12.0)
    for _ in range(150):
        table.record(1.0, False)
    assert table.chance(1.0) < 0.02


def test_classes_of_estimates_are_counted_apart() -> None:
    table = Reliability()
    for _ in range(100):
        table.record(0.99, False)
    assert table.chance(0.99) < 0.2
    assert table.chance(0.5) == 0.5
    assert table.chance(0.999) == 0.999


def test_old_experience_fades() -> None:
    table = Reliability()
    for _ in range(1000):
        table.record(0.6, False)
    hopeless = table.chance(0.6)
    for _ in range(150):
        table.record(0.6, True)
    assert hopeless < 0.1 < 0.85 < table.chance(0.6)


def test_a_request_begins_where_past_ones_ended_and_goes_its_own_way() -> None:
    past = Reliability()
    for _ in range(100):
        past.record(0.9, False)
    request, other = Reliability(past, weight=12.0), Reliability(past, weight=12.0)
    assert request.chance(0.9) == pytest.approx(past.chance(0.9))
    before = other.chance(0.9)
    for _ in range(30):
        request.record(0.9, True)
    assert request.chance(0.9) > 0.6
    # the past learns too, and with it what others begin with
    assert other.chance(0.9) == pytest.approx(past.chance(0.9))
    assert before < other.chance(0.9) < request.chance(0.9)


@pytest.mark.parametrize("estimate", [0.0, 0.1, 0.995, 1.0])
def test_the_ends_and_edges_have_a_class(estimate: float) -> None:
    table = Reliability()
    table.record(estimate, True)
    left = 8 * 0.98
    assert table.chance(estimate) == pytest.approx((1 + left * estimate) / (1 + left))
    assert table.chance(0.42) == pytest.approx(0.42)
