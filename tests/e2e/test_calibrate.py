"""`pilotfish calibrate` as a process, on a real file and both backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotfish.calibration import QUICK
from support.tiny_gguf import write_tiny

BACKENDS = ["native", "llama"]


def calibrate(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # kept results go to the folder of the test, models stay where they are
    return subprocess.run(
        [sys.executable, "-m", "pilotfish", "calibrate", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PILOTFISH_CACHE": str(cache)},
        timeout=300,
    )


def document(cache: Path, *arguments: str) -> dict[str, Any]:
    done = calibrate(cache, "--quick", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> None:
    widths = [str(width) for width in QUICK.widths]
    assert list(found["curve_seconds"]) == list(found["ratio"]) == widths
    assert found["ratio"]["1"] == 1.0
    assert all(seconds > 0 for seconds in found["curve_seconds"].values())
    assert found["read_bandwidth_bytes_per_second"] * found["floor_seconds"] == pytest.approx(
        found["step_bytes"]
    )
    assert found["overhead_seconds"] > 0
    assert found["sentence"].startswith("On this machine checking 4 tokens costs ")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pair_is_measured_and_kept(tmp_path: Path, backend: str) -> None:
    files = [str(write_tiny(tmp_path / name)) for name in ("target.gguf", "draft.gguf")]
    pair = ("-m", files[0], "-d", files[1], "--backend", backend, "--ctx", "300")
    found = document(tmp_path, *pair)
    check(found)
    assert found["context"] == 128
    assert list(found["contexts"]) == ["128", "284"]
    assert found["draft_cost_ratio"] > 0
    assert found["models"]["draft"]["path"] == files[1]
    (kept,) = (tmp_path / "calibration").iterdir()
    report = json.loads(kept.read_text())["report"]
    assert report["target"]["seconds"][0] == list(found["curve_seconds"].values())


@pytest.mark.models
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_real_model_costs_more_at_wide_passes(tmp_path: Path, backend: str) -> None:
    from pilotfish.models import resolve

    path = resolve("smollm2-135m")
    found = document(tmp_path, "-m", str(path), "--backend", backend)
    check(found)
    # sixteen rows do at least twice the work of one, whatever else the machine does
    assert found["ratio"]["16"] > 1.5
    assert found["step_bytes"] > 90e6
    assert found["draft_cost_ratio"] is None


def test_a_file_that_is_none_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = calibrate(tmp_path, "-m", str(tmp_path / "none.gguf"), "--quick")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
