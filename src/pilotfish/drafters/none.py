"""The drafter that drafts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.types import Proposal, SessionView


class NoDrafter:
    """Propose nothing; the round then is plain decoding."""

    def prepare(self, view: SessionView) -> bool:
        """Return False: there is nothing to read for."""
        return False

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one empty proposal per view."""
        return [Proposal.empty() for _ in views]

    def forget(self, request_id: int) -> None:
        """Do nothing: no request leaves anything here."""
