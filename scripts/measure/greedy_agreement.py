#!/usr/bin/env python
"""Follow greedy replies of two backends side by side and explain where they part.

Both get the same tokens until their choices differ. There, each side's margin is how much it
prefers its own choice to the other's, in nats. Rounding explains the parting when both margins are
below four times the error of the logits: the one that logits_error.py measured, or, without
--rms-error, the root mean square difference of both backends' rows on these replies.

    python scripts/measure/greedy_agreement.py qwen2.5-coder-1.5b --rms-error 0.12
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from prompts import MIX
from yardsticks import add_common_options, finish, open_model, resolved

from pilotfish.text import chat_prompt_ids
from pilotfish.types import FloatArray, Segment

CONTEXT = 1024
EXPLAINED_ERRORS = 4.0


@dataclass(frozen=True, slots=True)
class Parting:
    """The first position where the choices differ; margins are in nats."""

    position: int
    native_margin: float
    llama_margin: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt: where texts parted, and the mean squared difference of rows of equal choice."""

    parting: Parting | None
    mean_squares: list[float]


def mean_square(a: FloatArray, b: FloatArray) -> float:
    """Return the mean squared difference of two rows, a common shift left out."""
    return float(np.var(a.astype(np.float64) - b))


def follow(models: list[Any], prompt: list[int], num_tokens: int) -> Comparison:
    """Return how the greedy replies of both models to one prompt compare."""
    caches = [model.new_cache() for model in models]
    end_ids = models[0].tokenizer.end_ids
    pending, squares, parting = prompt, [], None
    while len(squares) < num_tokens:
        native, llama = (
            model.forward([Segment(cache, pending, len(pending) - 1)])[0][0]
            for model, cache in zip(models, caches, strict=True)
        )
        ours, theirs = int(native.argmax()), int(llama.argmax())
        if ours != theirs:
            margins = float(native[ours] - native[theirs]), float(llama[theirs] - llama[ours])
            parting = Parting(len(squares), *margins)
            break
        squares.append(mean_square(native, llama))
        pending = [ours]
        if ours in end_ids:
            break
    for cache in caches:
        cache.close()
    return Comparison(parting, squares)


def report(comparisons: list[Comparison], rms_error: float | None) -> dict[str, Any]:
    """Return the figures over all prompts."""
    squares = [square for c in comparisons for square in c.mean_squares]
    difference = math.sqrt(sum(squares) / len(squares))
    error = difference if rms_error is None else rms_error
    partings = [
        {
            "prompt": number,
            "position": c.parting.position,
            "native_margin": c.parting.native_margin,
            "llama_margin": c.parting.llama_margin,
            "explained": max(c.parting.native_margin, c.parting.llama_margin)
            < EXPLAINED_ERRORS * error,
        }
        for number, c in enumerate(comparisons)
        if c.parting is not None
    ]
    return {
        "prompts": len(comparisons),
        "same_replies": len(comparisons) - len(partings),
        "same_tokens": len(squares),
        "rms_difference": difference,
        "rms_error": error,
        "partings": partings,
        "unexplained": sum(not p["explained"] for p in partings),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="qwen2.5-coder-1.5b")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=len(MIX), help="use the first N prompts")
    parser.add_argument("--rms-error", type=float, help="of the logits, as logits_error.py prints")
    add_common_options(parser)
    args = parser.parse_args()
    path = resolved(args.model)
    comparisons = []
    with (
        open_model("native", path, context_size=CONTEXT, threads=args.threads) as native,
        open_model("llama", path, context_size=CONTEXT, threads=args.threads) as llama,
    ):
        for number, text in enumerate(MIX[: args.prompts]):
            messages = [{"role": "user", "content": text}]
            prompt = chat_prompt_ids(messages, tokenizer=llama.tokenizer)
            comparisons.append(follow([native, llama], prompt, args.tokens))
            print(f"prompt {number}: {comparisons[-1].parting}", file=sys.stderr)
    result = {"file": path.name, **report(comparisons, args.rms_error)}
    finish(result, args.json)
    return 1 if result["unexplained"] else 0


if __name__ == "__main__":
    sys.exit(main())
