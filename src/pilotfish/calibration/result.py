"""What a calibration found, and what follows from it in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.accounting.cost_model import RoundCosts, break_even_acceptance
from pilotfish.calibration.bandwidth import Reading

# a pass is called free while it costs at most this much more than a single step
_FREE_SHARE = 0.1
_SENTENCE_WIDTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The costs of a pair as measured on one machine.

    costs         medians over the quieter rounds, or minima where these disagree
    minima        the target's best passes, draft_minima the draft's: what a quiet machine can do
    reading       how fast memory is read; None for a model without weights
    measured_at   date and time, UTC
    rounds        timed passes of each width
    steady        whether the quieter rounds agree; if not, something else used the machine
    """

    costs: PairCosts
    minima: CostCurve
    draft_minima: CostCurve | None = None
    reading: Reading | None = None
    measured_at: str = ""
    rounds: int = 1
    steady: bool = True
    plan: str = ""
    machine: str = ""

    @property
    def context(self) -> int:
        """Return the shortest measured context, in tokens."""
        return self.costs.target.contexts[0]

    @property
    def steps_of_floor(self) -> float | None:
        """Return a single step over the time of reading the weights; None if not measured."""
        step = self.costs.target.at(1, self.context)
        return None if self.reading is None else step / self.reading.floor_seconds

    def free_width(self, context: int | None = None) -> int:
        """Return the width up to which every measured pass costs at most 10 % more than a step."""
        free = 1
        for width, ratio in self.costs.target.ratios(context).items():
            if ratio > 1 + _FREE_SHARE:
                break
            free = width
        return free

    def sentences(self) -> list[str]:
        """Return what the curve means for drafting, in plain words."""
        target = self.costs.target
        width = min(_SENTENCE_WIDTH, target.widths[-1])
        if width == 1:
            return ["On this machine a pass checks one token: nothing can be drafted."]
        steps = target.at(width, self.context) / target.at(1, self.context)
        chance = break_even(self.costs, width)
        checking = f"On this machine checking {width} tokens costs {steps:.1f} single steps: "
        result = [checking + _must_be_accepted("a draft token", chance)]
        ratio = self.costs.draft_cost_ratio
        if ratio is not None:
            chance = break_even(self.costs, width, by_model=True)
            drafting = f"A token of the draft model costs {ratio:.2f} single steps more: "
            result.append(drafting + _must_be_accepted("it", chance))
        return result

    def report_dict(self) -> dict[str, Any]:
        """Return the figures in the form of `pilotfish calibrate --json`.

        Seconds and ratios at the root are those of the shortest context; keys are widths.
        """
        target, reading = self.costs.target, self.reading
        widths = [width for width in target.widths if width > 1]
        near = self._context_dict(self.context)
        return {
            **{name: near[name] for name in ("curve_seconds", "ratio", "draft_curve_seconds")},
            "read_bandwidth_bytes_per_second": reading and reading.bandwidth_bytes_per_second,
            "floor_seconds": reading and reading.floor_seconds,
            "step_bytes": reading and reading.step_bytes,
            "step_over_floor": self.steps_of_floor,
            "draft_cost_ratio": self.costs.draft_cost_ratio,
            "overhead_seconds": self.costs.overhead_seconds,
            "draft_overhead_seconds": self.costs.draft_overhead_seconds,
            "context": self.context,
            "contexts": {str(context): self._context_dict(context) for context in target.contexts},
            "break_even": {str(w): break_even(self.costs, w) for w in widths},
            "break_even_draft_model": None
            if self.costs.draft is None
            else {str(w): break_even(self.costs, w, by_model=True) for w in widths},
            "sentence": " ".join(self.sentences()),
            "plan": self.plan,
            "rounds": self.rounds,
            "steady": self.steady,
            "measured_at": self.measured_at,
            "machine": self.machine,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        costs = self.costs
        return {
            "target": costs.target.to_dict(),
            "draft": costs.draft and costs.draft.to_dict(),
            "overhead_seconds": costs.overhead_seconds,
            "draft_overhead_seconds": costs.draft_overhead_seconds,
            "minima": self.minima.to_dict(),
            "draft_minima": self.draft_minima and self.draft_minima.to_dict(),
            "reading": self.reading and self.reading.to_dict(),
            "measured_at": self.measured_at,
            "rounds": self.rounds,
            "steady": self.steady,
            "plan": self.plan,
            "machine": self.machine,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Calibration:
        """Return the calibration from what `to_dict` gave; ValueError, KeyError or TypeError if it
        is damaged."""

        def curve(name: str) -> CostCurve | None:
            return None if raw[name] is None else CostCurve.from_dict(raw[name])

        return cls(
            costs=PairCosts(
                target=CostCurve.from_dict(raw["target"]),
                draft=curve("draft"),
                overhead_seconds=_seconds(raw["overhead_seconds"]),
                draft_overhead_seconds=_seconds(raw["draft_overhead_seconds"]),
            ),
            minima=CostCurve.from_dict(raw["minima"]),
            draft_minima=curve("draft_minima"),
            reading=None if raw["reading"] is None else Reading.from_dict(raw["reading"]),
            measured_at=str(raw["measured_at"]),
            rounds=int(raw["rounds"]),
            steady=bool(raw["steady"]),
            plan=str(raw["plan"]),
            machine=str(raw["machine"]),
        )

    def _context_dict(self, context: int) -> dict[str, Any]:
        target, draft = self.costs.target, self.costs.draft
        return {
            "curve_seconds": _by_width(target, context),
            "minimum_seconds": _by_width(self.minima, context),
            "ratio": {str(width): ratio for width, ratio in target.ratios(context).items()},
            "free_width": self.free_width(context),
            "draft_curve_seconds": draft and _by_width(draft, context),
            "draft_minimum_seconds": self.draft_minima and _by_width(self.draft_minima, context),
        }


def break_even(costs: PairCosts, width: int, *, by_model: bool = False) -> float | None:
    """Return the acceptance from which passes of `width` pay, drafts from text or by the model, at
    the shortest measured context; None where even certain acceptance does not."""
    context = costs.target.contexts[0]
    rounds = RoundCosts.of_pair(costs, by_model=by_model, context=context)
    return break_even_acceptance(width - 1, rounds)


def _must_be_accepted(what: str, chance: float | None) -> str:
    if chance is None:
        return f"{what} cannot pay, however often it is accepted."
    if chance < 0.005:
        return f"{what} pays whenever it is accepted."
    return f"{what} must be accepted with probability above {chance:.2f} to pay."


def _by_width(curve: CostCurve, context: int) -> dict[str, float]:
    return {str(width): curve.at(width, context) for width in curve.widths}


def _seconds(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]
    if not 0 <= seconds < float("inf"):
        raise ValueError("seconds must be 0 or more")
    return seconds
