"""Several drafters behind one: the first that has something to say speaks."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.protocols import Drafter
from pilotfish.types import Proposal, SessionView


class HybridDrafter:
    """Try each drafter in turn and keep the first non-empty proposal, per session.

    The first drafter sees every session; each later one only those that have a budget and are
    still without a proposal, so the dearest belongs last.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)

    def prepare(self, view: SessionView) -> bool:
        """Let every drafter read a part of the prompt."""
        has_more = [drafter.prepare(view) for drafter in self._drafters]
        return any(has_more)

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one proposal per view, of at most `budgets[i]` tokens each."""
        proposals = [Proposal.empty() for _ in views]
        waiting = list(range(len(views)))
        for drafter in self._drafters:
            if not waiting:
                break
            answers = drafter.propose([views[i] for i in waiting], [budgets[i] for i in waiting])
            for i, answer in zip(waiting, answers, strict=True):
                proposals[i] = answer
            waiting = [i for i in waiting if budgets[i] > 0 and not proposals[i].token_ids]
        return proposals

    def forget(self, request_id: int) -> None:
        """Drop what any of the drafters keeps for a request that ended."""
        for drafter in self._drafters:
            drafter.forget(request_id)

    def clear(self) -> None:
        """Empty what any of the drafters keeps of past replies."""
        for drafter in self._drafters:
            if (clear := getattr(drafter, "clear", None)) is not None:
                clear()
