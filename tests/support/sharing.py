"""Engines whose requests take over what others have read, on models that look at the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pilotfish.backends.scripted import ScriptedCache, ScriptedModel
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.prefixes import PrefixPool
from pilotfish.types import FloatArray

VOCAB = 12


def target_logits(prefix: tuple[int, ...]) -> FloatArray:
    """Return a row that depends on every token before it: what was not read, or read wrongly,
    shows."""
    generator = np.random.default_rng(hash(prefix) % (1 << 64))
    return (2.0 * generator.standard_normal(VOCAB)).astype(np.float32)


def draft_logits(prefix: tuple[int, ...]) -> FloatArray:
    """Return the target's row, but in one of four places such whose best token is another."""
    row = target_logits(prefix)
    return np.roll(row, 1) if len(prefix) % 4 == 0 else row


@dataclass
class Sharing:
    """An engine and its parts; `seen` are the texts that the draft model was asked to go on."""

    target: ScriptedModel
    draft: ScriptedModel
    engine: Engine
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def reply(self, prompt: Sequence[int], **options: Any) -> Session:
        """Run one request to its end and return the session."""
        session = self.engine.start(prompt, **({"max_tokens": 20, "seed": 7} | options))
        self.engine.run_together([session])
        return session

    def num_read(self, session: Session) -> int:
        """Return how many tokens of the session's prompt the target evaluated for it."""
        assert isinstance(session.cache, ScriptedCache)
        sequence, end = session.cache.sequence, session.num_prompt_tokens - 1
        evaluations = self.target.log.evaluations
        return sum(one == sequence and place < end for one, place, _ in evaluations)


def sharing(
    drafter: str = "none",
    *,
    most_sequences: int = 4,
    unit: int = 1,
    num_drafts: int = 4,
    **target: Any,
) -> Sharing:
    """Return an engine; `drafter` is none, suffix, model or hybrid, `most_sequences` 0 keeps
    nothing."""
    seen: list[tuple[int, ...]] = []

    def watched(prefix: tuple[int, ...]) -> FloatArray:
        seen.append(prefix)
        return draft_logits(prefix)

    model = ScriptedModel(**({"logits": target_logits, "vocab_size": VOCAB} | target))
    draft = ScriptedModel(watched, vocab_size=VOCAB)

    def model_drafter() -> ModelDrafter:
        prefixes = PrefixPool(draft, most_sequences=most_sequences)
        return ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0, prefixes=prefixes)

    parts = {
        "none": NoDrafter,
        "suffix": SuffixDrafter,
        "model": model_drafter,
        "hybrid": lambda: HybridDrafter([SuffixDrafter(), model_drafter()]),
    }
    engine = Engine(
        target=model,
        drafter=parts[drafter](),
        controller=FixedController(num_drafts),
        prefixes=PrefixPool(model, most_sequences=most_sequences, unit=unit),
    )
    return Sharing(model, draft, engine, seen)
