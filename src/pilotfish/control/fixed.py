"""The controller that drafts the same number of tokens in every round."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.types import RoundRecord, SessionView


class FixedController:
    """Gives every session the budget `num_speculative_tokens` in every round."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._num_speculative_tokens = num_speculative_tokens

    def draft_budgets(self, views: Sequence[SessionView]) -> list[int]:
        """Return the same budget for every session."""
        return [self._num_speculative_tokens] * len(views)

    def observe(self, records: Sequence[RoundRecord]) -> None:
        """Learn nothing."""
