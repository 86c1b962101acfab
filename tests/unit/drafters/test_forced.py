from collections.abc import Sequence

import numpy as np

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.drafters.forced import ForcedDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.types import (
    BoolArray,
    Distribution,
    Proposal,
    SamplingSettings,
    SessionView,
)
from support.drafters import FunctionDrafter
from support.partial_head import PartialHead, PartialModel

VOCAB = 12
EVEN = np.arange(VOCAB) % 2 == 0


class Forcing:
    """Forces the same tokens always; even tokens are legal."""

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids
        self.asked: list[list[int]] = []

    def allowed(self, output_ids: Sequence[int]) -> BoolArray:
        return EVEN

    def num_legal(self, output_ids: Sequence[int], draft_ids: Sequence[int]) -> int:
        return next((i for i, token in enumerate(draft_ids) if token % 2), len(draft_ids))

    def forced(self, output_ids: Sequence[int]) -> tuple[int, ...]:
        self.asked.append(list(output_ids))
        return self.token_ids


def view(
    constraint: Forcing | None, *, request_id: int = 1, temperature: float = 0.0
) -> SessionView:
    settings = SamplingSettings(temperature=temperature)
    return SessionView(
        request_id, [9, 8, 4, 2], 2, settings, 0, 0, frozenset(), constraint=constraint
    )


def inner(*token_ids: int) -> FunctionDrafter:
    return FunctionDrafter(lambda view, budget: token_ids, source="suffix")


def test_forced_tokens_come_before_any_other_draft_within_the_budget() -> None:
    constraint = Forcing(2, 4, 6)
    (proposal,) = ForcedDrafter(inner(8)).propose([view(constraint)], [2])
    assert (proposal.token_ids, proposal.source) == ((2, 4), "forced")
    assert proposal.probabilities is not None
    assert min(proposal.probabilities) > 0.95
    assert constraint.asked == [[4, 2]], "the reply alone, not the prompt"


def test_without_a_budget_nothing_is_asked() -> None:
    constraint = Forcing(2)
    (proposal,) = ForcedDrafter(inner(8)).propose([view(constraint)], [0])
    assert proposal.token_ids == ()
    assert constraint.asked == []


def test_other_drafts_are_cut_at_the_first_token_that_is_not_legal() -> None:
    (proposal,) = ForcedDrafter(inner(2, 4, 5, 6)).propose([view(Forcing())], [4])
    assert (proposal.token_ids, proposal.source) == ((2, 4), "suffix")


def test_drawn_drafts_are_left_to_the_rule() -> None:
    class Drawing(FunctionDrafter):
        def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
            return [Proposal((3,), "model", (Distribution.one_hot(3),)) for _ in views]

    drafter = ForcedDrafter(Drawing(lambda view, budget: ()))
    assert drafter.propose([view(Forcing())], [4])[0].token_ids == (3,)


def test_requests_without_a_constraint_are_the_inner_drafters_alone() -> None:
    drafter = ForcedDrafter(inner(1, 2, 3))
    views = [view(None), view(Forcing(4), request_id=2), view(None, request_id=3)]
    proposals = drafter.propose(views, [3, 3, 1])
    assert [p.token_ids for p in proposals] == [(1, 2, 3), (4,), (1,)]
    assert drafter.propose(views[:1], [2])[0].token_ids == (1, 2)


def test_the_inner_drafter_reads_forgets_and_is_emptied() -> None:
    class Store(FunctionDrafter):
        cleared = False

        def prepare(self, view: SessionView) -> bool:
            return view.request_id == 7

        def clear(self) -> None:
            self.cleared = True

    store = Store(lambda view, budget: ())
    drafter = ForcedDrafter(store)
    assert drafter.prepare(view(None, request_id=7))
    assert not drafter.prepare(view(None))
    drafter.forget(7)
    assert store.forgotten == [7]
    drafter.clear()
    assert store.cleared
    ForcedDrafter(inner()).clear()


def test_a_draft_model_draws_what_is_legal_and_is_as_sure_as_that_makes_it() -> None:
    def logits(prefix: tuple[int, ...]) -> list[float]:
        return [0.0] * 7 + [20.0] + [0.0] * (VOCAB - 8)  # token 7, which is not legal

    model = ScriptedModel(logits, vocab_size=VOCAB)
    drafter = ModelDrafter(model, vocab_size=VOCAB, min_survival=0.0)
    (proposal,) = drafter.propose([view(Forcing(), temperature=1.0)], [6])
    assert len(proposal.token_ids) == 6
    assert all(token % 2 == 0 for token in proposal.token_ids)
    assert proposal.probabilities is not None
    np.testing.assert_allclose(proposal.probabilities, 1 / EVEN.sum())
    (free,) = drafter.propose([view(None, request_id=2)], [1])
    assert free.token_ids == (7,)


def test_a_part_of_a_head_that_lacks_all_that_is_legal_drafts_nothing() -> None:
    model = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    whole = PartialModel(model, PartialHead([5, 3, 8, 1, 10], room=0))
    odd = PartialModel(model, PartialHead([5, 3, 9, 1], room=0))
    for part, expected in ((whole, {8, 10}), (odd, set())):
        drafter = ModelDrafter(part, vocab_size=VOCAB, min_survival=0.0, head=part.head)
        for temperature in (0.0, 1.0):
            request = view(Forcing(), request_id=int(temperature), temperature=temperature)
            (proposal,) = drafter.propose([request], [8])
            assert set(proposal.token_ids) <= expected
            assert bool(proposal.token_ids) == bool(expected)
