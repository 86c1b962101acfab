"""`pilotfish generate`: the text exactly, the JSON document, and where prompts come from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pilotfish.config import EngineConfig

from .conftest import BODY, Run, ScriptedProgram, reply_text

STATS = {
    "rounds",
    "drafted",
    "accepted",
    "emitted",
    "tokens_per_round",
    "acceptance_rate",
    "accepted_per_position",
    "prefill_seconds",
    "decode_seconds",
    "draft_seconds",
    "target_seconds",
    "overhead_seconds",
    "tokens_per_second",
    "by_drafter",
    "speculation",
}


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_the_text_alone_is_on_stdout(run: Run) -> None:
    outcome = run("generate", "hello")
    assert (outcome.code, outcome.out, outcome.err) == (0, reply_text(), "")


@pytest.mark.parametrize("drafter", ["auto", "none", "suffix", "ngram"])
def test_every_drafter_streams_the_same_text(run: Run, drafter: str) -> None:
    assert run("generate", "hello", "--drafter", drafter).out == reply_text()


def test_streaming_gives_the_text_of_the_json_document(run: Run) -> None:
    for stop in ("decides, the", "🦈", "not there"):
        document = json.loads(run("generate", "hello", "--json", "--stop", stop).out)
        streamed = run("generate", "hello", "--stop", stop).out
        assert document["text"] == streamed == reply_text().partition(stop)[0]


def test_colours_change_nothing_but_colours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run("generate", "hello", "--color")
    assert plain(outcome.out) == reply_text()
    assert "\x1b[" in outcome.out
    assert "suffix" in outcome.err
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("generate", "hello", "--color").out == reply_text()


def test_json_is_one_document_with_the_documented_fields(run: Run) -> None:
    outcome = run("generate", "hello", "--json", "--seed", "7", "--logprobs", "2", "--color")
    document = json.loads(outcome.out)
    assert BODY in outcome.out.replace('\\"', '"'), "characters are written as they are"
    assert document["finish_reason"] == "stop"
    assert document["seed"] == 7
    assert document["stats"].keys() >= STATS
    assert document["usage"]["completion_tokens"] == len(document["token_ids"])
    assert len(document["logprobs"]) == len(document["token_ids"])
    assert document["exactness"]["level"] == "bit-identical"
    assert document["models"] == {"target": {"path": "scripted"}, "draft": None}
    assert outcome.err == ""


def test_a_limit_of_a_billion_tokens_is_bounded_by_the_context(run: Run) -> None:
    assert run("generate", "hello", "--max-tokens", "1000000000").out == reply_text()
    document = json.loads(run("generate", "hello", "--max-tokens", "3", "--json").out)
    assert (document["text"], document["finish_reason"]) == (reply_text()[:3], "length")


def test_the_prompt_can_come_from_an_argument_a_file_or_a_pipe(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffhé🦈llo\r\n".encode())
    counts = [
        json.loads(run("generate", *arguments, "--json", stdin=stdin).out)["usage"]["prompt_tokens"]
        for arguments, stdin in (
            (("hé🦈llo",), b""),
            (("-f", str(file)), b""),
            (("-f", "-"), "hé🦈llo\n".encode()),
            ((), "hé🦈llo".encode()),
        )
    ]
    assert len(set(counts)) == 1
    assert run("generate", " ").code == 0
    assert run("generate", "--", "--help").out == reply_text()


def test_a_raw_prompt_is_sent_byte_for_byte(run: Run) -> None:
    document = json.loads(run("generate", "--raw", "--json", stdin=b"ab\n").out)
    assert document["usage"]["prompt_tokens"] == 3


def test_logit_bias_and_sampling_reach_the_sampler(run: Run) -> None:
    banned = run("generate", "hello", "--logit-bias", f"{ord('1')}=-inf", "--max-tokens", "1")
    assert banned.out != "1"
    sampled = ("--temperature", "0.5", "--top-k", "40", "--seed", "3")
    assert run("generate", "hello", *sampled).out == reply_text()


def test_statistics_are_two_short_lines_on_stderr(run: Run) -> None:
    outcome = run("generate", "hello", "--verbose", "--temperature", "0.5", "--seed", "3")
    lines = outcome.err.splitlines()
    assert outcome.out == reply_text()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    for word in ("tokens/s", "tokens per round", "suffix", "seed 3", "bit-identical"):
        assert word in outcome.err


def test_notices_of_the_models_go_to_stderr(run: Run, program: ScriptedProgram) -> None:
    program.notices = ("draft and target are the same file",)
    outcome = run("generate", "hello")
    assert outcome.out == reply_text()
    assert outcome.err == "note: draft and target are the same file\n"


def test_a_warning_while_the_text_is_written_comes_after_it(
    run: Run, program: ScriptedProgram
) -> None:
    program.warning = "passes are slow"
    for command in (("generate", "hello"), ("generate", "hello", "--json")):
        outcome = run(*command, "--drafter", "none")
        assert "slow" not in outcome.out
        assert outcome.err == "note: passes are slow\n"


def test_an_interrupt_keeps_what_was_streamed(run: Run, program: ScriptedProgram) -> None:
    program.interrupt_after = 9
    outcome = run("generate", "hello", "--drafter", "none")
    assert outcome.code == 130
    assert reply_text().startswith(outcome.out)
    assert outcome.out
    assert "Traceback" not in outcome.err


def test_the_default_draft_comes_with_the_default_target_when_asked_for(
    run: Run, program: ScriptedProgram
) -> None:
    def draft(*options: str) -> str | None:
        assert run("generate", "hello", *options).code == 0
        model = program.configs[-1].draft
        return model and model.reference

    assert draft("--drafter", "model") == "qwen2.5-coder-0.5b"
    assert draft("--drafter", "auto") == "qwen2.5-coder-0.5b"
    assert draft("-m", "QWEN2.5-coder-1.5b", "--drafter", "auto") == "qwen2.5-coder-0.5b"
    for reference in (
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "hf.co/qwen/qwen2.5-coder-1.5b-instruct-gguf:Q4_K_M",
    ):
        assert draft("-m", reference, "--drafter", "auto") == "qwen2.5-coder-0.5b"
    assert draft("-d", "smollm2-135m") == "smollm2-135m"
    for options in (
        (),
        ("-m", "smollm2-135m", "--drafter", "auto"),
        ("-d", "none", "--drafter", "auto"),
        ("--drafter", "suffix"),
        ("--drafter", "none"),
        ("--num-speculative-tokens", "0"),
    ):
        assert draft(*options) is None


def test_options_win_over_the_configuration_file(
    run: Run, program: ScriptedProgram, tmp_path: Path
) -> None:
    file = tmp_path / "engine.toml"
    file.write_text(
        "[target]\nreference = 'smollm2-135m'\nthreads = 1\ncontext_size = 512\n"
        "[speculation]\ndrafter = 'ngram'\nstrict = true\n"
    )
    run("generate", "hello", "--config", str(file), "--threads", "3", "--verify", "token")
    expected = EngineConfig.from_dict(
        {
            "target": {"reference": "smollm2-135m", "threads": 3, "context_size": 512},
            "speculation": {"drafter": "ngram", "strict": True, "verify": "token"},
        }
    )
    assert program.configs == [expected]
