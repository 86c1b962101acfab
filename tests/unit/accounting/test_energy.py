"""The energy meter on made-up counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.accounting.energy import EnergyMeter

WRAPS_AFTER = 262_143_328_850
# one processor with memory, its twin under another name, and a platform that contains both
ZONES = {
    "intel-rapl": None,
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "psys",
    "intel-rapl-mmio:0": "package-0",
}


def put(folder: Path, zone: str, microjoules: int) -> None:
    (folder / zone / "energy_uj").write_text(f"{microjoules}\n")


@pytest.fixture
def counters(tmp_path: Path) -> Path:
    for zone, name in ZONES.items():
        (tmp_path / zone).mkdir()
        if name is not None:
            (tmp_path / zone / "name").write_text(f"{name}\n")
            (tmp_path / zone / "max_energy_range_uj").write_text(f"{WRAPS_AFTER}\n")
            put(tmp_path, zone, 1_000_000)
    return tmp_path


def test_joules_count_from_when_the_meter_is_made(counters: Path) -> None:
    meter = EnergyMeter(counters)
    assert meter.read() == 0.0
    put(counters, "intel-rapl:0", 3_500_000)
    assert meter.read() == 2.5
    assert meter.read() == 2.5
    put(counters, "intel-rapl:0", 4_000_000)
    assert meter.read() == 3.0


def test_processor_and_memory_are_added_and_nothing_counts_twice(counters: Path) -> None:
    meter = EnergyMeter(counters)
    for zone, joules in zip(list(ZONES)[1:], (10, 200, 1, 3000, 40_000), strict=True):
        put(counters, zone, 1_000_000 + joules * 1_000_000)
    assert meter.read() == 11.0


def test_a_counter_that_starts_anew_is_understood(counters: Path) -> None:
    put(counters, "intel-rapl:0", WRAPS_AFTER - 1_000_000)
    meter = EnergyMeter(counters)
    put(counters, "intel-rapl:0", 500_000)
    assert meter.read() == 1.5
    put(counters, "intel-rapl:0", 600_000)
    assert meter.read() == pytest.approx(1.6)


def test_without_counters_nothing_is_measured(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).read() is None
    assert EnergyMeter(tmp_path / "missing").read() is None


@pytest.mark.parametrize("damage", ["missing", "not a number", "a folder"])
def test_a_sum_without_one_of_its_counters_is_not_measured(counters: Path, damage: str) -> None:
    meter = EnergyMeter(counters)
    counter = counters / "intel-rapl:0:1" / "energy_uj"
    counter.unlink()
    if damage == "not a number":
        counter.write_text("?")
    elif damage == "a folder":  # as a file that may not be read, for root as well
        counter.mkdir()
    assert EnergyMeter(counters).read() is None
    assert meter.read() is None
    if damage == "a folder":
        counter.rmdir()
    put(counters, "intel-rapl:0:1", 2_000_000)
    assert meter.read() is None
