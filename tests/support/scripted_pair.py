"""A target and a draft model on a fake clock, with replies that repeat themselves in part.

Tokens depend on their position alone, so that a draft off the target's path is as sure of itself as
on it: what a replay takes for granted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pilotfish import build
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import FakeClock, LogitsFunction, ScriptedCosts, ScriptedModel
from pilotfish.bench.runner import PLAIN, Mode
from pilotfish.bench.workload import Prompt
from pilotfish.config import SpeculationConfig
from pilotfish.engine.engine import Engine
from pilotfish.generation import TextEngine
from pilotfish.types import FloatArray
from support.text_engines import END, tokenizer

VOCAB = 258
WIDEST = 64
PROMPTS = [
    Prompt("one", "chat", "hello there"),
    Prompt("two", "story", "once upon a time"),
    Prompt("three", "chat", "what is a pilot fish?"),
]
# four rows in a step of the staircase
STAIRCASE = CostCurve.from_ratios(
    {width: 1.0 + 0.4 * ((width - 1) // 4) for width in range(1, WIDEST + 1)}
)
COSTS = PairCosts(target=STAIRCASE, draft=CostCurve.flat(0.12, row_seconds=0.004, widest=WIDEST))


def token_at(position: int) -> int:
    """Return the text: stretches of twenty tokens that come again, between others that do not."""
    block, place = divmod(position, 20)
    if block % 2:
        return int(np.random.default_rng([7, position]).integers(97, 123))
    return 65 + place


def target_logits(prefix: tuple[int, ...]) -> FloatArray:
    """Return the row whose greedy token is the text's next one."""
    row = np.zeros(VOCAB, dtype=np.float32)
    row[token_at(len(prefix))] = 20.0
    return row


def draft_logits(prefix: tuple[int, ...]) -> FloatArray:
    """Return a row that is right in three of four places, and mostly knows where."""
    position = len(prefix)
    generator = np.random.default_rng([11, position])
    right = generator.random() < 0.75
    chance = 0.93 if right or generator.random() < 0.3 else 0.42
    row = np.full(VOCAB, np.log((1 - chance) / (VOCAB - 1)), dtype=np.float32)
    row[token_at(position) if right else END - 1] = np.log(chance)
    return row


class ScriptedPair:
    """Engines for any mode over a scripted pair, all on one clock."""

    def __init__(
        self, costs: PairCosts = COSTS, *, logits: LogitsFunction = target_logits, **target: Any
    ) -> None:
        self.clock = FakeClock()
        self.costs = costs
        self.targets: list[ScriptedModel] = []
        self.draft = self._model(draft_logits, costs.draft or costs.target)
        self._logits = logits
        self._target_options = target

    def engine(self, mode: Mode, base: SpeculationConfig | None = None) -> TextEngine:
        """Return an engine with the parts that a loaded pair would have."""
        target = self._model(self._logits, self.costs.target, **self._target_options)
        self.targets.append(target)
        drafter, controller = build.make_parts(
            target,
            self.draft if self.costs.draft else None,
            mode.speculation(base or SpeculationConfig()),
            backend="native",
            costs=lambda: self.costs,
        )
        engine = Engine(target=target, drafter=drafter, controller=controller, clock=self.clock)
        return TextEngine(engine, tokenizer())

    def engines(self, *modes: Mode) -> dict[str, TextEngine]:
        """Return engines by mode, plain decoding first."""
        return {mode.name: self.engine(mode) for mode in (Mode(PLAIN), *modes)}

    def _model(self, logits: LogitsFunction, curve: CostCurve, **options: Any) -> ScriptedModel:
        costs = ScriptedCosts(cost_of=lambda num_tokens: curve.at(num_tokens))
        return ScriptedModel(logits, vocab_size=VOCAB, clock=self.clock, costs=costs, **options)
