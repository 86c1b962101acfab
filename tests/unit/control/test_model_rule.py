"""When a draft model stops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pilotfish.control.choice import Prices
from pilotfish.control.model_rule import ModelRule
from pilotfish.control.reliability import Reliability

LINEAR = [0.0, *(1.0 + 0.1 * n for n in range(30))]


def rule(
    *,
    next_chance: float = 0.8,
    rate: float = 1.5,
    pass_seconds: float = 0.1,
    affordable: float = 100.0,
    seconds: Sequence[float] = LINEAR,
    first_pass: float = 0.1,
    probes: bool = False,
) -> ModelRule:
    return ModelRule(
        table=Reliability(),
        next_chance=next_chance,
        prices=Prices(seconds, 1, rate),
        first_pass_seconds=first_pass,
        pass_seconds=pass_seconds,
        affordable_seconds=affordable,
        probes=probes,
    )


def drafted(stop_rule: ModelRule, chances: Sequence[float]) -> int:
    """Return how many tokens a draft model with these chances drafts, as the drafter asks."""
    for number in range(1, len(chances) + 1):
        if not stop_rule.keeps(chances[:number]):
            return number - 1
        if number < len(chances) and not stop_rule.goes_on(chances[:number]):
            return number
    return len(chances)


def test_it_goes_on_while_a_token_pays_for_its_row_and_its_drafting() -> None:
    # a token brings its survival and costs 1.5 x (0.1 + 0.1): ten of 0.9 survive with 0.35
    constant = rule(next_chance=0.9)
    assert drafted(constant, [0.9] * 20) == 11  # 0.9**11 = 0.31, 0.9**12 = 0.28
    assert constant.alive == pytest.approx([0.9**n for n in range(1, 12)])
    assert constant.spent_seconds == pytest.approx(11 * 0.1)


def test_a_drafted_token_needs_to_pay_for_its_row_alone() -> None:
    # a row costs 1.5 x 0.1 = 0.15, a row and a pass 0.3
    assert drafted(rule(next_chance=0.0), [0.16, 0.9]) == 1
    assert drafted(rule(next_chance=0.0), [0.14, 0.9]) == 0


def test_an_unlikely_token_is_dropped_before_it_is_drawn() -> None:
    sure = rule()
    assert drafted(sure, [0.95, 0.95, 0.05, 0.99]) == 2
    assert sure.alive == pytest.approx([0.95, 0.95**2])
    assert sure.spent_seconds == pytest.approx(0.3)  # the third pass was paid for


def test_a_step_of_the_staircase_is_filled_and_the_next_crossed_only_if_it_pays() -> None:
    seconds = [0.0, *(1.0 + 0.8 * ((n - 1) // 4) for n in range(1, 30))]
    free = {"seconds": seconds, "pass_seconds": 0.0, "first_pass": 0.0, "rate": 1.0}
    assert drafted(rule(**free, next_chance=0.3), [0.3] * 20) == 3
    # four more of 0.9 bring 2.5 in all for 0.8
    assert drafted(rule(**free, next_chance=0.9), [0.9] * 20) in (7, 11, 15, 19)


def test_what_a_round_may_take_is_never_exceeded() -> None:
    for affordable in (0.0, 0.15, 0.25, 0.5, 1.0, 2.0):
        limited = rule(next_chance=0.99, affordable=affordable)
        number = drafted(limited, [0.99] * 20)
        rows = 0.1 * number
        assert number == 0 or limited.spent_seconds + rows <= affordable + 1e-9
        assert drafted(rule(next_chance=0.99, affordable=affordable + 0.21), [0.99] * 20) > number


def test_experience_counts_for_more_than_the_models_own_word() -> None:
    table = Reliability()
    for _ in range(100):
        table.record(0.99, False)
    boastful = ModelRule(
        table=table,
        next_chance=0.1,
        prices=Prices(LINEAR, 1, 1.5),
        first_pass_seconds=0.1,
        pass_seconds=0.1,
        affordable_seconds=100.0,
    )
    assert drafted(boastful, [0.99] * 5) <= 1


def test_a_probe_scores_its_first_token_whatever_it_is_unless_it_is_too_dear() -> None:
    hopeless = {"next_chance": 0.0, "first_pass": 0.1}
    assert drafted(rule(**hopeless), [0.01] * 5) == 0
    assert drafted(rule(**hopeless, probes=True), [0.01] * 5) == 1
    assert drafted(rule(**hopeless, probes=True, affordable=0.15), [0.01] * 5) == 0
    assert drafted(rule(next_chance=0.9, probes=True), [0.9] * 20) == 11


def test_rows_beyond_the_widest_pass_are_not_asked_for() -> None:
    short = rule(seconds=LINEAR[:5], next_chance=0.99)
    assert drafted(short, [0.99] * 20) == 3
