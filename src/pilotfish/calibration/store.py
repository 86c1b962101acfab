"""Calibrations kept on disk: one for each pair of files, build, machine and settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from pilotfish.backends.facts import ModelFacts
from pilotfish.backends.machine import default_threads, processor_name
from pilotfish.backends.self_check import (
    file_identity,
    forget_result,
    kept_results,
    load_result,
    save_result,
)
from pilotfish.calibration.measure import Progress, measure
from pilotfish.calibration.plan import QUICK, MeasurePlan
from pilotfish.calibration.result import Calibration
from pilotfish.config import EngineConfig, ModelConfig
from pilotfish.protocols import TargetModel

# raise it when measuring itself changes: older results then no longer count
_VERSION = 1
_FOLDER = "calibration"
# costs that drift within less time than this follow a machine that changes: replies follow it, too,
# and another measurement would be as wrong by the evening
_LEAST_AGE = timedelta(days=1)

_LOG = logging.getLogger("pilotfish")


class MeasuredModel(TargetModel, Protocol):
    """A model that was loaded from a file."""

    @property
    def facts(self) -> ModelFacts:
        """Return what the loaded object says about itself."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A calibration with what it was made for: files, library, threads and settings."""

    calibration: Calibration
    description: Mapping[str, Any]


def describe_pair(
    target: MeasuredModel, draft: MeasuredModel | None, config: EngineConfig
) -> dict[str, Any]:
    """Return everything the seconds of a pass depend on: the key of a kept calibration.

    config  what the models were loaded with
    """
    speculation = config.speculation
    described: dict[str, Any] = {
        "version": _VERSION,
        "processor": processor_name(),
        "target": {**_describe(target, config.target), "strict": speculation.strict},
        "draft": None,
    }
    if draft is not None:
        described["draft"] = {
            **_describe(draft, config.draft or config.target),
            "head_size": speculation.draft_head_size,
            "requantize": speculation.draft_requantize,
        }
    return described


def load(description: Mapping[str, Any]) -> Calibration | None:
    """Return the calibration kept for `description`, or None when there is none to be read."""
    try:
        return Calibration.from_dict(load_result(description, folder=_FOLDER))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def find(target: Path, draft: Path | None = None) -> Kept | None:
    """Return what is kept of these files on this machine, without loading them: of several settings
    those of a load without options, and of these the newest. None where nothing is."""
    found: list[Kept] = []
    for description, result in kept_results(_FOLDER):
        try:
            if _is_of(description, target, draft):
                found.append(Kept(Calibration.from_dict(result), description))
        except (ValueError, TypeError, KeyError, OverflowError):
            continue  # another version wrote it, or it is damaged

    def fitness(kept: Kept) -> tuple[bool, bool, str]:
        usual = kept.description["target"]
        is_usual = usual["cache_type"] == "f16" and not usual["strict"]
        return usual["threads"] == default_threads(), is_usual, kept.calibration.measured_at

    return max(found, key=fitness, default=None)


def _is_of(description: Mapping[str, Any], target: Path, draft: Path | None) -> bool:
    is_here = description["version"] == _VERSION and description["processor"] == processor_name()
    if not is_here or description["target"]["file"] != file_identity(target):
        return False
    is_usable = {"backend", "threads", "cache_type", "strict"} <= description["target"].keys()
    beside = description["draft"]
    return is_usable and (
        draft is None or (beside is not None and beside["file"] == file_identity(draft))
    )


def save(description: Mapping[str, Any], calibration: Calibration) -> None:
    """Keep a calibration in place of an older one; a folder that cannot be written only means
    measuring again next time."""
    save_result(description, calibration.to_dict(), folder=_FOLDER)


def mark_stale(description: Mapping[str, Any], *, now: datetime | None = None) -> None:
    """Drop what is kept for `description`, as its costs have drifted: the next load measures. What
    was measured within the last day stays, so that no load measures because of the one before."""
    kept = load(description)
    if kept is not None and _age(kept, now or datetime.now(UTC)) < _LEAST_AGE:
        return
    forget_result(description, folder=_FOLDER)


def costs_for(
    target: MeasuredModel,
    draft: MeasuredModel | None = None,
    *,
    description: Mapping[str, Any],
    plan: MeasurePlan = QUICK,
    progress: Progress | None = None,
) -> Calibration:
    """Return the calibration kept for `description`, or measure by `plan` and keep that.

    What is kept is used even if the machine was disturbed when it was made: it may always be, and
    a controller follows what passes cost. `pilotfish calibrate` measures again.
    """
    kept = load(description)
    if kept is not None:
        return kept
    _LOG.info("measuring what passes of %s cost", target.facts.path.name)
    calibration = measure(target, draft, plan=plan, progress=progress)
    save(description, calibration)
    return calibration


def _age(calibration: Calibration, now: datetime) -> timedelta:
    try:
        return now - datetime.fromisoformat(calibration.measured_at)
    except (ValueError, TypeError):  # no date, or one of no time zone
        return timedelta.max


def _describe(model: MeasuredModel, config: ModelConfig) -> dict[str, Any]:
    facts = model.facts
    return {
        "file": file_identity(facts.path),
        "backend": facts.backend,
        "library": _library(facts),
        "threads": facts.threads,
        "cache_type": config.cache_type,
        "batch_size": config.batch_size,
        # a power of two: costs are measured at contexts that fit, and change little with the rest
        "context_bucket": 1 << (model.context_size - 1).bit_length(),
    }


def _library(facts: ModelFacts) -> list[Any]:
    """Return what tells one build of a library from another, of two with one version too."""
    if facts.backend != "native":
        return [facts.library]
    from pilotfish.backends.native.library import library_identity  # only where it is installed

    return [facts.library, *library_identity()]
