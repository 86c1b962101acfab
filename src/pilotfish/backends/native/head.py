"""The head of a draft model over a part of the vocabulary, which grows with the context.

A head over 150,000 tokens is a third of what a small model reads for each token, and most of its
rows are never drafted. A part of it makes a draft faster and can only lose drafts: the target
decides over its whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pilotfish.types import IdArray

# rows of the context's own tokens: a sixteenth of the usual head at most
MOST_ADDED_ROWS = 4096


class _Vocabulary(Protocol):
    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens."""

    def is_control(self, token_id: int) -> bool:
        """Return whether the token is a control token."""


def head_ids(vocabulary: _Vocabulary, size: int) -> NDArray[np.int32] | None:
    """Return the ids of a head of `size` rows, ascending; None for the whole vocabulary.

    The first ids, since vocabularies are ordered by how early and so how often a token was merged,
    and all control tokens, which stand at the end and end replies. `size` 0 is the whole.
    """
    total = vocabulary.vocab_size
    if not 0 < size < total:
        return None
    control = [token_id for token_id in range(size, total) if vocabulary.is_control(token_id)]
    return np.concatenate([np.arange(size), control]).astype(np.int32)


class SubsetHead:
    """Which token each entry of a row of logits belongs to, and how to add more.

    ids      int32 [n] the rows the core was given
    add      gives the core more rows; they follow the others
    """

    def __init__(
        self, ids: NDArray[np.int32], *, vocab_size: int, add: Callable[[NDArray[np.int32]], None]
    ) -> None:
        self._ids = np.empty(len(ids) + MOST_ADDED_ROWS, dtype=np.int64)
        self._ids[: len(ids)] = ids
        self._num_rows = len(ids)
        self._is_present = bytearray(vocab_size)
        for token_id in ids:
            self._is_present[token_id] = True
        self._add = add

    @property
    def ids(self) -> IdArray:
        """Return the token of each entry of a row [rows of the head]."""
        return self._ids[: self._num_rows]

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add rows for tokens that have none, in the order given, while there is room."""
        present = self._is_present
        missing = [token_id for token_id in dict.fromkeys(token_ids) if not present[token_id]]
        missing = missing[: len(self._ids) - self._num_rows]
        if not missing:
            return
        added = np.array(missing, dtype=np.int32)
        self._add(added)
        end = self._num_rows + len(added)
        self._ids[self._num_rows : end] = added
        self._num_rows = end
        for token_id in missing:
            present[token_id] = True
