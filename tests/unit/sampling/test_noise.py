"""Noise by its numbers: a seed gives the same text in every version, so they never change."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pilotfish.sampling import Stream, gumbel_noise, mix, noise_key, seeded_choice, uniform
from pilotfish.sampling.noise import score_bounds
from pilotfish.types import SamplingSettings

# as published with SplitMix64
GAMMA = 0x9E3779B97F4A7C15
CHUNK = 16_384


def test_the_noise_of_a_seed_and_position_never_changes() -> None:
    assert noise_key(0, 0) == 0x33FE8BD4F9C57863
    assert noise_key(7, 3) == 0xBD498082B3DFC073
    assert noise_key(7, 3, Stream.CHOICE, 0) == 0xBD498082B3DFC073
    assert noise_key(7, 3, Stream.DRAFT) == 0xEE34E8196A59B17E
    assert noise_key(7, 3, Stream.ACCEPTANCE, 1) == 0xB45BAD15753D0BE9
    assert noise_key(7, 3, Stream.CORRECTION, 5) == 0x6B44ABFD28EEF042
    assert noise_key(2**53 - 1, 40_000) == 0x10AEA1955BF37807
    assert mix(1) == mix(2**64 + 1) == 6_238_072_747_940_578_789
    assert [stream.value for stream in Stream] == [0, 1, 2, 3]


def test_uniform_and_gumbel_numbers_never_change() -> None:
    # the middle of the first of 2**53 intervals: never 0
    assert uniform(0) == 2.0**-54
    assert uniform(12_345) == 0.9508810691208036
    noise = gumbel_noise(noise_key(7, 3), np.array([0, 1, 151_935]))
    expected = [2.263450953227635, 1.2614199121395182, 0.7817135596515581]
    np.testing.assert_allclose(noise, expected, rtol=1e-12)
    assert noise.dtype == np.float64


def remainders(key: int, ids: np.ndarray) -> np.ndarray:
    """Return 1 - u of each token's uniform number, rounded down to 24 bits."""
    bits = [mix(key + (int(token) + 1) * GAMMA) for token in ids]
    return np.array([(~one & (2**64 - 1)) >> 40 for one in bits]) * 2.0**-24


# from the law of the straight line below the logarithm between powers of two
MOST_SLACK = 0.0861 * np.log(2)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 2.0])
@pytest.mark.parametrize("size", [1, 100, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
@pytest.mark.parametrize("is_part", [False, True])
def test_bounds_are_above_the_scores_and_near_them(
    size: int, temperature: float, is_part: bool
) -> None:
    rng = np.random.default_rng(size)
    row = (rng.normal(size=size) * 3).astype(np.float32)
    ids = rng.permutation(3 * size)[:size] if is_part else np.arange(size)
    key, largest = noise_key(3, size), float(row.max())
    bounds = score_bounds(row, temperature, key, largest=largest, ids=ids if is_part else None)
    assert bounds.shape == (size,)
    assert bounds.dtype == np.float32
    # -ln u >= 1 - u: the bound is that of the remainder
    least = (row.astype(np.float64) - largest) / temperature - np.log(remainders(key, ids))
    assert (bounds >= least - 1e-3).all()
    assert (bounds <= least + MOST_SLACK + 1e-3).all()
    scores = (row.astype(np.float64) - largest) / temperature + gumbel_noise(key, ids)
    assert (bounds >= scores - 1e-3).all()


def test_every_thread_chooses_the_same_tokens() -> None:
    """Bounds are computed in arrays of the thread's own, whatever it computed before."""
    settings = SamplingSettings(temperature=1.0)
    rows = [
        np.random.default_rng(size).normal(size=size).astype(np.float32)
        for size in (3_000, 40_000, 2_500)
    ]

    def choices() -> list[int]:
        return [seeded_choice(row, settings, noise_key(5, i)) for i, row in enumerate(rows)]

    expected, got = choices(), []
    threads = [threading.Thread(target=lambda: got.append(choices())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [expected] * 2
