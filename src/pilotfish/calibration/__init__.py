"""What passes of a target and its draft model cost on this machine: measured, and kept."""

from pilotfish.calibration.measure import Progress, measure
from pilotfish.calibration.overhead import TimedModel, measure_draft_overhead, measure_overhead
from pilotfish.calibration.plan import FULL, QUICK, MeasurePlan
from pilotfish.calibration.result import Calibration
from pilotfish.calibration.store import (
    Kept,
    MeasuredModel,
    costs_for,
    describe_pair,
    find,
    load,
    mark_stale,
    save,
)

__all__ = [
    "FULL",
    "QUICK",
    "Calibration",
    "Kept",
    "MeasurePlan",
    "MeasuredModel",
    "Progress",
    "TimedModel",
    "costs_for",
    "describe_pair",
    "find",
    "load",
    "mark_stale",
    "measure",
    "measure_draft_overhead",
    "measure_overhead",
    "save",
]
