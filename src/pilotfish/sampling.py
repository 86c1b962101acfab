"""Choosing one token from one row of logits: pure functions of (row, history, settings, seed).

The order is fixed and the same with and without drafts:

    penalties -> logit bias -> minimum and banned tokens -> temperature -> top-k -> top-p -> min-p

A token is chosen by argmax at temperature 0 and by *seeded choice* otherwise: the argmax of
log-probability plus Gumbel noise that is a function of (seed, position, token id) alone. Such a
choice is an exact sample of the row's law (the Gumbel-max trick), and no drafter can change it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pilotfish.errors import BackendError
from pilotfish.types import Distribution, FloatArray, IdArray, SamplingSettings, TokenLogprobs

_MASK = (1 << 64) - 1
# SplitMix64 (Steele, Lea, Flood 2014): increment and the two multipliers of its finaliser
_GAMMA = 0x9E3779B97F4A7C15
_FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
_SECOND_MULTIPLIER = 0x94D049BB133111EB
# above this many candidates the noise is bounded before it is computed
_PRUNE_ABOVE = 2048
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
    bits = (ids + 1).astype(np.uint64) * np.uint64(_GAMMA) + np.uint64(key)
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


def adjust_row(
    row: FloatArray,
    settings: SamplingSettings,
    history: IdArray,
    *,
    num_prompt_tokens: int,
    end_ids: frozenset[int],
) -> FloatArray:
    """Return the row after penalties, bias, minimum and banned tokens; `row` itself if none apply.

    row      [vocab] logits of the position after `history`
    history  [n] the prompt and everything after it, draft tokens before this row included
    """
    output = history[num_prompt_tokens:]
    too_short = len(output) < settings.min_tokens
    counting = settings.presence_penalty != 0 or settings.frequency_penalty != 0
    repeating = settings.repetition_penalty != 1
    if not (counting or repeating or settings.logit_bias or settings.banned_tokens or too_short):
        return row
    row = row.copy()
    if repeating and len(history):
        seen = np.unique(history)
        seen = seen[seen < len(row)]
        values = row[seen]
        penalty = np.float32(settings.repetition_penalty)
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if counting and len(output):
        seen, counts = np.unique(output, return_counts=True)
        row[seen] -= (settings.presence_penalty + settings.frequency_penalty * counts).astype(
            row.dtype
        )
    for token, bias in settings.logit_bias.items():
        if token < len(row):
            row[token] += bias
    forbidden = [*settings.banned_tokens, *(end_ids if too_short else ())]
    row[[token for token in forbidden if token < len(row)]] = -np.inf
    return row


def greedy_choice(row: FloatArray) -> int:
    """Return the id of the largest logit, the lowest id among equals; BackendError on NaN."""
    best = int(np.argmax(row))
    # argmax returns the first NaN if there is one, and +inf if there is one
    if not math.isfinite(row[best]):
        raise BackendError(
            f"the model returned a row whose largest logit is {float(row[best])}",
            hint="the model file or the backend is broken, or every token is banned",
        )
    return best


def _largest(row: FloatArray, count: int) -> IdArray:
    """Return the ids of the `count` largest logits, ascending; lowest ids among equals."""
    size = len(row)
    if count >= size:
        return np.arange(size, dtype=np.int64)
    threshold = np.partition(row, size - count)[size - count]
    ids = np.flatnonzero(row >= threshold)
    if len(ids) > count:
        above = ids[row[ids] > threshold]
        ties = ids[row[ids] == threshold][: count - len(above)]
        ids = np.sort(np.concatenate([above, ties]))
    return ids


def _nucleus(row: FloatArray, settings: SamplingSettings) -> IdArray:
    """Return the positions in `row` that top-p and min-p keep, ascending; never empty."""
    largest = float(row.max())
    scaled = (row - row.dtype.type(largest)) / row.dtype.type(settings.temperature)
    total = float(np.exp(scaled, out=scaled).sum(dtype=np.float64))
    head = 64
    while True:
        ids = _largest(row, head)
        # stable: equal logits stay in the order of their ids
        order = np.argsort(-row[ids], kind="stable")
        weights = np.exp((row[ids[order]].astype(np.float64) - largest) / settings.temperature)
        cumulative = np.cumsum(weights)
        complete = cumulative[-1] >= settings.top_p * total or weights[-1] < settings.min_p
        if head >= len(row) or complete:
            break
        head *= 8
    # top_p 1 is off: a sum that rounds up to the total must not cut the tail
    in_nucleus = cumulative < settings.top_p * total if settings.top_p < 1 else cumulative < np.inf
    keep = int(np.count_nonzero(in_nucleus)) + 1
    keep = min(keep, int(np.count_nonzero(weights >= settings.min_p)))
    return cast(IdArray, np.sort(ids[order[: max(keep, 1)]]))


def candidates(
    row: FloatArray, settings: SamplingSettings
) -> tuple[IdArray | None, NDArray[np.float64] | FloatArray]:
    """Return (ids ascending, logits / temperature) of what the filters keep.

    row  [vocab] logits after `adjust_row`; temperature must be above 0

    `ids` is None when nothing was filtered: the values then are the row itself, *not* scaled,
    so that no copy of the vocabulary is made.
    """
    ids: IdArray | None = None
    if 0 < settings.top_k < len(row):
        ids = _largest(row, settings.top_k)
    if settings.top_p < 1 or settings.min_p > 0:
        kept = _nucleus(row if ids is None else row[ids], settings)
        ids = kept if ids is None else ids[kept]
    if ids is None:
        return None, row
    return ids, row[ids].astype(np.float64) / settings.temperature


def row_law(row: FloatArray, settings: SamplingSettings) -> Distribution:
    """Return the law a token is drawn from, given a row [vocab] after `adjust_row`."""
    best = greedy_choice(row)
    if settings.greedy:
        return Distribution.one_hot(best)
    ids, values = candidates(row, settings)
    if ids is None:
        ids = np.arange(len(row), dtype=np.int64)
        values = row.astype(np.float64) / settings.temperature
    weights = np.exp(values - values.max())
    return Distribution(ids, weights / weights.sum())


def draw(law: Distribution, key: int) -> int:
    """Return an id drawn from the law by the Gumbel-max trick, with the noise of `key`."""
    with np.errstate(divide="ignore"):
        scores = np.log(law.probs) + gumbel_noise(key, law.ids)
    return int(law.ids[np.argmax(scores)])


def seeded_choice(row: FloatArray, settings: SamplingSettings, key: int) -> int:
    """Return the token of this row [vocab, after `adjust_row`]: argmax if greedy, else the
    argmax of log-probability + Gumbel noise of `key` over what the filters keep."""
    best = greedy_choice(row)
    if settings.greedy:
        return best
    ids, values = candidates(row, settings)
    if ids is None:
        return _seeded_choice_from_all(row, settings.temperature, key, largest=float(row[best]))
    return int(ids[np.argmax(values + gumbel_noise(key, ids))])


def _seeded_choice_from_all(
    row: FloatArray, temperature: float, key: int, *, largest: float
) -> int:
    """Return argmax of row / temperature + noise over the whole vocabulary.

    Only tokens whose bound reaches the score of the most promising one are computed.
    """
    if len(row) > _PRUNE_ABOVE:
        bounds = _score_bounds(row, temperature, key, largest=largest)
        favourite = int(np.argmax(bounds))
        noise = float(gumbel_noise(key, np.array([favourite]))[0])
        score = (float(row[favourite]) - largest) / temperature + noise
        survivors = np.flatnonzero(bounds >= score - 1e-3)
    else:
        survivors = np.arange(len(row), dtype=np.int64)
    scores = row[survivors].astype(np.float64) / temperature + gumbel_noise(key, survivors)
    return int(survivors[np.argmax(scores)])


def _score_bounds(
    row: FloatArray, temperature: float, key: int, *, largest: float
) -> NDArray[np.float32]:
    """Return for every token an upper bound of score - largest / temperature [vocab].

    With u the uniform number behind a token's noise, -ln u >= 1 - u, so the noise is at most
    -ln(1 - u). And the bits of a float x, read as an integer, are at most
    (log2(x) + 127) * 2**23: a straight line below the logarithm between powers of two. So the bound
    needs no logarithm at all. The array belongs to the thread and is overwritten by its next call.
    """
    if len(_scratch.bounds) != len(row):
        _scratch.bounds = np.empty(len(row), dtype=np.float32)
    bounds, bits, scratch = _scratch.bounds, _scratch.bits, _scratch.spare
    increments = _increments(len(row))
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


def token_logprobs(row: FloatArray, token_id: int, num_top: int) -> TokenLogprobs:
    """Return log-softmax of the raw row [vocab] at `token_id` and at its `num_top` largest ids.

    Ids whose logit is -inf are left out: the model itself rules them out.
    """
    largest = float(row.max())
    total = float(np.exp(row - row.dtype.type(largest)).sum(dtype=np.float64))
    normaliser = largest + math.log(total)
    ids = _largest(row, num_top) if num_top else np.empty(0, dtype=np.int64)
    ids = ids[row[ids] > -np.inf]
    order = np.argsort(-row[ids], kind="stable")
    top = tuple((int(ids[i]), float(row[ids[i]]) - normaliser) for i in order)
    return TokenLogprobs(token_id, float(row[token_id]) - normaliser, top)


@dataclass(frozen=True, slots=True)
class Sampler:
    """The sampler of one request: settings, seed and what history means for it.

    `history` arguments are int64 arrays: prompt, reply so far, draft tokens before the row. Their
    length is the absolute position of the token to choose.
    """

    settings: SamplingSettings
    seed: int
    num_prompt_tokens: int
    end_ids: frozenset[int]

    def adjust(self, row: FloatArray, history: IdArray) -> FloatArray:
        """Return the row after this request's penalties, bias, minimum and banned tokens."""
        return adjust_row(
            row,
            self.settings,
            history,
            num_prompt_tokens=self.num_prompt_tokens,
            end_ids=self.end_ids,
        )

    def choose(self, row: FloatArray, history: IdArray) -> int:
        """Return the token plain decoding would choose at this position."""
        key = noise_key(self.seed, len(history)) if not self.settings.greedy else 0
        return seeded_choice(self.adjust(row, history), self.settings, key)

    def law(self, row: FloatArray, history: IdArray) -> Distribution:
        """Return the law the token at this position follows."""
        return row_law(self.adjust(row, history), self.settings)

    def key(self, position: int, stream: Stream, round_index: int) -> int:
        """Return the noise key of a position in a stream of this request."""
        return noise_key(self.seed, position, stream, round_index)


def as_history(tokens: Sequence[int], extra: Sequence[int] = ()) -> IdArray:
    """Return tokens and `extra` as one int64 array."""
    history = np.empty(len(tokens) + len(extra), dtype=np.int64)
    history[: len(tokens)] = tokens
    history[len(tokens) :] = extra
    return history
