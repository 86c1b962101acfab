"""How far a drafter's own estimates can be believed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

# finer where it matters: of two tokens in a row with 0.9 and 0.99 the second pays much longer
_EDGES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
# a drafter without opinions
UNKNOWN = 0.75


class Reliability:
    """Turns a drafter's estimate that its token is accepted into what experience says.

    Estimates fall into classes; each counts how many of its tokens were accepted, old counts
    fading by `fading` with each new one. The answer lies between the estimate itself, or what
    `parent` made of it, and the count: `weight` tokens of experience count as much as the estimate,
    which fades too, to a third: what was seen often enough is believed.
    """

    def __init__(
        self, parent: Reliability | None = None, *, weight: float = 8.0, fading: float = 0.98
    ) -> None:
        self._parent = parent
        self._least_weight = weight / 3
        self._fading = fading
        self._tried = [0.0] * (len(_EDGES) + 1)
        self._accepted = [0.0] * (len(_EDGES) + 1)
        self._weights = [weight] * (len(_EDGES) + 1)

    def chance(self, estimate: float) -> float:
        """Return the probability that a token with this estimate is accepted."""
        prior = estimate if self._parent is None else self._parent.chance(estimate)
        place = bisect_right(_EDGES, estimate)
        weight = self._weights[place]
        return (self._accepted[place] + weight * prior) / (self._tried[place] + weight)

    def chances(self, estimates: Iterable[float]) -> list[float]:
        """Return the probabilities of several estimates."""
        return [self.chance(estimate) for estimate in estimates]

    def record(self, estimate: float, accepted: bool) -> None:
        """Count one token whose turn came: those after a wrong one were never tried."""
        place = bisect_right(_EDGES, estimate)
        self._weights[place] = max(self._least_weight, self._fading * self._weights[place])
        self._tried[place] = self._fading * self._tried[place] + 1.0
        self._accepted[place] = self._fading * self._accepted[place] + accepted
        if self._parent is not None:
            self._parent.record(estimate, accepted)
