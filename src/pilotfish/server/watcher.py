"""What a service tells whoever counts: metrics, a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pilotfish.types import RoundRecord


class Watcher(Protocol):
    """Told of everything a service does, as it happens; must be quick, and never raise.

    `accepted` and `refused` are called where requests are submitted, the others on the engine's
    thread. Times are in seconds.
    """

    def accepted(self) -> None:
        """Count a generation that was taken: it will end once."""

    def refused(self, reason: str) -> None:
        """Count a generation that was not: "queue_full" or "shutting_down"."""

    def read(self, num_tokens: int, num_reused_tokens: int, seconds: float) -> None:
        """Note that all of a prompt was read, in so many seconds of passes; `num_reused_tokens` of
        it had been read for another request."""

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Note one pass of all running sessions."""

    def ended(
        self,
        outcome: str,
        *,
        queued_seconds: float,
        first_token_seconds: float | None,
        total_seconds: float,
        num_prompt_tokens: int,
        num_completion_tokens: int,
    ) -> None:
        """Note the end of an accepted generation.

        outcome              "stop", "length", "cancelled", "timeout" or "error"
        queued_seconds       from arrival until it had a place, or to its end without one
        first_token_seconds  from arrival; None where it has no token
        """


class NoWatcher:
    """Counts nothing."""

    def accepted(self) -> None:
        """Do nothing."""

    def refused(self, reason: str) -> None:
        """Do nothing."""

    def read(self, num_tokens: int, num_reused_tokens: int, seconds: float) -> None:
        """Do nothing."""

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Do nothing."""

    def ended(
        self,
        outcome: str,
        *,
        queued_seconds: float,
        first_token_seconds: float | None,
        total_seconds: float,
        num_prompt_tokens: int,
        num_completion_tokens: int,
    ) -> None:
        """Do nothing."""
