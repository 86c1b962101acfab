"""What passes cost: seconds by width and context, as measured, and what lies between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Seconds of one pass of a model by width (new tokens in the pass) and context length.

    widths    ascending, from 1
    contexts  ascending; tokens in the cache before the pass
    seconds   [len(contexts)][len(widths)], all above 0

    The curve is a staircase: nothing is smoothed. Between two measured widths and two measured
    contexts it is linear. Beyond the widest it goes on with its last or its mean slope, whichever
    is steeper: the last step of a staircase may be flat, the next one will not be. Before the
    shortest and after the longest context it goes on with the slope of the two nearest.
    """

    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.widths or self.widths[0] != 1 or list(self.widths) != sorted({*self.widths}):
            raise ValueError(f"widths must ascend from 1, got {self.widths}")
        if not self.contexts or list(self.contexts) != sorted({*self.contexts}):
            raise ValueError(f"contexts must ascend, got {self.contexts}")
        shape = [len(self.widths)] * len(self.contexts)
        if [len(row) for row in self.seconds] != shape:
            raise ValueError("seconds must have one row a context and one entry a width")
        if not all(0 < value < float("inf") for row in self.seconds for value in row):
            raise ValueError("seconds must be positive numbers")

    @classmethod
    def flat(cls, seconds: float, *, row_seconds: float = 0.0, widest: int = 64) -> CostCurve:
        """Return the curve of passes that cost `seconds`, and `row_seconds` for each further row;
        as a straight line it needs no more than its ends."""
        ends = (seconds, seconds + row_seconds * (widest - 1))
        return cls(widths=(1, widest), contexts=(0,), seconds=(ends,))

    @classmethod
    def from_ratios(cls, ratios: Mapping[int, float], *, step_seconds: float = 1.0) -> CostCurve:
        """Return the curve of one context from T(width) / T(1)."""
        widths = tuple(sorted(ratios))
        row = tuple(step_seconds * ratios[width] for width in widths)
        return cls(widths=widths, contexts=(0,), seconds=(row,))

    def at(self, width: int, context: int = 0) -> float:
        """Return the seconds of a pass over `width` tokens after `context` tokens."""
        row = [self._at_width(values, width) for values in self.seconds]
        # a straight line through two noisy measurements may fall; a pass never costs nothing
        return max(_between(self.contexts, row, context), 0.25 * min(row))

    def _at_width(self, values: Sequence[float], width: int) -> float:
        widest = self.widths[-1]
        if width <= widest or widest == 1:
            return _between(self.widths, values, width)
        last = (values[-1] - values[-2]) / (widest - self.widths[-2])
        mean = (values[-1] - values[0]) / (widest - 1)
        return values[-1] + max(last, mean, 0.0) * (width - widest)

    def row(self, widest: int, context: int = 0) -> list[float]:
        """Return the seconds of passes of width 0 to `widest`; no pass costs nothing."""
        return [0.0, *(self.at(width, context) for width in range(1, widest + 1))]

    def ratios(self, context: int | None = None) -> dict[int, float]:
        """Return T(width) / T(1) at each measured width; by default at the shortest context."""
        context = self.contexts[0] if context is None else context
        step = self.at(1, context)
        return {width: self.at(width, context) / step for width in self.widths}

    def scaled(self, factor: float) -> CostCurve:
        """Return the curve of a machine that takes `factor` times as long."""
        seconds = tuple(tuple(factor * value for value in row) for row in self.seconds)
        return CostCurve(widths=self.widths, contexts=self.contexts, seconds=seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain JSON values."""
        return {
            "widths": list(self.widths),
            "contexts": list(self.contexts),
            "seconds": [list(row) for row in self.seconds],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> CostCurve:
        """Return the curve from what `to_dict` gave; ValueError, KeyError or TypeError if it is
        damaged."""
        return cls(
            widths=tuple(int(width) for width in raw["widths"]),
            contexts=tuple(int(context) for context in raw["contexts"]),
            seconds=tuple(tuple(float(value) for value in row) for row in raw["seconds"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCosts:
    """What a round of a target with its drafters costs, in seconds.

    target            the target's curve, every row wanted
    draft             the draft model's curve, its last row wanted; None without a draft model
    overhead_seconds  the engine's own work in a round, that of drafters left out
    draft_overhead_seconds  sampling and bookkeeping for one token of the draft model
    """

    target: CostCurve
    draft: CostCurve | None = None
    overhead_seconds: float = 0.0
    draft_overhead_seconds: float = 0.0

    @property
    def draft_cost_ratio(self) -> float | None:
        """Return the time of one token of the draft model over one step of the target, at the
        shortest measured context."""
        if self.draft is None:
            return None
        context = self.target.contexts[0]
        drafting = self.draft.at(1, context) + self.draft_overhead_seconds
        return drafting / self.target.at(1, context)


def _between(places: Sequence[int], values: Sequence[float], place: int) -> float:
    """Return the value at `place` on the straight lines through the points, and beyond them."""
    if len(places) == 1:
        return values[0]
    upper = min(max(bisect_right(places, place), 1), len(places) - 1)
    left, right = places[upper - 1], places[upper]
    share = (place - left) / (right - left)
    return values[upper - 1] + share * (values[upper] - values[upper - 1])
