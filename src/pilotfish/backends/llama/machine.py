"""What this machine gives the process: cores, memory, and how OpenMP places its threads."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PLACEMENT = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
_PLACEMENT_NAMES = (*_PLACEMENT, "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_CPU_ROOT = Path("/sys/devices/system/cpu")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_HAS_AFFINITY = hasattr(os, "sched_getaffinity")


def _granted_cpus() -> frozenset[int]:
    if _HAS_AFFINITY:
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


# Read once, at import: OpenMP binds the calling thread to one core at the first pass, and a later
# reading would then find a machine of one core.
GRANTED_CPUS = _granted_cpus()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def count_cores(cpus: frozenset[int], cpu_root: Path = _CPU_ROOT) -> int:
    """Return how many physical cores `cpus` cover; a CPU of unknown topology counts as a core."""
    cores = set()
    for cpu in cpus:
        siblings = _read(cpu_root / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        cores.add(siblings or str(cpu))
    return len(cores)


def cpu_quota(cgroup_root: Path = _CGROUP_ROOT) -> float | None:
    """Return the CPUs' worth of time the container may use, or None when nothing limits it."""
    quota, _, period = _read(cgroup_root / "cpu.max").partition(" ")
    if not quota:
        quota = _read(cgroup_root / "cpu" / "cpu.cfs_quota_us")
        period = _read(cgroup_root / "cpu" / "cpu.cfs_period_us")
    try:
        granted = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):
        return None
    return granted if granted > 0 else None


def default_threads() -> int:
    """Return the physical cores given to this process, bounded by its container's quota."""
    cores = count_cores(GRANTED_CPUS)
    quota = cpu_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def available_memory_bytes() -> int | None:
    """Return the memory a new allocation may take without swapping, or None when unknown."""
    free = None
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _read(_CGROUP_ROOT / "memory.max"), _read(_CGROUP_ROOT / "memory.current")
    if limit.isdigit() and used.isdigit():
        room = int(limit) - int(used)
        free = room if free is None else min(free, room)
    return free


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


def processor_name() -> str:
    """Return the processor's name as the system gives it."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
