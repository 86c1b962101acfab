"""Prompt lookup: what followed the last few tokens when they occurred before?"""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.errors import ConfigError
from pilotfish.types import Proposal, SessionView

# how many of the last indexed tokens must still be where they were
_CHECKED_TOKENS = 8


class _Index:
    """Where each short run of one request's tokens was followed by another token, the latest.

    The run that ends the text is not indexed before a token follows it, so a lookup of the last
    tokens never finds themselves.
    """

    def __init__(self, view: SessionView) -> None:
        self.num_prompt_tokens = view.num_prompt_tokens
        self.num_indexed = 0
        self.tail: list[int] = []
        self.next_position: dict[tuple[int, ...], int] = {}

    def fits(self, view: SessionView) -> bool:
        """Return whether the view continues the text that was indexed."""
        return (
            self.num_prompt_tokens == view.num_prompt_tokens
            and self.num_indexed <= len(view.tokens)
            and self.tail == _tail(view.tokens, self.num_indexed)
        )

    def extend(self, tokens: Sequence[int], min_match: int, max_match: int) -> None:
        """Index the runs that end before each new token."""
        for position in range(max(1, self.num_indexed), len(tokens)):
            before = tuple(tokens[max(0, position - max_match) : position])
            for start in range(len(before) - min_match + 1):
                self.next_position[before[start:]] = position
        self.num_indexed = len(tokens)
        self.tail = _tail(tokens, self.num_indexed)


class NgramDrafter:
    """Propose what followed the latest earlier occurrence of the last tokens.

    The longest run of `max_match` down to `min_match` tokens that occurred before wins. Copying
    may run into the end of the text; it then goes on with the proposal's own tokens, so a text
    that repeats itself is continued for as long as the budget allows.
    """

    def __init__(self, *, max_match: int = 6, min_match: int = 2) -> None:
        if not 1 <= min_match <= max_match:
            raise ConfigError(
                f"min_match must be at least 1 and at most max_match, got {min_match}, {max_match}"
            )
        self._max_match = max_match
        self._min_match = min_match
        self._indexes: dict[int, _Index] = {}

    def prepare(self, view: SessionView) -> bool:
        """Index the prompt, all at once."""
        if view.allows("ngram"):
            self._index(view)
        return False

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one proposal per view, of at most `budgets[i]` tokens each."""
        return [self._propose(v, b) for v, b in zip(views, budgets, strict=True)]

    def forget(self, request_id: int) -> None:
        """Drop the index of a request that ended."""
        self._indexes.pop(request_id, None)

    def _propose(self, view: SessionView, budget: int) -> Proposal:
        if budget <= 0 or not view.allows("ngram"):
            return Proposal.empty()
        found = self._lookup(self._index(view), view.tokens)
        if found is None:
            return Proposal.empty()
        start, num_matched = found
        copied = _copy(view.tokens, start, budget, view.end_ids)
        if not copied:
            return Proposal.empty()
        return Proposal(
            tuple(copied), "ngram", probabilities=_copying_probabilities(num_matched, len(copied))
        )

    def _index(self, view: SessionView) -> _Index:
        """Return the request's index after reading what was added to its text."""
        index = self._indexes.get(view.request_id)
        if index is None or not index.fits(view):
            index = self._indexes[view.request_id] = _Index(view)
        index.extend(view.tokens, self._min_match, self._max_match)
        return index

    def _lookup(self, index: _Index, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return what follows the longest match, and how many tokens that has."""
        last = tuple(tokens[-self._max_match :])
        for start in range(len(last) - self._min_match + 1):
            position = index.next_position.get(last[start:])
            if position is not None:
                return position, len(last) - start
        return None


def _copying_probabilities(num_matched: int, num_copied: int) -> tuple[float, ...]:
    """Return how likely each copied token is right, by how long the match is by then.

    One sighting after a match of length L is right in about 1 / (1 + 3 / L**1.5) of cases.
    """
    return tuple(1 / (1 + 3 / (num_matched + i) ** 1.5) for i in range(num_copied))


def _tail(tokens: Sequence[int], end: int) -> list[int]:
    return list(tokens[max(0, end - _CHECKED_TOKENS) : end])


def _copy(tokens: Sequence[int], start: int, budget: int, end_ids: frozenset[int]) -> list[int]:
    """Return up to `budget` tokens from `start` on, repeating the stretch to the text's end.

    Stops before an end token: as the bonus token it comes for nothing.
    """
    stretch = tokens[start : start + budget]
    copied: list[int] = []
    for i in range(budget):
        token = stretch[i % len(stretch)]
        if token in end_ids:
            break
        copied.append(token)
    return copied
