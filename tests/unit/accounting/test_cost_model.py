"""The closed forms against published figures, against each other, and against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.accounting.cost_model import (
    RoundCosts,
    best_length,
    break_even_acceptance,
    expected_experts,
    expected_tokens_per_round,
    rate,
    speedup,
    survival,
    undominated_widths,
    worthwhile_further_tokens,
)

STAIRCASE = {1: 1.0, 2: 1.6, 3: 1.85, 4: 1.83, 5: 2.3, 8: 2.5, 9: 3.6, 12: 3.5, 17: 6.0}


def flat(draft: float = 0.0, *, step: float = 1.0) -> RoundCosts:
    """Return costs where a pass of any width takes a step, and a draft token a share of it."""
    return RoundCosts(curve=CostCurve.flat(step), draft_seconds=draft * step)


def ratios(by_width: dict[int, float], draft: float = 0.0, **others: float) -> RoundCosts:
    return RoundCosts(curve=CostCurve.from_ratios(by_width), draft_seconds=draft, **others)  # type: ignore[arg-type]


# Leviathan et al. 2023, table 1, where drafts cost nothing: acceptance, length, speed
PUBLISHED_SPEEDS = [
    (0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86),
]  # fmt: skip
# tokens of a round with 3 and with 7 draft tokens
TOKENS = [(0.6, 2.18, 2.46), (0.75, 2.73, 3.60), (0.85, 3.19, 4.85), (0.9, 3.44, 5.70)]
# cost ratio, acceptance, best speedup on a flat curve, its length
BEST = [
    (0.05, 0.6, 1.92, 4), (0.05, 0.75, 2.67, 7), (0.05, 0.9, 4.67, 13),
    (0.1, 0.6, 1.67, 3), (0.1, 0.75, 2.19, 5), (0.1, 0.9, 3.43, 10),
    (0.2, 0.6, 1.40, 2), (0.2, 0.75, 1.71, 3), (0.2, 0.9, 2.37, 7),
    (0.4, 0.6, 1.14, 1), (0.4, 0.75, 1.28, 2), (0.4, 0.9, 1.58, 4),
]  # fmt: skip
# T(4) / T(1) and what three draft tokens must be accepted with, by cost ratio
BREAK_EVEN = {
    1.0: {0.02: 0.06, 0.1: 0.23, 0.2: 0.39, 0.3: 0.51, 0.4: 0.61},
    1.25: {0.02: 0.24, 0.1: 0.37, 0.2: 0.49, 0.3: 0.59, 0.4: 0.68},
    1.5: {0.02: 0.37, 0.1: 0.47, 0.2: 0.58, 0.3: 0.66, 0.4: 0.74},
    1.85: {0.02: 0.51, 0.1: 0.59, 0.2: 0.68, 0.3: 0.75, 0.4: 0.82},
}
# experts of a layer, chosen by a token: reads of passes of 2, 4, 8, 16 tokens over those of one
EXPERTS = {
    (8, 2): (1.75, 2.73, 3.60, 3.96),
    (64, 6): (1.91, 3.47, 5.81, 8.46),
    (128, 8): (1.94, 3.64, 6.45, 10.3),
    (256, 8): (1.97, 3.82, 7.18, 12.75),
}


@pytest.mark.parametrize(("acceptance", "length", "published"), PUBLISHED_SPEEDS)
def test_free_drafts_reach_the_published_speeds(
    acceptance: float, length: int, published: float
) -> None:
    assert speedup(acceptance, length, flat()) == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize(("acceptance", "three", "seven"), TOKENS)
def test_tokens_per_round(acceptance: float, three: float, seven: float) -> None:
    assert expected_tokens_per_round(acceptance, 3) == pytest.approx(three, abs=0.006)
    assert expected_tokens_per_round(acceptance, 7) == pytest.approx(seven, abs=0.006)


@pytest.mark.parametrize(("cost_ratio", "acceptance", "gain", "length"), BEST)
def test_best_lengths_on_a_flat_curve(
    cost_ratio: float, acceptance: float, gain: float, length: int
) -> None:
    costs = flat(cost_ratio, step=0.03)
    assert best_length(acceptance, costs) == length
    assert speedup(acceptance, length, costs) == pytest.approx(gain, abs=0.006)


@pytest.mark.parametrize("width_ratio", BREAK_EVEN)
def test_break_even_of_three_draft_tokens(width_ratio: float) -> None:
    for cost_ratio, acceptance in BREAK_EVEN[width_ratio].items():
        costs = ratios({1: 1.0, 4: width_ratio}, cost_ratio)
        assert break_even_acceptance(3, costs) == pytest.approx(acceptance, abs=0.006)


@pytest.mark.parametrize("layer", EXPERTS)
def test_a_pass_reads_more_experts_than_a_step(layer: tuple[int, int]) -> None:
    for num_tokens, published in zip((2, 4, 8, 16), EXPERTS[layer], strict=True):
        reads = expected_experts(*layer, num_tokens) / layer[1]
        assert reads == pytest.approx(published, rel=0.004)
    assert expected_experts(*layer, 1) == pytest.approx(layer[1])


probabilities = st.floats(0, 1)
lengths = st.integers(0, 16)
cost_ratios = st.floats(0, 3)


@given(st.floats(0, 0.999), lengths, cost_ratios)
def test_one_acceptance_is_the_geometric_sum(a: float, length: int, cost_ratio: float) -> None:
    tokens = (1 - a ** (length + 1)) / (1 - a)
    assert expected_tokens_per_round(a, length) == pytest.approx(tokens)
    published = tokens / (cost_ratio * length + 1)
    assert speedup(a, length, flat(cost_ratio)) == pytest.approx(published)


@given(st.lists(probabilities, min_size=1, max_size=8), lengths)
def test_survival_falls_from_position_to_position(
    acceptance: list[float], num_draft_tokens: int
) -> None:
    chances = survival(acceptance, num_draft_tokens)
    assert len(chances) == num_draft_tokens
    assert chances == sorted(chances, reverse=True)
    tokens = expected_tokens_per_round(acceptance, num_draft_tokens)
    assert 1 <= tokens <= num_draft_tokens + 1


def test_the_last_position_given_holds_for_all_further_ones() -> None:
    assert survival([0.9, 0.5], 4) == pytest.approx([0.9, 0.45, 0.225, 0.1125])
    assert survival(0.5, 3) == survival([0.5], 3) == [0.5, 0.25, 0.125]


@given(st.floats(0, 1), st.floats(0.001, 0.999))
def test_on_a_flat_curve_some_length_pays_where_acceptance_is_above_the_cost_ratio(
    acceptance: float, cost_ratio: float
) -> None:
    if abs(acceptance - cost_ratio) > 1e-6:
        assert (best_length(acceptance, flat(cost_ratio)) > 0) == (acceptance > cost_ratio)


@given(st.floats(0, 1.5), st.floats(1, 2.5))
def test_one_draft_token_breaks_even_at_what_its_round_costs_more_than_a_step(
    cost_ratio: float, width_ratio: float
) -> None:
    costs = ratios({1: 1.0, 2: width_ratio}, cost_ratio)
    more = cost_ratio + width_ratio - 1
    expected = more if more <= 1 else None
    assert break_even_acceptance(1, costs) == (expected and pytest.approx(expected, abs=1e-12))


@given(st.integers(1, 16), cost_ratios)
def test_at_break_even_drafts_neither_save_nor_cost(length: int, cost_ratio: float) -> None:
    costs = ratios(STAIRCASE, cost_ratio, overhead_seconds=0.01)
    found = break_even_acceptance(length, costs)
    if found is None:
        assert speedup(1.0, length, costs) < 1
    else:
        assert speedup(found, length, costs) == pytest.approx(1.0)


def test_drafts_that_cost_nothing_cannot_lose_and_no_draft_has_no_break_even() -> None:
    assert break_even_acceptance(3, flat()) == 0.0
    assert break_even_acceptance(0, flat()) is None


def test_catch_up_and_overhead_count_once_a_round_and_not_without_a_draft() -> None:
    costs = ratios({1: 1.0, 4: 1.3}, 0.1, catch_up_seconds=0.05, overhead_seconds=0.02)
    assert costs.round_seconds(3) == pytest.approx(1.3 + 0.3 + 0.05 + 0.02)
    assert costs.round_seconds(0) == costs.step_seconds == 1.0
    assert speedup(0.9, 0, costs) == 1.0


def test_what_a_pass_costs_is_read_at_the_context() -> None:
    curve = CostCurve(widths=(1, 4), contexts=(0, 100), seconds=((1.0, 1.0), (2.0, 4.0)))
    assert RoundCosts(curve=curve, context=100).round_seconds(3) == 4.0
    assert RoundCosts(curve=curve, context=50).round_seconds(0) == 1.5


def test_rounds_of_a_calibrated_pair() -> None:
    curve = CostCurve.from_ratios({1: 1.0, 4: 1.3}, step_seconds=2.0)
    pair = PairCosts(
        target=curve,
        draft=CostCurve.flat(0.4),
        overhead_seconds=0.5,
        draft_overhead_seconds=0.1,
    )
    from_text = RoundCosts.of_pair(pair, by_model=False)
    by_model = RoundCosts.of_pair(pair, by_model=True)
    # plain rounds have the engine's own work too
    assert from_text.step_seconds == by_model.step_seconds == pytest.approx(2.5)
    assert from_text.round_seconds(3) == pytest.approx(2.6 + 0.5)
    assert by_model.round_seconds(3) == pytest.approx(2.6 + 0.5 + 3 * 0.5)


@given(st.lists(probabilities, min_size=1, max_size=6), cost_ratios)
def test_the_best_length_is_the_best_of_all(acceptance: list[float], cost_ratio: float) -> None:
    costs = ratios(STAIRCASE, cost_ratio)
    best = best_length(acceptance, costs)
    assert all(
        rate(acceptance, best, costs) >= rate(acceptance, length, costs) for length in range(17)
    )


def test_a_staircase_is_filled_to_its_edge() -> None:
    # passes of 3 rows cost more than passes of 4, and from 9 rows on the next step begins
    costs = ratios(STAIRCASE)
    assert best_length(0.75, costs) == 3
    assert best_length(0.93, costs) == 7
    assert undominated_widths(costs.curve, widest=12) == [1, 2, 4, 5, 6, 7, 8, 12]
    assert undominated_widths(CostCurve.flat(1.0), widest=9) == [9]
    assert undominated_widths(CostCurve.flat(1.0, row_seconds=0.1), widest=3) == [1, 2, 3]


@given(st.lists(st.floats(0.05, 0.98), min_size=1, max_size=6), st.floats(0, 0.5))
def test_at_the_best_rate_a_round_is_worth_exactly_the_best_length(
    acceptance: list[float], cost_ratio: float
) -> None:
    """With the best rate as the price of time no length gains more than the best one."""
    costs = ratios(STAIRCASE, cost_ratio, catch_up_seconds=0.02)
    best = best_length(acceptance, costs)
    price = rate(acceptance, best, costs)
    further = worthwhile_further_tokens(acceptance, 0, costs, rate=price)
    # lengths whose rates differ by rounding alone are both best
    assert rate(acceptance, further, costs) == pytest.approx(price)


def test_further_tokens_are_drafted_to_the_edge_of_a_step_and_not_beyond() -> None:
    costs = ratios({1: 1.0, 2: 1.6, 3: 1.6, 4: 1.6, 5: 3.0, 8: 3.0, 9: 9.0})

    def further(acceptance: float, num_drafted: int, reached: float = 1.0) -> int:
        return worthwhile_further_tokens(acceptance, num_drafted, costs, rate=1.0, reached=reached)

    # one more token costs 0.6 and gains 0.5, three cost the same and gain 0.875
    assert further(0.5, 0) == 3
    # inside the step rows are free, however unlikely they are
    assert further(0.5, 1, reached=0.01) == 2
    assert further(0.5, 3) == 0
    # the next step of 1.4 pays as a whole when four tokens are almost certain
    assert further(0.95, 3) == 4
    assert further(0.95, 3, reached=0.3) == 0


@pytest.mark.parametrize("acceptance", [0.3, 0.8, [0.9, 0.6, 0.4, 0.7]])
def test_simulated_rounds_emit_as_many_tokens(acceptance: float | list[float]) -> None:
    """Five standard errors of the mean: a correct formula fails with probability 6e-7 a case."""
    num_rounds, length = 40_000, 6
    by_position = np.resize(acceptance, 4) if isinstance(acceptance, list) else [acceptance]
    chances = np.append(by_position, [by_position[-1]] * length)[:length]
    accepted = np.random.default_rng(20261130).random((num_rounds, length)) < chances
    tokens = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
    error = tokens.std() / np.sqrt(num_rounds)
    expected = expected_tokens_per_round(acceptance, length)
    assert abs(tokens.mean() - expected) < 5 * error
    # and a formula that forgets the target's own token would not pass
    assert abs(tokens.mean() - (expected - 1)) > 5 * error
    seconds = num_rounds * ratios(STAIRCASE, 0.1).round_seconds(length)
    simulated = tokens.sum() / seconds
    assert simulated == pytest.approx(
        rate(acceptance, length, ratios(STAIRCASE, 0.1)), rel=5 * error / tokens.mean()
    )


@pytest.mark.parametrize("wrong", [-0.1, 1.01, float("nan"), [], [0.5, 2.0]])
def test_what_is_no_probability_is_refused(wrong: float | list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        survival(wrong, 3)
