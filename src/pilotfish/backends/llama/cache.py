"""The keys and values of one sequence inside a llama.cpp context."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotfish.backends.llama.model import LlamaModel


class LlamaCache:
    """One sequence of a model; made by `LlamaModel.new_cache`, given back by `close`."""

    __slots__ = ("__weakref__", "_is_open", "_length", "_model", "sequence")

    def __init__(self, model: LlamaModel, sequence: int) -> None:
        self._model = model
        self._length = 0
        self._is_open = True
        self.sequence = sequence

    def __len__(self) -> int:
        """Return how many tokens the model has evaluated for this sequence."""
        return self._length

    @property
    def is_open(self) -> bool:
        """Return whether the cache still holds its place."""
        return self._is_open

    def belongs_to(self, model: LlamaModel) -> bool:
        """Return whether `model` made this cache."""
        return self._model is model

    def truncate(self, length: int) -> None:
        """Cut the sequence to `length` tokens.

        Raises BackendError for a length the sequence never had and CacheNotTruncatable when the
        model cannot forget tokens.
        """
        if length != self._length:
            self._model.truncate(self, length)

    def prefix(self, length: int) -> LlamaCache:
        """Return a new cache with a copy of the first `length` tokens."""
        return self._model.copy_prefix(self, length)

    def close(self) -> None:
        """Give the sequence's place back; closing twice does nothing."""
        if self._is_open:
            # a model that refuses, at work in another thread, has not taken the place back
            self._model.release(self)
            self._is_open = False

    def set_length(self, length: int) -> None:
        """Note how many tokens are evaluated now; called by the model only."""
        self._length = length
