"""Where in a prediction a reply is, and what should follow there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pilotfish.types import IdArray

# two texts that agree in so many tokens in a row are taken to be at the same place
MOST_RUN_TOKENS = 32
# of the places that end in one token, as line breaks do, the nearest are looked at
_MOST_PLACES = 4096
# a change of more tokens than this is not expected to come again
_MOST_CHANGED_TOKENS = 8
# a prompt that ends like so much of a prediction is continued by its rest
_CONTINUED_TOKENS = 8
# what one token that was replaced by one is worth as a guess, in matched tokens
_REPLACED_ONE = 0.5
_FIRST_LIKELIHOOD = 0.7
_LIKELIHOOD_STEP = 0.4


class Place(NamedTuple):
    """A place that the end of a reply matches: `position` is of the token that follows there,
    `num_matched` tokens before it agree, and `certainty` is their number less what the distance
    takes off."""

    position: int
    num_matched: int
    certainty: float


def likeliest_place(predicted: IdArray, last: Sequence[int], expected: int) -> Place | None:
    """Return the place in `predicted` [n] that the last tokens of a reply most likely stand at, or
    None where the very last one does not occur.

    A longer match wins over a nearer one by three doublings of the distance from `expected`, and to
    go back takes one matched token more than to go on.
    """
    ends = np.flatnonzero(predicted == last[-1])
    if not len(ends):
        return None
    middle = int(np.searchsorted(ends, expected))
    ends = ends[max(0, middle - _MOST_PLACES // 2) : middle + _MOST_PLACES // 2]
    num_matched = np.ones(len(ends), dtype=np.int64)
    agreeing = np.arange(len(ends))
    for back in range(1, min(len(last), MOST_RUN_TOKENS)):
        agreeing = agreeing[ends[agreeing] >= back]
        agreeing = agreeing[predicted[ends[agreeing] - back] == last[-1 - back]]
        if not len(agreeing):
            break
        num_matched[agreeing] += 1
    distance = ends + 1 - expected
    certainty = num_matched - np.log2(1 + np.abs(distance)) / 3 - (distance < 0)
    best = int(np.argmax(certainty))
    return Place(int(ends[best]) + 1, int(num_matched[best]), float(certainty[best]))


def chance(certainty: float) -> float:
    """Return how likely the next token is as predicted after so many matched tokens."""
    return 1 / (1 + 0.7 * float(certainty**-1.3))


@dataclass(slots=True)
class _Change:
    """Predicted tokens that the reply replaced, and how likely it will do so again."""

    num_removed: int
    added: tuple[int, ...]
    likelihood: float = _FIRST_LIKELIHOOD

    def count(self, came_again: bool) -> None:
        """Learn from one more place where it could be made."""
        self.likelihood += _LIKELIHOOD_STEP * (came_again - self.likelihood)


class Alignment:
    """Follows a reply through a prediction, token by token. All of it is a function of the two,
    and of the last tokens of the prompt, which the reply may continue in mid-text.

    Where the reply leaves the prediction, the end of the reply is looked for in all of it. What was
    replaced by what is kept: whoever renames a thing does so wherever it stands.
    """

    def __init__(self, predicted: Sequence[int], prompt: Sequence[int] = ()) -> None:
        self._predicted = tuple(predicted)
        self._array = np.array(self._predicted, dtype=np.int64)
        self._last: list[int] = []  # tokens of the reply
        self._position = 0  # of the token that is expected next
        self._rest: tuple[int, ...] = ()  # of a change that is being made, before that token
        self._certainty = 1.0
        self._num_matched = 0  # in a row, since the reply last left the prediction
        # where that was: in the prediction, and how many tokens of the reply came since
        self._left_at: int | None = None
        self._num_since = 0
        self._changes: dict[tuple[int, ...], _Change] = {}
        self._changed_firsts: set[int] = set()
        self._start_after(prompt[-MOST_RUN_TOKENS:])

    def read(self, token: int) -> None:
        """Take note of the reply's next token."""
        self._last = [*self._last[1 - MOST_RUN_TOKENS :], token]
        self._num_since += 1
        if self._rest:
            is_expected, self._rest = token == self._rest[0], self._rest[1:]
            if is_expected:
                self._certainty += 1
                return
            self._rest = ()
        elif self._follows(token):
            return
        self._look_for(token)

    def draft(
        self, budget: int, *, end_ids: frozenset[int], min_probability: float
    ) -> tuple[list[int], list[float]]:
        """Return the tokens that should follow, with the chance of each, up to an end token, the
        prediction's end, or where all of them together are less likely than `min_probability`."""
        tokens: list[int] = []
        chances: list[float] = []
        position, rest, certainty, alive = self._position, self._rest, self._certainty, 1.0
        while len(tokens) < budget and (rest or position < len(self._predicted)):
            likely = chance(certainty)
            if not rest:
                removed, rest, likelihood = self._expected(position)
                position += removed
                likely = min(likely, likelihood)
            token, rest = rest[0], rest[1:]
            alive *= likely
            if token in end_ids or alive < min_probability:
                break
            tokens.append(token)
            chances.append(likely)
            certainty += 1
        return tokens, chances

    def _expected(self, position: int) -> tuple[int, tuple[int, ...], float]:
        """Return how many predicted tokens are read next, what the reply should have in their
        place, and how likely it keeps or changes them."""
        change = self._change_at(position)
        kept = self._predicted[position : position + 1]
        if change is None:
            return 1, kept, 1.0
        if change.likelihood < 0.5:
            return 1, kept, 1 - change.likelihood
        return change.num_removed, change.added, change.likelihood

    def _start_after(self, last: Sequence[int]) -> None:
        """Begin where the prompt's last tokens are in the prediction, if they are."""
        found = likeliest_place(self._array, last, 0) if last else None
        if found is not None and found.num_matched >= _CONTINUED_TOKENS:
            self._position, _, self._certainty = found

    def _follows(self, token: int) -> bool:
        """Take a step if the token is the one predicted, or begins a change made before."""
        if self._position == len(self._predicted):
            return False
        change = self._change_at(self._position)
        is_same = token == self._predicted[self._position]
        if not is_same and (change is None or token != change.added[0]):
            return False
        if change is not None:
            change.count(not is_same)
        self._certainty += 1
        if is_same or change is None:
            self._position += 1
            self._num_matched += 1
            self._learn()
        else:
            self._position += change.num_removed
            self._rest = change.added[1:]
            self._left_at = None
        return True

    def _look_for(self, token: int) -> None:
        """Find the place again after a token that was not expected."""
        is_first = self._left_at is None
        if self._left_at is None:
            self._left_at, self._num_since = self._position, 1
        found = likeliest_place(self._array, self._last, self._position + 1)
        if found is not None and found.certainty > _REPLACED_ONE:
            self._position, self._num_matched, self._certainty = found
            self._learn()
            return
        self._num_matched = 0
        if is_first and 0 < self._position < len(self._predicted):
            self._position += 1
            self._certainty = _REPLACED_ONE
        else:  # something was put in: also what a reply has before it comes to what was predicted
            self._certainty = max(self._certainty / 2, 0.01) if not is_first else _REPLACED_ONE

    def _learn(self) -> None:
        """Keep what was changed once it is fairly certain where the reply went on."""
        if self._left_at is None or self._certainty < 1:
            return
        left_at, resumed_at = self._left_at, self._position - self._num_matched
        num_added = self._num_since - self._num_matched
        self._left_at = None
        is_short = 1 <= resumed_at - left_at <= _MOST_CHANGED_TOKENS
        if not is_short or not 1 <= num_added <= _MOST_CHANGED_TOKENS:
            return
        removed = self._predicted[left_at:resumed_at]
        added = tuple(self._last[-self._num_since :][:num_added])
        if len(added) == num_added:
            self._changes[removed] = _Change(len(removed), added)
            self._changed_firsts.add(removed[0])

    def _change_at(self, position: int) -> _Change | None:
        """Return the longest known change of the tokens at a place."""
        if self._predicted[position] not in self._changed_firsts:
            return None
        for length in range(_MOST_CHANGED_TOKENS, 0, -1):
            change = self._changes.get(self._predicted[position : position + length])
            if change is not None:
                return change
        return None
