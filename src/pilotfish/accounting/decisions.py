"""Why drafts were made or not: the decisions of a controller, as the records tell them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pilotfish.types import RoundRecord

# the reason given for a reply is that of most of its last rounds
_LAST_ROUNDS = 16


def speculation_dict(
    rounds: Sequence[RoundRecord], *, on: bool, reason: str, error: Exception | None = None
) -> dict[str, Any]:
    """Return `stats.speculation`: whether drafting was on, why, and the rounds by decision.

    on, reason  what was configured; a controller that gives reasons of its own is asked instead
    error       of a drafter that failed, which turned drafting off
    """
    if error is not None:
        on, reason = False, f"the drafter failed: {error}"
    else:
        reason = most_frequent([r.reason for r in rounds[-_LAST_ROUNDS:] if r.reason]) or reason
    decisions = Counter(r.reason for r in rounds if r.reason)
    return {"on": on, "reason": reason, "decisions": dict(decisions.most_common())}


def most_frequent(reasons: Sequence[str]) -> str:
    """Return the most frequent text, the latest among equals; "" for none."""
    if not reasons:
        return ""
    counts = Counter(reasons)
    return max(reversed(reasons), key=lambda reason: counts[reason])
