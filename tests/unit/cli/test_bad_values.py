"""Bad values end with one line that names the option, a hint, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run, ScriptedProgram

BAD_VALUES = [
    *[("--temperature", value) for value in ("nan", "inf", "Infinity", "-inf", "-1", "hot", "")],
    *[("--top-p", value) for value in ("0", "-1", "2", "nan", "most")],
    *[("--min-p", value) for value in ("-0.1", "1.5", "nan")],
    *[("--top-k", value) for value in ("-1", "1.5", "nan")],
    *[("--repetition-penalty", value) for value in ("0", "-1", "1e-300", "nan", "inf")],
    *[("--presence-penalty", value) for value in ("nan", "inf", "much")],
    *[("--frequency-penalty", value) for value in ("nan", "-inf")],
    *[("--max-tokens", value) for value in ("0", "-1", "1.5", "many", "nan")],
    *[("--seed", value) for value in ("1.5", "x", "nan")],
    *[("--logprobs", value) for value in ("-1", "101", "2.5")],
    *[("--num-speculative-tokens", value) for value in ("-1", "1.5", "few")],
    *[("--draft-head-size", value) for value in ("-1", "0.5", "all")],
    *[("--threads", value) for value in ("0", "-2", "all")],
    *[("--ctx", value) for value in ("0", "-1", "big")],
    *[
        ("--logit-bias", value)
        for value in ("5", "=1", "a=1", "1=", "1=x", "1=nan", "1=inf", "-3=1")
    ],
    ("--stop", ""),
    ("--drafter", "fast"),
    ("--verify", "block"),
    ("--backend", "abacus"),
]


@pytest.mark.parametrize("command", [("generate", "hello"), ("chat",)])
@pytest.mark.parametrize(("option", "value"), BAD_VALUES)
def test_a_bad_value_is_one_line_that_names_the_option(
    run: Run, program: ScriptedProgram, command: tuple[str, ...], option: str, value: str
) -> None:
    run(*command, option, value).is_one_error(option)
    assert not program.configs, "nothing is loaded for a request that cannot work"


@pytest.mark.parametrize("option", ["--target", "--draft"])
@pytest.mark.parametrize("reference", ["qwen2.5-coder-1.5", "no-such-model", "./missing.gguf"])
def test_an_unknown_model_is_one_line_that_names_it(run: Run, option: str, reference: str) -> None:
    run("generate", "hello", option, reference).is_one_error(reference)


def test_a_misspelt_option_or_command_names_the_close_one(run: Run) -> None:
    outcome = run("generate", "hello", "--temperatur", "1")
    outcome.is_one_error("--temperatur")
    assert "--temperature" in outcome.err.splitlines()[1]
    outcome = run("genrate", "hello")
    outcome.is_one_error("genrate")
    assert "generate" in outcome.err.splitlines()[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "hello", "--nothing-like-it"),
        ("generate", "two", "words"),
        ("generate", "hello", "--seed"),
        ("generate", "hello", "--strict=1"),
        ("generate", "hello", "--raw", "--system", "be brief"),
        ("chat", "--raw"),
        ("chat", "hello"),
        ("nonsense",),
    ],
)
def test_a_usage_error_is_one_line_with_a_hint(run: Run, arguments: tuple[str, ...]) -> None:
    run(*arguments).is_one_error()


def test_an_unusable_prompt_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"abc\xff\xfe")
    (tmp_path / "empty.txt").write_bytes(b"")
    run("generate", "").is_one_error("empty")
    run("generate", stdin=b"").is_one_error("empty")
    run("generate", stdin=b"\n").is_one_error("empty")
    run("generate", stdin=b"\xff").is_one_error("stdin", "UTF-8")
    run("generate", "lone \ud800 surrogate").is_one_error("PROMPT")
    run("generate", "-f", str(tmp_path / "empty.txt")).is_one_error("empty")
    run("generate", "-f", str(tmp_path / "bytes.txt")).is_one_error("--file", "UTF-8", "0xff")
    run("generate", "-f", str(tmp_path / "missing.txt")).is_one_error("--file", "No such file")
    run("generate", "-f", str(tmp_path)).is_one_error("--file", "directory")
    run("generate", "-f", "a\0b").is_one_error("--file")
    run("generate", "hello", "-f", str(tmp_path / "empty.txt")).is_one_error("--file", "empty")
    run("generate", "hello", stdin=b"\xff").is_one_error("stdin", "UTF-8")
    run("generate", "-f", "-", "-f", "-", stdin=b"hello").is_one_error("--file -", "twice")


def test_a_prompt_longer_than_the_context_is_one_line_with_both_numbers(
    run: Run, program: ScriptedProgram
) -> None:
    program.context_size = 40
    run("generate", "x" * 100).is_one_error("context", "40")


def test_a_bad_configuration_file_is_one_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "engine.toml"
    run("generate", "hello", "--config", str(file)).is_one_error(str(file))
    file.write_text("target = 'smollm2-135m'\nspeculaton = 1\n")
    run("generate", "hello", "--config", str(file)).is_one_error("speculaton")


def test_a_traceback_needs_verbose(run: Run) -> None:
    assert "Traceback" not in run("generate", "hello", "--top-p", "2").err
    for arguments in (("--verbose", "generate", "hello"), ("generate", "hello", "--verbose")):
        outcome = run(*arguments, "--top-p", "2")
        assert outcome.code == 2
        assert "Traceback" in outcome.err
    assert "Traceback" in run("models", "path", "no-such-model", "--verbose").err


def test_a_fault_of_ours_is_exit_code_1_without_a_traceback(
    run: Run, program: ScriptedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program.tokenizer, "encode", None)
    run("generate", "hello").is_one_error("TypeError", code=1)
