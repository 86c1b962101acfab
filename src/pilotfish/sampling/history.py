"""The tokens before a row of logits, in an array that grows, with counts for penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pilotfish.types import IdArray

_FIRST_ROOM = 256


def _with_room(array: IdArray, size: int) -> IdArray:
    """Return the array, or a copy twice as long where it holds fewer than `size` entries."""
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), dtype=np.int64)
    larger[: len(array)] = array
    return larger


class TokenCounts:
    """Which tokens a text has, in the order of their first places, and how often each.

    Tokens leave in the reverse order in which they came, so the last to come first is the first to
    be gone.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids: IdArray = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._counts: IdArray = np.empty(_FIRST_ROOM, dtype=np.int64)

    @property
    def ids(self) -> IdArray:
        """Return the distinct tokens, [n]; a view that later changes overwrite."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> IdArray:
        """Return how often each of `ids` occurs, [n]; a view likewise."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        """Count a token at the end of the text."""
        place = self._places.setdefault(token, size := len(self._places))
        if place == size:
            self._ids = _with_room(self._ids, size + 1)
            self._counts = _with_room(self._counts, size + 1)
            self._ids[place], self._counts[place] = token, 0
        self._counts[place] += 1

    def remove(self, token: int) -> None:
        """Take back the token that was added last."""
        place = self._places[token]
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._places[token]


class TokenHistory:
    """The tokens before a row: the prompt, the reply so far, the draft tokens tried after them.

    It grows at the end and is cut to absolute lengths, so that what a row costs does not depend on
    how long the text is. Counts are kept from when they are first asked for.
    """

    def __init__(self, tokens: Sequence[int] | IdArray, *, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self._ids: IdArray = np.array(tokens, dtype=np.int64)
        self._length = len(tokens)
        self._text_counts: TokenCounts | None = None
        self._output_counts: TokenCounts | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def output_ids(self) -> IdArray:
        """Return the reply, drafts included, [n]; a view that later changes overwrite."""
        return self._ids[self.num_prompt_tokens : self._length]

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens follow the prompt."""
        return self._length - self.num_prompt_tokens

    @property
    def text_counts(self) -> TokenCounts:
        """Return the counts of the whole text."""
        if self._text_counts is None:
            self._text_counts = self._counts_from(0)
        return self._text_counts

    @property
    def output_counts(self) -> TokenCounts:
        """Return the counts of the reply."""
        if self._output_counts is None:
            self._output_counts = self._counts_from(self.num_prompt_tokens)
        return self._output_counts

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; none of them may belong to the prompt."""
        length = self._length + len(tokens)
        self._ids = _with_room(self._ids, length)
        self._ids[self._length : length] = tokens
        self._length = length
        for counts in (self._text_counts, self._output_counts):
            if counts is not None:
                for token in tokens:
                    counts.add(token)

    def truncate(self, length: int) -> None:
        """Cut to the first `length` tokens; the prompt stays."""
        assert self.num_prompt_tokens <= length <= self._length, f"{length} of {self._length}"
        for counts in (self._text_counts, self._output_counts):
            if counts is not None:
                for token in self._ids[length : self._length][::-1].tolist():
                    counts.remove(token)
        self._length = length

    def _counts_from(self, first: int) -> TokenCounts:
        counts = TokenCounts()
        for token in self._ids[first : self._length].tolist():
            counts.add(token)
        return counts
