"""The measured costs, kept up to date by the passes that are run anyway."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pilotfish.accounting.cost_curve import PairCosts

_CONTEXT_STEP = 128
# one disturbed pass must not move an estimate by more than this factor
_MOST_SURPRISE = 1.5
_QUICK, _SLOW = 0.1, 0.03
# the machine may have another speed than when it was measured: the first passes count for more, and
# may surprise more
_FIRST_PASSES = 8
_MOST_FIRST_SURPRISE = 4.0
# what has been seen so often, and is still off by more than this share, is no accident
_LASTING = 100
DRIFT = 0.15


class LiveCosts:
    """Seconds of passes by width and context: the calibration times what passes show since.

    Two things are followed: the speed of the machine, one factor for all passes of a model, and the
    shape of the target's curve, one factor for each width.
    """

    def __init__(self, costs: PairCosts, *, max_width: int) -> None:
        self._costs = costs
        self._max_width = max_width
        self._target_speed = 0.0  # logarithms of factors
        self._draft_speed = 0.0
        self._shape = np.zeros(max_width + 1)
        # passes seen: of each width, and rounds in which the draft model drafted
        self._num_passes = [0] * (max_width + 1)
        self._num_target_passes = 0
        self._num_drafts = 0
        self._rows: dict[int, NDArray[np.float64]] = {}

    @property
    def calibrated(self) -> PairCosts:
        """Return the costs as they were measured, whatever passes have shown since."""
        return self._costs

    @property
    def has_draft(self) -> bool:
        """Return whether a draft model's cost is known."""
        return self._costs.draft is not None

    @property
    def overhead_seconds(self) -> float:
        """Return the engine's own seconds in a round."""
        return self._costs.overhead_seconds

    @property
    def drifted(self) -> bool:
        """Return whether the calibration has come to be lastingly wrong in what decisions rest on:
        what a width costs in single steps, and the draft model in steps of the target. A machine
        that is merely slower for a while has not drifted."""
        often = [w for w, seen in enumerate(self._num_passes) if seen >= _LASTING]
        ratios = [abs(self._shape[width]) for width in often if 1 in often]
        if self._num_drafts >= _LASTING:
            ratios.append(abs(self._draft_speed - self._target_speed))
        return max(ratios, default=0.0) > math.log(1 + DRIFT)

    def target(self, context: int) -> list[float]:
        """Return the seconds of a target pass by width, from 0 to the widest."""
        row: list[float] = self._now(context).tolist()
        return row

    def rounds(self, context: int) -> list[float]:
        """Return the seconds of a round by the width of its pass: the engine's own are in it."""
        row: list[float] = (self._now(context) + self.overhead_seconds).tolist()
        return row

    def draft(self, width: int, context: int) -> float:
        """Return the seconds of a draft pass and of choosing its token."""
        assert self._costs.draft is not None, "no draft model was measured"
        pass_seconds = self._costs.draft.at(width, context)
        return math.exp(self._draft_speed) * (pass_seconds + self._costs.draft_overhead_seconds)

    def reading(self, num_tokens: int, context: int) -> float:
        """Return the seconds in which the draft model reads tokens of which no row is wanted."""
        assert self._costs.draft is not None, "no draft model was measured"
        widest = self._costs.draft.widths[-1]
        if num_tokens <= widest:
            return self.draft(max(1, num_tokens), context)
        return self.draft(widest, context) * num_tokens / widest

    def observe_target(self, width: int, context: int, seconds: float) -> None:
        """Learn from one pass of the target."""
        if not 0 < width <= self._max_width or seconds <= 0:
            return
        surprise = math.log(seconds / self._now(context)[width])
        self._target_speed += _learned(surprise, self._num_target_passes)
        self._shape[width] += _SLOW * _clipped(surprise, _MOST_SURPRISE)
        self._num_passes[width] += 1
        self._num_target_passes += 1
        # the shape is relative to a single step: what all widths share belongs to the speed
        self._shape[1] = 0.0

    def observe_draft(self, expected: float, seconds: float) -> None:
        """Learn from the drafting of one round, which was expected to take so many seconds."""
        if expected > 0 and seconds > 0:
            self._draft_speed += _learned(math.log(seconds / expected), self._num_drafts)
            self._num_drafts += 1

    def _now(self, context: int) -> NDArray[np.float64]:
        place = context // _CONTEXT_STEP
        measured = self._rows.get(place)
        if measured is None:
            middle = place * _CONTEXT_STEP + _CONTEXT_STEP // 2
            measured = np.array(self._costs.target.row(self._max_width, middle))
            self._rows[place] = measured
        return measured * np.exp(self._shape + self._target_speed)


def _learned(surprise: float, num_seen: int) -> float:
    """Return by how much the logarithm of a speed changes with a pass, after `num_seen` others."""
    most = _MOST_FIRST_SURPRISE if num_seen < _FIRST_PASSES else _MOST_SURPRISE
    return max(_QUICK, 1 / (num_seen + 2)) * _clipped(surprise, most)


def _clipped(surprise: float, most_factor: float) -> float:
    most = math.log(most_factor)
    return min(max(surprise, -most), most)
