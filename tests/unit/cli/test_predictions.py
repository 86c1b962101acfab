"""`generate --prediction`: from files and pipes, to the letter, and what it does to the reply."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.config import Request
from pilotfish.generation import Prompt, TextEngine

from .conftest import Run, reply_text

Asked = Callable[..., tuple[Prompt, object]]


@pytest.fixture
def asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Return a function that runs `generate` and returns the prompt and the prediction it made."""
    seen: list[tuple[Prompt, object]] = []
    plain = TextEngine.prompt_ids

    def recorded(self: TextEngine, prompt: Prompt, request: Request) -> object:
        seen.append((prompt, request.prediction))
        return plain(self, prompt, request)

    monkeypatch.setattr(TextEngine, "prompt_ids", recorded)

    def asked(*arguments: str, stdin: bytes = b"") -> tuple[Prompt, object]:
        outcome = run("generate", *arguments, stdin=stdin)
        assert (outcome.code, outcome.err) == (0, "")
        return seen.pop()

    return asked


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbf  x = 1\n")
    (tmp_path / "b.py").write_bytes(b"y = 2\r\n\n")
    return str(tmp_path / "a.py"), str(tmp_path / "b.py")


def test_the_file_is_the_prediction_to_the_letter(asked: Asked, files: tuple[str, str]) -> None:
    a, b = files
    assert asked("Go", "--prediction", a) == ("Go", "  x = 1\n")
    assert asked("Go", "-f", a, "--prediction", a) == ("Go\n\n  x = 1", "  x = 1\n")
    assert asked("Go") == ("Go", None)
    # several follow one another
    assert asked("Go", "--prediction", b, "--prediction", a) == ("Go", "y = 2\r\n\n  x = 1\n")


def test_piped_text_can_be_prompt_and_prediction(asked: Asked, files: tuple[str, str]) -> None:
    code = b"x = 1\n"
    assert asked("Rename", "--prediction", "-", stdin=code) == ("Rename\n\nx = 1", "x = 1\n")
    # a pipe is read once, whoever names it
    assert asked("-f", "-", "Go", "--prediction", "-", stdin=code) == ("Go\n\nx = 1", "x = 1\n")
    assert asked("Go", "--prediction", "-", "--prediction", files[0], stdin=code) == (
        "Go\n\nx = 1",
        "x = 1\n  x = 1\n",
    )


def test_the_reply_is_the_same_and_its_tokens_are_counted(run: Run, tmp_path: Path) -> None:
    predicted = tmp_path / "reply.txt"
    predicted.write_text(reply_text(), encoding="utf-8")
    arguments = ("generate", "hello", "--drafter", "prediction")
    plain = json.loads(run(*arguments, "--json").out)
    reply = json.loads(run(*arguments, "--json", "--prediction", str(predicted)).out)
    assert reply["text"] == plain["text"] == reply_text()
    assert plain["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    assert reply["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 40
    assert reply["stats"]["by_drafter"]["prediction"]["accepted"] > 40


def test_painting_names_the_prediction_only_where_there_is_one(
    run: Run, files: tuple[str, str]
) -> None:
    painted = ("generate", "hello", "--color")
    assert "prediction" in run(*painted, "--prediction", files[0]).err
    assert "prediction" not in run(*painted).err


def test_an_empty_file_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    outcome = run("generate", "hello", "--prediction", str(tmp_path / "empty"))
    assert (outcome.code, outcome.out.strip()) == (0, reply_text())
    assert "empty is empty: it predicts nothing" in outcome.err


def test_what_cannot_be_read_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"ab\xff")
    missing = run("generate", "hello", "--prediction", str(tmp_path / "missing"))
    missing.is_one_error("cannot read --prediction", "missing: No such file")
    binary = run("generate", "hello", "--prediction", str(tmp_path / "binary"))
    binary.is_one_error("--prediction", "binary is not UTF-8 text: byte 2 is 0xff")


def test_a_terminal_is_no_prediction(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.cli.prompt_parts.Pipe.is_there", property(lambda self: False))
    run("generate", "hello", "--prediction", "-").is_one_error("--prediction -", "nothing is piped")
