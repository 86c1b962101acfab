"""`pilotfish bench` on a real model: the whole document, and the same text in every mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.models

MODES = ["suffix", "ngram:4", "auto"]
ARGUMENTS = ["--limit", "6", "--rounds", "1", "--max-tokens", "24", "--json"]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a short benchmark of our own prompts prints."""
    output = tmp_path_factory.mktemp("bench") / "summary.json"
    program = [sys.executable, "-m", "pilotfish", "bench", "--target", "smollm2-135m"]
    modes = ["--modes", ",".join(MODES)]
    done = subprocess.run(
        [*program, *modes, *ARGUMENTS, "--output", str(output)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert json.loads(Path(output).read_text()) == document
    return document


def test_every_mode_gives_the_text_of_plain_decoding(summary: dict[str, Any]) -> None:
    assert summary["models"]["target"]["backend"] == "native"
    assert {name: mode["same_text"] for name, mode in summary["modes"].items()} == {
        name: [6, 6] for name in MODES
    }
    assert all(prompt["error"] is None for prompt in summary["prompts"])


def test_figures_agree_with_each_other(summary: dict[str, Any]) -> None:
    plain = summary["plain"]
    assert plain["passes"] == plain["emitted"] > 6 * 10
    for mode in summary["modes"].values():
        assert mode["emitted"] == plain["emitted"]
        assert mode["accepted"] == sum(one["accepted"] for one in mode["by_drafter"].values())
        assert mode["drafted"] > mode["accepted"] > 0
        assert mode["passes"] + mode["accepted"] == pytest.approx(mode["emitted"], abs=6)
        assert mode["tokens_per_round"] == pytest.approx(mode["emitted"] / mode["passes"])
        decoding = sum(mode["seconds"][part] for part in ("target", "draft", "overhead"))
        assert mode["tokens_per_second"] == pytest.approx(mode["emitted"] / decoding)
        low, high = mode["speedup"]["low"], mode["speedup"]["high"]
        assert low <= mode["speedup"]["geomean"] <= high
        assert len(mode["by_category"]) == 6


def test_a_real_document_knows_costs_memory_and_origin(summary: dict[str, Any]) -> None:
    compute = summary["plain"]["costs"]["compute"]
    assert compute["bytes_read_per_token"] > 50e6, "a step reads most of the weights"
    assert summary["memory"]["peak_process"] > summary["models"]["target"]["bytes"]
    assert summary["provenance"]["cores"] >= 1
    assert summary["provenance"]["command"].startswith("pilotfish bench --target smollm2-135m")
    assert "/" not in summary["provenance"]["command"]
