#!/usr/bin/env python
"""How near the cost-aware controller comes to the best fixed draft length, on synthetic streams.

Each stream is a reply and, for each of its tokens, whether a drafter would have said it. The real
engine decodes it on a fake clock; every fixed length from 0 (plain decoding) to 16 is tried on the
same stream by arithmetic. No model is needed.

    python scripts/measure/controller_grid.py
    python scripts/measure/controller_grid.py --streams iid --seeds 1 --tokens 1000

The table has the speed of the controller over that of the best fixed length (1.00 is as good), the
worst of the seeds, and in brackets the controller's speedup over plain decoding.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.bench.recording import Recording
from pilotfish.bench.replay import Replay, plain_seconds
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.protocols import Controller, Drafter, TargetModel
from pilotfish.types import Proposal, SessionView

MOST_DRAFTS = 16
NUM_TOKENS_IN_USE = 16
_WIDEST = 64

CURVES = {
    "flat": CostCurve.flat(1.0, row_seconds=0.002, widest=_WIDEST),
    "staircase": CostCurve.from_ratios(
        {width: 1.0 + 0.5 * ((width - 1) // 4) for width in range(1, _WIDEST + 1)}
    ),
    "linear": CostCurve.flat(1.0, row_seconds=0.15, widest=_WIDEST),
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What a drafter would say at each place of a reply.

    right   [num_tokens] whether its token is the reply's
    chance  [num_tokens] its own estimate of that
    """

    right: np.ndarray
    chance: np.ndarray

    def recording(self) -> Recording:
        """Return the stream as a recorded reply: tokens that count up, and wrong drafts."""
        reply = [i % NUM_TOKENS_IN_USE for i in range(len(self.right))]
        draft = [
            token if right else (token + 1) % NUM_TOKENS_IN_USE
            for token, right in zip(reply, self.right, strict=True)
        ]
        return Recording(
            id="stream",
            category="synthetic",
            prompt=(0, 0),
            reply=tuple(reply),
            draft=tuple(draft),
            draft_probabilities=tuple(map(float, self.chance)),
        )


def independent(acceptance: float, num_tokens: int, seed: int) -> Stream:
    """Return a stream whose tokens are each right with `acceptance`, and a drafter without a clue:
    always as sure of itself."""
    right = np.random.default_rng(seed).random(num_tokens) < acceptance
    return Stream(right=right, chance=np.full(num_tokens, 0.75))


def switching(num_tokens: int, seed: int, *, every: int = 100) -> Stream:
    """Return a stream of acceptance 0.9 and 0.2 by turns."""
    acceptance = np.where(np.arange(num_tokens) // every % 2 == 0, 0.9, 0.2)
    right = np.random.default_rng(seed).random(num_tokens) < acceptance
    return Stream(right=right, chance=np.full(num_tokens, 0.75))


def informed(acceptance: float, num_tokens: int, seed: int) -> Stream:
    """Return a stream whose drafter knows its chances, which are mostly near 0 or near 1."""
    generator = np.random.default_rng(seed)
    chance = generator.beta(2 * acceptance, 2 * (1 - acceptance), num_tokens)
    right = generator.random(num_tokens) < chance
    return Stream(right=right, chance=np.clip(chance, 0.01, 0.99))


class StreamText:
    """A drafter from text, at no cost, that says what the stream has, off its path too."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def prepare(self, view: SessionView) -> None:
        """Nothing to read."""

    def forget(self, request_id: int) -> None:
        """Nothing to drop."""

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return the stream's next tokens and its estimates."""
        return [self._propose(*pair) for pair in zip(views, budgets, strict=True)]

    def _propose(self, view: SessionView, budget: int) -> Proposal:
        first = view.num_output_tokens
        tokens = self._recording.draft[first : first + budget]
        chances = self._recording.draft_probabilities[first : first + budget]
        # a replay numbers the tokens anew, in their order: the prompt's is the lowest
        numbers = tuple(view.tokens[0] + token for token in tokens)
        return Proposal(numbers, "suffix", probabilities=chances)


def fixed_seconds(stream: Stream, length: int, curve: CostCurve, token_seconds: float) -> float:
    """Return the seconds of decoding the stream with drafts of one length."""
    seconds, place, num_tokens = 0.0, 0, len(stream.right)
    while place < num_tokens:
        drafted = min(length, num_tokens - place - 1)
        wrong = np.flatnonzero(~stream.right[place : place + drafted])
        seconds += curve.at(1 + drafted) + drafted * token_seconds
        place += 1 + (int(wrong[0]) if len(wrong) else drafted)
    return seconds


def controlled_seconds(stream: Stream, costs: PairCosts, *, from_text: bool) -> float:
    """Return the seconds in which the controller decodes the stream."""
    recording = stream.recording()

    def parts(target: TargetModel, draft: TargetModel | None) -> tuple[Drafter, Controller]:
        text = StreamText(recording) if from_text else None
        model = None
        if draft is not None:
            model = ModelDrafter(draft, vocab_size=target.vocab_size)
        controller = CostAwareController(
            costs, text=text, model=model, num_speculative_tokens=MOST_DRAFTS
        )
        return controller, controller

    return Replay([recording], costs, parts).run(recording).seconds


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One stream on one curve: speeds over plain decoding."""

    name: str
    curve: str
    draft_cost_ratio: float
    controller: float
    best_fixed: float
    best_length: int

    @property
    def ratio(self) -> float:
        """Return the controller's speed over that of the best fixed length."""
        return self.controller / self.best_fixed


def measured(
    name: str, stream: Stream, curve_name: str, draft_cost_ratio: float, *, from_text: bool
) -> Cell:
    """Return one cell."""
    curve = CURVES[curve_name]
    draft = None if from_text else CostCurve.flat(draft_cost_ratio, widest=_WIDEST)
    costs = PairCosts(target=curve, draft=draft)
    plain = plain_seconds(stream.recording(), costs)
    fixed = [
        plain / fixed_seconds(stream, length, curve, draft_cost_ratio)
        for length in range(MOST_DRAFTS + 1)
    ]
    return Cell(
        name=name,
        curve=curve_name,
        draft_cost_ratio=draft_cost_ratio,
        controller=plain / controlled_seconds(stream, costs, from_text=from_text),
        best_fixed=max(fixed),
        best_length=fixed.index(max(fixed)),
    )


ACCEPTANCES = (0.3, 0.5, 0.7, 0.85, 0.95)
RATIOS = (0.02, 0.15, 0.4)


def cells(kinds: Sequence[str], num_tokens: int, seed: int) -> Iterator[Cell]:
    """Yield the cells of one seed."""
    for curve in CURVES:
        if "iid" in kinds:
            for acceptance, ratio in itertools.product(ACCEPTANCES, RATIOS):
                stream = independent(acceptance, num_tokens, seed)
                yield measured(f"iid {acceptance}", stream, curve, ratio, from_text=False)
        if "text" in kinds:
            for acceptance in ACCEPTANCES:
                stream = independent(acceptance, num_tokens, seed)
                yield measured(f"text {acceptance}", stream, curve, 0.0, from_text=True)
                stream = informed(acceptance, num_tokens, seed)
                yield measured(f"informed text {acceptance}", stream, curve, 0.0, from_text=True)
        if "switching" in kinds:
            stream = switching(num_tokens, seed)
            yield measured("switching text", stream, curve, 0.0, from_text=True)
            for ratio in RATIOS:
                yield measured("switching", stream, curve, ratio, from_text=False)


def main() -> None:
    """Print the table; write the cells as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--streams", nargs="+", default=["iid", "text", "switching"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    by_place: dict[tuple[str, str, float], list[Cell]] = {}
    for seed in range(options.seeds):
        for cell in cells(options.streams, options.tokens, seed):
            place = (cell.curve, cell.name, cell.draft_cost_ratio)
            by_place.setdefault(place, []).append(cell)
    for (curve, name, ratio), seeds in by_place.items():
        worst = min(seeds, key=lambda cell: cell.ratio)
        print(
            f"{curve:10} {name:20} draft {ratio:4}  {worst.ratio:.3f}  "
            f"({worst.controller:.2f}x; fixed {worst.best_length}: {worst.best_fixed:.2f}x)"
        )
    if options.json:
        rows = [vars(cell) | {"ratio": cell.ratio} for own in by_place.values() for cell in own]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
