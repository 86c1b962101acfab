"""Hints about a command line that cannot be understood are near and true, or left out."""

from __future__ import annotations

import pytest
import typer

from pilotfish.cli import app, command_names
from pilotfish.cli.usage import _CALLED_ELSEWHERE, _COMMAND_FOR
from pilotfish.errors import near_name

from .conftest import Run

COMMANDS = {
    name: {option for one in command.params for option in one.opts}
    for name, command in typer.main.get_group(app).commands.items()
}


def hint(run: Run, *arguments: str) -> str:
    outcome = run(*arguments)
    outcome.is_one_error()
    return outcome.err.splitlines()[1].removeprefix("hint: ")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--model", "did you mean -m/--target?"),
        ("--draft-model", "did you mean -d/--draft?"),
        ("--n-predict", "did you mean --max-tokens?"),
        ("-n", "did you mean --max-tokens?"),
        ("--temp", "did you mean --temperature?"),
        ("--temprature", "did you mean --temperature?"),
        ("--ctx_size", "did you mean --ctx?"),
        ("--topk", "did you mean --top-k?"),
        ("--max", "did you mean --max-tokens?"),
        ("--prompt", "the prompt has no option: write it in quotes, or name a file with -f"),
        ("--lora", "pilotfish generate --help shows what is allowed"),
        ("--mlock", "pilotfish generate --help shows what is allowed"),
        ("--host", "pilotfish generate --help shows what is allowed"),
        ("-x", "pilotfish generate --help shows what is allowed"),
    ],
)
def test_an_unknown_option_leads_to_the_one_that_was_meant_or_to_the_help(
    run: Run, option: str, expected: str
) -> None:
    assert hint(run, "generate", "hello", option, "1") == expected


@pytest.mark.parametrize("command", command_names())
def test_no_hint_names_an_option_that_the_command_lacks(run: Run, command: str) -> None:
    for name in ("model", "n-predict", "ctx-size", "alias", "prompt-file", "draft-max"):
        told = hint(run, command, f"--{name}", "1")
        if told.startswith("did you mean "):
            names = told.removeprefix("did you mean ").removesuffix("?").split("/")
            assert set(names) <= COMMANDS[command]


def test_what_others_call_our_options_leads_to_options_of_ours() -> None:
    assert set(_CALLED_ELSEWHERE) <= set().union(*COMMANDS.values())
    assert {command.split()[0] for command in _COMMAND_FOR.values()} <= set(command_names())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("genrate", "x"), "did you mean generate?"),
        (("run", "x"), "did you mean generate?"),
        (("pull",), "did you mean models pull?"),
        (("models", "lst"), "did you mean list?"),
        (("nonsense",), "pilotfish --help shows what is allowed"),
        (("models", "run"), "pilotfish models --help shows what is allowed"),
    ],
)
def test_an_unknown_command_leads_to_the_one_that_was_meant_or_to_the_help(
    run: Run, arguments: tuple[str, ...], expected: str
) -> None:
    assert hint(run, *arguments) == expected


@pytest.mark.parametrize("command", [(), ("generate",), ("models",), ("models", "pull")])
def test_the_short_form_of_help_is_the_help(run: Run, command: tuple[str, ...]) -> None:
    outcome = run(*command, "-h")
    assert (outcome.code, outcome.out) == (0, run(*command, "--help").out)
    assert outcome.out


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "bench", "advise", "calibrate"])
def test_help_tells_the_default_context(run: Run, command: str) -> None:
    words = " ".join(run(command, "--help").out.replace("│", " ").split())
    assert "Context size in tokens. Default: as the model was trained, at most 4096." in words


def test_a_near_name_differs_in_little_or_is_the_only_one_that_begins_so() -> None:
    known = ["num_speculative_tokens", "num_drafts", "seed", "qwen2.5-coder-1.5b"]
    for name, expected in {
        "num_speculative_token": "num_speculative_tokens",
        "NumDrafts": "num_drafts",
        "num-d": "num_drafts",
        "num": "",
        "sede": "seed",
        "se": "",
        "need": "seed",
        "": "",
        "---": "",
        "qwen": "qwen2.5-coder-1.5b",
        "x" * 1_000_000: "",
    }.items():
        assert near_name(name, known) == expected, name
    assert near_name("lora", ["color", "help"]) == near_name("model", ["help"]) == ""
