"""What this process holds, and whether doing something over and over makes it hold more."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SELF = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Holdings:
    """Resident memory, threads and open files of this process, or how much they grew."""

    resident_bytes: int
    num_threads: int
    num_files: int

    @classmethod
    def now(cls) -> Holdings:
        """Return what the process holds, garbage collected."""
        gc.collect()
        pages = int((_SELF / "statm").read_text().split()[1])
        threads = len(list((_SELF / "task").iterdir()))
        files = len(list((_SELF / "fd").iterdir()))
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), threads, files)

    def __sub__(self, other: Holdings) -> Holdings:
        """Return how much more this is."""
        return Holdings(
            self.resident_bytes - other.resident_bytes,
            self.num_threads - other.num_threads,
            self.num_files - other.num_files,
        )


def growth(round_trip: Callable[[], object], *, rounds: int = 10, warm_up: int = 3) -> Holdings:
    """Return what `rounds` calls add to the process, after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        round_trip()
    before = Holdings.now()
    for _ in range(rounds):
        round_trip()
    return Holdings.now() - before
