"""One thread at a time in a model: a second one is refused, not kept waiting."""

from __future__ import annotations

import threading
from typing import Protocol

from pilotfish.errors import BackendError


class Openable(Protocol):
    """What can be closed."""

    @property
    def is_open(self) -> bool:
        """Return whether it was not closed yet."""


class Exclusive:
    """Hold a model for the calls inside a `with` block.

    Raises BackendError when another thread has it, and when it was closed.
    """

    __slots__ = ("_busy", "_model")

    def __init__(self, model: Openable) -> None:
        self._busy = threading.Lock()
        self._model = model

    def __enter__(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise BackendError("the model is at work in another thread; use one thread at a time")
        if not self._model.is_open:
            self._busy.release()
            raise BackendError("the model was closed")

    def __exit__(self, *_: object) -> None:
        self._busy.release()
