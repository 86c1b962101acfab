"""The cost curve: seconds of a pass by its width, beside what reading the weights takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from pilotfish_native._core import Model

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
ROUNDS = 7

Progress = Callable[[str], None]


def text_of(model: Model, count: int) -> list[int]:
    """Return `count` token ids, the same for the same vocabulary; time does not depend on them."""
    return [(7919 * i + 13) % model.vocab_size for i in range(count)]


def measure_curve(
    model: Model,
    *,
    context: int,
    widths: Sequence[int] = WIDTHS,
    rounds: int = ROUNDS,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Return the curve in the form of the JSON output.

    curve_seconds   median over the rounds, by width
    ratio           median over the rounds of a pass against the single step of the same round: a
                    machine that becomes slower for a while moves it less
    floor_seconds   what reading the weights once takes, at best
    """
    ids = text_of(model, context + max(widths))
    sequence = model.new_sequence()

    def evaluate(new: list[int], first_row: int) -> float:
        """Return the seconds of one pass."""
        start = time.perf_counter()
        model.forward([sequence], [new], [first_row])
        return time.perf_counter() - start

    evaluate(ids[:1], 0)  # touches all weights once
    sequence.truncate(0)
    progress(f"reading {context} tokens")
    prompt_seconds = evaluate(ids[:context], context)
    times: dict[int, list[float]] = {width: [] for width in widths}
    floors = []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for width in widths:
            times[width].append(evaluate(ids[context : context + width], 0))
            sequence.truncate(context)
        floors.append(model.read_weights())
    sequence.close()
    steps = times[widths[0]]
    return {
        "curve_seconds": {str(width): median(taken) for width, taken in times.items()},
        "ratio": {
            str(width): median(wide / step for wide, step in zip(taken, steps, strict=True))
            for width, taken in times.items()
            if width != widths[0]
        },
        "read_bandwidth_bytes_per_second": model.step_bytes / min(floors),
        "floor_seconds": min(floors),
        "context": context,
        "rounds": rounds,
        "instructions": model.instructions,
        "threads": model.threads,
        "prompt_tokens_per_second": context / prompt_seconds,
        "load_seconds": model.load_seconds,
        "weight_bytes": model.weight_bytes,
        "step_bytes": model.step_bytes,
    }


def curve_table(curve: dict[str, Any]) -> str:
    """Return the curve for reading, at most 80 columns wide."""
    seconds, floor = curve["curve_seconds"], curve["floor_seconds"]
    lines = [
        f"{curve['instructions']}, threads {curve['threads']}, context {curve['context']}",
        f"weights        {curve['weight_bytes'] / 1e6:10,.1f} MB, repacked in "
        f"{curve['load_seconds']:.2f} s",
        f"read by a pass {curve['step_bytes'] / 1e6:10,.1f} MB, at best in {1e3 * floor:.2f} ms "
        f"({curve['read_bandwidth_bytes_per_second'] / 1e9:.1f} GB/s)",
        f"prompt         {curve['prompt_tokens_per_second']:10,.1f} tokens/s",
        "",
        "width   seconds   of a single step   of the floor   a row",
    ]
    for width, taken in seconds.items():
        ratio = curve["ratio"].get(width, 1.0)
        lines.append(
            f"{width:>5}   {taken:7.5f}   {ratio:16.2f}   {taken / floor:12.2f}   "
            f"{ratio / int(width):5.2f}"
        )
    return "\n".join(lines)
