#!/usr/bin/env python
"""Measure what a pass over several tokens costs on each engine, interleaved.

Each engine is a process of its own, stopped while others have their turn. In each round every
width goes through all engines before the next width. Reported: milliseconds per pass, ratios to
the engine's own single step, ratios between engines of the same turn, the time of reading the
weights once, and tokens per second of a long prompt.

    python scripts/measure/curve.py qwen2.5-coder-1.5b --engines native,llama --rounds 7
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workers import PLACED, WorkerProcess
from yardsticks import ENGINES, add_common_options, finish, resolved

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
PROMPT_TOKENS = 512
Turns = dict[str, dict[int, list[float]]]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the median and the largest value."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def rotated(workers: list[WorkerProcess], turn: int) -> list[WorkerProcess]:
    """Return the workers with another one first at each turn."""
    first = turn % len(workers)
    return workers[first:] + workers[:first]


def measure_prompts(workers: list[WorkerProcess], rounds: int) -> dict[str, list[float]]:
    """Return tokens per second of a prompt, one value a round; the first round warms up."""
    rates: dict[str, list[float]] = {worker.engine: [] for worker in workers}
    for turn in range(rounds + 1):
        for worker in rotated(workers, turn):
            seconds = worker.ask("prompt", tokens=PROMPT_TOKENS)["seconds"]
            if turn:
                rates[worker.engine].append(PROMPT_TOKENS / seconds)
        print(f"prompts, round {turn} of {rounds}", file=sys.stderr)
    return rates


def measure_widths(
    workers: list[WorkerProcess], args: argparse.Namespace
) -> tuple[Turns, list[dict[str, Any]]]:
    """Return the median seconds of each turn by engine and width, and the readings of weights."""
    turns: Turns = {worker.engine: {width: [] for width in args.widths} for worker in workers}
    readings = []
    for worker in workers:
        worker.ask("fill", tokens=args.context)
    for number in range(args.rounds):
        for place, width in enumerate(args.widths):
            for worker in rotated(workers, number + place):
                reply = worker.ask("pass", width=width, repeats=args.repeats)
                turns[worker.engine][width].append(statistics.median(reply["seconds"]))
        readings += [w.ask("read", repeats=3) for w in workers if w.engine == "native"]
        print(f"widths, round {number + 1} of {args.rounds}", file=sys.stderr)
    return turns, readings


def engine_report(turns: dict[int, list[float]], rates: list[float]) -> dict[str, Any]:
    """Return the figures of one engine."""
    curve = {width: [1e3 * s for s in seconds] for width, seconds in turns.items()}
    ratios = {w: paired(values, curve[min(curve)]) for w, values in curve.items()}
    return {
        "milliseconds": {width: spread(values) for width, values in curve.items()},
        "ratio": ratios,
        "prompt_tokens_per_second": spread(rates),
        "turns": curve,
    }


def paired(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the spread of ratios of values of the same round."""
    return spread([a / b for a, b in zip(values, others, strict=True)])


def pair_reports(turns: Turns, rates: dict[str, list[float]]) -> dict[str, Any]:
    """Return how many times faster the native engine is than each other one."""
    ours = turns.get("native")
    if ours is None:
        return {}
    return {
        engine: {
            "width": {width: paired(theirs[width], ours[width]) for width in ours},
            "prompt": paired(rates["native"], rates[engine]),
        }
        for engine, theirs in turns.items()
        if engine != "native"
    }


def floor_report(readings: list[dict[str, Any]], turns: Turns) -> dict[str, Any] | None:
    """Return the time of reading the weights once, and a single step's share of that speed."""
    if not readings:
        return None
    floors = [statistics.median(reading["seconds"]) for reading in readings]
    steps = turns["native"][1]
    return {
        "bytes": readings[0]["bytes"],
        "milliseconds": spread([1e3 * s for s in floors]),
        "bytes_per_second": readings[0]["bytes"] / statistics.median(floors),
        "share_of_bandwidth": paired(floors, steps),
    }


def table(report: dict[str, Any]) -> str:
    """Return the curves as text: milliseconds (ratio to the own single step)."""
    lines = []
    for name, engine in report["engines"].items():
        cells = [
            f"{width}: {engine['milliseconds'][width]['median']:.1f} "
            f"({engine['ratio'][width]['median']:.2f})"
            for width in engine["milliseconds"]
        ]
        rate = engine["prompt_tokens_per_second"]["median"]
        lines.append(f"{name:12} {'  '.join(cells)}  prompt {rate:.0f}/s")
    return "\n".join(lines)


def widths(text: str) -> list[int]:
    """Return the widths of a list such as "1,2,4"; the single step is always among them."""
    return sorted({1, *(int(width) for width in text.split(","))})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="qwen2.5-coder-1.5b")
    parser.add_argument("--engines", default="native,llama", help=f"of {', '.join(ENGINES)}, ik")
    parser.add_argument(
        "--ik-python", default=sys.executable, help="the Python that has ik's package"
    )
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--widths", type=widths, default=list(WIDTHS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="passes per turn")
    add_common_options(parser)
    args = parser.parse_args()
    path = resolved(args.model)
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                WorkerProcess(
                    engine,
                    path,
                    context=max(args.context, PROMPT_TOKENS),
                    threads=args.threads,
                    environment=PLACED,
                    python=args.ik_python if engine == "ik" else sys.executable,
                )
            )
            for engine in args.engines.split(",")
        ]
        rates = measure_prompts(workers, args.rounds)
        turns, readings = measure_widths(workers, args)
    report = {
        "file": Path(path).name,
        "context": args.context,
        "threads": args.threads,
        "rounds": args.rounds,
        "engines": {name: engine_report(turns[name], rates[name]) for name in turns},
        "native_faster_than": pair_reports(turns, rates),
        "floor": floor_report(readings, turns),
    }
    finish(report, args.json)
    print(table(report), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
