"""Random numbers that are a function of what they are for: (seed, position, stream, token id)."""

from __future__ import annotations

import math
import threading
from enum import IntEnum
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pilotfish.types import FloatArray, IdArray

_MASK = (1 << 64) - 1
# SplitMix64 (Steele, Lea, Flood 2014): increment and the two multipliers of its finaliser
_GAMMA = 0x9E3779B97F4A7C15
_FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
_SECOND_MULTIPLIER = 0x94D049BB133111EB
_CHUNK = 16_384


class _Scratch(threading.local):
    """Arrays of one thread that are used again: fresh ones of this size cost page faults."""

    def __init__(self) -> None:
        self.bounds = np.empty(0, dtype=np.float32)
        self.bits = np.empty(_CHUNK, dtype=np.uint64)
        self.spare = np.empty(_CHUNK, dtype=np.uint64)


_scratch = _Scratch()


class Stream(IntEnum):
    """Independent noise streams of one seed, so that no draw is ever used for two purposes."""

    CHOICE = 0
    DRAFT = 1
    ACCEPTANCE = 2
    CORRECTION = 3


def mix(value: int) -> int:
    """Return the SplitMix64 finaliser of a 64-bit integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST_MULTIPLIER) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND_MULTIPLIER) & _MASK
    return value ^ (value >> 31)


def noise_key(
    seed: int, position: int, stream: Stream = Stream.CHOICE, round_index: int = 0
) -> int:
    """Return the 64-bit key of the noise of one position in one stream.

    `round_index` makes the draws of rejection-type rules fresh in every round; seeded choice
    leaves it at 0, since its noise belongs to the position and to nothing else.
    """
    key = mix(mix(seed + _GAMMA) + 4 * round_index + stream)
    return mix(key + position)


@lru_cache(maxsize=4)
def _increments(size: int) -> NDArray[np.uint64]:
    ids = np.arange(1, size + 1, dtype=np.uint64)
    increments = ids * np.uint64(_GAMMA)
    increments.flags.writeable = False
    return increments


def _increments_of(ids: IdArray) -> NDArray[np.uint64]:
    return (ids + 1).astype(np.uint64) * np.uint64(_GAMMA)


def _scramble(bits: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """Apply the SplitMix64 finaliser to every entry, in place; `scratch` has the same shape."""
    for shift, multiplier in ((30, _FIRST_MULTIPLIER), (27, _SECOND_MULTIPLIER)):
        np.right_shift(bits, np.uint64(shift), out=scratch)
        np.bitwise_xor(bits, scratch, out=bits)
        np.multiply(bits, np.uint64(multiplier), out=bits)
    np.right_shift(bits, np.uint64(31), out=scratch)
    np.bitwise_xor(bits, scratch, out=bits)


def _hashes(key: int, ids: IdArray) -> NDArray[np.uint64]:
    """Return 64 random bits for each id."""
    bits = _increments_of(ids) + np.uint64(key)
    _scramble(bits, np.empty_like(bits))
    return bits


def _uniforms(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    # 53 bits, centred, so that 0 and 1 never occur
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def gumbel_noise(key: int, ids: IdArray) -> NDArray[np.float64]:
    """Return standard Gumbel noise [len(ids)] for the ids under `key`."""
    return cast(NDArray[np.float64], -np.log(-np.log(_uniforms(_hashes(key, ids)))))


def uniform(key: int) -> float:
    """Return one number from the open interval (0, 1) for `key`."""
    return ((mix(key) >> 11) + 0.5) * 2.0**-53


def score_bounds(
    row: FloatArray, temperature: float, key: int, *, largest: float, ids: IdArray | None
) -> NDArray[np.float32]:
    """Return for every entry an upper bound of score - largest / temperature [len(row)].

    With u the uniform number behind a token's noise, -ln u >= 1 - u, so the noise is at most
    -ln(1 - u). And the bits of a float x, read as an integer, are at most
    (log2(x) + 127) * 2**23: a straight line below the logarithm between powers of two. So the bound
    needs no logarithm at all. The array belongs to the thread and is overwritten by its next call.
    """
    if len(_scratch.bounds) != len(row):
        _scratch.bounds = np.empty(len(row), dtype=np.float32)
    bounds, bits, scratch = _scratch.bounds, _scratch.bits, _scratch.spare
    increments = _increments(len(row)) if ids is None else _increments_of(ids)
    # chunk by chunk, so that the eight passes over the hashes stay in the processor's cache
    for first in range(0, len(row), _CHUNK):
        part = slice(first, first + _CHUNK)
        size = len(increments[part])
        np.add(increments[part], np.uint64(key), out=bits[:size])
        _scramble(bits[:size], scratch[:size])
        # the upper 24 bits of ~bits are 1 - u rounded down, which only loosens the bound
        np.bitwise_not(bits[:size], out=bits[:size])
        np.right_shift(bits[:size], np.uint64(40), out=bits[:size])
        # through int32, whose conversion to float32 is vectorised; 24 bits convert exactly
        remainders = bits[:size].astype(np.int32).astype(np.float32)
        noise = remainders.view(np.int32).astype(np.float32)
        noise *= np.float32(-math.log(2) * 2.0**-23)
        # 127 for the exponent's offset, 24 for the unit of the remainders
        noise += np.float32(math.log(2) * (127 + 24))
        scores = bounds[part]
        np.subtract(row[part], np.float32(largest), out=scores)
        scores *= np.float32(1 / temperature)
        scores += noise
    return bounds
