"""Recorded replies and predictions for commands, with a bar that shows how far they are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from pilotfish.bench.recording import Recorded
from pilotfish.bench.runner import Mode, Progress
from pilotfish.bench.workload import Prompt
from pilotfish.cli.console import talk
from pilotfish.config import Request

if TYPE_CHECKING:
    from pilotfish.bench.prediction import Predictor
    from pilotfish.build import ModelPair
    from pilotfish.generation import TextEngine


@contextmanager
def shown_progress() -> Iterator[Progress | None]:
    """Give a progress callback that draws a bar on a terminal; None elsewhere."""
    console = talk()
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with ProgressBar(*columns, console=console, transient=True) as bars:
        task = bars.add_task("warming up", total=None)

        def progress(done: int, total: int, name: str) -> None:
            bars.update(task, description=name, completed=done, total=total)

        yield progress


def recorded_replies(
    pair: ModelPair,
    plain: TextEngine,
    prompts: Sequence[Prompt],
    request: Request,
    *,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Recorded:
    """Return the plain replies of a pair, and what its draft model says along them."""
    from pilotfish.bench.recorder import record  # not at the top: help needs no backend

    return record(
        plain,
        pair.draft,
        prompts,
        request=request,
        costs=pair.measured_costs().costs,
        seconds=seconds,
        progress=progress,
    )


def predicted_speedups(
    pair: ModelPair, recorded: Recorded, modes: Sequence[Mode]
) -> dict[str, Any]:
    """Return the speedups by mode that replays of recorded replies predict."""
    from pilotfish.bench.prediction import prediction_dict

    predictor = predictor_of(pair, recorded)
    return prediction_dict({mode.name: predictor.predict(mode) for mode in modes})


def predictor_of(pair: ModelPair, recorded: Recorded) -> Predictor:
    """Return what replays the replies on the pair's costs; without a draft model where none was
    asked along them."""
    from pilotfish.bench.prediction import Predictor

    costs = pair.measured_costs().costs
    return Predictor(
        recorded.recordings,
        costs if recorded.has_drafts else replace(costs, draft=None),
        backend=pair.target.facts.backend,
        base=pair.config.speculation,
        timer=time.perf_counter,
    )


def predicted_line(
    name: str, predicted: Mapping[str, Any], measured: Mapping[str, Any] | None
) -> str:
    """Return what was predicted for a mode beside what was measured."""
    line = f"{name}: {predicted['expected']:.2f}x was predicted"
    if measured is None:
        return line
    off = predicted["expected"] / measured["geomean"] - 1
    return f"{line}, {measured['geomean']:.2f}x measured: off by {off:+.0%}"
