"""What loading does once and not again, what it refuses before it reads weights, what it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotfish.build import load_engine
from pilotfish.calibration import store
from pilotfish.cli import main
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from support.tiny_gguf import write_tiny

Measure = Callable[..., Any]
Program = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Return a function that runs the command line for its code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdin", None)

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    return run


def config(target: Path, draft: Path | None = None, **speculation: Any) -> EngineConfig:
    def one(path: Path) -> ModelConfig:
        return ModelConfig(reference=str(path), threads=1, context_size=64)

    return EngineConfig(
        target=one(target),
        draft=None if draft is None else one(draft),
        speculation=SpeculationConfig(**speculation),
    )


def disturb(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    """Let every measurement find these values."""
    measure: Measure = store.measure
    monkeypatch.setattr(store, "measure", lambda *a, **k: replace(measure(*a, **k), **found))


def test_a_pair_is_measured_at_its_first_load_and_told_so(tiny: Path, program: Program) -> None:
    ask = ("generate", "--raw", "Go:", "-m", str(tiny), "--max-tokens", "2", "--threads", "1")
    for is_told in (True, False, False):
        code, out, err = program(*ask)
        assert code == 0
        assert out
        assert err.count("measuring what passes cost") == is_told


@pytest.mark.parametrize("steady", [True, False])
def test_a_disturbed_measurement_is_told_when_it_is_made_and_used_ever_after(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, steady: bool
) -> None:
    disturb(monkeypatch, steady=steady)
    with load_engine(config(tiny)) as engine:
        assert ["pilotfish calibrate" in notice for notice in engine.facts.notices] == (
            [] if steady else [True]
        )
    monkeypatch.setattr(store, "measure", None)
    with load_engine(config(tiny)) as engine:
        assert engine.facts.notices == ()


def test_costs_that_cannot_be_kept_are_told_at_each_load(tiny: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    for _ in range(2):
        with load_engine(config(tiny)) as engine:
            (notice,) = [one for one in engine.facts.notices if "cannot be kept" in one]
            assert str(cache) in notice
            assert "PILOTFISH_CACHE" in notice
