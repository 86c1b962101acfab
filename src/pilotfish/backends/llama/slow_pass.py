"""Notice passes that take far longer than the bytes they read can explain."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

# A machine that reads slower than this on all cores together is not one people run models on.
_SUSPICIOUS_BYTES_PER_SECOND = 1.5e9
_IN_A_ROW = 3
_FACTOR = 8.0
_PROBE_BYTES = 128 * 2**20


def measure_read_bandwidth() -> float:
    """Return the bytes per second one thread reads, the best of three rounds.

    One thread, so the figure is low for a pass on several: the notice errs towards silence.
    """
    block = np.ones(_PROBE_BYTES // 8, dtype=np.float64)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        block.sum()
        best = min(best, time.perf_counter() - start)
    return _PROBE_BYTES / best


class SlowPassDetector:
    """Watch single-token passes of one model; speak once.

    A single-token pass reads every weight once, so its time is near bytes / bandwidth. The
    bandwidth is measured only after several passes in a row looked wrong.
    """

    def __init__(
        self,
        weight_bytes: int,
        *,
        threads: int,
        bandwidth: Callable[[], float] = measure_read_bandwidth,
    ) -> None:
        self.suspicious_seconds = weight_bytes / _SUSPICIOUS_BYTES_PER_SECOND + 0.02
        self._weight_bytes = weight_bytes
        self._threads = threads
        self._bandwidth = bandwidth
        self._slowest_run: list[float] = []
        self._is_done = threads < 2

    def observe(self, pass_seconds: float) -> str | None:
        """Take the time of one single-token pass; return the notice to give, at most once."""
        if self._is_done or pass_seconds < self.suspicious_seconds:
            self._slowest_run.clear()
            return None
        self._slowest_run.append(pass_seconds)
        if len(self._slowest_run) < _IN_A_ROW:
            return None
        fastest = min(self._slowest_run)
        self._slowest_run.clear()
        expected = self._weight_bytes / self._bandwidth()
        if fastest < _FACTOR * expected:
            return None
        self._is_done = True
        return (
            f"a one-token pass takes {1e3 * fastest:.0f} ms, but reading the model's "
            f"{self._weight_bytes / 1e6:.0f} MB takes about {1e3 * expected:.0f} ms: the "
            f"{self._threads} threads probably share one core, or the machine is very busy; "
            "restart the program, with OMP_PROC_BIND=close OMP_PLACES=cores in the environment"
        )
