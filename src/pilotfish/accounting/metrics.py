"""Every figure we report, as a function of round records. "Nothing to measure" is None, not 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pilotfish.types import RoundRecord


def acceptance_rate(rounds: Sequence[RoundRecord]) -> float | None:
    """Return accepted over drafted tokens, or None when nothing was drafted."""
    drafted = sum(r.num_drafted for r in rounds)
    return sum(r.num_accepted for r in rounds) / drafted if drafted else None


def tokens_per_round(rounds: Sequence[RoundRecord]) -> float | None:
    """Return emitted tokens over all rounds, drafted or not; None without rounds."""
    return sum(r.num_emitted for r in rounds) / len(rounds) if rounds else None


def accepted_per_position(rounds: Sequence[RoundRecord]) -> list[int]:
    """Return in how many rounds draft position 1, 2, ... was accepted, up to the longest draft."""
    longest = max((r.num_drafted for r in rounds), default=0)
    return [sum(r.num_accepted > position for r in rounds) for position in range(longest)]


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
    covers the rounds; overhead is decode less draft and target.
    """

    rounds: int
    drafted: int
    accepted: int
    emitted: int
    tokens_per_round: float | None
    acceptance_rate: float | None
    accepted_per_position: list[int]
    prefill_seconds: float
    draft_prefill_seconds: float
    decode_seconds: float
    draft_seconds: float
    target_seconds: float
    overhead_seconds: float
    tokens_per_second: float | None
    by_drafter: dict[str, DrafterStats]
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
) -> ReplyStats:
    """Return the figures of one reply from its records and the time its prompt took."""
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
        prefill_seconds=prefill_seconds,
        draft_prefill_seconds=draft_prefill_seconds,
        decode_seconds=decode_seconds,
        draft_seconds=draft_seconds,
        target_seconds=target_seconds,
        overhead_seconds=decode_seconds - draft_seconds - target_seconds,
        tokens_per_second=emitted / decode_seconds if decode_seconds > 0 else None,
        by_drafter=_by_drafter(rounds),
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
