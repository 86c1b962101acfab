"""The keys and values of one sequence of a native model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pilotfish_native import Sequence

    from pilotfish.backends.native.model import NativeModel


class NativeCache:
    """One sequence of a model; made by `NativeModel.new_cache`, given back by `close`."""

    __slots__ = ("__weakref__", "_is_open", "_model", "sequence")

    def __init__(self, model: NativeModel, sequence: Sequence) -> None:
        self._model = model
        self._is_open = True
        self.sequence = sequence

    def __len__(self) -> int:
        """Return how many tokens the model has evaluated for this sequence."""
        return len(self.sequence)

    @property
    def is_open(self) -> bool:
        """Return whether the cache still holds its place."""
        return self._is_open

    def belongs_to(self, model: NativeModel) -> bool:
        """Return whether `model` made this cache."""
        return self._model is model

    def truncate(self, length: int) -> None:
        """Cut the sequence to `length` tokens; BackendError for a length it never had."""
        if length != len(self.sequence):
            self._model.truncate(self, length)

    def prefix(self, length: int) -> NativeCache:
        """Return a new cache with the first `length` tokens, whose pages both share."""
        return self._model.copy_prefix(self, length)

    def close(self) -> None:
        """Give the sequence's place back; closing twice does nothing."""
        if self._is_open:
            # a model that refuses, at work in another thread, has not taken the place back
            self._model.release(self)
            self._is_open = False
