"""An online suffix automaton that knows how often everything it has read was followed by what.

A state stands for all runs of tokens that end at the same places of the text; its suffix link leads
to the longest suffix of them that ends at more places (Blumer et al. 1985). Several texts can be
read one after the other; no run crosses from one into the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Each appended token counts itself in at most this many states, longest run first. Ordinary text
# nests a handful of repeated suffixes; in one long repetition the counts stop growing here, and
# become lower bounds, instead of costing the length of the text for every token.
MAX_COUNTED_LINKS = 32

_ROOT = 0
_NO_STATE = -1
_NO_TOKEN = -1


class Match(NamedTuple):
    """A run of `length` tokens that occurs in the automaton's text, and its state there."""

    state: int = _ROOT
    length: int = 0


class Continuation(NamedTuple):
    """Tokens that may follow a match.

    survivals[i] estimates the probability that tokens 0..i are all right; it never rises.
    """

    token_ids: tuple[int, ...] = ()
    survivals: tuple[float, ...] = ()

    @property
    def score(self) -> float:
        """Return the expected number of right tokens before the first wrong one."""
        return sum(self.survivals)


class SuffixAutomaton:
    """All runs of tokens of the texts read so far, with counts. Token ids must not be negative.

    Reading a token takes amortised constant time: the transitions it adds are at most three a
    token over the whole text, and counting visits at most 2 * MAX_COUNTED_LINKS states.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._last = _ROOT
        # one entry per state
        self._length = [0]  # of its longest run
        self._link = [_NO_STATE]
        self._next: list[dict[int, int]] = [{}]
        self._count = [0]  # occurrences
        self._followed = [0]  # occurrences with a token after them
        self._best = [_NO_TOKEN]  # the token most often after it, the latest among equals

    def extend(self, tokens: Iterable[int]) -> None:
        """Read tokens at the end of the current text."""
        for token in tokens:
            before = self._last
            self._last = self._successor(before, token)
            self._count_occurrence(before, token)
            self.num_tokens += 1

    def end_text(self) -> None:
        """End the current text; what is read next belongs to another one."""
        self._last = _ROOT

    def longest_repeat(self) -> Match:
        """Return the longest suffix of the text that also occurs earlier in it.

        Meant for an automaton of one text: the suffix link of the whole text is just that.
        """
        state = max(self._link[self._last], _ROOT)
        return Match(state, self._length[state])

    def advance(self, match: Match, tokens: Iterable[int]) -> Match:
        """Return the longest match that ends another text after `tokens` were added to it.

        `match` must be the one before, and nothing may have been read since it was made.
        """
        state, length = match
        for token in tokens:
            while state != _ROOT and token not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            following = self._next[state].get(token)
            if following is not None:
                state, length = following, length + 1
        return Match(state, length)

    def num_occurrences(self, tokens: Sequence[int]) -> int:
        """Return how often a non-empty run of tokens occurs (a lower bound, see
        MAX_COUNTED_LINKS)."""
        match = self.advance(Match(), tokens)
        return self._count[match.state] if match.length == len(tokens) else 0

    def continuation(
        self, match: Match, *, max_tokens: int, min_match: int = 1, min_probability: float = 0.0
    ) -> Continuation:
        """Return the most frequent continuation, token by token, and what it is worth.

        A token seen `count` times after a match of length L that was followed `total` times has
        probability count / (total + 3 / L**1.5), which fits how often recorded replies went on
        like that: one sighting is right 1 time in 4 after one token, 9 in 10 after eight.
        Ends where the product falls below `min_probability`. Where nothing ever followed, as at the
        end of the text, the next shorter match of at least `min_match` tokens takes over.
        """
        state, length = match
        survival = 1.0
        token_ids: list[int] = []
        survivals: list[float] = []
        while len(token_ids) < max_tokens:
            if not self._followed[state]:
                state = self._link[state]
                length = self._length[state] if state > _ROOT else 0
            if length < min_match or not self._followed[state]:
                break
            token = self._best[state]
            total = self._followed[state]
            state = self._next[state][token]
            # a cut of the counting may leave a run with a higher count than its own beginning
            survival *= min(self._count[state], total) / (total + 3.0 / length**1.5)
            if survival < min_probability:
                break
            length += 1
            token_ids.append(token)
            survivals.append(survival)
        return Continuation(tuple(token_ids), tuple(survivals))

    def _successor(self, last: int, token: int) -> int:
        """Return the state of the current text plus `token`, making it where it is new."""
        known = self._next[last].get(token)
        if known is not None:  # only in a later text: an earlier one has this beginning
            return self._split(last, token, known)
        new = self._add_state(self._length[last] + 1, {}, 0, 0, _NO_TOKEN)
        state = last
        while state != _NO_STATE and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state == _NO_STATE:
            self._link[new] = _ROOT
        else:
            self._link[new] = self._split(state, token, self._next[state][token])
        return new

    def _split(self, state: int, token: int, following: int) -> int:
        """Return the state whose longest run is that of `state` plus `token`."""
        length = self._length[state] + 1
        if self._length[following] == length:
            return following
        # the shorter runs of `following` are about to end at one more place than the longer ones
        shorter = self._add_state(
            length,
            self._next[following].copy(),
            self._count[following],
            self._followed[following],
            self._best[following],
        )
        self._link[shorter] = self._link[following]
        self._link[following] = shorter
        while state != _NO_STATE and self._next[state].get(token) == following:
            self._next[state][token] = shorter
            state = self._link[state]
        return shorter

    def _add_state(
        self, length: int, following: dict[int, int], count: int, followed: int, best: int
    ) -> int:
        self._length.append(length)
        self._link.append(_NO_STATE)
        self._next.append(following)
        self._count.append(count)
        self._followed.append(followed)
        self._best.append(best)
        return len(self._length) - 1

    def _count_occurrence(self, before: int, token: int) -> None:
        """Count the text's new end, and `token` as what followed its old one."""
        link, count = self._link, self._count
        state = self._last
        for _ in range(MAX_COUNTED_LINKS):
            if state == _ROOT:
                break
            count[state] += 1
            state = link[state]
        state = before
        for _ in range(MAX_COUNTED_LINKS):
            if state == _ROOT:
                break
            self._followed[state] += 1
            following = self._next[state]
            best = self._best[state]
            if best == _NO_TOKEN or count[following[token]] >= count[following[best]]:
                self._best[state] = token
            state = link[state]
