"""One installation runs what README shows, and hints say what really installs the rest."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotfish import errors
from pilotfish.errors import MissingExtra

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# says what it was asked for, and where packages would be
_PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in *sysconfig*) echo "{library}" ;; esac
"""

Install = Callable[..., tuple[int, str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Return a function that runs `scripts/install` on an environment that installs nothing, for
    the exit code, what was asked of Python, and stderr."""
    binaries, library, log = tmp_path / "bin", tmp_path / "lib", tmp_path / "log"
    binaries.mkdir()
    (library / "pilotfish_native").mkdir(parents=True)
    python = binaries / "python"
    python.write_text(_PYTHON.format(log=log, library=library))
    python.chmod(0o755)

    def run(*extras: str) -> tuple[int, str, str]:
        log.write_text("")
        done = subprocess.run(
            ["bash", str(ROOT / "scripts" / "install"), *extras],
            env=os.environ | {"VIRTUAL_ENV": str(tmp_path), "CXX": "c++"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, log.read_text(), done.stderr

    return run


def installed_extras(log: str) -> set[str]:
    match = re.search(r"-e \.(?:\[(.*)\])?$", log, re.MULTILINE)
    assert match, log
    return set(filter(None, (match[1] or "").split(",")))


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        ([], {"server", "grammar"}),
        (["llama"], {"server", "grammar", "llama"}),
        (["llama", "server"], {"server", "grammar", "llama"}),
        (["bare"], set()),
        (["bare", "grammar"], {"grammar"}),
    ],
)
def test_one_installation_brings_what_all_commands_need(
    install: Install, arguments: list[str], extras: set[str]
) -> None:
    code, log, err = install(*arguments)
    assert code == 0, err
    assert installed_extras(log) == extras


def test_an_extra_that_is_none_is_refused_before_anything_is_installed(install: Install) -> None:
    code, log, err = install("servr")
    assert code == 2
    assert log == ""
    error, hint = err.splitlines()
    assert error == "error: there is no extra servr"
    assert all(extra in hint for extra in EXTRAS)


def test_readme_begins_with_the_installation_that_runs_all_it_shows() -> None:
    text = (ROOT / "README.md").read_text()
    first = re.search(r"scripts/install([^&\n]*)", text)
    assert first
    assert first[1].strip() == ""
    assert "pilotfish serve" in text


@pytest.mark.parametrize("extra", [*EXTRAS])
def test_hints_in_a_clone_name_its_script(extra: str) -> None:
    assert MissingExtra(extra, needed_for="this").hint == f"{ROOT}/scripts/install {extra}"


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"all", "dev"}))
def test_hints_elsewhere_name_the_libraries_that_are_missing(
    extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(errors, "_SOURCES", tmp_path)
    hint = MissingExtra(extra, needed_for="this").hint
    assert hint.startswith("pip install '")
    asked = hint.removeprefix("pip install ").strip("'").split("' '")
    assert sorted(map(requirement, asked)) == sorted(map(requirement, EXTRAS[extra]))


def requirement(text: str) -> tuple[str, frozenset[str]]:
    """Return name and bounds of "fastapi>=0.120,<1"."""
    match = re.fullmatch(r"([\w-]+)(.*)", text)
    assert match
    return match[1], frozenset(match[2].split(","))
