"""Engines that the cost-aware controller steers, on scripted models and a fake clock."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import FakeClock, ScriptedCosts, ScriptedModel
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.prefixes import PrefixPool
from pilotfish.types import FloatArray
from support.engines import finish

VOCAB = 32
# whether the drafter is right about the token that follows so many tokens
IsRight = Callable[[int], bool]

_REPLY = np.random.default_rng(1).integers(0, VOCAB, 8192).tolist()

CURVES = {
    "flat": CostCurve.flat(1.0, widest=128),
    "staircase": CostCurve.from_ratios({n: 1.0 + 0.5 * ((n - 1) // 4) for n in range(1, 129)}),
    "linear": CostCurve.flat(1.0, row_seconds=0.15, widest=128),
}


def reply_token(length: int) -> int:
    """Return the greedy token after `length` tokens: noise, nothing that repeats for long."""
    return _REPLY[length]


def target_logits(prefix: tuple[int, ...]) -> FloatArray:
    """Return a row whose greedy token depends on the position, and the rest on the last token."""
    row = np.zeros(VOCAB, dtype=np.float32)
    row[(prefix[-1] + 3) % VOCAB] = 1.0
    row[reply_token(len(prefix))] = 9.0
    return row


def wrong_token(length: int) -> int:
    """Return a token that is not the reply's."""
    return (reply_token(length) + 1) % VOCAB


def draft_logits(is_right: IsRight) -> Callable[[tuple[int, ...]], FloatArray]:
    """Return the rows of a draft model: the target's, or such whose greedy token is another; it
    is as sure of itself in both."""

    def logits(prefix: tuple[int, ...]) -> FloatArray:
        row = target_logits(prefix)
        return row if is_right(len(prefix)) else np.roll(row, 1)

    return logits


@dataclass(frozen=True, kw_only=True)
class Controlled:
    """An engine and its parts."""

    clock: FakeClock
    target: ScriptedModel
    draft: ScriptedModel | None
    controller: CostAwareController
    engine: Engine

    def reply(self, **options: Any) -> Session:
        """Run one request to its end."""
        options.setdefault("prompt", (1, 2, 3))
        return finish(self.engine, **options)


def controlled(
    *,
    curve: CostCurve,
    draft_seconds: float | None = None,
    is_right: IsRight = lambda length: True,
    text: Any = None,
    prediction: Any = None,
    believed: float = 1.0,
    disturbance: Callable[[], float] = lambda: 1.0,
    num_speculative_tokens: int = 16,
    keeps: bool = False,
) -> Controlled:
    """Return an engine with a draft model if it is to take `draft_seconds` a token, and a text
    drafter and one of predictions if they are given. What the controller believes all to cost is
    `believed` of the truth; each pass of the target takes `disturbance` times as long as it should.
    `keeps` is whether the draft model keeps what it has read."""
    clock = FakeClock()
    target = ScriptedModel(
        target_logits,
        vocab_size=VOCAB,
        context_size=8192,
        clock=clock,
        costs=ScriptedCosts(cost_of=lambda num_tokens: disturbance() * curve.at(num_tokens)),
    )
    draft, model, draft_curve = None, None, None
    if draft_seconds is not None:
        draft = ScriptedModel(
            draft_logits(is_right),
            vocab_size=VOCAB,
            context_size=8192,
            clock=clock,
            costs=ScriptedCosts(step_seconds=draft_seconds),
        )
        prefixes = PrefixPool(draft, most_sequences=2 if keeps else 0)
        model = ModelDrafter(draft, vocab_size=VOCAB, prefixes=prefixes)
        draft_curve = CostCurve.flat(believed * draft_seconds)
    controller = CostAwareController(
        PairCosts(target=curve.scaled(believed), draft=draft_curve),
        text=text,
        prediction=prediction,
        model=model,
        num_speculative_tokens=num_speculative_tokens,
    )
    engine = Engine(target=target, drafter=controller, controller=controller, clock=clock)
    return Controlled(clock=clock, target=target, draft=draft, controller=controller, engine=engine)


@functools.cache
def plain_reply(max_tokens: int, prompt: tuple[int, ...] = (1, 2, 3)) -> list[int]:
    """Return REF: what the target alone says."""
    target = ScriptedModel(target_logits, vocab_size=VOCAB, context_size=8192)
    engine = Engine(target=target, drafter=NoDrafter(), controller=FixedController(0))
    return finish(engine, prompt, max_tokens=max_tokens).output_ids


def progress(session: Session) -> list[tuple[int, float]]:
    """Return, after each round, the tokens and the seconds so far."""
    num_tokens, seconds, marks = 0, 0.0, []
    for record in session.records:
        num_tokens += record.num_emitted
        seconds += record.round_seconds
        marks.append((num_tokens, seconds))
    return marks


def seconds_for(session: Session, first: int, last: int) -> float:
    """Return the seconds from the `first` token to the `last`, a straight line within a round."""
    num_tokens, seconds = zip((0, 0.0), *progress(session), strict=True)
    times = np.interp([first, last], num_tokens, seconds)
    return float(times[1] - times[0])
