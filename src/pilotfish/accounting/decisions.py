"""Why drafts were made or not: the decisions of a controller, as the records tell them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pilotfish.types import DraftWish, RoundRecord

TURNED_OFF = "turned off by the request"
# the reason given for a reply is that of most of its last rounds
_LAST_ROUNDS = 16


def speculation_dict(
    rounds: Sequence[RoundRecord],
    *,
    on: bool,
    reason: str,
    drafters: Sequence[str] | None = None,
    wish: DraftWish | None = None,
    error: Exception | None = None,
    lost: str = "",
) -> dict[str, Any]:
    """Return `stats.speculation`: whether drafting was on, why, and the rounds by decision and by
    what drafters failed of.

    on, reason  what was configured; a controller that gives reasons of its own is asked instead
    drafters    who can draft, where that is known
    wish        what the request asked of drafting, which is told where it narrowed it
    error       of a drafter that failed, which turned drafting off
    lost        what was to take part in drafting and does not
    """
    wish = wish or DraftWish()
    told = most_frequent([r.reason for r in rounds[-_LAST_ROUNDS:] if r.reason]) or reason
    if error is not None:
        on, reason = False, f"the drafter failed: {error}"
    elif on and wish.is_off:
        on, reason = False, TURNED_OFF
    elif on and drafters and wish.drafter not in ("auto", *drafters):
        on, reason = False, f"the request allows drafts of {wish.drafter}, which are not there"
    else:
        notes = [_narrowing(wish), _unused(wish, drafters)] if on else []
        reason = "; ".join(filter(None, [told, *notes, lost, _failures(rounds)]))
    return {"on": on, "reason": reason, **round_counts(rounds)}


def round_counts(rounds: Sequence[RoundRecord]) -> dict[str, dict[str, int]]:
    """Return how many rounds had which decision, and in how many a drafter failed of what."""
    decisions = Counter(r.reason for r in rounds if r.reason)
    failures = Counter(r.failure for r in rounds if r.failure)
    return {"decisions": dict(decisions.most_common()), "failures": dict(failures.most_common())}


def _failures(rounds: Sequence[RoundRecord]) -> str:
    failures = [r.failure for r in rounds if r.failure]
    if not failures:
        return ""
    return f"a drafter failed in {len(failures)} of {len(rounds)} rounds ({failures[-1]})"


def _narrowing(wish: DraftWish) -> str:
    """Return what a request allows, or nothing where it allows all there is."""
    drafter = "" if wish.drafter == "auto" else f"drafts of {wish.drafter} only"
    number = wish.num_speculative_tokens
    ceiling = "" if number is None else f"at most {number} tokens a round"
    allowed = ", ".join(filter(None, [drafter, ceiling]))
    return allowed and f"the request allows {allowed}"


def _unused(wish: DraftWish, drafters: Sequence[str] | None) -> str:
    """Return what is said of a prediction that nobody drafts from, or nothing."""
    is_unused = wish.prediction and drafters and "prediction" not in drafters
    return "the engine drafts from no predictions" if is_unused else ""


def most_frequent(reasons: Sequence[str]) -> str:
    """Return the most frequent text, the latest among equals; "" for none."""
    if not reasons:
        return ""
    counts = Counter(reasons)
    return max(reversed(reasons), key=lambda reason: counts[reason])
