"""The flat, ragged batch one pass reads, and the views on the logits it leaves behind."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotfish.backends.llama.library import load_library
from pilotfish.types import Segment


class FlatBatch:
    """Arrays of (token, position, sequence, wants a row) that llama.cpp reads in place.

    They are built once and filled anew for each pass, so a pass costs a few slice assignments.
    """

    def __init__(self, capacity: int) -> None:
        library = load_library()
        self.num_tokens = 0
        self.num_rows = 0
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._sequences = np.zeros(capacity, dtype=np.int32)
        self._sequence_counts = np.ones(capacity, dtype=np.int32)
        self._wants_row = np.zeros(capacity, dtype=np.int8)
        self._ramp = np.arange(capacity, dtype=np.int32)
        # one pointer per token, to its own entry of `_sequences`
        self._sequence_addresses = self._sequences.ctypes.data + 4 * np.arange(
            capacity, dtype=np.uintp
        )
        self.struct = library.llama_batch(
            n_tokens=0,
            token=self._pointer(self._tokens, library.llama_token),
            embd=None,
            pos=self._pointer(self._positions, library.llama_pos),
            n_seq_id=self._pointer(self._sequence_counts, ctypes.c_int32),
            seq_id=self._pointer(self._sequence_addresses, ctypes.POINTER(library.llama_seq_id)),
            logits=self._pointer(self._wants_row, ctypes.c_int8),
        )

    def clear(self) -> None:
        """Empty the batch."""
        self.num_tokens = self.num_rows = 0

    def append(
        self, token_ids: Sequence[int], *, position: int, sequence: int, first_row: int
    ) -> None:
        """Add tokens at `position` and after; those from index `first_row` on want their rows."""
        begin = self.num_tokens
        end = begin + len(token_ids)
        self.num_tokens = self.struct.n_tokens = end
        self.num_rows += len(token_ids) - first_row
        if end - begin == 1:
            self._tokens[begin] = token_ids[0]
            self._positions[begin] = position
            self._sequences[begin] = sequence
            self._wants_row[begin] = first_row == 0
            return
        self._tokens[begin:end] = token_ids
        self._positions[begin:end] = self._ramp[: end - begin]
        self._positions[begin:end] += position
        self._sequences[begin:end] = sequence
        self._wants_row[begin : begin + first_row] = 0
        self._wants_row[begin + first_row : end] = 1

    @staticmethod
    def _pointer(array: NDArray[Any], element: Any) -> Any:
        return ctypes.cast(array.ctypes.data, ctypes.POINTER(element))


class LogitsWindow:
    """Views on the buffer llama.cpp writes rows of logits into, cut to the real vocabulary."""

    def __init__(self, *, capacity: int, vocab_size: int, padded_vocab_size: int) -> None:
        self._capacity = capacity
        self._vocab_size = vocab_size
        self._padded_vocab_size = padded_vocab_size
        self._address = 0
        self._rows = np.zeros((0, vocab_size), dtype=np.float32)

    def rows(self, logits: Any) -> NDArray[np.float32]:
        """Return all rows behind the C pointer `logits`: float32 [capacity, vocab_size], a view."""
        address = ctypes.addressof(logits.contents)
        if address != self._address:
            shape = (self._capacity, self._padded_vocab_size)
            block = (ctypes.c_float * (shape[0] * shape[1])).from_address(address)
            self._rows = np.frombuffer(memoryview(block), dtype=np.float32).reshape(shape)
            self._rows = self._rows[:, : self._vocab_size]
            self._address = address
        return self._rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `start:stop` of segment `index`: what one pass takes of it."""

    index: int
    start: int
    stop: int


def plan_passes(
    segments: Sequence[Segment], *, max_tokens: int, max_rows: int
) -> list[list[Piece]]:
    """Cut segments, in order, into passes of at most `max_tokens` tokens and `max_rows` rows."""
    passes: list[list[Piece]] = [[]]
    tokens_left, rows_left = max_tokens, max_rows
    for index, segment in enumerate(segments):
        start, total = 0, len(segment.token_ids)
        while start < total:
            # tokens before the first row are limited by the batch alone
            unscored = max(0, segment.first_row - start)
            count = min(total - start, tokens_left, unscored + rows_left)
            if count == 0:
                passes.append([])
                tokens_left, rows_left = max_tokens, max_rows
                continue
            passes[-1].append(Piece(index, start, start + count))
            tokens_left -= count
            rows_left -= max(0, count - unscored)
            start += count
    return passes
