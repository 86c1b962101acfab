"""Measure what a pass costs by width and context, and how fast memory is read meanwhile.

A machine is never quiet, and its memory may be twice as fast a second later. So everything that is
compared takes turns within a round: widths, contexts, models and the reading of memory. A curve
holds medians over the quieter half of the rounds: whole rounds are left out, never single turns, so
that all widths were timed in the same conditions. While those rounds disagree, more are added, as
far as the plan has time for them; if they still do then, half of them were disturbed, medians say
little, and the curve holds minima.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.calibration.bandwidth import Reading, bandwidth_reader, machine_of, step_bytes_of
from pilotfish.calibration.overhead import (
    DEFAULT_DRAFT_OVERHEAD_SECONDS,
    DEFAULT_OVERHEAD_SECONDS,
)
from pilotfish.calibration.plan import FULL, MeasurePlan
from pilotfish.calibration.result import Calibration
from pilotfish.errors import BackendError
from pilotfish.protocols import TargetModel
from pilotfish.types import Segment

Clock = Callable[[], float]
Progress = Callable[[str, float], None]
"""Told what is being done, and which share of the whole is done, 0 to 1."""

# prompts are read in pieces of this many tokens
_CHUNK_TOKENS = 256
# a median this far above the minimum means that rounds disagree
_STEADY_SPREAD = 0.1


def measure(
    target: TargetModel,
    draft: TargetModel | None = None,
    *,
    plan: MeasurePlan = FULL,
    overhead_seconds: float = DEFAULT_OVERHEAD_SECONDS,
    draft_overhead_seconds: float = DEFAULT_DRAFT_OVERHEAD_SECONDS,
    clock: Clock = time.perf_counter,
    progress: Progress | None = None,
) -> Calibration:
    """Return what passes of the models cost, measured now; each needs a free place for a cache.

    Every row of the target's passes is wanted, of the draft's the last: its width 1 is a draft
    token, wider ones are the catch-up after accepted drafts. Contexts and widths are cut to what
    both models hold. Raises BackendError when no place is free.
    """
    models = [target] if draft is None else [target, draft]
    run = _Run(plan, bandwidth_reader(target), clock, progress)
    try:
        run.open(models)
        run.take_turns()
        steady = run.is_steady()
        minima = [run.curve(model, min) for model in models]
        curves = [run.curve(model, run.quieter_median) for model in models] if steady else minima
    finally:
        run.close()
    return Calibration(
        costs=PairCosts(
            target=curves[0],
            draft=None if draft is None else curves[1],
            overhead_seconds=overhead_seconds,
            draft_overhead_seconds=draft_overhead_seconds,
        ),
        minima=minima[0],
        draft_minima=None if draft is None else minima[1],
        reading=run.reading(target),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        rounds=run.rounds_taken,
        steady=steady,
        plan=plan.name,
        machine=machine_of(target),
    )


class _Meter:
    """Times the passes of one model after one context.

    widths     of the passes that are timed
    every_row  whether all rows of a pass are wanted, or the last one
    seconds    of the timed passes, by width, one a round
    """

    def __init__(
        self,
        model: TargetModel,
        context: int,
        *,
        widths: Sequence[int],
        every_row: bool,
        clock: Clock,
    ) -> None:
        self.model = model
        self._every_row = every_row
        self._clock = clock
        self._cache = model.new_cache()
        self.context = context
        self.seconds: dict[int, list[float]] = {width: [] for width in widths}

    def close(self) -> None:
        """Give the cache's place back."""
        self._cache.close()

    def read_context(self) -> float:
        """Read the tokens of the context and return the seconds that took."""
        start = self._clock()
        for first in range(0, self.context, _CHUNK_TOKENS):
            ids = self._ids(min(_CHUNK_TOKENS, self.context - first), first=first)
            self.model.forward([Segment(self._cache, ids, len(ids))])
        return self._clock() - start

    def turn(self, width: int, *, counted: bool) -> None:
        """Time one pass over `width` tokens, and take them back."""
        ids = self._ids(width, first=self.context)
        segment = Segment(self._cache, ids, 0 if self._every_row else width - 1)
        start = self._clock()
        self.model.forward([segment])
        seconds = self._clock() - start
        self._cache.truncate(self.context)
        if counted:
            self.seconds[width].append(seconds)

    def _ids(self, count: int, *, first: int) -> list[int]:
        # any ids will do, but the same ones at every turn
        return [7919 * (first + i) % self.model.vocab_size for i in range(count)]


class _Run:
    """One measurement: what is timed, and in which order.

    meters  one for each model and context: all models of the first context, then of the next
    """

    def __init__(
        self,
        plan: MeasurePlan,
        read_memory: Callable[[], float] | None,
        clock: Clock,
        progress: Progress | None,
    ) -> None:
        self._plan = plan
        self._read_memory = read_memory
        self._clock = clock
        self._progress = progress
        self._bandwidths: list[float] = []
        self.meters: list[_Meter] = []
        self.rounds_taken = 0

    def open(self, models: Sequence[TargetModel]) -> None:
        """Read the contexts, as many as places and time allow."""
        plan, per_token = self._plan, 0.0
        room = min(model.context_size for model in models)
        widths = plan.widths_within(min(room // 2, *(model.max_width for model in models)))
        for place, context in enumerate(plan.contexts_within(room - widths[-1])):
            if place and per_token * context > (plan.most_reading_seconds or float("inf")):
                break
            if place and plan.far_widths is not None:
                widths = tuple(width for width in widths if width in plan.far_widths)
            self._tell(f"reading {context:,} tokens", 0.0)
            try:
                meters = self._opened(models, context, widths)
            except BackendError:
                if place:
                    break
                raise
            per_token = sum(meter.read_context() for meter in meters) / max(1, context)

    def close(self) -> None:
        """Give all places back."""
        for meter in self.meters:
            meter.close()

    def take_turns(self) -> None:
        """Time rounds of all passes, in alternating order, until they agree.

        Extra rounds are rounds of everything, too, so that all see the same conditions.
        """
        rounds, begun = self._plan.rounds, self._clock()
        widths = sorted({width for meter in self.meters for width in meter.seconds})
        for number in range(2 * rounds + 1):
            if number > rounds and (self.is_steady() or not self._has_time(begun)):
                break
            label = f"round {number}" if number else "warming up"
            self._tell(label, min(1.0, number / (rounds + 1)))
            if self._read_memory is not None:
                self._bandwidths.append(self._read_memory())
            for width in widths if number % 2 else reversed(widths):
                for meter in self.meters:
                    if width in meter.seconds:
                        meter.turn(width, counted=number > 0)
            self.rounds_taken = number

    def reading(self, target: object) -> Reading | None:
        """Return how fast memory was read between the passes; None for a target without weights."""
        if not self._bandwidths:
            return None
        readings = self._bandwidths[1:]  # the first warmed up
        bandwidth = self.quieter_median(readings) if self.is_steady() else max(readings)
        return Reading(bandwidth_bytes_per_second=bandwidth, step_bytes=step_bytes_of(target))

    def quieter_median(self, values: Sequence[float]) -> float:
        """Return the median of one value a round over the quieter half of the rounds."""
        return statistics.median(values[index] for index in self._quieter_rounds())

    def curve(self, model: TargetModel, statistic: Callable[[Sequence[float]], float]) -> CostCurve:
        """Return the curve of one model: a figure of the turns of each width, a row a context."""
        meters = [meter for meter in self.meters if meter.model is model]
        rows = [{w: statistic(turns) for w, turns in meter.seconds.items()} for meter in meters]
        return CostCurve(
            widths=tuple(rows[0]),
            contexts=tuple(meter.context for meter in meters),
            seconds=tuple(tuple(_completed(row, rows[0])) for row in rows),
        )

    def is_steady(self) -> bool:
        """Return whether the quieter half of the rounds agree."""
        quieter = self._quieter_rounds()
        turns_of_all = [turns for meter in self.meters for turns in meter.seconds.values()]
        kept = [[turns[index] for index in quieter] for turns in turns_of_all]
        return all(statistics.median(some) <= (1 + _STEADY_SPREAD) * min(some) for some in kept)

    def _quieter_rounds(self) -> list[int]:
        """Return the indices of the half of the rounds, rounded up, that took least."""
        all_turns = [turns for meter in self.meters for turns in meter.seconds.values()]
        # in shares of each width's median: narrow passes, bound by memory, count as much as wide
        shares = [[turn / statistics.median(turns) for turn in turns] for turns in all_turns]
        levels = [sum(of_round) for of_round in zip(*shares, strict=True)]
        order = sorted(range(len(levels)), key=lambda index: levels[index])
        return order[: (len(order) + 1) // 2]

    def _opened(
        self, models: Sequence[TargetModel], context: int, widths: Sequence[int]
    ) -> list[_Meter]:
        meters: list[_Meter] = []
        try:
            for model in models:
                every_row = not meters  # the target is the first
                meters.append(
                    _Meter(model, context, widths=widths, every_row=every_row, clock=self._clock)
                )
        except BackendError:
            for meter in meters:
                meter.close()
            raise
        self.meters += meters
        return meters

    def _has_time(self, begun: float) -> bool:
        most = self._plan.most_seconds
        return most is None or self._clock() - begun < most

    def _tell(self, label: str, share: float) -> None:
        if self._progress is not None:
            self._progress(label, share)


def _completed(row: Mapping[int, float], near: Mapping[int, float]) -> list[float]:
    """Return the seconds of every width of `near`, from those measured in `row`.

    What is missing costs what it costs at the near context and what the far one adds: a straight
    line through the narrowest and the widest that were measured, and nothing less than 0.
    """
    first, last = min(row), max(row)
    added_first, added_last = row[first] - near[first], row[last] - near[last]
    slope = (added_last - added_first) / max(1, last - first)
    return [
        row.get(width, seconds + max(0.0, added_first + slope * (width - first)))
        for width, seconds in near.items()
    ]
