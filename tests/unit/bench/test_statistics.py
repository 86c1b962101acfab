"""Ratios and their intervals: exact cases first, then what the interval is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pilotfish.bench.statistics import Speedup, geometric_mean, paired_ratio, speedup, spread


def test_the_geometric_mean_is_the_root_of_the_product() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_a_prompts_ratio_is_the_median_of_its_rounds_so_one_disturbed_round_is_nothing() -> None:
    assert paired_ratio([2.0, 2.0, 2.0], [1.0, 1.0, 10.0]) == 2.0
    assert paired_ratio([2.0, 20.0], [1.0, 10.0]) == 2.0, "both times of a round were slow"
    with pytest.raises(ValueError):
        paired_ratio([1.0, 2.0], [1.0])


def test_prompts_that_agree_have_an_interval_of_no_width() -> None:
    found = speedup([1.5, 1.5, 1.5])
    assert found is not None
    assert (found.geomean, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_two_prompts_have_the_interval_that_can_be_counted_by_hand() -> None:
    # of two draws both are 1 in a quarter of cases, both are 4 in another: far more than 2.5 %
    found = speedup([1.0, 4.0])
    assert found is not None
    assert (found.geomean, found.low, found.high) == pytest.approx((2.0, 1.0, 4.0))


def test_one_prompt_has_no_interval_and_no_prompt_no_speedup() -> None:
    assert speedup([1.5]) == Speedup(pytest.approx(1.5), None, None)
    assert speedup([]) is None
    assert spread([]) is None


def test_an_interval_is_repeatable_holds_the_mean_and_scales_with_the_ratios() -> None:
    ratios = [0.9, 1.1, 1.3, 2.4, 1.0]
    found, doubled = speedup(ratios), speedup([2 * ratio for ratio in ratios])
    assert found == speedup(ratios)
    assert found is not None
    assert doubled is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.geomean < found.high
    assert (doubled.low, doubled.high) == pytest.approx((2 * found.low, 2 * found.high))
    other = speedup(ratios, seed=1)
    assert other is not None
    assert other.geomean == found.geomean
    assert other.low != found.low


@pytest.mark.parametrize(("num_prompts", "promised"), [(4, 0.80), (6, 0.86), (30, 0.93)])
def test_the_interval_covers_the_true_mean_as_often_as_its_docstring_says(
    num_prompts: int, promised: float
) -> None:
    # 300 seeded trials: the standard deviation of the share is 0.023 at most
    generator = np.random.default_rng(20261130)
    covered = 0
    for trial in range(300):
        found = speedup(np.exp(generator.standard_normal(num_prompts)).tolist(), seed=trial)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert math.isclose(covered / 300, promised, abs_tol=0.06)


def test_the_spread_is_least_middle_and_largest() -> None:
    found = spread([3.0, 1.0, 2.0])
    assert found is not None
    assert found.to_dict() == {"min": 1.0, "median": 2.0, "max": 3.0}
