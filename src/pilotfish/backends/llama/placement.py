"""How OpenMP places its threads: one core each, and the calling thread free between passes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PLACEMENT = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
_PLACEMENT_NAMES = (*_PLACEMENT, "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_HAS_AFFINITY = hasattr(os, "sched_getaffinity")


@contextmanager
def protected_placement() -> Iterator[bool]:
    """Ask OpenMP for one core per thread while its library loads; yield whether we did.

    Without it two threads can land on one core for the life of the process, and every barrier
    then costs milliseconds. What the user set stays; the variables are taken back afterwards,
    because OpenMP reads them only while loading and child processes must not inherit them.
    """
    if any(name in os.environ for name in _PLACEMENT_NAMES):
        yield False
        return
    os.environ.update(_PLACEMENT)
    try:
        yield True
    finally:
        for name in _PLACEMENT:
            os.environ.pop(name, None)


class PassPlacement:
    """Keeps a thread where OpenMP put it during passes, and gives it its CPUs back in between.

    With placement on, OpenMP binds a thread to one core while loading or at the thread's first
    pass, and every process and thread started from it later would inherit that one core. But a
    thread left free during passes is at times put on the core of one of its own workers.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    def __enter__(self) -> None:
        """Move to the core OpenMP chose for this thread, if it has chosen one."""
        if not _HAS_AFFINITY:
            return
        self._thread.own = os.sched_getaffinity(0)
        placed = getattr(self._thread, "placed", None)
        if placed is not None:
            os.sched_setaffinity(0, placed)

    def __exit__(self, *_: object) -> None:
        """Give the thread back the CPUs it had."""
        if not _HAS_AFFINITY:
            return
        placed, own = os.sched_getaffinity(0), self._thread.own
        if placed != own:
            self._thread.placed = placed
            os.sched_setaffinity(0, own)


PASS_PLACEMENT = PassPlacement()
