"""What an engine keeps of the texts of its requests can be forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.forced import ForcedDrafter
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.generation import TextEngine
from pilotfish.prefixes import PrefixPool
from support.text_engines import tokenizer

VOCAB = 258
PROMPT = "one two three four five six seven eight nine ten eleven twelve"


def engine_with(make: Any) -> TextEngine:
    target, draft = (ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB) for _ in range(2))
    pools = [PrefixPool(model, most_sequences=2) for model in (target, draft)]
    engine = Engine(
        target=target,
        drafter=make(ModelDrafter(draft, vocab_size=VOCAB, prefixes=pools[1])),
        controller=FixedController(3),
        prefixes=pools[0],
    )
    return TextEngine(engine, tokenizer())


@pytest.mark.parametrize(
    "make",
    [
        lambda model: NoDrafter(),
        lambda model: SuffixDrafter(),
        lambda model: ForcedDrafter(SuffixDrafter()),
        lambda model: model,
        lambda model: HybridDrafter([ForcedDrafter(SuffixDrafter()), model]),
    ],
    ids=["none", "suffix", "forced", "model", "hybrid"],
)
def test_after_clear_a_request_is_answered_as_by_a_new_engine(make: Any) -> None:
    engine = engine_with(make)

    def facts() -> tuple[Any, ...]:
        reply = engine.generate(PROMPT, raw=True, max_tokens=40, seed=1)
        stats = reply.stats
        evaluated = [len(model.log.evaluations) for model in models]
        return reply.token_ids, stats.drafted, stats.rounds, reply.usage.cached_tokens, evaluated

    drafter = engine.engine.drafter
    inner = getattr(drafter, "_drafters", [drafter])[-1]
    models = [engine.engine.target, *([inner._model] if isinstance(inner, ModelDrafter) else [])]

    def delta(before: list[int], after: list[int]) -> list[int]:
        return [b - a for a, b in zip(before, after, strict=True)]

    nothing = [0] * len(models)
    first = facts()
    engine.clear()
    assert engine.engine.prefixes.num_kept == 0
    again = facts()
    assert again[:-1] == first[:-1]
    assert delta(first[-1], again[-1]) == delta(nothing, first[-1])
    # without it, something is taken over
    third = facts()
    assert third[3] > 0
    assert third[0] == first[0]


def test_a_reply_that_is_being_made_goes_on() -> None:
    engine = engine_with(lambda model: HybridDrafter([SuffixDrafter(), model]))
    expected = engine.generate(PROMPT, raw=True, max_tokens=40, seed=1).token_ids
    stream = engine.stream(PROMPT, raw=True, max_tokens=40, seed=1)
    for _ in stream:
        engine.clear()
    assert stream.reply.token_ids == expected


def test_a_controller_forgets_what_its_draft_model_has_read() -> None:
    draft = ScriptedModel(random_logits(VOCAB, seed=1), vocab_size=VOCAB)
    pool = PrefixPool(draft, most_sequences=2)
    costs = PairCosts(target=CostCurve.flat(1.0), draft=CostCurve.flat(0.05))
    both = CostAwareController(
        costs, model=ModelDrafter(draft, vocab_size=VOCAB, prefixes=pool), num_speculative_tokens=3
    )
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    engine = TextEngine(Engine(target=target, drafter=both, controller=both), tokenizer())
    engine.generate(PROMPT, raw=True, max_tokens=8)
    assert pool.num_kept == 1
    engine.clear()
    assert (pool.num_kept, draft.open_caches) == (0, set())
