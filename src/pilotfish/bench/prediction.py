"""What modes of decoding would take, by replaying recorded replies on measured costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.bench.recording import Recording
from pilotfish.bench.replay import Pace, PartsMaker, Replay
from pilotfish.bench.runner import PLAIN, Clock, Mode
from pilotfish.bench.statistics import Speedup, speedup
from pilotfish.config import SpeculationConfig
from pilotfish.protocols import Controller, Drafter, TargetModel

# what was done beside the recorded replies
_SHADOW = Mode("suffix")
# replies whose rounds show what looking for drafts takes
_TIMED_RECORDINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedReply:
    """One recorded reply in one mode; seconds are on the calibrated costs, `plain` ones those of
    plain decoding, totals with the reading of the prompt."""

    category: str
    num_tokens: int
    plain_seconds: float
    seconds: float
    plain_total_seconds: float
    total_seconds: float
    num_rounds: int
    num_drafted: int
    num_accepted: int

    @property
    def prompt_seconds(self) -> float:
        """Return what reading the prompt takes."""
        return self.total_seconds - self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What replays of all recordings say about one mode."""

    mode: str
    replies: tuple[PredictedReply, ...]

    def speedup(self, category: str | None = None) -> Speedup:
        """Return the speedup of decoding over the replies, or over those of one category."""
        return _known(speedup([r.plain_seconds / r.seconds for r in self._of(category)]))

    def total_speedup(self) -> Speedup:
        """Return the speedup of whole requests, the reading of the prompt by both models
        included."""
        return _known(speedup([r.plain_total_seconds / r.total_seconds for r in self.replies]))

    @property
    def categories(self) -> list[str]:
        """Return the categories in the order of their first replies."""
        return list(dict.fromkeys(reply.category for reply in self.replies))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        drafted = sum(reply.num_drafted for reply in self.replies)
        rounds = sum(reply.num_rounds for reply in self.replies)
        return {
            "speedup": expected_dict(self.speedup()),
            "total_speedup": expected_dict(self.total_speedup()),
            "by_category": {
                name: {"speedup": expected_dict(self.speedup(name)), "prompts": len(self._of(name))}
                for name in self.categories
            },
            "tokens_per_round": sum(reply.num_tokens for reply in self.replies) / rounds,
            "acceptance_rate": sum(r.num_accepted for r in self.replies) / drafted
            if drafted
            else None,
        }

    def _of(self, category: str | None) -> list[PredictedReply]:
        return [r for r in self.replies if category is None or r.category == category]


def expected_dict(found: Speedup) -> dict[str, float | None]:
    """Return a predicted speedup as plain JSON values."""
    return {"expected": found.geomean, "low": found.low, "high": found.high}


def _known(found: Speedup | None) -> Speedup:
    assert found is not None, "a prediction is of one reply at least"
    return found


class Predictor:
    """Replays the same recordings in many modes.

    costs    what passes take on this machine
    backend  the target's, whose defaults hold for what the configuration leaves open
    base     the configuration, but for what a mode says
    timer    measures what drafters and controllers take themselves; None: nothing

    What the recordings say about the machine at that moment goes before the calibration: what wide
    passes and the draft model cost in steps, the engine's own work, the reading of prompts.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        costs: PairCosts,
        *,
        backend: str,
        base: SpeculationConfig | None = None,
        timer: Clock | None = None,
    ) -> None:
        self.recordings = tuple(recordings)
        self.costs = costs_of_recordings(recordings, costs)
        self._calibrated = costs
        self._backend = backend
        self._base = base or SpeculationConfig()
        self._timer = timer
        self._pace = pace_of_recordings(recordings, self.costs)
        self._known_seconds: dict[str, float] = {}
        self._plain = self._replayed(Mode(PLAIN), self.recordings)

    def predict(
        self,
        mode: Mode,
        *,
        ceiling: int | None = None,
        draft_factor: float = 1.0,
        recordings: Sequence[Recording] | None = None,
    ) -> Prediction:
        """Return what replays of all recordings in a mode say.

        ceiling       the most tokens the controller drafts in a round
        draft_factor  how much dearer the draft model is taken to be than it is
        recordings    the same replies, with other words of the draft model
        """
        own = self._replayed(
            mode,
            self.recordings if recordings is None else recordings,
            ceiling=ceiling,
            draft_factor=draft_factor,
        )
        replies = [
            replace(
                reply,
                plain_seconds=plain.seconds,
                plain_total_seconds=plain.total_seconds,
            )
            for reply, plain in zip(own, self._plain, strict=True)
        ]
        return Prediction(mode=mode.name, replies=tuple(replies))

    def _replayed(
        self,
        mode: Mode,
        recordings: Sequence[Recording],
        *,
        ceiling: int | None = None,
        draft_factor: float = 1.0,
    ) -> list[PredictedReply]:
        maker = self._maker(mode, ceiling, draft_factor)
        pace = replace(
            _with_dearer_reading(self._pace, draft_factor),
            drafting_seconds=self._drafting_seconds(mode),
        )
        replay = Replay(recordings, _with_dearer_draft(self.costs, draft_factor), maker, pace=pace)
        replies = []
        for recording in recordings:
            replay.clear()
            replayed = replay.run(recording)
            records = replayed.session.records
            replies.append(
                PredictedReply(
                    category=recording.category,
                    num_tokens=len(recording.reply),
                    plain_seconds=replayed.seconds,
                    seconds=replayed.seconds,
                    plain_total_seconds=replayed.total_seconds,
                    total_seconds=replayed.total_seconds,
                    num_rounds=len(records),
                    num_drafted=sum(record.num_drafted for record in records),
                    num_accepted=sum(record.num_accepted for record in records),
                )
            )
        return replies

    def _drafting_seconds(self, mode: Mode) -> float:
        """Return what drafter and controller of a mode take in a round, measured once."""
        if self._timer is None:
            return 0.0
        recorded, alone = recorded_drafting_seconds(self.recordings), self._own_seconds(_SHADOW)
        if not recorded or not alone:
            return 0.0
        # a replay is alone with the processor's caches; between passes of real models the same work
        # takes several times as long: as much as it did beside the recorded replies
        return recorded * self._own_seconds(mode) / alone

    def _own_seconds(self, mode: Mode) -> float:
        kind = mode.drafter if mode.num_drafts is None else f"{mode.drafter}:fixed"
        if kind not in self._known_seconds:
            maker = self._maker(mode, None, 1.0)
            replay = Replay(self.recordings, self.costs, maker, timer=self._timer)
            for recording in self.recordings[:_TIMED_RECORDINGS]:
                replay.clear()
                replay.run(recording)
            own = replay.own_seconds
            self._known_seconds[kind] = statistics.median(own) if own else 0.0
        return self._known_seconds[kind]

    def _maker(self, mode: Mode, ceiling: int | None, draft_factor: float) -> PartsMaker:
        """Return what makes the parts of a mode. Like those of an engine they begin with the
        calibration, whatever passes take by now."""
        from pilotfish import build  # not at the top: help needs no backend

        costs = _with_dearer_draft(self._calibrated, draft_factor)
        speculation = mode.speculation(self._base)
        if ceiling is not None:
            speculation = replace(speculation, num_speculative_tokens=ceiling)

        def make(target: TargetModel, draft: TargetModel | None) -> tuple[Drafter, Controller]:
            return build.make_parts(
                target, draft, speculation, backend=self._backend, costs=lambda: costs
            )

        return make


def costs_of_recordings(recordings: Sequence[Recording], costs: PairCosts) -> PairCosts:
    """Return the costs as they were when the replies were recorded.

    The calibration has the whole curves; what a few passes beside each other took then says how
    far each width, and the draft model, had become dearer or cheaper against a single step.
    """
    timed = [(r.times, len(r.reply)) for r in recordings if r.times is not None]
    if not timed:
        return costs
    own = statistics.median((times.decode - times.target) / number for times, number in timed)
    target, draft = costs.target, costs.draft
    times_of_all = [times for times, _ in timed]
    dearer: dict[int, list[float]] = {1: [1.0]}
    draft_dearer = []
    for times in times_of_all:
        step = target.at(1, times.context)
        for width, steps in times.steps.items():
            dearer.setdefault(width, []).append(steps * step / target.at(width, times.context))
        if draft is not None and times.draft_steps is not None:
            draft_dearer.append(times.draft_steps * step / draft.at(1, times.context))
    if draft is not None and draft_dearer:
        draft = draft.scaled(statistics.median(draft_dearer))
    return replace(
        costs,
        target=_reshaped(target, {w: statistics.median(found) for w, found in dearer.items()}),
        draft=draft,
        overhead_seconds=max(0.0, own),
    )


def _with_dearer_draft(costs: PairCosts, factor: float) -> PairCosts:
    draft = costs.draft and costs.draft.scaled(factor)
    overhead = factor * costs.draft_overhead_seconds
    return replace(costs, draft=draft, draft_overhead_seconds=overhead)


def _with_dearer_reading(pace: Pace, factor: float) -> Pace:
    seconds = pace.draft_reading_seconds
    return replace(pace, draft_reading_seconds=None if seconds is None else factor * seconds)


def _reshaped(curve: CostCurve, factors: Mapping[int, float]) -> CostCurve:
    """Return the curve times the factors by width, on straight lines between them."""
    widths = sorted(factors)
    by_width = np.interp(curve.widths, widths, [factors[width] for width in widths])
    rows = [tuple(float(value) for value in np.multiply(row, by_width)) for row in curve.seconds]
    return replace(curve, seconds=tuple(rows))


def recorded_drafting_seconds(recordings: Sequence[Recording]) -> float:
    """Return what looking for drafts and deciding took in a round beside the recorded replies."""
    found = [r.times.drafting / len(r.reply) for r in recordings if r.times is not None]
    return statistics.median(found) if found else 0.0


def pace_of_recordings(recordings: Sequence[Recording], costs: PairCosts) -> Pace:
    """Return how fast prompts are read, as the recordings show it.

    Everything is in the seconds of the calibration: on a machine that was slower when replies were
    recorded, reading was slower, too.
    """
    timed = [(r, r.times) for r in recordings if r.times is not None and len(r.prompt) > 1]
    target_seconds = sum(times.target for _, times in timed)
    if not target_seconds:
        return Pace()
    calibrated = sum(_target_seconds(recording, costs) for recording, _ in timed)
    num_tokens = sum(len(recording.prompt) - 1 for recording, _ in timed)
    scale = calibrated / target_seconds / num_tokens
    draft_seconds = sum(times.draft_prompt for _, times in timed)
    return Pace(
        reading_seconds=scale * sum(times.prompt for _, times in timed),
        draft_reading_seconds=scale * draft_seconds if draft_seconds else None,
    )


def _target_seconds(recording: Recording, costs: PairCosts) -> float:
    first = len(recording.prompt) - 1
    places = range(first, first + len(recording.reply))
    return sum(costs.target.at(1, place) for place in places)


def prediction_dict(predictions: Mapping[str, Prediction]) -> dict[str, Any]:
    """Return the predicted speedups by mode, as a benchmark's summary holds them."""
    return {name: expected_dict(one.speedup()) for name, one in predictions.items()}
