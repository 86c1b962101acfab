"""Energy the machine says it used, from the counters of Linux (RAPL); None where it says nothing.

The counters cover whole processors and their memory: idle power and what other programs did
meanwhile are in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RAPL_FOLDER = Path("/sys/class/powercap")
# the memory-mapped interface (intel-rapl-mmio) repeats the same counters under another name
_ZONE_FOLDER = re.compile(r"intel-rapl:\d+(:\d+)?")
# cores and graphics are part of a package, and a platform (psys) contains it; memory is apart
_ZONE_NAMES = re.compile(r"package-\d+(-die-\d+)?|dram")


@dataclass(slots=True)
class _Zone:
    """One counter in microjoules, which starts anew after `wraps_after`."""

    counter: Path
    wraps_after: int
    last: int

    def advance(self) -> int:
        """Return the microjoules since the last call; OSError or ValueError if unreadable."""
        now = int(self.counter.read_text())
        used = now - self.last if now >= self.last else now - self.last + self.wraps_after
        self.last = now
        return used


class EnergyMeter:
    """Counts joules from when it is made.

    A counter that wrapped around once between two readings is understood; it holds minutes to
    hours of full power, so read a long measurement now and then. Usually only root may read them.
    """

    def __init__(self, folder: Path = RAPL_FOLDER) -> None:
        self._zones = _find_zones(folder)
        self._microjoules = 0

    def read(self) -> float | None:
        """Return the joules so far; None where the machine has no counter that we may read."""
        try:
            self._microjoules += sum(zone.advance() for zone in self._zones)
        except (OSError, ValueError):
            self._zones = []  # one that failed is missing in every later sum, too
        return self._microjoules / 1e6 if self._zones else None


def _find_zones(folder: Path) -> list[_Zone]:
    """Return the counters whose sum counts nothing twice; none if one of them is unreadable."""
    zones = []
    try:
        for path in sorted(folder.iterdir()):
            if not _ZONE_FOLDER.fullmatch(path.name):
                continue
            if _ZONE_NAMES.fullmatch((path / "name").read_text().strip()):
                counter = path / "energy_uj"
                wraps_after = int((path / "max_energy_range_uj").read_text())
                zones.append(_Zone(counter, wraps_after, int(counter.read_text())))
    except (OSError, ValueError):
        return []
    return zones
