"""Engines for benchmarks on a fake clock, whose every reply counts up from the prompt's last token.

A step costs 1, each further row of a pass 0.05. Drafters know the reply, or avoid it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pilotfish.backends.scripted import FakeClock, ScriptedCosts, ScriptedModel
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.generation import TextEngine
from pilotfish.types import FloatArray, SessionView
from support.drafters import FunctionDrafter
from support.text_engines import tokenizer

VOCAB = 258
STEP_SECONDS = 1.0
ROW_SECONDS = 0.05


def counting(prefix: tuple[int, ...]) -> FloatArray:
    """Return logits whose greedy token is the next number."""
    row = np.zeros(VOCAB, dtype=np.float32)
    row[(prefix[-1] + 1) % 256] = 50.0
    return row


def knows() -> FunctionDrafter:
    """Return SELF: every draft token stands."""
    return errs_every(10**9)


def avoids() -> FunctionDrafter:
    """Return NEVER: no draft token stands."""
    return errs_every(1)


def errs_every(period: int) -> FunctionDrafter:
    """Return ORACLE: every `period`-th token of the reply is drafted wrong."""

    def propose(view: SessionView, budget: int) -> list[int]:
        first, last = view.num_output_tokens, view.tokens[-1]
        return [
            (last + 1 + i + ((first + i + 1) % period == 0)) % 256 for i in range(max(budget, 0))
        ]

    return FunctionDrafter(propose)


def engine(
    clock: FakeClock,
    drafter: Any = None,
    *,
    num_drafts: int = 3,
    controller: Any = None,
    logits: Callable[[tuple[int, ...]], FloatArray] = counting,
    **model: Any,
) -> TextEngine:
    """Return a text engine on a model of its own that moves the clock."""
    costs = ScriptedCosts(step_seconds=STEP_SECONDS, extra_row_seconds=ROW_SECONDS)
    target = ScriptedModel(logits, vocab_size=VOCAB, clock=clock, costs=costs, **model)
    made = Engine(
        target=target,
        drafter=drafter or NoDrafter(),
        controller=controller or FixedController(num_drafts),
        clock=clock,
    )
    return TextEngine(made, tokenizer())


def prompt_seconds(text_engine: TextEngine, prompt_ids: Sequence[int]) -> float:
    """Return what the model takes to read a prompt that fits one chunk, but for its last token."""
    assert len(prompt_ids) <= text_engine.engine.target.context_size
    return STEP_SECONDS + ROW_SECONDS * (len(prompt_ids) - 2)
