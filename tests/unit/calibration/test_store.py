"""Kept calibrations: found again for the same pair and settings only, and never trusted blindly."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pilotfish.calibration import (
    FULL,
    QUICK,
    Calibration,
    costs_for,
    describe_pair,
    load,
    mark_stale,
    save,
)
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from support.file_model import FileModel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PILOTFISH_CACHE", str(folder))
    return folder


@pytest.fixture
def target_file(tmp_path: Path) -> Path:
    path = tmp_path / "target.gguf"
    path.write_bytes(b"weights")
    return path


def config(**options: Any) -> EngineConfig:
    names = {"draft_head_size", "draft_requantize", "strict"} & options.keys()
    speculation = SpeculationConfig(**{name: options.pop(name) for name in names})
    model = ModelConfig(reference="m", **options)
    return EngineConfig(target=model, draft=model, speculation=speculation)


def described(path: Path, **facts: Any) -> dict[str, Any]:
    return describe_pair(FileModel(path, **facts), None, config())


def measured(path: Path) -> Calibration:
    model = FileModel(path)
    return costs_for(model, description=describe_pair(model, None, config()))


def test_the_second_load_finds_what_the_first_measured(target_file: Path) -> None:
    model = FileModel(target_file)
    description = describe_pair(model, None, config())
    first = costs_for(model, description=description)
    assert first.plan == QUICK.name
    assert first.reading is not None
    assert first.reading.bandwidth_bytes_per_second == 2000
    assert load(description) == first


@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("plan", [QUICK.name, FULL.name])
def test_what_is_kept_is_used_however_disturbed_the_machine_was(
    target_file: Path, plan: str, steady: bool
) -> None:
    model = FileModel(target_file)
    description = describe_pair(model, None, config())
    kept = replace(costs_for(model, description=description), steady=steady, plan=plan)
    save(description, kept)
    readings = model.readings
    for _ in range(3):
        assert costs_for(model, description=description) == kept
    assert model.readings == readings, "nothing was measured again"


def test_measuring_is_announced_and_finding_is_not(target_file: Path) -> None:
    model = FileModel(target_file)
    description = describe_pair(model, None, config())
    told: list[str] = []

    def progress(label: str, share: float) -> None:
        told.append(label)

    costs_for(model, description=description, progress=progress)
    assert told
    told.clear()
    costs_for(model, description=description, progress=progress)
    assert told == []


@pytest.mark.parametrize(
    ("measured_at", "is_gone"),
    [
        ("2026-06-02T12:00:00+00:00", False),
        ("2026-06-01T13:00:00+00:00", False),
        ("2026-06-01T11:00:00+00:00", True),
        ("2026-06-03T11:00:00+00:00", False),  # a clock that was set back
        ("", True),
        ("2026-06-01T13:00:00", True),  # of no time zone
    ],
)
def test_costs_that_drifted_are_measured_again_once_a_day_at_most(
    target_file: Path, measured_at: str, is_gone: bool
) -> None:
    description = described(target_file)
    save(description, replace(measured(target_file), measured_at=measured_at))
    now = datetime.fromisoformat("2026-06-02T12:00:00+00:00")
    for _ in range(2):
        mark_stale(description, now=now)
        assert (load(description) is None) == is_gone


CHANGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "threads": lambda path: described(path, threads=1),
    "library": lambda path: described(path, library="version 2"),
    "context": lambda path: described(path, context_size=4096),
    "cache type": lambda path: describe_pair(FileModel(path), None, config(cache_type="f32")),
    "strict": lambda path: describe_pair(FileModel(path), None, config(strict=True)),
    "draft": lambda path: describe_pair(FileModel(path), FileModel(path), config()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_settings_have_costs_of_their_own(target_file: Path, change: str) -> None:
    save(described(target_file), measured(target_file))
    assert load(CHANGES[change](target_file)) is None
    assert load(described(target_file)) is not None


def test_contexts_of_one_bucket_share_costs(target_file: Path) -> None:
    assert described(target_file, context_size=500) == described(target_file)


@pytest.mark.parametrize("options", [{"draft_head_size": 0}, {"draft_requantize": False}])
def test_a_draft_of_another_shape_has_costs_of_its_own(
    target_file: Path, options: dict[str, Any]
) -> None:
    pair = FileModel(target_file), FileModel(target_file)
    assert describe_pair(*pair, config()) != describe_pair(*pair, config(**options))


def test_another_file_under_the_same_name_is_another_model(target_file: Path) -> None:
    save(described(target_file), measured(target_file))
    target_file.write_bytes(b"other weights")
    assert load(described(target_file)) is None
    save(described(target_file), measured(target_file))
    os.utime(target_file, ns=(1, 1))
    assert load(described(target_file)) is None


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "another description": lambda kept: kept | {"for": {}},
    "no report": lambda kept: {"for": kept["for"]},
    "a list": lambda kept: [kept],
    "a curve of nothing": lambda kept: _with(kept, target={"widths": []}),
    "a negative time": lambda kept: _with(kept, overhead_seconds=-1.0),
    "a time that is none": lambda kept: _with(kept, overhead_seconds=float("nan")),
    "no speed": lambda kept: _with(
        kept, reading={"bandwidth_bytes_per_second": 0, "step_bytes": 1}
    ),
    "endless rounds": lambda kept: _with(kept, rounds=float("inf")),
    "a report that is none": lambda kept: kept | {"report": None},
}


def _with(kept: Any, **changes: Any) -> Any:
    return kept | {"report": kept["report"] | changes}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_no_result(target_file: Path, cache: Path, damage: str) -> None:
    save(described(target_file), measured(target_file))
    (file,) = (cache / "calibration").iterdir()
    file.write_text(json.dumps(DAMAGES[damage](json.loads(file.read_text()))))
    assert load(described(target_file)) is None


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_file_that_was_cut_is_no_result(target_file: Path, cache: Path, keep: float) -> None:
    save(described(target_file), measured(target_file))
    (file,) = (cache / "calibration").iterdir()
    text = file.read_bytes()
    file.write_bytes(text[: int(keep * len(text))])
    assert load(described(target_file)) is None


def test_a_folder_that_cannot_be_written_only_means_measuring(
    target_file: Path, cache: Path
) -> None:
    cache.write_text("a file where the folder should be")
    model = FileModel(target_file)
    description = describe_pair(model, None, config())
    before = model.readings
    for _ in range(2):
        assert costs_for(model, description=description).plan == QUICK.name
        assert model.readings > before
        before = model.readings
    assert load(description) is None
    mark_stale(description, now=datetime.now(UTC))


def test_the_key_has_the_identity_of_the_native_library(target_file: Path) -> None:
    pytest.importorskip("pilotfish_native")
    described_native = described(target_file, backend="native")
    (name, *build) = described_native["target"]["library"]
    assert name == "version 1"
    assert build, "its version and its file"
