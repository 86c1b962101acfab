"""Prompts of several parts: the command line, files and pipes, in the order that help tells."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.cli import prompt_parts
from pilotfish.cli.prompt_parts import read_prompt
from pilotfish.generation import Prompt, TextEngine

from .conftest import Run

Asked = Callable[..., Prompt]


@pytest.fixture
def asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return a function that runs `generate` and returns the prompt it made."""
    prompts: list[Prompt] = []
    plain = TextEngine.prompt_ids

    def recorded(self: TextEngine, prompt: Prompt, *rest: object) -> list[int]:
        prompts.append(prompt)
        return plain(self, prompt, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(TextEngine, "prompt_ids", recorded)

    def asked(*arguments: str, stdin: bytes = b"") -> Prompt:
        outcome = run("generate", *arguments, stdin=stdin)
        assert (outcome.code, outcome.err) == (0, "")
        return prompts.pop()

    return asked


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "a.txt").write_bytes(b"in a\r\n")
    (tmp_path / "b.txt").write_bytes(b"in b\n\n")
    return str(tmp_path / "a.txt"), str(tmp_path / "b.txt")


def test_an_instruction_and_piped_text_are_one_prompt(asked: Asked) -> None:
    assert asked("Rename x", stdin=b"x = 1\n") == "Rename x\n\nx = 1"
    assert asked("Rename x", stdin=b"") == "Rename x"
    assert asked("Rename x", stdin=b"\n") == "Rename x"


def test_files_are_joined_in_the_order_they_are_named(asked: Asked, files: tuple[str, str]) -> None:
    a, b = files
    assert asked("-f", a, "-f", b) == "in a\n\nin b\n"
    assert asked("-f", b, "Compare", "-f", a) == "Compare\n\nin b\n\n\nin a"


def test_piped_text_comes_last_or_where_a_dash_puts_it(
    asked: Asked, files: tuple[str, str]
) -> None:
    a, b = files
    assert asked("Do", "-f", a, stdin=b"piped\n") == "Do\n\nin a\n\npiped"
    assert asked("-f", a, "-f", "-", "-f", b, stdin=b"piped") == "in a\n\npiped\n\nin b\n"


def test_raw_parts_are_joined_as_they_are(asked: Asked, files: tuple[str, str]) -> None:
    assert asked("--raw", "x", "-f", files[0], stdin=b"y\n") == "xin a\r\ny\n"


def test_a_pipe_that_sends_nothing_and_does_not_end_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prompt_parts, "_PATIENCE_SECONDS", 0)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        # the note is the first thing written; what it says then happens, so that the test ends
        monkeypatch.setattr(
            prompt_parts, "print_notices", lambda lines: (print(*lines), os.close(write_end))
        )
        assert read_prompt("hello", (), raw=False) == "hello"
    assert "waiting for piped text" in capfd.readouterr().out


def test_a_program_without_stdin_has_its_prompt(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert read_prompt("hello", files[:1], raw=False) == "hello\n\nin a"
