"""Every figure we report, as a function of round records. "Nothing to measure" is None, not 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pilotfish.accounting.costs import Costs, ModelSize, costs_from_records
from pilotfish.types import RoundRecord


def acceptance_rate(rounds: Sequence[RoundRecord]) -> float | None:
    """Return accepted over drafted tokens, or None when nothing was drafted."""
    drafted = sum(r.num_drafted for r in rounds)
    return sum(r.num_accepted for r in rounds) / drafted if drafted else None


def prediction_tokens(rounds: Sequence[RoundRecord]) -> tuple[int, int]:
    """Return how many drafts from the request's prediction became part of the reply, and how many
    did not."""
    predicted = [r for r in rounds if r.source == "prediction"]
    accepted = sum(r.num_accepted for r in predicted)
    return accepted, sum(r.num_drafted for r in predicted) - accepted


def tokens_per_round(rounds: Sequence[RoundRecord]) -> float | None:
    """Return emitted tokens over all rounds, drafted or not; None without rounds."""
    return sum(r.num_emitted for r in rounds) / len(rounds) if rounds else None


def accepted_per_position(rounds: Sequence[RoundRecord]) -> list[int]:
    """Return in how many rounds draft position 1, 2, ... was accepted, up to the longest draft."""
    longest = max((r.num_drafted for r in rounds), default=0)
    return [sum(r.num_accepted > position for r in rounds) for position in range(longest)]


def tried_per_position(rounds: Sequence[RoundRecord]) -> list[int]:
    """Return in how many rounds draft position 1, 2, ... was tried, up to the longest draft.

    Tried is what was accepted, and the one position after it that was not; tokens behind a
    rejection, or behind the end of the reply, never were.
    """
    longest = max((r.num_drafted for r in rounds), default=0)
    # a reply that ends with a draft token ends the round before the next position is tried
    num_tried = [
        min(r.num_drafted, r.num_accepted + (r.num_emitted > r.num_accepted)) for r in rounds
    ]
    return [sum(number > position for number in num_tried) for position in range(longest)]


def acceptance_probabilities(rounds: Sequence[RoundRecord]) -> list[float | None]:
    """Return how often draft position 1, 2, ... was accepted where it was tried; None where it
    never was. This is the acceptance by position of the closed forms."""
    pairs = zip(accepted_per_position(rounds), tried_per_position(rounds), strict=True)
    return [accepted / tried if tried else None for accepted, tried in pairs]


def plain_seconds_estimate(rounds: Sequence[RoundRecord]) -> float | None:
    """Return the seconds in which plain decoding would have emitted the same tokens, one a round;
    None without rounds, or where one of them does not know what a plain one takes.

    It is an estimate: the price of a plain round is the one at that moment, by measured costs.
    """
    if not rounds:
        return None
    total = 0.0
    for record in rounds:
        if record.plain_seconds is None:
            return None
        total += record.num_emitted * record.plain_seconds
    return total


def saved_seconds(rounds: Sequence[RoundRecord]) -> float | None:
    """Return the estimated seconds of plain decoding less those the rounds took: below 0 where
    drafts lost time. None where the estimate is."""
    estimate = plain_seconds_estimate(rounds)
    return None if estimate is None else estimate - sum(r.round_seconds for r in rounds)


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """What one drafter did in one reply."""

    rounds: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """The figures of one reply. Seconds are wall-clock.

    Prefill is the reading of the prompt, `draft_prefill_seconds` the drafter's part of it; decode
    covers the rounds; overhead is decode less draft and target. `plain_seconds_estimate` is what
    the rounds would have taken without drafts, by the measured costs; None where these are unknown.
    """

    rounds: int
    drafted: int
    accepted: int
    emitted: int
    tokens_per_round: float | None
    acceptance_rate: float | None
    accepted_per_position: list[int]
    tried_per_position: list[int]
    prefill_seconds: float
    draft_prefill_seconds: float
    decode_seconds: float
    draft_seconds: float
    target_seconds: float
    overhead_seconds: float
    tokens_per_second: float | None
    plain_seconds_estimate: float | None
    by_drafter: dict[str, DrafterStats]
    costs: Costs
    speculation: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the stats as plain JSON values."""
        return asdict(self)


def reply_stats(
    rounds: Sequence[RoundRecord],
    *,
    prefill_seconds: float,
    draft_prefill_seconds: float = 0.0,
    speculation: dict[str, Any],
    prompt_tokens: int = 0,
    target: ModelSize | None = None,
    draft: ModelSize | None = None,
) -> ReplyStats:
    """Return the figures of one reply from its records and the time its prompt took.

    `prompt_tokens` and the sizes of the models are for the costs, which without sizes are times
    and counts only.
    """
    emitted = sum(r.num_emitted for r in rounds)
    decode_seconds = sum(r.round_seconds for r in rounds)
    draft_seconds = sum(r.draft_seconds for r in rounds)
    target_seconds = sum(r.target_seconds for r in rounds)
    return ReplyStats(
        rounds=len(rounds),
        drafted=sum(r.num_drafted for r in rounds),
        accepted=sum(r.num_accepted for r in rounds),
        emitted=emitted,
        tokens_per_round=tokens_per_round(rounds),
        acceptance_rate=acceptance_rate(rounds),
        accepted_per_position=accepted_per_position(rounds),
        tried_per_position=tried_per_position(rounds),
        prefill_seconds=prefill_seconds,
        draft_prefill_seconds=draft_prefill_seconds,
        decode_seconds=decode_seconds,
        draft_seconds=draft_seconds,
        target_seconds=target_seconds,
        overhead_seconds=decode_seconds - draft_seconds - target_seconds,
        tokens_per_second=emitted / decode_seconds if decode_seconds > 0 else None,
        plain_seconds_estimate=plain_seconds_estimate(rounds),
        by_drafter=_by_drafter(rounds),
        costs=costs_from_records(rounds, target=target, draft=draft, prompt_tokens=prompt_tokens),
        speculation=speculation,
    )


def _by_drafter(rounds: Sequence[RoundRecord]) -> dict[str, DrafterStats]:
    sources = sorted({r.source for r in rounds if r.num_drafted})
    return {
        source: DrafterStats(
            rounds=sum(r.source == source for r in rounds),
            drafted=sum(r.num_drafted for r in rounds if r.source == source),
            accepted=sum(r.num_accepted for r in rounds if r.source == source),
        )
        for source in sources
    }
