"""`pilotfish advise` as a process, on a real model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.models

TARGET = ("--target", "smollm2-135m")


def advise(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pilotfish", "advise", *TARGET, *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advise") / "kept.jsonl"


@pytest.fixture(scope="module")
def measured(kept: Path) -> dict[str, Any]:
    """Return what a short measurement of our own prompts says."""
    return advise("--limit", "6", "--max-tokens", "24", "--record", str(kept), "--measure")


def test_advice_from_a_real_model_is_whole(measured: dict[str, Any]) -> None:
    assert measured["drafter"] in ("auto", "suffix", "none")
    assert measured["recorded"]["prompts"] == 6
    assert len(measured["by_category"]) in (0, 6)
    assert measured["draft_model"] is None
    expected = measured["prediction"]["auto"]["expected"]
    assert 0.9 < expected <= measured["oracle_speedup"]
    assert measured["reasons"]
    assert measured["measured"]["same_text"] == [6, 6]
    assert measured["calibration"]["curve_seconds"]
    assert "/" not in measured["provenance"]["command"]


def test_kept_replies_give_advice_in_seconds(measured: dict[str, Any], kept: Path) -> None:
    again = advise("--replay", str(kept))
    assert again["recorded"] == measured["recorded"]
    assert again["prediction"].keys() >= {"auto", "suffix"}
    # rounds are those of the same replies, whatever the machine takes for them
    rounds = [one["modes"]["suffix"]["tokens_per_round"] for one in (measured, again)]
    assert rounds[0] == pytest.approx(rounds[1], rel=0.15)
