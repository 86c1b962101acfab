"""`--template-option` of `generate`, `chat` and `serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pilotfish.cli.template_options import parse_template_options
from pilotfish.errors import ConfigError
from pilotfish.generation import TextEngine
from pilotfish.server import running
from pilotfish.server.options import ServerOptions

from .conftest import TEMPLATE, Run, ScriptedProgram

# the script answers turn 2 where a turn has ended before
SWITCHED = (
    "{% if enable_thinking is defined and enable_thinking == false %}<|im_end|>{{ style }}"
    "<|im_end|>{% endif %}" + TEMPLATE
)


@pytest.fixture(autouse=True)
def switched(program: ScriptedProgram) -> None:
    program.tokenizer.chat_template = SWITCHED


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_options_of_the_template_reach_it(run: Run, command: str) -> None:
    def said(*options: str) -> str:
        outcome = run(command, *options, stdin=b"hello\n")
        assert outcome.code == 0
        return outcome.out[:2]

    assert said() == "1:"
    assert said("--template-option", "enable_thinking=true") == "1:"
    assert said("--template-option", "enable_thinking=false") == "2:"


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_an_option_that_the_template_does_not_read_is_one_error(run: Run, command: str) -> None:
    outcome = run(command, "--template-option", "enable_thinkin=false", stdin=b"hello\n")
    assert "reads no option 'enable_thinkin'" in outcome.err
    assert "did you mean enable_thinking?" in outcome.err
    assert outcome.out == ""


def test_the_server_has_them_for_all_requests_and_refuses_unknown_ones_at_its_start(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Mapping[str, Any]] = []

    def take(engine: TextEngine, bound: object, options: ServerOptions, **rest: object) -> None:
        seen.append(options.template_options)

    monkeypatch.setattr(running, "run", take)
    option = "--template-option"
    assert run("serve", "--port", "0", option, "style=x", option, "style=y").code == 0
    assert seen == [{"style": "y"}]
    run("serve", "--port", "0", option, "stile=x").is_one_error("reads no option 'stile'")


def test_values_are_json_or_text() -> None:
    entries = ["a=false", "b=3", "c=high", 'd={"x": [1]}', "e=", "f=a=b", "g=null"]
    assert parse_template_options(entries) == {
        "a": False, "b": 3, "c": "high", "d": {"x": [1]}, "e": "", "f": "a=b", "g": None,
    }  # fmt: skip


@pytest.mark.parametrize("entry", ["enable_thinking", "=false", "", " =1"])
def test_what_is_no_name_and_value_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="--template-option must be NAME=VALUE"):
        parse_template_options([entry])
