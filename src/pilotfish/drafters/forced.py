"""Drafts from what a reply must be: the text its constraint leaves no choice about."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.protocols import Drafter
from pilotfish.types import Proposal, SessionView

# the text is certain; the model may cut it into other tokens, though it hardly ever does
_CHANCE = 0.98


class ForcedDrafter:
    """Propose the tokens that a request's constraint forces, and where it forces none the legal
    beginning of what `inner` proposes.

    Forced tokens are drafts like any other: the target decides. They cost nothing, so a request
    that may have drafts of any kind has them. Requests without a constraint are `inner`'s alone.
    """

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner

    def prepare(self, view: SessionView) -> bool:
        """Let the inner drafter read a part of the prompt."""
        return self._inner.prepare(view)

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one proposal per view, of at most `budgets[i]` tokens each."""
        if all(view.constraint is None for view in views):
            return self._inner.propose(views, budgets)
        proposals = [forced(view, budget) for view, budget in zip(views, budgets, strict=True)]
        free = [index for index, proposal in enumerate(proposals) if not proposal.token_ids]
        answers = self._inner.propose([views[i] for i in free], [budgets[i] for i in free])
        for index, answer in zip(free, answers, strict=True):
            proposals[index] = views[index].legal(answer)
        return proposals

    def forget(self, request_id: int) -> None:
        """Let the inner drafter drop what it keeps for a request that ended."""
        self._inner.forget(request_id)

    def clear(self) -> None:
        """Empty what the inner drafter keeps of past replies."""
        if (clear := getattr(self._inner, "clear", None)) is not None:
            clear()


def forced(view: SessionView, budget: int) -> Proposal:
    """Return the tokens that must follow, at most `budget` of them; nothing where any may."""
    if view.constraint is None or budget <= 0:
        return Proposal.empty()
    token_ids = view.constraint.forced(view.tokens[view.num_prompt_tokens :])[:budget]
    return Proposal(token_ids, "forced", probabilities=(_CHANCE,) * len(token_ids))
