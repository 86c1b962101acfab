#!/usr/bin/env python
"""Compare the perplexity of two backends on the same text.

The text is cut into pieces of one context each; every token but the first of a piece counts.

    python scripts/measure/perplexity.py qwen2.5-coder-1.5b --kilobytes 20
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from yardsticks import (
    MODELS,
    add_common_options,
    finish,
    mixed_text,
    open_model,
    resolved,
    rows_in_passes,
)

from pilotfish.types import FloatArray

ENOUGH = 0.005


def surprise(rows: FloatArray, next_ids: list[int]) -> float:
    """Return the sum of -log p of `next_ids` under the first rows [rows, vocabulary], in nats."""
    used = rows[: len(next_ids)].astype(np.float64)
    largest = used.max(axis=1)
    total = largest + np.log(np.exp(used - largest[:, None]).sum(axis=1))
    return float((total - used[np.arange(len(next_ids)), next_ids]).sum())


def perplexity(model: Any, ids: list[int], context: int) -> float:
    """Return exp of the mean surprise over pieces of `context` tokens."""
    nats, count = 0.0, 0
    for begin in range(0, len(ids) - 1, context):
        piece = ids[begin : begin + context]
        count += len(piece) - 1
        for first, rows in rows_in_passes(model, piece):
            nats += surprise(rows, piece[first + 1 : first + 1 + len(rows)])
    return math.exp(nats / count)


def measure_file(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the perplexity of both engines on one file, and their relative difference."""
    values: dict[str, float] = {}
    ids: list[int] = []
    for engine in ("native", "llama"):
        with open_model(engine, path, context_size=args.context, threads=args.threads) as model:
            text = mixed_text(1024 * args.kilobytes)
            ids = model.tokenizer.encode(text, parse_special=False)
            values[engine] = perplexity(model, ids, args.context)
        print(f"{path.name} {engine}: {values[engine]:.5f}", file=sys.stderr)
    difference = values["native"] / values["llama"] - 1
    return {"file": path.name, "tokens": len(ids), "perplexity": values, "difference": difference}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="named models or paths")
    parser.add_argument("--kilobytes", type=int, default=20)
    parser.add_argument("--context", type=int, default=512)
    add_common_options(parser)
    args = parser.parse_args()
    files = [measure_file(resolved(model), args) for model in args.models]
    finish({"context": args.context, "files": files}, args.json)
    return 0 if all(abs(file["difference"]) <= ENOUGH for file in files) else 1


if __name__ == "__main__":
    sys.exit(main())
