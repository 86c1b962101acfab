#!/usr/bin/env python
"""Measure single steps while other processes keep cores busy, over several starts.

Each start is a fresh process, loaded and measured under one condition: quiet, one busy process kept
on the first core, or one on every core. Reported per engine and condition: the median step of each
start, the worst step, and both over the quiet median. `llama-unplaced` is llama.cpp without the
placement of threads that our backend asks for.

    python scripts/measure/busy_neighbour.py smollm2-135m --starts 6
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workers import WorkerProcess
from yardsticks import add_common_options, finish, resolved

CONTEXT = 256
CONDITIONS = ("quiet", "one core busy", "all cores busy")
UNPLACED = "-unplaced"


@contextlib.contextmanager
def neighbours(condition: str) -> Iterator[None]:
    """Keep the cores of a condition busy for the time of a block."""
    cores = sorted(os.sched_getaffinity(0))
    busy = {"quiet": [], "one core busy": cores[:1], "all cores busy": cores}[condition]
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in busy]
    try:
        for process, core in zip(processes, busy, strict=True):
            os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def steps(engine: str, path: Path, args: argparse.Namespace) -> list[float]:
    """Return the milliseconds of single steps of one fresh process."""
    name = engine.removesuffix(UNPLACED)
    environment = {"OMP_PROC_BIND": "false"} if name != engine else {}
    with WorkerProcess(
        name, path, context=CONTEXT, threads=args.threads, environment=environment
    ) as worker:
        worker.ask("fill", tokens=CONTEXT)
        reply = worker.ask("pass", width=1, repeats=args.steps)
    return [1e3 * second for second in reply["seconds"]]


def summary(starts: list[list[float]], quiet_median: float) -> dict[str, Any]:
    """Return the figures of one engine under one condition; `starts` holds milliseconds."""
    medians = [statistics.median(start) for start in starts]
    worst = max(max(start) for start in starts)
    return {
        "median_of_each_start": [round(median, 2) for median in medians],
        "median": statistics.median(medians),
        "worst": worst,
        "median_over_quiet": statistics.median(medians) / quiet_median,
        "worst_median_over_quiet": max(medians) / quiet_median,
        "worst_over_quiet": worst / quiet_median,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--engines", default=f"native,llama,llama{UNPLACED}")
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40, help="single steps per start")
    add_common_options(parser)
    args = parser.parse_args()
    path, engines = resolved(args.model), args.engines.split(",")
    times: dict[str, dict[str, list[list[float]]]] = {
        engine: {condition: [] for condition in CONDITIONS} for engine in engines
    }
    for start in range(args.starts):
        for condition in CONDITIONS:
            for engine in engines:
                with neighbours(condition):
                    times[engine][condition].append(steps(engine, path, args))
        print(f"start {start + 1} of {args.starts}", file=sys.stderr)
    report: dict[str, Any] = {"file": path.name, "threads": args.threads, "engines": {}}
    for engine, by_condition in times.items():
        quiet = statistics.median(ms for start in by_condition["quiet"] for ms in start)
        report["engines"][engine] = {
            condition: summary(starts, quiet) for condition, starts in by_condition.items()
        }
    finish(report, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
