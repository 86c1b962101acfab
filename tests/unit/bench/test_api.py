"""`pilotfish.benchmark`: what the command measures, as a function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish import EngineConfig, ModelConfig
from pilotfish.errors import ConfigError, PilotfishError, PromptError
from support.tiny_gguf import write_tiny


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pair")
    return [str(write_tiny(folder / f"{seed}.gguf", seed=seed)) for seed in (1, 2)]


def test_it_answers_given_prompts_in_every_mode(files: list[str]) -> None:
    seen: list[tuple[int, int, str]] = []
    summary = pilotfish.benchmark(
        files[0],
        draft=files[1],
        modes="suffix:3,model:2",
        prompts=["abcd abcd", [{"role": "user", "content": "efgh"}]],
        rounds=1,
        progress=lambda *news: seen.append(news),
        max_tokens=8,
        temperature=0.5,
    )
    assert list(summary["modes"]) == ["suffix:3", "model:2"]
    for mode in summary["modes"].values():
        assert mode["same_text"] == [2, 2]
        assert mode["speedup"]["geomean"] > 0
    assert (
        summary["workload"] | {"name": "given", "prompts": 2, "max_tokens": 8, "rounds": 1}
        == (summary["workload"])
    )
    assert seen == [(0, 2, "1"), (1, 2, "2"), (2, 2, "")]
    json.dumps(summary)


def test_a_configuration_and_a_file_of_prompts_do_as_well(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", "category": "c", "prompt": "abc"}) + "\n")
    config = EngineConfig(target=ModelConfig(reference=files[0]))
    summary = pilotfish.benchmark(
        config, modes="ngram:2", prompts=str(path), rounds=1, max_tokens=4
    )
    assert list(summary["modes"]) == ["ngram:2"]
    assert [one["id"] for one in summary["prompts"]] == ["a"]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"modes": "model"}, ConfigError, "needs a draft model"),
        ({"modes": "sufix"}, ConfigError, "unknown mode"),
        ({"prompts": []}, ConfigError, "prompts is empty"),
        ({"prompts": "no.such.jsonl"}, PilotfishError, "no.such.jsonl"),
        ({"drafter": "suffix"}, ConfigError, "drafter has no meaning"),
        ({"stop": "x"}, ConfigError, "stop has no meaning"),
        ({"max_token": 3}, ConfigError, "max_token"),
        ({"rounds": 0}, ConfigError, "rounds"),
        ({"seed": None}, ConfigError, "seed"),
    ],
)
def test_what_cannot_be_measured_is_told_before_loading(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        pilotfish.benchmark("no.such.file.gguf", **options)


def test_prompts_that_all_fail_are_an_error(files: list[str]) -> None:
    with pytest.raises(PromptError, match="none of the 1 prompts"):
        pilotfish.benchmark(files[0], modes="ngram:2", prompts=["a" * 5000], rounds=1)
