"""When a draft model stops drafting: by what one more token costs, and may bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotfish.control.choice import Prices
from pilotfish.control.reliability import Reliability

# how far to look ahead for the end of a step of the staircase
_LOOK_AHEAD = 8


@dataclass(slots=True, kw_only=True)
class ModelRule:
    """The `StopRule` of one request and one round.

    table               how far the draft model's probabilities can be believed
    next_chance         of a token of which nothing is known yet
    prices              of the rows of the pass, those of other sessions' drafts counted as its base
    first_pass_seconds  of the draft model's first pass, which reads what it missed
    pass_seconds        of each further one
    affordable_seconds  what the round may take beyond a plain one
    probes              whether the first token is kept, likely or not: a probe must be scored to
                        teach anything

    alive               survivals of the tokens that were kept
    spent_seconds       on the draft model's passes
    """

    table: Reliability
    next_chance: float
    prices: Prices
    first_pass_seconds: float
    pass_seconds: float
    affordable_seconds: float
    probes: bool = False
    spent_seconds: float = field(init=False)
    alive: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.spent_seconds = self.first_pass_seconds

    def keeps(self, chances: Sequence[float]) -> bool:
        """Return whether the newest token is worth its row, alone or with those after it."""
        alive = (self.alive[-1] if self.alive else 1.0) * self.table.chance(chances[-1])
        ahead = [alive * self.next_chance**i for i in range(_LOOK_AHEAD)]
        is_probe = self.probes and not self.alive
        if not self._affordable(0.0) or not (is_probe or self._pays(ahead, num_drafted=1)):
            return False
        self.alive.append(alive)
        return True

    def goes_on(self, chances: Sequence[float]) -> bool:
        """Return whether one more pass of the draft model is worth its time."""
        alive = self.alive[-1] if self.alive else 1.0
        ahead = [alive * self.next_chance**i for i in range(1, _LOOK_AHEAD + 1)]
        if not self._affordable(self.pass_seconds) or not self._pays(ahead, num_drafted=0):
            return False
        self.spent_seconds += self.pass_seconds
        return True

    def _pays(self, ahead: Sequence[float], *, num_drafted: int) -> bool:
        return self.prices.further_pays(
            ahead,
            num_rows=len(self.alive),
            token_seconds=self.pass_seconds,
            num_drafted=num_drafted,
        )

    def _affordable(self, more_seconds: float) -> bool:
        rows = self.prices.extra_seconds(len(self.alive) + 1)
        return rows + self.spent_seconds + more_seconds <= self.affordable_seconds
