#!/usr/bin/env python
"""Count bits in which the native backend's rows depend on how a text was cut into passes.

The rows of a text evaluated token by token, alone, on one thread, are compared with those from
every width of a pass, several cuts of the prompt, alone and among three other sequences, on one,
two and three threads. The exit code is 1 when a single bit differs.

    python scripts/measure/bits.py smollm2-135m
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from yardsticks import MODELS, finish, mixed_text, open_model, resolved

from pilotfish.types import FloatArray, Segment

PROMPT_TOKENS, MOST_ROWS = 150, 64
CUTS = {"1": 1, "7": 7, "64": 64, "whole": PROMPT_TOKENS}
# tokens already read by each other sequence, and tokens it adds in each pass
OTHERS = ((5, 1), (40, 3), (90, 6))


@dataclass
class Count:
    """What was compared so far, and where bits differed; a case is one pass."""

    cases: int = 0
    rows: int = 0
    differing_bits: int = 0
    differing: list[str] = field(default_factory=list)

    def compare(self, rows: FloatArray, expected: FloatArray, case: str) -> None:
        """Compare rows [rows, vocabulary] with the rows expected, bit by bit."""
        assert rows.shape == expected.shape, (rows.shape, expected.shape)
        self.cases += 1
        self.rows += len(rows)
        bits = num_differing_bits(rows, expected)
        if bits:
            self.differing_bits += bits
            self.differing.append(f"{case}: {bits} bits, largest {np.abs(rows - expected).max()}")


def num_differing_bits(a: FloatArray, b: FloatArray) -> int:
    """Return in how many bits two float32 arrays differ."""
    first, second = (np.ascontiguousarray(x).view(np.uint32) for x in (a, b))
    places = first != second
    if not places.any():
        return 0
    return int(np.unpackbits((first[places] ^ second[places]).view(np.uint8)).sum())


class Company:
    """Other sequences that ride along in every pass, before and after the one looked at."""

    def __init__(self, model: Any, ids: Sequence[int], others: Sequence[tuple[int, int]]) -> None:
        """Read a beginning of its own for each of `others`."""
        self.model = model
        self.added = [list(ids[read : read + new]) for read, new in others]
        self.lengths = [read for read, _ in others]
        self.caches = [model.new_cache() for _ in others]
        for cache, length in zip(self.caches, self.lengths, strict=True):
            model.forward([Segment(cache, list(ids[:length]), length)])
        self.turn = 0

    def rows(self, cache: Any, ids: list[int]) -> FloatArray:
        """Return the last rows of new tokens of `cache`, evaluated together with the others."""
        segments = [Segment(c, new) for c, new in zip(self.caches, self.added, strict=True)]
        self.turn += 1
        place = self.turn % (len(segments) + 1)
        segments.insert(place, Segment(cache, ids, max(0, len(ids) - MOST_ROWS)))
        rows = self.model.forward(segments)[place].copy()
        for other, length in zip(self.caches, self.lengths, strict=True):
            other.truncate(length)
        return rows

    def close(self) -> None:
        """Give the places back."""
        for cache in self.caches:
            cache.close()


def pieces(ids: list[int], size: int) -> Iterator[list[int]]:
    """Yield `ids` in pieces of `size`."""
    for begin in range(0, len(ids), size):
        yield ids[begin : begin + size]


def check_company(
    company: Company, ids: list[int], expected: FloatArray, *, widths: list[int], count: Count
) -> None:
    """Compare every cut of the prompt and every width after it."""
    prompt, rest = ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:]
    around = f"{company.model.facts.threads} threads, {len(company.caches)} others"
    for name, size in CUTS.items():
        cache = company.model.new_cache()
        case = f"{around}, prompt cut {name}"
        for piece in pieces(prompt, size):
            rows, end = company.rows(cache, piece), len(cache)
            count.compare(rows, expected[end - len(rows) : end], case)
        for width in widths:
            rows = company.rows(cache, rest[:width])
            wanted = expected[PROMPT_TOKENS : PROMPT_TOKENS + width]
            count.compare(rows, wanted, f"{case}, width {width}")
            cache.truncate(PROMPT_TOKENS)
        cache.close()


def check_file(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the counts of one file."""
    count, expected, start = Count(), None, time.perf_counter()
    widths = [w for w in range(1, MOST_ROWS + 1) if args.widths is None or w in args.widths]
    for threads in args.threads:
        with open_model(
            args.engine, path, context_size=256, max_sessions=1 + len(OTHERS), threads=threads
        ) as model:
            ids = model.tokenizer.encode(mixed_text(4000), parse_special=False)
            ids = ids[: PROMPT_TOKENS + MOST_ROWS]
            for others in ((), OTHERS):
                company = Company(model, ids[::-1], others)
                if expected is None:
                    cache = model.new_cache()
                    expected = np.concatenate([company.rows(cache, [i]) for i in ids])
                    cache.close()
                check_company(company, ids, expected, widths=widths, count=count)
                company.close()
                seconds = time.perf_counter() - start
                print(
                    f"{path.name}, {threads} threads, {len(others)} others: {count.cases} cases, "
                    f"{count.differing_bits} bits differ, {seconds:.0f} s",
                    file=sys.stderr,
                )
    return {
        "file": path.name,
        "cases": count.cases,
        "rows": count.rows,
        "logits": 0 if expected is None else count.rows * expected.shape[1],
        "differing_bits": count.differing_bits,
        "differing": count.differing[:20],
    }


def numbers(text: str) -> list[int]:
    """Return the numbers of a list such as "1,2,3"."""
    return [int(number) for number in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="named models or paths")
    parser.add_argument("--engine", default="native")
    parser.add_argument("--widths", type=numbers, help="of 1 to 64, such as 1,2,8; default: all")
    parser.add_argument("--threads", type=numbers, default=[1, 2, 3])
    parser.add_argument("--json", type=Path, help="write the result there, too")
    args = parser.parse_args()
    files = [check_file(resolved(model), args) for model in args.models]
    finish({"engine": args.engine, "files": files}, args.json)
    return 1 if any(file["differing_bits"] for file in files) else 0


if __name__ == "__main__":
    sys.exit(main())
