"""What stands after the reply: a cut is told, and nothing is glued to the reply's last line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.cli import main

from .conftest import Run, ScriptedProgram, reply_text

Shown = Callable[..., str]


@pytest.fixture
def shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Return a function that runs the program with `2>&1` and returns what is in the file."""

    def shown(*arguments: str, stdin: bytes = b"") -> str:
        file = tmp_path / "both"
        with open(file, "w") as stdout, open(os.dup(stdout.fileno()), "w") as stderr:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            monkeypatch.setattr(sys, "stdout", stdout)
            monkeypatch.setattr(sys, "stderr", stderr)
            main(arguments)
        return file.read_text()

    return shown


def test_a_reply_cut_by_the_limit_is_told(run: Run) -> None:
    outcome = run("generate", "hello", "--max-tokens", "3")
    assert (outcome.code, outcome.out) == (0, reply_text()[:3])
    assert outcome.err == "note: the reply is not complete: cut by --max-tokens 3\n"
    assert run("generate", "hello").err == ""
    assert run("generate", "hello", "--max-tokens", "3", "--json").err == ""


def test_a_reply_cut_by_the_context_says_which(run: Run, program: ScriptedProgram) -> None:
    program.context_size = 60
    for command, stdin in ((("generate", "hello"), b""), (("chat",), b"hello\n")):
        outcome = run(*command, stdin=stdin)
        assert "not complete: cut by a full context after " in outcome.err
        assert "--ctx" in outcome.err


def test_a_turn_cut_by_the_limit_is_told_each_time(run: Run) -> None:
    outcome = run("chat", "--max-tokens", "3", stdin=b"hello\nmore\n")
    assert outcome.err.count("cut by --max-tokens 3") == 2


def test_json_that_was_cut_is_said_to_be_no_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    schema = ("--json-schema", str(tmp_path / "schema.json"))
    outcome = run("generate", "hello", "--max-tokens", "1", *schema)
    assert "so it is not whole JSON" in outcome.err


@pytest.mark.parametrize("case", ["figures", "cut", "warning", "failure"])
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_nothing_is_glued_to_the_last_line_of_the_reply(
    shown: Shown, program: ScriptedProgram, case: str, command: str
) -> None:
    options = {"figures": ["--verbose"], "cut": ["--max-tokens", "20"]}.get(case, [])
    program.warning = "passes are slow" * (case == "warning")
    if case == "failure":
        program.failure_after = 9
    options += ["--drafter", "none"]
    if command == "generate":
        text = shown("generate", "hello", *options)
    else:
        text = shown("chat", *options, stdin=b"hello\n")
    first, second, *_ = text.splitlines()
    assert first
    assert reply_text().startswith(first)
    beginning = {"figures": str(len(program.script(1))), "failure": "error: "}
    assert second.startswith(beginning.get(case, "note: "))


def test_a_terminal_shows_figures_on_their_own_line_after_piped_text(
    run: Run, program: ScriptedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, error_side = os.openpty()
    reader, data_side = os.pipe()
    with open(error_side, "w") as stderr, open(data_side, "w") as stdout:
        monkeypatch.setattr(sys, "stdin", None)
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(sys, "stdout", stdout)
        main(["generate", "hello"])
        said = ""
        while "bit-identical" not in said:
            said += os.read(terminal, 65536).decode()
    assert os.read(reader, 65536).decode() == reply_text(), "a pipe gets the text alone"
    os.close(terminal)
    os.close(reader)
    figures = f"{len(program.script(1))} tokens in"
    assert "\n" in said[: said.index(figures)].rpartition("\x1b[2K")[2]
