"""What this machine gives the process: cores, memory, and what it is."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from pilotfish.errors import NotEnoughMemory

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


def require_memory(name: str, needed_bytes: int) -> None:
    """Raise NotEnoughMemory when `needed_bytes` are not free."""
    free = available_memory_bytes()
    if free is not None and needed_bytes > free:
        raise NotEnoughMemory(
            f"{name} needs about {needed_bytes / 1e6:.0f} MB more, {free / 1e6:.0f} MB are free",
            hint="use a smaller model, a shorter context or fewer sessions",
        )


def processor_name() -> str:
    """Return the processor's name as the system gives it."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
