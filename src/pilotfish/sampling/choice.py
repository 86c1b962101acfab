"""Choosing one token from one row of logits: pure functions of (row, history, settings, seed).

The order is fixed and the same with and without drafts:

    penalties -> logit bias -> minimum and banned tokens -> constraint
    -> temperature -> top-k -> top-p -> min-p

A token is chosen by argmax at temperature 0 and by *seeded choice* otherwise: the argmax of
log-probability plus Gumbel noise that is a function of (seed, position, token id) alone. Such a
choice is an exact sample of the row's law (the Gumbel-max trick), and no drafter can change it.

A draft model may score a part of the vocabulary only. `ids` [len(row)] then says which token each
entry of a row belongs to, in any order; the noise is that of the token, as in the target's row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from pilotfish.errors import BackendError, ConfigError
from pilotfish.sampling.history import TokenHistory
from pilotfish.sampling.noise import Stream, gumbel_noise, noise_key, score_bounds
from pilotfish.types import (
    BoolArray,
    Distribution,
    FloatArray,
    IdArray,
    SamplingSettings,
    TokenLogprobs,
)

if TYPE_CHECKING:
    from pilotfish.protocols import Constraint

# above this many candidates the noise is bounded before it is computed
_PRUNE_ABOVE = 2048


def _adjusts(settings: SamplingSettings, num_output_tokens: int) -> bool:
    """Return whether `adjust_row` changes rows after so many output tokens."""
    return bool(
        settings.repetition_penalty != 1
        or settings.presence_penalty != 0
        or settings.frequency_penalty != 0
        or settings.logit_bias
        or settings.banned_tokens
        or num_output_tokens < settings.min_tokens
    )


def adjust_row(
    row: FloatArray,
    settings: SamplingSettings,
    history: TokenHistory,
    *,
    end_ids: frozenset[int],
) -> FloatArray:
    """Return the row after penalties, bias, minimum and banned tokens; `row` itself if none apply.

    row      [vocab] logits of the position after `history`
    history  the prompt and everything after it, draft tokens before this row included
    """
    if not _adjusts(settings, history.num_output_tokens):
        return row
    too_short = history.num_output_tokens < settings.min_tokens
    counting = settings.presence_penalty != 0 or settings.frequency_penalty != 0
    row = row.copy()
    if settings.repetition_penalty != 1:
        seen = history.text_counts.ids
        # a draft model may lack tokens the text has
        seen = seen[seen < len(row)]
        values = row[seen]
        penalty = np.float32(settings.repetition_penalty)
        row[seen] = np.where(values > 0, values / penalty, values * penalty)
    if counting:
        counts = history.output_counts
        has_entry = counts.ids < len(row)
        penalties = (
            settings.presence_penalty + settings.frequency_penalty * counts.counts[has_entry]
        )
        row[counts.ids[has_entry]] -= penalties.astype(row.dtype)
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
    shares = np.exp(scaled, out=scaled)
    total = float(shares.sum(dtype=np.float64))
    # all entries below the first bound together are less than what top-p leaves out; the margin is
    # for rounding
    bound = max((1 - settings.top_p) * total / len(row), settings.min_p)
    ids = np.flatnonzero(shares >= 0.99 * bound)
    # stable: equal logits stay in the order of their ids
    order = np.argsort(-row[ids], kind="stable")
    weights = np.exp((row[ids[order]].astype(np.float64) - largest) / settings.temperature)
    cumulative = np.cumsum(weights)
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


def row_law(
    row: FloatArray, settings: SamplingSettings, ids: IdArray | None = None
) -> Distribution:
    """Return the law a token is drawn from, given a row [vocab] after `adjust_row`."""
    best = greedy_choice(row)
    if settings.greedy:
        return Distribution.one_hot(_token_at(best, ids))
    kept, values = candidates(row, settings)
    if kept is None:
        kept = np.arange(len(row), dtype=np.int64)
        values = row.astype(np.float64) / settings.temperature
    weights = np.exp(values - values.max())
    probs = weights / weights.sum()
    if ids is None:
        return Distribution(kept, probs)
    tokens = ids[kept]
    order = np.argsort(tokens)
    return Distribution(tokens[order], probs[order])


def draw(law: Distribution, key: int) -> int:
    """Return an id drawn from the law by the Gumbel-max trick, with the noise of `key`."""
    with np.errstate(divide="ignore"):
        scores = np.log(law.probs) + gumbel_noise(key, law.ids)
    return int(law.ids[np.argmax(scores)])


def seeded_choice(
    row: FloatArray, settings: SamplingSettings, key: int, ids: IdArray | None = None
) -> int:
    """Return the token of this row [vocab, after `adjust_row`]: argmax if greedy, else the
    argmax of log-probability + Gumbel noise of `key` over what the filters keep."""
    best = greedy_choice(row)
    if settings.greedy:
        return _token_at(best, ids)
    kept, values = candidates(row, settings)
    if kept is None:
        largest = float(row[best])
        best = _seeded_choice_from_all(row, settings.temperature, key, largest=largest, ids=ids)
        return _token_at(best, ids)
    tokens = kept if ids is None else ids[kept]
    return int(tokens[np.argmax(values + gumbel_noise(key, tokens))])


def _token_at(index: int, ids: IdArray | None) -> int:
    return index if ids is None else int(ids[index])


def _seeded_choice_from_all(
    row: FloatArray, temperature: float, key: int, *, largest: float, ids: IdArray | None
) -> int:
    """Return the index of the largest row / temperature + noise over the whole row.

    Only entries whose bound reaches the score of the most promising one are computed.
    """
    if len(row) > _PRUNE_ABOVE:
        bounds = score_bounds(row, temperature, key, largest=largest, ids=ids)
        favourite = int(np.argmax(bounds))
        noise = float(gumbel_noise(key, np.array([_token_at(favourite, ids)]))[0])
        score = (float(row[favourite]) - largest) / temperature + noise
        survivors = np.flatnonzero(bounds >= score - 1e-3)
    else:
        survivors = np.arange(len(row), dtype=np.int64)
    tokens = survivors if ids is None else ids[survivors]
    scores = row[survivors].astype(np.float64) / temperature + gumbel_noise(key, tokens)
    return int(survivors[np.argmax(scores)])


def scattered(row: FloatArray, ids: IdArray) -> FloatArray:
    """Return a row by token id [largest id + 1] with -inf for tokens that have no entry."""
    whole = np.full(int(ids.max()) + 1, -np.inf, dtype=row.dtype)
    whole[ids] = row
    return whole


def legal_row(row: FloatArray, allowed: BoolArray, ids: IdArray | None = None) -> FloatArray:
    """Return the row [n] with -inf for the tokens that `allowed` [vocab] rules out, or lacks.

    ids  [n] the token of each entry, where that is not its place
    """
    if ids is not None:
        is_legal = (ids < len(allowed)) & allowed[np.minimum(ids, len(allowed) - 1)]
        return np.where(is_legal, row, row.dtype.type(-np.inf))
    # a draft model may lack tokens, or have some the target lacks
    size = min(len(row), len(allowed))
    legal = np.full(len(row), -np.inf, dtype=row.dtype)
    np.copyto(legal[:size], row[:size], where=allowed[:size])
    return legal


def _legal_entries(row: FloatArray, allowed: BoolArray) -> tuple[FloatArray, IdArray | None]:
    """Return what is left of a whole row, and the token of each entry if it has become shorter."""
    num_allowed = np.count_nonzero(allowed)
    # where many are left the row is quicker as a whole
    tokens = np.flatnonzero(allowed[: len(row)]) if num_allowed < len(row) // 8 else None
    legal = legal_row(row, allowed) if tokens is None else row[tokens]
    if not len(legal) or legal.max() == -np.inf:
        raise ConfigError(
            f"no token is left to choose: {num_allowed:,} may follow here, and "
            "logit_bias or banned_tokens rule them out",
            hint="ban fewer tokens, or ask for another json_schema",
        )
    return legal, tokens


def _only(allowed: BoolArray, token_ids: frozenset[int]) -> bool:
    """Return whether nothing but these tokens is allowed."""
    return int(np.count_nonzero(allowed)) == int(np.count_nonzero(allowed[list(token_ids)]))


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

    The length of a history, draft tokens before the row included, is the absolute position of the
    token to choose.
    """

    settings: SamplingSettings
    seed: int
    end_ids: frozenset[int]
    constraint: Constraint | None = None

    def choose(self, row: FloatArray, history: TokenHistory, ids: IdArray | None = None) -> int:
        """Return the token plain decoding would choose at this position."""
        key = noise_key(self.seed, len(history)) if not self.settings.greedy else 0
        row, ids = self._adjusted(row, history, ids)
        return seeded_choice(row, self.settings, key, ids)

    def law(
        self, row: FloatArray, history: TokenHistory, ids: IdArray | None = None
    ) -> Distribution:
        """Return the law the token at this position follows."""
        row, ids = self._adjusted(row, history, ids)
        return row_law(row, self.settings, ids)

    def _adjusted(
        self, row: FloatArray, history: TokenHistory, ids: IdArray | None
    ) -> tuple[FloatArray, IdArray | None]:
        """Return the row, and the token of each entry, after this request's penalties, bias,
        minimum and banned tokens, without what its constraint rules out."""
        settings, end_ids = self.settings, self.end_ids
        num_output_tokens = history.num_output_tokens
        # all of these are told by token: a row of a part becomes one of the whole for them
        if ids is not None and (self.constraint or _adjusts(settings, num_output_tokens)):
            row, ids = scattered(row, ids), None
        allowed = None if self.constraint is None else self.constraint.allowed(history.output_ids)
        # a reply that must end here ends, however short
        if (
            allowed is not None
            and num_output_tokens < settings.min_tokens
            and _only(allowed, end_ids)
        ):
            end_ids = frozenset()
        row = adjust_row(row, settings, history, end_ids=end_ids)
        return (row, ids) if allowed is None else _legal_entries(row, allowed)

    def key(self, position: int, stream: Stream, round_index: int) -> int:
        """Return the noise key of a position in a stream of this request."""
        return noise_key(self.seed, position, stream, round_index)
