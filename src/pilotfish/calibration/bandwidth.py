"""How fast this machine reads memory, and how long a pass takes at least for that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotfish.backends.machine import processor_name

# beyond every processor's caches
_ARRAY_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Bytes per second that the model's threads read, and the bytes of weights a pass reads."""

    bandwidth_bytes_per_second: float
    step_bytes: int

    @property
    def floor_seconds(self) -> float:
        """Return how long a pass takes at least: its weights must be read."""
        return self.step_bytes / self.bandwidth_bytes_per_second

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Reading:
        """Return the reading from what `to_dict` gave; ValueError, KeyError or TypeError if it is
        damaged."""
        bandwidth, step_bytes = float(raw["bandwidth_bytes_per_second"]), int(raw["step_bytes"])
        if not 0 < bandwidth < float("inf"):
            raise ValueError("bandwidth must be a positive number")
        return cls(bandwidth_bytes_per_second=bandwidth, step_bytes=step_bytes)


def bandwidth_reader(model: object) -> Callable[[], float] | None:
    """Return what measures the bytes per second that memory is read with, once for each call.

    Reads the model's own weights where it can read them alone, else an array with as many
    threads. None for a model without weights.
    """
    facts = getattr(model, "facts", None)
    if facts is None:
        return None
    read = getattr(model, "read_weights", None) or _ArrayReader(facts.threads)

    def bandwidth() -> float:
        seconds, num_bytes = read()
        return float(num_bytes / seconds)

    return bandwidth


def step_bytes_of(model: object) -> int:
    """Return the bytes of weights a pass reads; 0 for a model without weights."""
    facts = getattr(model, "facts", None)
    return 0 if facts is None else int(facts.step_bytes)


def machine_of(model: object) -> str:
    """Return the processor and how many threads of it the model uses."""
    facts = getattr(model, "facts", None)
    return processor_name() + ("" if facts is None else f", {facts.threads} threads")


class _ArrayReader:
    """Reads a large array with several threads; call it for the seconds and the bytes."""

    def __init__(self, threads: int) -> None:
        self._parts = np.array_split(np.ones(_ARRAY_BYTES // 8, dtype=np.uint64), threads)
        self._threads = threads

    def __call__(self) -> tuple[float, int]:
        # NumPy lets other threads run meanwhile, and this reduction keeps up with the memory
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(_length, self._parts))  # threads are there before the clock runs
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, self._parts))
            return time.perf_counter() - start, _ARRAY_BYTES


def _length(part: NDArray[np.uint64]) -> int:
    return len(part)
