"""How many draft tokens are worth their time: the arithmetic of the cost-aware controller.

All of it weighs tokens against seconds at one exchange rate: the tokens a second that decoding
makes at present. A round is worth its expected accepted tokens, less that rate times the seconds it
takes longer than a plain round (renewal reward; Dinkelbach 1967). What is maximal under the best
reachable rate is the best policy in the long run.

`alive` are survivals: entry i is the probability that draft tokens 0..i are all accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul


def survivals(chances: Sequence[float]) -> list[float]:
    """Return the probability that draft tokens 0..i are all accepted, from each one's chance."""
    return list(accumulate(chances, mul))


@dataclass(frozen=True, slots=True)
class Prices:
    """What the rows of a round cost.

    seconds  of a pass by width, from width 0 on; a staircase, so every length is looked at
    base     rows of the pass without the drafts in question
    rate     tokens a second of all sessions together
    """

    seconds: Sequence[float]
    base: int
    rate: float

    @property
    def step(self) -> float:
        """Return the seconds of the pass without the drafts."""
        return self.seconds[self.base]

    @property
    def room(self) -> int:
        """Return how many draft tokens the widest known pass holds."""
        return len(self.seconds) - 1 - self.base

    def beside(self, num_rows: int) -> Prices:
        """Return the prices of drafts that come on top of other drafts' rows."""
        return replace(self, base=min(self.base + num_rows, len(self.seconds) - 1))

    def shared(self, num_sessions: int) -> Prices:
        """Return the prices for one of so many sessions that draft alike: an equal part of what
        the rows of all of them cost."""
        lengths = range(self.room // num_sessions + 1)
        rows = [
            self.step + (self.seconds[self.base + num_sessions * length] - self.step) / num_sessions
            for length in lengths
        ]
        return replace(self, seconds=[*self.seconds[: self.base], *rows])

    def extra_seconds(self, length: int) -> float:
        """Return how much longer the pass takes with so many draft tokens; infinite when they do
        not fit."""
        if length > self.room:
            return float("inf")
        return self.seconds[self.base + length] - self.step

    def num_affordable(self, steps: float) -> int:
        """Return the most draft tokens whose rows take at most so many steps."""
        lengths = range(self.room, 0, -1)
        return next((n for n in lengths if self.extra_seconds(n) <= steps * self.step), 0)

    def best_length(self, alive: Sequence[float]) -> tuple[int, float]:
        """Return how many tokens of a draft to score in this round alone, and what they are worth
        in tokens; (0, 0.0) if none."""
        best, worth, gain = 0, 0.0, 0.0
        for length in range(1, min(len(alive), self.room) + 1):
            gain += alive[length - 1]
            value = gain - self.rate * self.extra_seconds(length)
            if value > worth:
                best, worth = length, value
        return best, worth

    def best_first_length(self, chances: Sequence[float], *, others: float = 0.0) -> int:
        """Return how many tokens of a draft to score now, when the rest can be scored later.

        chances  of each token, given those before it; the draft stays what it is, as one that was
                 found in the text does, for as long as it is right
        others   tokens that other sessions make in the same pass

        A long draft that hangs on an uncertain beginning is better tried with few rows first. With
        V(i) the worth of standing at token i with all before it accepted, and a pass of g drafts,

            V(i) = max over g of
                1 + sum of survivals + others - rate T(g) + P(g + 1 right) V(i + g + 1)

        where the pass itself gives the token after g accepted ones, and V is 0 off the draft
        and past its end.
        """
        total, most = len(chances), min(len(chances), self.room)
        costs = [self.rate * self.seconds[self.base + length] for length in range(most + 1)]
        later = [0.0] * (total + 1)
        first = 0
        for start in range(total - 1, -1, -1):
            best = float("-inf")
            gain, alive = 1.0 + others, 1.0
            for length in range(min(total - start, most) + 1):
                place = start + length
                if length:
                    alive *= chances[place - 1]
                    gain += alive
                value = gain - costs[length]
                if place < total:
                    value += alive * chances[place] * later[place + 1]
                if value > best:
                    best, first = value, length
            later[start] = best
        return first

    def further_pays(
        self,
        alive: Sequence[float],
        *,
        num_rows: int,
        token_seconds: float,
        num_drafted: int = 0,
    ) -> bool:
        """Return whether some beginning of further tokens pays for itself.

        alive          survival of each further token, as far as one may look ahead
        num_rows       draft tokens the pass has so far
        token_seconds  of drafting one token; the first `num_drafted` have been drafted
        """
        before, gain = self.extra_seconds(num_rows), 0.0
        for more in range(1, min(len(alive), self.room - num_rows) + 1):
            gain += alive[more - 1]
            drafting = max(0, more - num_drafted) * token_seconds
            if gain > self.rate * (self.extra_seconds(num_rows + more) - before + drafting):
                return True
        return False

    def expected_round(self, chance: float, most: int, token_seconds: float) -> tuple[float, float]:
        """Return the accepted tokens and the extra seconds of a round whose tokens each have
        `chance` and cost `token_seconds` to draft, at the length worth most: at least one token."""
        best, worth = (0.0, 0.0), float("-inf")
        gain, alive = 0.0, 1.0
        for length in range(1, min(most, self.room) + 1):
            alive *= chance
            gain += alive
            extra = self.extra_seconds(length) + length * token_seconds
            if gain - self.rate * extra > worth:
                best, worth = (gain, extra), gain - self.rate * extra
        return best

    def share_rows(self, alive: Sequence[Sequence[float]]) -> list[int]:
        """Return how many draft tokens each session scores in the pass they share.

        The likeliest rows of all sessions come first, as many as pay: survivals never rise, so they
        are a beginning of each session's own (the budget of DSpark and vLLM, with a price).
        """
        rows = sorted(
            ((value, -number) for number, own in enumerate(alive) for value in own), reverse=True
        )
        num_rows, _ = self.best_length([value for value, _ in rows])
        lengths = [0] * len(alive)
        for _, number in rows[:num_rows]:
            lengths[-number] += 1
        return lengths
