"""The sampler: fast paths equal slow ones, seeded choice follows the law."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pilotfish.errors import BackendError
from pilotfish.sampling import (
    Sampler,
    Stream,
    TokenHistory,
    adjust_row,
    candidates,
    draw,
    greedy_choice,
    gumbel_noise,
    mix,
    noise_key,
    row_law,
    seeded_choice,
    token_logprobs,
    uniform,
)
from pilotfish.types import Distribution, SamplingSettings


def slow_law(row: np.ndarray, options: SamplingSettings) -> tuple[dict[int, float], bool]:
    """Return the law of the filters, one at a time, on the whole sorted vocabulary, and whether
    every border is clear: no token stands so near to it that rounding decides."""
    logits = row.astype(np.float64) / options.temperature
    order = sorted(range(len(row)), key=lambda i: (-logits[i], i))
    if options.top_k:
        order = order[: options.top_k]
    weights = np.exp(logits[order] - logits[order[0]])
    probs = weights / weights.sum()
    is_clear = True
    if options.top_p < 1:
        sums = np.cumsum(probs)
        is_clear = bool((np.abs(sums - options.top_p) > 1e-6).all())
        keep = int((sums < options.top_p).sum()) + 1
        order, probs = order[:keep], probs[:keep]
    shares = probs / probs[0]
    is_clear = is_clear and bool((np.abs(shares[1:] - options.min_p) > 1e-12).all())
    keep = max(1, int((shares >= options.min_p).sum()))
    order, probs = order[:keep], probs[:keep] / probs[:keep].sum()
    return dict(zip(order, probs.tolist(), strict=True)), is_clear


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 2, 5, 300, 3000]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 3010]),
    top_p=st.sampled_from([1e-6, 0.1, 0.7, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    rounded=st.booleans(),
)
def test_filters_equal_the_slow_reference(seed, size, temperature, top_k, top_p, min_p, rounded):  # type: ignore[no-untyped-def]
    row = np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3
    if rounded:  # many ties
        row = np.round(row).astype(np.float32)
    options = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    law, (slow, is_clear) = row_law(row, options), slow_law(row, options)
    if is_clear:
        assert law.ids.tolist() == sorted(slow)
        np.testing.assert_allclose(law.probs, [slow[i] for i in law.ids], rtol=1e-6)
    else:
        assert abs(len(law.ids) - len(slow)) <= 1
    assert law.probs.sum() == pytest.approx(1.0)


def kept(row: list[float], **filters: float) -> list[int]:
    options = SamplingSettings(temperature=1.0, **filters)  # type: ignore[arg-type]
    return row_law(np.array(row, dtype=np.float32), options).ids.tolist()


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    # in shares of the whole: 1/2, 1/4, 1/8, 1/16, 1/16
    row = [math.log(share) for share in (1, 8, 2, 1, 4)]
    for top_p, ids in (
        (0.01, [1]),
        (0.49, [1]),
        (0.51, [1, 4]),
        (0.74, [1, 4]),
        (0.76, [1, 2, 4]),
        (0.87, [1, 2, 4]),
        # of equals, the lowest id
        (0.88, [0, 1, 2, 4]),
        (0.93, [0, 1, 2, 4]),
        (0.94, [0, 1, 2, 3, 4]),
        (0.999, [0, 1, 2, 3, 4]),
    ):
        assert kept(row, top_p=top_p) == ids, top_p
    # equal logits have no rounding: a sum that is reached exactly is enough
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.5) == [0, 1]
    assert kept([0.0, 0.0, 0.0, 0.0], top_p=0.51) == [0, 1, 2]


def test_top_p_of_one_is_off_however_sums_are_rounded() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        # a tail that weighs less than what the sum of the rest is off by
        row = np.concatenate([rng.uniform(-1, 0, 1_000), np.full(50, -13.0)]).astype(np.float32)
        law = row_law(row, SamplingSettings(temperature=1.0, min_p=1e-7))
        assert len(law.ids) == 1_050


def test_top_k_keeps_the_lowest_ids_among_equals() -> None:
    row = [1.0, 3.0, 2.0, 3.0, 2.0, 2.0]
    expected = [[1], [1, 3], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    for top_k, ids in enumerate(expected, start=1):
        assert kept(row, top_k=top_k) == ids
        row_array = np.array(row, dtype=np.float32)
        top = token_logprobs(row_array, 0, top_k).top
        assert sorted(token for token, _ in top) == ids
    assert kept([0.0] * 9, top_k=4) == [0, 1, 2, 3]


def test_min_p_keeps_what_reaches_its_part_of_the_largest() -> None:
    row = [math.log(share) for share in (1, 8, 2, 1, 4)]
    for min_p, ids in (
        (0.12, [0, 1, 2, 3, 4]),
        (0.13, [1, 2, 4]),
        (0.24, [1, 2, 4]),
        (0.26, [1, 4]),
        (0.51, [1]),
        (1.0, [1]),
    ):
        assert kept(row, min_p=min_p) == ids, min_p
    assert kept([0.0, 0.0, -1.0], min_p=1.0) == [0, 1]


@pytest.mark.parametrize("size", [50, 5_000, 60_000])
@pytest.mark.parametrize("scale", [0.01, 2.5, 30.0])
def test_full_vocabulary_choice_equals_noise_on_every_token(size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    for trial in range(20):
        row = (rng.normal(size=size) * scale).astype(np.float32)
        row[rng.integers(size, size=3)] = -np.inf
        temperature = float(rng.choice([0.3, 1.0, 2.0]))
        key = noise_key(trial, 5)
        noise = gumbel_noise(key, np.arange(size))
        slow = int(np.argmax(row.astype(np.float64) / temperature + noise))
        assert seeded_choice(row, SamplingSettings(temperature=temperature), key) == slow


ADJUSTED = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.4,
    "logit_bias": {4: 2.0, 9: -1.0, 499: 1.0},
    "banned_tokens": (2,),
    "min_tokens": 9,
}


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([10, 500, 5_000]),
    part=st.sampled_from([0.2, 0.7, 1.0]),
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
    filters=st.sampled_from([{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}]),
    adjusted=st.booleans(),
)
def test_a_part_of_a_row_is_the_row_with_the_rest_ruled_out(
    seed, size, part, temperature, filters, adjusted
):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    row = rng.normal(size=size).astype(np.float32) * 3
    # at least as many as top_k keeps, in any order
    ids = rng.permutation(size)[: max(8, int(size * part))].astype(np.int64)
    whole = np.full(size, -np.inf, dtype=np.float32)
    whole[ids] = row[ids]
    options = SamplingSettings(temperature=temperature, **filters, **(ADJUSTED if adjusted else {}))
    sampler = Sampler(options, seed, end_ids=frozenset({1}))
    history = TokenHistory([*rng.integers(0, size, 5), size - 1], num_prompt_tokens=2)
    assert sampler.choose(row[ids], history, ids) == sampler.choose(whole, history)
    law, expected = sampler.law(row[ids], history, ids), sampler.law(whole, history)
    assert (np.diff(law.ids) > 0).all()
    for token, probability in zip(expected.ids, expected.probs, strict=True):
        assert law.probability(int(token)) == pytest.approx(probability, abs=1e-6)
    assert law.probs.sum() == pytest.approx(1.0)


def test_array_noise_equals_scalar_arithmetic() -> None:
    key = noise_key(3, 17)
    for token in (0, 1, 151_935):
        bits = mix(key + (token + 1) * 0x9E3779B97F4A7C15)
        number = ((bits >> 11) + 0.5) * 2.0**-53
        assert gumbel_noise(key, np.array([token]))[0] == -np.log(-np.log(number))


def p_value_of_choices(choose, probs: np.ndarray, runs: int) -> float:  # type: ignore[no-untyped-def]
    counts = np.bincount([choose(i) for i in range(runs)], minlength=len(probs))
    return float(stats.chisquare(counts, probs * runs).pvalue)


# Fixed seeds. False-alarm rate of each check: 1e-6. The mutant must be rejected at the same level.
ALARM = 1e-6


def test_seeded_choice_follows_the_law_over_positions_and_over_seeds() -> None:
    probs = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    row = np.log(probs).astype(np.float32)
    options = SamplingSettings(temperature=1.0)
    over_positions = lambda i: seeded_choice(row, options, noise_key(11, i))  # noqa: E731
    over_seeds = lambda i: seeded_choice(row, options, noise_key(i, 11))  # noqa: E731
    assert p_value_of_choices(over_positions, probs, 10_000) > ALARM
    assert p_value_of_choices(over_seeds, probs, 10_000) > ALARM


def test_draws_and_uniforms_follow_their_laws() -> None:
    law = Distribution(np.array([3, 7, 8]), np.array([0.6, 0.3, 0.1]))
    counts = {3: 0, 7: 0, 8: 0}
    for i in range(10_000):
        counts[draw(law, noise_key(5, i, Stream.CORRECTION, 2))] += 1
    assert stats.chisquare(list(counts.values()), law.probs * 10_000).pvalue > ALARM
    numbers = [uniform(noise_key(5, i, Stream.ACCEPTANCE)) for i in range(10_000)]
    assert stats.kstest(numbers, "uniform").pvalue > ALARM


def test_the_check_rejects_a_wrong_noise() -> None:
    probs = np.array([0.5, 0.2, 0.15, 0.1, 0.05])

    def wrong(i: int) -> int:  # one logarithm too few
        noise = np.exp(-gumbel_noise(noise_key(11, i), np.arange(5)))
        return int(np.argmax(np.log(probs) + noise))

    assert p_value_of_choices(wrong, probs, 10_000) < ALARM


def test_streams_and_rounds_are_independent() -> None:
    ids = np.arange(4_000)
    keys = [noise_key(9, 4, s, r) for s, r in itertools.product(Stream, range(3))]
    keys += [noise_key(9, 5), noise_key(10, 4)]
    noises = np.array([gumbel_noise(key, ids) for key in keys])
    correlation = np.corrcoef(noises) - np.eye(len(keys))
    assert np.abs(correlation).max() < 6 / np.sqrt(len(ids))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    list(
        itertools.product(
            [1e-4, 0.01, 0.1, 1, 5], [0, 1, 2, 12, 22], [1e-6, 0.1, 0.8, 1], [0, 0.99, 1]
        )
    ),
)
def test_no_combination_of_filters_leaves_nothing(temperature, top_k, top_p, min_p) -> None:  # type: ignore[no-untyped-def]
    row = np.random.default_rng(1).normal(size=12).astype(np.float32) * 3
    options = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    law = row_law(row, options)
    assert len(law.ids) >= 1
    assert np.isfinite(law.probs).all()
    choice = seeded_choice(row, options, noise_key(1, 1))
    assert law.probability(choice) > 0
    if top_k == 1:
        assert choice == greedy_choice(row)


def test_small_temperature_is_greedy() -> None:
    row = np.random.default_rng(2).normal(size=500).astype(np.float32)
    for seed in range(50):
        options = SamplingSettings(temperature=1e-4)
        assert seeded_choice(row, options, noise_key(seed, 0)) == greedy_choice(row)


def test_unfiltered_candidates_are_the_row_itself() -> None:
    row = np.zeros(10, dtype=np.float32)
    ids, values = candidates(row, SamplingSettings(temperature=0.5))
    assert ids is None
    assert values is row


def adjusted(
    row: list[float], history: list[int], *, prompt: int = 0, **options: object
) -> list[float]:
    result = adjust_row(
        np.array(row, dtype=np.float32),
        SamplingSettings(**options),  # type: ignore[arg-type]
        TokenHistory(history, num_prompt_tokens=prompt),
        end_ids=frozenset({0}),
    )
    return [round(float(x), 5) for x in result]


def test_penalties_bias_and_bans() -> None:
    row = [2.0, -2.0, 1.0, 0.5]
    assert adjusted(row, [0, 1, 0], prompt=1, presence_penalty=0.5) == [1.5, -2.5, 1.0, 0.5]
    assert adjusted(row, [0, 1, 0], prompt=1, presence_penalty=1.0) == [1.0, -3.0, 1.0, 0.5]
    assert adjusted(row, [0, 0, 0], prompt=1, frequency_penalty=0.5) == [1.0, -2.0, 1.0, 0.5]
    assert adjusted(row, [0, 0, 0], prompt=1, frequency_penalty=1.0) == [0.0, -2.0, 1.0, 0.5]
    assert adjusted(row, [0, 1], prompt=2, repetition_penalty=2.0) == [1.0, -4.0, 1.0, 0.5]
    assert adjusted(row, [3], prompt=1, repetition_penalty=2.0) == [2.0, -2.0, 1.0, 0.25]
    assert adjusted(row, [], banned_tokens=(4,)) == row
    assert adjusted(row, [], logit_bias={2: 3.0, 99: 1.0}) == [2.0, -2.0, 4.0, 0.5]
    assert adjusted(row, [], banned_tokens=(3, 99)) == [2.0, -2.0, 1.0, -np.inf]
    assert adjusted(row, [1], min_tokens=2) == [-np.inf, -2.0, 1.0, 0.5]
    assert adjusted(row, [1, 1], min_tokens=2) == row


def test_a_row_that_nothing_applies_to_is_not_copied() -> None:
    row = np.zeros(4, dtype=np.float32)
    empty = TokenHistory([], num_prompt_tokens=0)
    same = adjust_row(row, SamplingSettings(), empty, end_ids=frozenset())
    assert same is row


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_row_is_a_clear_error(bad: float) -> None:
    row = np.zeros(8, dtype=np.float32)
    row[3] = bad
    for options in (SamplingSettings(), SamplingSettings(temperature=1.0)):
        with pytest.raises(BackendError, match="largest logit"):
            seeded_choice(row, options, 1)


def test_logprobs_are_log_softmax_of_the_raw_row() -> None:
    row = np.array([1.0, 3.0, 3.0, -2.0], dtype=np.float32)
    expected = row - np.log(np.exp(row.astype(np.float64)).sum())
    found = token_logprobs(row, 3, 3)
    assert found.logprob == pytest.approx(expected[3])
    assert [i for i, _ in found.top] == [1, 2, 0]
    np.testing.assert_allclose([value for _, value in found.top], expected[[1, 2, 0]], rtol=1e-6)
