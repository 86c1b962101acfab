"""Where a figure comes from: complete, and without a word about the folders of the machine."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pilotfish.accounting import provenance as module
from pilotfish.accounting.provenance import (
    commit,
    peak_memory_bytes,
    provenance,
    total_memory_bytes,
    without_folders,
)

FACTS: dict[str, Any] = {
    "version": "1.2.3",
    "processor": "an abacus",
    "cores": 2,
    "memory_bytes": 1000,
    "threads": 1,
}


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    """Return a folder in a new repository, with a file of the name of ours that is part of it."""
    folder = tmp_path / "src"
    folder.mkdir()
    git(tmp_path, "init", "-q")
    (folder / "provenance.py").write_text("first\n")
    git(tmp_path, "add", "src/provenance.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    return folder


def test_a_measurement_says_all_about_its_origin() -> None:
    words = ["pilotfish", "bench", "--target", "/models/my model.gguf", "--output=~/out.json"]
    found = provenance(words, **FACTS)
    assert found["command"] == "pilotfish bench --target 'my model.gguf' --output=out.json"
    assert {name: found[name] for name in FACTS} == FACTS
    assert found["packages"]["numpy"]
    assert datetime.datetime.fromisoformat(found["date"]).tzinfo is not None
    assert json.loads(json.dumps(found)) == found
    assert str(Path(module.__file__).parents[3]) not in json.dumps(found)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("/models/a.gguf", "a.gguf"),
        ("~/a.gguf", "a.gguf"),
        ("--html=/reports/mine/report.html", "--html=report.html"),
        ("models/a.gguf", "models/a.gguf"),
        ("org/repo:file.gguf", "org/repo:file.gguf"),
        ("--rounds", "--rounds"),
        ("--temperature=0.5", "--temperature=0.5"),
        ("", ""),
    ],
)
def test_only_folders_of_absolute_paths_are_left_out(word: str, expected: str) -> None:
    assert without_folders(word) == expected


def test_the_commit_is_that_of_the_source_tree_and_says_if_files_were_changed(
    source_tree: Path,
) -> None:
    head = git(source_tree, "rev-parse", "HEAD")
    assert commit(source_tree) == head
    (source_tree / "provenance.py").write_text("second\n")
    assert commit(source_tree) == f"{head}-dirty"


def test_a_package_below_a_foreign_repository_has_no_commit(
    source_tree: Path, tmp_path: Path
) -> None:
    installed = source_tree / "site-packages"
    installed.mkdir()
    (installed / "provenance.py").write_text("ours\n")
    assert commit(installed) is None
    assert commit(tmp_path / "missing") is None


def test_without_git_there_is_no_commit(source_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit(source_tree) is None


def test_memory_is_that_of_this_process_and_machine() -> None:
    peak, total = peak_memory_bytes(), total_memory_bytes()
    assert peak is not None
    assert total is not None
    assert 5e6 < peak < total
