"""The program as a whole: version, help, and readers that go away."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pilotfish
from pilotfish.cli import command_names
from pilotfish.cli.console import OriginSpans, SideBySide, one_line, page
from pilotfish.generation import Piece
from pilotfish.types import EmittedToken

from .conftest import Run

COMMANDS = [(), *((name,) for name in command_names())]
COMMANDS += [("models", name) for name in ("list", "pull", "info")]

OPTIONS = (
    "--target --draft --drafter --num-speculative-tokens --verify --strict --backend "
    "--draft-head-size --no-draft-requantize --threads --ctx --max-tokens --temperature "
    "--top-k --top-p --min-p --repetition-penalty "
    "--presence-penalty --frequency-penalty --logit-bias --stop --seed --system --raw "
    "--logprobs --json --color --verbose --file --config"
)


def test_version_is_one_line(run: Run) -> None:
    outcome = run("--version")
    assert (outcome.code, outcome.out) == (0, f"pilotfish {pilotfish.__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_without_colour(run: Run, command: tuple[str, ...]) -> None:
    outcome = run(*command, "--help")
    assert outcome.code == 0
    assert "Usage: pilotfish" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "\x1b" not in outcome.out


def test_no_arguments_print_the_help(run: Run) -> None:
    assert run().out == run("--help").out


def test_a_bad_value_points_to_the_help_of_its_command(run: Run) -> None:
    for name in command_names():
        outcome = run(name, "--no-such-option")
        assert f"pilotfish {name} --help" in outcome.err.splitlines()[1]


def test_help_names_every_shared_option(run: Run) -> None:
    text = run("generate", "--help").out
    for option in OPTIONS.split():
        assert f"{option} " in text


def test_a_reader_that_goes_away_is_no_drama() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pilotfish", "generate", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert errors == b""


def test_parts_by_origin_join_to_the_text_of_the_pieces() -> None:
    fish = "🦈".encode()
    tokens = {0: b"a", 1: fish[:2], 2: fish[2:] + b"b", 3: b"", 4: b"stop"}
    spans = OriginSpans(lambda token_id: tokens[token_id])

    def emitted(*origins: str, start: int) -> tuple[EmittedToken, ...]:
        return tuple(EmittedToken(start + i, origin) for i, origin in enumerate(origins))

    assert spans.split(Piece("a", emitted("target", "suffix", start=0))) == [("a", "target")]
    assert spans.split(Piece("", emitted("model", start=2))) == []
    last = spans.split(Piece("🦈b", emitted("target", "target", start=3)))
    assert last == [("🦈b", "model")]


def test_two_texts_side_by_side_stay_in_their_columns() -> None:
    both = SideBySide("left", "right")
    both.add(0, [("[red]one[/red]\n", "target"), ("two " * 30, "suffix")])
    both.add(1, [("short", "model")])
    console = page()
    console.width = 40
    with console.capture() as capture:
        console.print(both.table(console))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 40
    assert "[red]one[/red]" in lines[1]
    assert "short" in lines[1]
    with console.capture() as capture:
        console.print(both.table(console, num_lines=2))
    assert len(capture.get().splitlines()) == 3


def test_messages_are_one_line_of_printable_characters() -> None:
    assert one_line("a\nb\t c\x1b[31m \ud800") == "a b c\\x1b[31m \\ud800"
