"""What a calibration measures: widths, contexts and rounds."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.types import require, require_number

# contexts nearer to each other than this say more about noise than about contexts
_LEAST_CONTEXT_RATIO = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """What to measure.

    widths       tokens in a pass, ascending from 1
    contexts     tokens before the pass, ascending; those beyond the first need a place in each
                 model for a cache of their own, and are left out where there is none
    rounds       timed passes of each width, and at most as many again while they disagree
    far_widths   the widths measured after the contexts beyond the first; None: all of them. What a
                 longer context adds is attention, a straight line over the rows of a pass.
    most_reading_seconds  contexts that take longer to read are left out; None: none is
    most_seconds rounds beyond `rounds` begin only before so long; None: at any time
    """

    name: str
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    far_widths: tuple[int, ...] | None = None
    most_reading_seconds: float | None = None
    most_seconds: float | None = None

    def __post_init__(self) -> None:
        require_number("rounds", self.rounds, wanted := "a whole number above 0", whole=True)
        require(self.rounds > 0, "rounds", self.rounds, wanted)
        assert self.widths[0] == 1, "curves begin with a single token"

    def widths_within(self, most: int) -> tuple[int, ...]:
        """Return the widths that are at most `most`, and 1."""
        return tuple(width for width in self.widths if width <= max(1, most))

    def contexts_within(self, most: int) -> tuple[int, ...]:
        """Return the contexts cut to `most` tokens, without those that fall together."""
        kept: list[int] = []
        for context in sorted({min(context, most) for context in self.contexts}):
            if not kept or context >= _LEAST_CONTEXT_RATIO * kept[-1]:
                kept.append(context)
        return tuple(kept)


FULL = MeasurePlan(name="full", widths=(*range(1, 17), 24, 32), contexts=(256, 2000), rounds=5)
QUICK = MeasurePlan(
    name="quick",
    widths=(1, 2, 3, 4, 6, 8, 12, 16),
    contexts=(128, 1024),
    rounds=3,
    far_widths=(1, 8),
    most_reading_seconds=3.0,
    most_seconds=15.0,
)
