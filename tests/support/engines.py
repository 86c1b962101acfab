"""Small engines on scripted models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.types import SamplingSettings

VOCAB = 12


def scripted_engine(
    *,
    drafter: Any = None,
    num_drafts: int = 4,
    target: ScriptedModel | None = None,
    verify_rule: str = "match",
    seed: int = 0,
) -> Engine:
    """Return an engine on a scripted model of random logits."""
    target = target or ScriptedModel(random_logits(VOCAB, seed=seed), vocab_size=VOCAB)
    return Engine(
        target=target,
        drafter=drafter or NoDrafter(),
        controller=FixedController(num_drafts),
        verify_rule=verify_rule,
    )


def finish(engine: Engine, prompt: Sequence[int] = (1, 2, 3), **options: Any) -> Session:
    """Run one request to its end and return the session."""
    options.setdefault("max_tokens", 40)
    options.setdefault("seed", 7)
    session = engine.start(prompt, **options)
    for _ in engine.run(session):
        pass
    return session


SETTINGS = {
    "greedy": SamplingSettings(),
    "sampled": SamplingSettings(temperature=0.8),
    "filtered": SamplingSettings(temperature=1.0, top_p=0.9, top_k=8, min_p=0.02),
    "penalised": SamplingSettings(
        temperature=1.0,
        top_p=0.9,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={3: 1.5, 5: -2.0},
        banned_tokens=(6,),
        min_tokens=5,
    ),
}
