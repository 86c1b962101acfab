"""The model drafter at the edge of its own context."""

from __future__ import annotations

import pytest

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.drafters.model import ModelDrafter
from pilotfish.types import SamplingSettings, SessionView

VOCAB = 12
CONTEXT = 8
GREEDY = SamplingSettings()


def view(num_tokens: int) -> SessionView:
    tokens = [i % VOCAB for i in range(num_tokens)]
    return SessionView(1, tokens, 2, GREEDY, 7, 0, frozenset(), False)


@pytest.fixture
def model() -> ScriptedModel:
    """A model that fails at once in a pass beyond its context."""
    return ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, context_size=CONTEXT)


@pytest.fixture
def drafter(model: ScriptedModel) -> ModelDrafter:
    return ModelDrafter(model, vocab_size=VOCAB, min_survival=0.0)


@pytest.mark.parametrize(
    ("num_tokens", "num_drafts"), [(3, 6), (5, 4), (7, 2), (8, 1), (9, 0), (10, 0), (200, 0)]
)
def test_drafts_fill_the_context_of_the_draft_model_and_go_no_further(
    model: ScriptedModel, drafter: ModelDrafter, num_tokens: int, num_drafts: int
) -> None:
    (proposal,) = drafter.propose([view(num_tokens)], [20])
    assert len(proposal.token_ids) == num_drafts
    # the last token that is drafted need not be read
    assert len(model.log.evaluations) == (CONTEXT if num_drafts else 0)


@pytest.mark.parametrize("num_tokens", [2, 7, 8, 9, 10, 200])
def test_a_prompt_is_read_where_something_can_be_drafted_after_it(
    model: ScriptedModel, drafter: ModelDrafter, num_tokens: int
) -> None:
    fits = num_tokens <= CONTEXT
    assert drafter.num_unread(view(num_tokens)) == (num_tokens if fits else None)
    assert not drafter.prepare(view(num_tokens))
    assert len(model.log.evaluations) == (num_tokens - 1 if fits else 0)
    assert drafter.num_unread(view(num_tokens)) == (1 if fits else None)
