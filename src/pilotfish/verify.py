"""Verification rules: pure arithmetic that decides how many draft tokens stand.

match   row i's token is chosen by the request's own sampler; the draft stands while it equals the
        choice. The reply is what plain decoding would have chosen, whatever was proposed.
token   speculative sampling (Leviathan, Kalman, Matias 2023, algorithm 1; Chen et al. 2023,
        algorithm 2): accept draft token x with probability min(1, target(x) / draft(x)), after
        the first rejection draw from the normalised positive part of target - draft, after full
        acceptance draw the bonus token from the target. Exact in distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pilotfish.types import Distribution, Proposal, StopReason, Verdict


def verify_match(proposal: Proposal, choose: Callable[[int], int]) -> Verdict:
    """Accept draft tokens while they equal the sampler's own choices.

    choose(i)  the token the sampler takes from row i, given the draft tokens before it; asked
               lazily, so rows after the first difference are never looked at
    """
    for index, token in enumerate(proposal.token_ids):
        choice = choose(index)
        if choice != token:
            return Verdict(index, choice)
    num_tokens = len(proposal.token_ids)
    return Verdict(num_tokens, choose(num_tokens))


def acceptance_probability(target: Distribution, draft: Distribution, token_id: int) -> float:
    """Return min(1, target / draft) at `token_id`."""
    wanted = target.probability(token_id)
    offered = draft.probability(token_id)
    return 1.0 if wanted >= offered and wanted > 0 else wanted / offered if offered > 0 else 0.0


def residual_distribution(target: Distribution, draft: Distribution) -> Distribution:
    """Return the normalised positive part of target - draft; the target where nothing is left.

    Nothing is left only when the two agree to rounding, and then a rejection has no weight.
    """
    _, in_target, in_draft = np.intersect1d(
        target.ids, draft.ids, assume_unique=True, return_indices=True
    )
    rest = target.probs.copy()
    rest[in_target] = np.maximum(rest[in_target] - draft.probs[in_draft], 0.0)
    mass = rest.sum()
    if mass <= 0:
        return target
    keep = rest > 0
    return Distribution(target.ids[keep], rest[keep] / mass)


def verify_token(
    proposal: Proposal,
    *,
    target_law: Callable[[int], Distribution],
    accept: Callable[[int, float], bool],
    draw: Callable[[int, Distribution], int],
) -> Verdict:
    """Accept draft tokens so that the emitted tokens follow the target's law.

    target_law(i)       the target's law after i draft tokens, asked lazily
    accept(i, chance)   True with probability `chance`, independent of everything drawn before
    draw(i, law)        a token drawn from `law`, independent of everything drawn before
    """
    for index, token in enumerate(proposal.token_ids):
        target, draft = target_law(index), proposal.law(index)
        if not accept(index, acceptance_probability(target, draft, token)):
            return Verdict(index, draw(index, residual_distribution(target, draft)))
    num_tokens = len(proposal.token_ids)
    return Verdict(num_tokens, draw(num_tokens, target_law(num_tokens)))


@dataclass(frozen=True, slots=True)
class Clip:
    """What is left of a round's tokens, and why the reply ends there, if it does."""

    tokens: list[int]
    reason: StopReason | None


def clip_to_stop(
    tokens: Sequence[int],
    *,
    end_ids: frozenset[int],
    num_tokens_left: int,
    completes_stop: Callable[[int], bool],
) -> Clip:
    """Return the tokens up to the first that ends the reply, that token included.

    `completes_stop` is asked once for each kept token, in order, and may keep state.
    """
    kept: list[int] = []
    for token in tokens:
        kept.append(token)
        # asked first: a stop string detector must see every kept token
        if completes_stop(token) or token in end_ids:
            return Clip(kept, StopReason.STOP)
        if len(kept) >= num_tokens_left:
            return Clip(kept, StopReason.LENGTH)
    return Clip(kept, None)
