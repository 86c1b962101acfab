"""The bits of rows, however a text is cut, whatever else is in a pass, on any number of threads.

Single rows on one thread say what the bits must be; every other way of evaluating the same tokens
is a case that is compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotfish_native._core import Model
from pilotfish_native.curve import Progress, text_of

Rows = NDArray[np.float32]

PROMPT_TOKENS, NUM_ROWS = 150, 64
CONTEXT_SIZE = PROMPT_TOKENS + NUM_ROWS
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which cases are tried; a cut of PROMPT_TOKENS is the whole prompt in one pass."""

    widths: tuple[int, ...]
    prompt_cuts: tuple[int, ...]
    widths_in_batches: tuple[int, ...]
    threads: tuple[int, ...]


WHOLE = Plan(
    widths=tuple(range(1, NUM_ROWS + 1)),
    prompt_cuts=(1, 7, 64, PROMPT_TOKENS),
    widths_in_batches=(1, 2, 3, 4, 7, 8, 16, 33, 64),
    threads=(1, 2, 3),
)
QUICK = Plan(
    widths=(1, 2, 3, 5, 8, 17, 64),
    prompt_cuts=(7, PROMPT_TOKENS),
    widths_in_batches=(1, 5, 33),
    threads=(1, 2),
)


def differing_bits(rows: Rows, expected: Rows) -> int:
    """Return in how many bits two arrays [rows, vocabulary] differ; ValueError for other shapes."""
    if rows.shape != expected.shape:
        raise ValueError(f"rows have the shapes {rows.shape} and {expected.shape}")
    count = 0
    for row, other in zip(rows, expected, strict=True):
        different = row.view(np.uint32) ^ other.view(np.uint32)
        if different.any():
            count += int(np.unpackbits(different.view(np.uint8)).sum())
    return count


def check_bits(
    open_model: Callable[[int], Model],
    *,
    plan: Plan = WHOLE,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Return what was compared and what differs, in the form of the JSON output.

    open_model   returns the model in memory, with so many threads; it is closed here
    """
    expected: Rows | None = None
    differences: dict[str, int] = {}
    num_cases = num_rows = 0
    instructions = ""
    for threads in (1, *plan.threads):
        model = open_model(threads)
        try:
            instructions = model.instructions
            if expected is None:
                progress("single rows on one thread")
                expected = _single_rows(model)
                continue
            for name, rows in cases(model, plan):
                name = f"threads {threads}, {name}"
                progress(name)
                bits = differing_bits(rows, expected[: len(rows)])
                num_cases, num_rows = num_cases + 1, num_rows + len(rows)
                if bits:
                    differences[name] = bits
        finally:
            model.close()
    return {
        "differing_bits": sum(differences.values()),
        "cases": num_cases,
        "rows": num_rows,
        "differing_cases": list(differences)[:_MOST_NAMED],
        "widths": list(plan.widths),
        "prompt_cuts": list(plan.prompt_cuts),
        "neighbours": len(_NEIGHBOURS),
        "threads": list(plan.threads),
        "instructions": instructions,
    }


def cases(model: Model, plan: Plan) -> Iterator[tuple[str, Rows]]:
    """Give the name of each case and its rows: those of the first tokens after the prompt."""
    ids = text_of(model, CONTEXT_SIZE)
    prompt, text = ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:]
    for cut in plan.prompt_cuts:
        sequence = model.new_sequence()
        for begin in range(0, PROMPT_TOKENS, cut):
            piece = prompt[begin : begin + cut]
            model.forward([sequence], [piece], [len(piece)])
        yield f"prompt cut {cut}", model.forward([sequence], [text], [0])
        sequence.close()
    sequence = model.new_sequence()
    model.forward([sequence], [prompt], [PROMPT_TOKENS])
    for width in plan.widths:
        yield f"width {width}", model.forward([sequence], [text[:width]], [0])
        sequence.truncate(PROMPT_TOKENS)
    for width in plan.widths_in_batches:
        yield f"width {width} among others", _among_others(model, sequence, text[:width])
        sequence.truncate(PROMPT_TOKENS)
    sequence.close()


# tokens before the pass, tokens in it, and the first of these whose row is wanted
_NEIGHBOURS = ((0, 1, 0), (70, 5, 5), (19, 17, 3))


def _among_others(model: Model, sequence: Any, text: Sequence[int]) -> Rows:
    """Return the rows of `text` from a pass that has three other sequences, ragged."""
    ids = text_of(model, CONTEXT_SIZE)[::-1]
    others = [model.new_sequence() for _ in _NEIGHBOURS]
    for other, (before, _, _) in zip(others, _NEIGHBOURS, strict=True):
        model.forward([other], [ids[:before]], [before])
    segments = [
        (other, ids[before : before + count], first)
        for other, (before, count, first) in zip(others, _NEIGHBOURS, strict=True)
    ]
    # the place in the pass follows the width, so that all are seen
    place = len(text) % (len(segments) + 1)
    ahead = sum(len(new) - first for _, new, first in segments[:place])
    segments.insert(place, (sequence, list(text), 0))
    sequences, token_ids, first_rows = zip(*segments, strict=True)
    rows = model.forward(sequences, token_ids, first_rows)[ahead : ahead + len(text)]
    for other in others:
        other.close()
    return rows


def _single_rows(model: Model) -> Rows:
    """Return the rows of the text after the prompt, every token in a pass of its own."""
    ids = text_of(model, CONTEXT_SIZE)
    sequence = model.new_sequence()
    for token_id in ids[:PROMPT_TOKENS]:
        model.forward([sequence], [[token_id]], [1])
    rows = [model.forward([sequence], [[i]], [0])[0].copy() for i in ids[PROMPT_TOKENS:]]
    sequence.close()
    return np.stack(rows)
