#!/usr/bin/env python
"""Measure the logits of backends against an fp32 reference with the same weights.

For each file and engine, over several texts: root mean square and largest error of the logits, the
median over positions of their root mean square (single positions can dominate the mean), divergence
of the law from the reference's, and how often the best token is the same.

Two engines that round equally well differ by some percent on one text, either way. So the native
backend's error over llama.cpp's is taken text by text; the exit code is 1 when the geometric mean
is above 1 by more than two standard errors.

    python scripts/measure/logits_error.py smollm2-135m --texts 4 --positions 500
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from yardsticks import (
    ENGINES,
    MODELS,
    ROOT,
    add_common_options,
    finish,
    mixed_text,
    open_model,
    resolved,
    rows_in_passes,
)

from pilotfish.types import FloatArray

sys.path.insert(0, str(ROOT / "tests"))
from support.reference_model import ReferenceModel


def log_probabilities(rows: FloatArray) -> Any:
    """Return log-probabilities in float64, of the shape of `rows`."""
    shifted = rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def compared(rows: FloatArray, expected: FloatArray) -> dict[str, Any]:
    """Return measures of each position: arrays [positions]."""
    error = rows.astype(np.float64) - expected
    law, wanted = log_probabilities(rows), log_probabilities(expected)
    return {
        "squared": np.square(error).mean(axis=1),
        "largest": np.abs(error).max(axis=1),
        "divergence": (np.exp(wanted) * (wanted - law)).sum(axis=1),
        "agrees": rows.argmax(axis=1) == expected.argmax(axis=1),
    }


def joined(measures: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the measures of several passes or texts as those of one."""
    parts = list(measures)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def summary(measures: dict[str, Any]) -> dict[str, float]:
    """Return the figures over all positions."""
    return {
        "rms_error": float(np.sqrt(measures["squared"].mean())),
        "median_rms_error": float(np.sqrt(np.median(measures["squared"]))),
        "max_error": float(measures["largest"].max()),
        "divergence_nats": float(measures["divergence"].mean()),
        "top_agreement": float(measures["agrees"].mean()),
    }


def measure(model: Any, ids: list[int], expected: FloatArray) -> dict[str, Any]:
    """Return the measures of one loaded model on one text."""
    # a backend leaves padding out, the reference does not
    return joined(
        compared(rows, expected[begin : begin + len(rows), : rows.shape[1]])
        for begin, rows in rows_in_passes(model, ids)
    )


def measure_file(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of every engine on one file."""
    reference, size = ReferenceModel(path), args.positions
    measures: dict[str, list[dict[str, Any]]] = {name: [] for name in args.engines}
    with contextlib.ExitStack() as stack:
        options = {"context_size": size, "threads": args.threads, "cache_type": args.cache_type}
        models = {name: stack.enter_context(open_model(name, path, **options)) for name in measures}
        text = mixed_text(8 * size * args.texts)
        ids = models[args.engines[0]].tokenizer.encode(text, parse_special=False)
        for number in range(args.texts):
            part = ids[number * size : (number + 1) * size]
            expected = reference.logits(part)
            for name, model in models.items():
                measures[name].append(measure(model, part, expected))
            print(f"{path.name}: text {number + 1} of {args.texts}", file=sys.stderr)
    result = {
        "file": path.name,
        "positions": size * args.texts,
        "engines": {name: summary(joined(texts)) for name, texts in measures.items()},
    }
    if {"native", "llama"} <= measures.keys():
        errors = {
            name: [summary(text)["rms_error"] for text in texts] for name, texts in measures.items()
        }
        result["native_over_llama"] = ratio_report(errors["native"], errors["llama"])
    return result


def ratio_report(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Return the geometric mean of the ratios of errors by text, and whether it may be 1."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    mean = statistics.fmean(logs)
    return {
        "by_text": [math.exp(value) for value in logs],
        "mean": math.exp(mean),
        "standard_error": error,
        "no_larger": mean <= 2 * error,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="named models or paths")
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=["native", "llama"],
        help=f"of {', '.join(ENGINES)}",
    )
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--positions", type=int, default=500, help="tokens of a text")
    parser.add_argument("--cache-type", default="f16", choices=["f16", "f32"])
    add_common_options(parser)
    args = parser.parse_args()
    files = [measure_file(resolved(model), args) for model in args.models]
    finish({"cache_type": args.cache_type, "files": files}, args.json)
    ratios = [file["native_over_llama"] for file in files if "native_over_llama" in file]
    return 0 if all(ratio["no_larger"] for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
