"""`python -m pilotfish_native`: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pilotfish_native.__main__ as program
import pytest
from pilotfish_native.check import QUICK
from pilotfish_native.curve import WIDTHS

from support.tiny_gguf import write_tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", quantised=True))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    code = program.main(arguments)
    return code, *capsys.readouterr()


def test_the_curve_is_one_document(capsys: pytest.CaptureFixture[str], path: str) -> None:
    options = ("--json", "--context", "40", "--threads", "2", "--rounds", "2")
    code, out, err = run(capsys, "curve", path, *options, "--instructions", "portable")
    assert (code, err) == (0, "")
    curve = json.loads(out)
    assert list(curve["curve_seconds"]) == [str(width) for width in WIDTHS]
    assert list(curve["ratio"]) == [str(width) for width in WIDTHS[1:]]
    assert curve | {"context": 40, "threads": 2, "instructions": "portable", "rounds": 2} == curve
    seconds = curve["floor_seconds"]
    assert curve["read_bandwidth_bytes_per_second"] * seconds == pytest.approx(curve["step_bytes"])
    assert min(curve["prompt_tokens_per_second"], seconds, *curve["curve_seconds"].values()) > 0
    assert 0 < curve["step_bytes"] < curve["weight_bytes"]
    assert curve["load_seconds"] > 0


def test_the_curve_reads_well(capsys: pytest.CaptureFixture[str], path: str) -> None:
    code, out, _ = run(capsys, "curve", path, "--threads", "1", "--rounds", "1", "--context", "1")
    assert code == 0
    lines = out.splitlines()
    assert "threads 1, context 1" in lines[0]
    assert max(map(len, lines)) <= 80
    assert len(lines) == 6 + len(WIDTHS)


def test_equal_bits_end_with_0(capsys: pytest.CaptureFixture[str], path: str) -> None:
    code, out, err = run(capsys, "check", path, "--quick", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["differing_bits"], result["differing_cases"]) == (0, [])
    assert result["cases"] == 2 * (2 + 7 + 3)
    assert result["threads"] == list(QUICK.threads)
    assert run(capsys, "check", path, "--quick")[1] == "0 differing bits in 24 cases\n"


def test_other_bits_end_with_1_and_are_named(
    capsys: pytest.CaptureFixture[str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = program.open_file

    def open_altered(*arguments: Any, threads: int, **options: Any) -> Any:
        core = open_file(*arguments, threads=threads, **options)
        return core if threads == 1 else Altered(core)

    monkeypatch.setattr(program, "open_file", open_altered)
    code, out, _ = run(capsys, "check", path, "--quick", "--json")
    assert code == 1
    assert json.loads(out)["differing_cases"] == ["threads 2, width 17"]
    code, out, _ = run(capsys, "check", path, "--quick")
    assert code == 1
    assert out.splitlines()[1:] == ["  threads 2, width 17"]


class Altered:
    """A model that changes a sign in passes over 17 tokens."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def forward(self, sequences: Any, token_ids: Any, first_rows: Any) -> Any:
        rows = self._core.forward(sequences, token_ids, first_rows)
        if len(rows) == 17:
            np.negative(rows[3], out=rows[3])
        return rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curve", "none.gguf"], "does not exist"),
        (["check", "none.gguf"], "does not exist"),
        (["curve", __file__], "not a GGUF file"),
        (["curve", "FILE", "--context", "0"], "'0' is not a whole number from 1"),
        (["curve", "FILE", "--threads", "two"], "'two' is not a whole number from 1"),
        (["curve", "FILE", "--rounds", "-1"], "'-1' is not a whole number from 1"),
        (["curve", "FILE", "--instructions", "sse2"], "instructions 'sse2' are not available"),
        (["check", "FILE", "--instructions", ""], "instructions '' are not available"),
        (["curve", "FILE", "more"], "more"),
        (["curve"], "FILE"),
        (["draw", "FILE"], "draw"),
        ([], "COMMAND"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_ends_with_2(
    capsys: pytest.CaptureFixture[str], path: str, arguments: list[str], message: str
) -> None:
    given = [path if argument == "FILE" else argument for argument in arguments]
    code, out, err = run(capsys, *given)
    assert (code, out) == (2, "")
    first, *others = err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert all(line.startswith("hint: ") for line in others)
    assert len(others) <= 1


def test_networks_it_does_not_know_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "window.gguf", sliding_window=16)
    code, _, err = run(capsys, "curve", str(path))
    assert code == 2
    assert "gemma2" in err


def test_without_pilotfish_the_error_says_what_to_install(
    capsys: pytest.CaptureFixture[str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pilotfish", None)
    code, _, err = run(capsys, "curve", path)
    assert code == 2
    assert err.splitlines()[1] == "hint: pip install pilotfish"


def test_progress_is_shown_to_people_only(
    capsys: pytest.CaptureFixture[str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, out, err = run(capsys, "check", path, "--quick", "--json")
    assert "threads 2, width 17" in err
    json.loads(out)


def test_it_runs_as_a_module(path: str) -> None:
    command = [sys.executable, "-m", "pilotfish_native"]
    shown = subprocess.run(
        [*command, "--help"], check=True, capture_output=True, text=True, timeout=60
    )
    assert "curve" in shown.stdout
    assert "check" in shown.stdout
    failed = subprocess.run([*command, "draw"], check=False, capture_output=True, timeout=60)
    assert failed.returncode == 2
