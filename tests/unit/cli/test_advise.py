"""`pilotfish advise` on a scripted pair: what it records, says, keeps and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilotfish import build, models
from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.backends.scripted import ScriptedModel
from pilotfish.bench.recorder import record
from pilotfish.bench.recording import load_recordings, save_recordings
from pilotfish.bench.runner import PLAIN, Mode
from pilotfish.config import EngineConfig, Request, SpeculationConfig
from pilotfish.generation import Facts, TextEngine
from support.scripted_pair import COSTS, PROMPTS, ScriptedPair

from .conftest import Run

TARGET, DRAFT = Path("/models/scripted.gguf"), Path("/models/small.gguf")


def facts(path: Path) -> Any:
    return SimpleNamespace(path=path, memory_bytes=1000, threads=2, backend="native")


@dataclass
class LoadedPair:
    """A pair of scripted models, as `build.load_pair` returns loaded ones."""

    config: EngineConfig
    scripted: ScriptedPair = field(default_factory=ScriptedPair)
    notices: list[str] = field(default_factory=lambda: ["a notice"])
    calibration: None = None
    closed: int = 0

    @property
    def target(self) -> Any:
        return SimpleNamespace(facts=facts(TARGET))

    @property
    def draft(self) -> ScriptedModel | None:
        model: Any = self.scripted.draft
        model.facts = facts(DRAFT)
        return model if self.config.draft else None

    def measured_costs(self) -> Any:
        costs = COSTS if self.config.draft else PairCosts(target=COSTS.target)
        return SimpleNamespace(costs=costs)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def pairs(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[LoadedPair]:
    """Return what is loaded; every load and every engine is scripted."""
    loaded: list[LoadedPair] = []

    def load_pair(config: EngineConfig, **_: Any) -> LoadedPair:
        loaded.append(LoadedPair(config))
        return loaded[-1]

    def text_engine(pair: LoadedPair, speculation: SpeculationConfig, **_: Any) -> TextEngine:
        mode = Mode(PLAIN if speculation.drafter == "none" else speculation.drafter)
        engine = pair.scripted.engine(mode)
        draft = {"path": str(DRAFT)} if pair.config.draft else None
        described = Facts(models={"target": {"path": str(TARGET)}, "draft": draft})
        return TextEngine(engine.engine, engine.tokenizer, facts=described)

    monkeypatch.setattr(build, "load_pair", load_pair)
    monkeypatch.setattr(build, "text_engine", text_engine)
    return loaded


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    rows = [
        {"id": f"{category}-{i}", "category": category, "prompt": f"{category} number {i}"}
        for category in ("chat", "code_edit")
        for i in range(3)
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """Return a file of replies that were recorded on a fake clock, where drafts pay."""
    pair = ScriptedPair()
    request = Request(max_tokens=100, seed=0)
    found = record(
        pair.engine(Mode(PLAIN)),
        pair.draft,
        PROMPTS,
        request=request,
        costs=COSTS,
        clock=pair.clock,
    )
    file = tmp_path / "kept.jsonl"
    save_recordings(file, replace(found, about={"target": TARGET.name, "temperature": 0.5}))
    return str(file)


SHORT = ("--limit", "4", "--max-tokens", "40")
WITH_DRAFT = ("-d", "smollm2-135m")
FIELDS = {
    *("drafter", "num_speculative_tokens", "speedup", "total_speedup", "by_category", "modes"),
    *("prediction", "oracle_speedup", "draft_model", "flags", "flag_notes", "headline", "reasons"),
    *("recorded", "models", "memory", "calibration", "provenance"),
}


def test_json_is_one_document_with_the_documented_fields(
    run: Run, pairs: list[LoadedPair], prompts: str
) -> None:
    outcome = run("advise", prompts, *SHORT, *WITH_DRAFT, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == "note: a notice\n"
    document = json.loads(outcome.out)
    assert document.keys() == FIELDS
    assert document["speedup"].keys() == {"expected", "low", "high"}
    assert document["by_category"].keys() <= {"chat", "code_edit"}
    assert set(document["modes"]) > {"auto", "suffix", "model"}
    assert document["draft_model"]["acceptance"] > 0.5
    assert document["recorded"] == {
        "prompts": 4,
        "tokens": 160,
        "left": 0,
        "skipped": {},
        "target": "scripted.gguf",
        "draft": "small.gguf",
        "temperature": 0,
        "max_tokens": 40,
        "seed": 0,
    }
    assert document["models"]["target"]["file"] == "scripted.gguf"
    assert document["flags"].keys() == {"llama-server", "vllm", "sglang"}
    assert document["provenance"]["command"].startswith("pilotfish advise mine.jsonl ")
    assert [pair.closed for pair in pairs] == [1]


def test_the_advice_comes_first_and_all_fits_80_columns(
    run: Run, pairs: list[LoadedPair], kept: str
) -> None:
    outcome = run("advise", "--replay", kept, *WITH_DRAFT)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith("Use --drafter auto --num-speculative-tokens ")
    assert max(map(len, lines)) <= 80
    assert "…" not in outcome.out
    assert "Replayed 3 replies of 300 tokens." in outcome.out
    rows = [line.split() for line in lines]
    for mode in ("auto", "suffix", "model"):
        assert any(row[:1] == [mode] and len(row) >= 5 for row in rows)
    for category, number in (("chat", "2"), ("story", "1")):
        assert any(row[:1] + row[-1:] == [category, number] for row in rows)
    assert any(line.startswith("- The draft model pays: ") for line in lines)
    assert any(line.startswith("- This holds for temperature 0.5") for line in lines)
    assert "llama-server" not in outcome.out


def test_flags_are_whole_lines_for_copying(run: Run, pairs: list[LoadedPair], kept: str) -> None:
    flags = json.loads(run("advise", "--replay", kept, *WITH_DRAFT, "--json").out)["flags"]
    assert "--spec-draft-model small.gguf" in flags["llama-server"]
    lines = run("advise", "--replay", kept, *WITH_DRAFT, "--flags").out.splitlines()
    for name, text in flags.items():
        assert f"{name}: {text}" in lines
    assert sum(line.startswith("does not carry over: ") for line in lines) == 3


def test_recordings_are_kept_and_give_advice_without_the_target(
    run: Run, pairs: list[LoadedPair], prompts: str, tmp_path: Path
) -> None:
    file = tmp_path / "kept.jsonl"
    first = run("advise", prompts, *SHORT, *WITH_DRAFT, "--record", str(file), "--json")
    assert first.code == 0, first.err
    kept = load_recordings(file)
    assert [one.id for one in kept.recordings] == [
        "chat-0", "code_edit-0", "chat-1", "code_edit-1",
    ]  # fmt: skip
    again = run("advise", "--replay", str(file), *WITH_DRAFT, "--json")
    assert again.code == 0, again.err
    document = json.loads(again.out)
    assert document["recorded"] == json.loads(first.out)["recorded"]
    assert set(document["modes"]) > {"auto", "suffix", "model"}
    evaluations = [target.log.evaluations for target in pairs[1].scripted.targets]
    assert evaluations == [[]] * len(evaluations), "the target was not asked"
    assert "/" not in document["provenance"]["command"]


def test_recordings_without_a_draft_model_say_nothing_of_one(
    run: Run, pairs: list[LoadedPair], prompts: str, tmp_path: Path
) -> None:
    file = tmp_path / "kept.jsonl"
    assert run("advise", prompts, *SHORT, "-d", "none", "--record", str(file)).code == 0
    outcome = run("advise", "--replay", str(file), *WITH_DRAFT, "--json")
    document = json.loads(outcome.out)
    assert document["draft_model"] is None
    assert not any(mode.startswith("model") for mode in document["modes"])


def test_recordings_of_another_model_are_refused(
    run: Run, pairs: list[LoadedPair], prompts: str, tmp_path: Path
) -> None:
    file = tmp_path / "kept.jsonl"
    run("advise", prompts, *SHORT, "--record", str(file))
    file.write_text(file.read_text().replace("scripted.gguf", "other.gguf"))
    outcome = run("advise", "--replay", str(file))
    assert outcome.code == 2
    assert "replies of other.gguf, and the target is scripted.gguf" in outcome.err
    assert [pair.closed for pair in pairs] == [1, 1]


def test_measure_compares_with_a_benchmark_of_the_same_prompts(
    run: Run, pairs: list[LoadedPair], prompts: str
) -> None:
    document = json.loads(run("advise", prompts, *SHORT, "--measure", "--json").out)
    assert document.keys() == FIELDS | {"measured"}
    assert document["measured"]["same_text"] == [4, 4]
    assert document["measured"]["speedup"].keys() == {"geomean", "low", "high"}
    outcome = run("advise", prompts, *SHORT, "--measure")
    (line,) = [line for line in outcome.out.splitlines() if "was predicted" in line]
    assert line.startswith("auto: ")
    assert "measured: off by " in line


def test_when_the_time_is_spent_it_is_told_how_many_prompts_were_left(
    run: Run, pairs: list[LoadedPair], prompts: str
) -> None:
    outcome = run("advise", prompts, "--max-tokens", "20", "--budget", "1e-9")
    assert outcome.code == 0, outcome.err
    assert "Replayed 1 reply of 20 tokens." in outcome.out
    assert "5 prompts left out; --budget gives more" in outcome.err


def test_skipped_prompts_are_named(run: Run, pairs: list[LoadedPair], tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"id": "short", "prompt": "hello"}, {"id": "long", "prompt": "x" * 5000}]
    file.write_text("\n".join(map(json.dumps, rows)))
    outcome = run("advise", str(file), "--max-tokens", "20")
    assert outcome.code == 0, outcome.err
    assert "skipped long: the prompt has" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "draft"),
    [
        (("-d", "none"), None),
        (("-m", "smollm2-135m"), None),
        (WITH_DRAFT, "smollm2-135m"),
    ],
)
def test_the_draft_model_is_the_one_that_auto_would_use(
    run: Run, pairs: list[LoadedPair], prompts: str, arguments: tuple[str, ...], draft: str | None
) -> None:
    outcome = run("advise", prompts, "--limit", "1", "--max-tokens", "20", *arguments)
    assert outcome.code == 0, outcome.err
    model = pairs[0].config.draft
    assert (model and model.reference) == draft
    assert pairs[0].config.target.reference in (models.DEFAULT_TARGET, "smollm2-135m")


BAD = {
    ("--drafter", "suffix"): "--drafter has no meaning in advise",
    ("--num-speculative-tokens", "3"): "--num-speculative-tokens has no meaning in advise",
    ("--limit", "0"): "--limit must be a whole number above 0",
    ("--max-tokens", "none"): "--max-tokens must be",
    ("--temperature", "-1"): "--temperature must be",
    ("--seed", "x"): "--seed must be",
    ("--budget", "0"): "--budget must be a number of seconds above 0",
    ("--budget", "long"): "--budget must be",
    ("--budget", "nan"): "--budget must be",
    ("missing.jsonl",): "cannot read the workload missing.jsonl",
    ("--record", "."): "--record . is a folder",
    ("--record", "/no/such/folder/out.jsonl"): "--record: there is no folder /no/such/folder",
    ("--replay", "missing.jsonl"): "cannot read the recordings missing.jsonl",
    ("--replay", "a.jsonl", "--record", "b.jsonl"): "--replay and --record exclude each other",
    ("mine.jsonl", "--replay", "a.jsonl"): "--replay and prompts exclude each other",
    ("--replay", "a.jsonl", "--measure"): "--measure needs prompts",
    ("--target", "smollm2-135"): "smollm2-135",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line_with_a_hint_and_nothing_is_loaded(
    run: Run, pairs: list[LoadedPair], arguments: tuple[str, ...]
) -> None:
    run("advise", *arguments).is_one_error(BAD[arguments])
    assert not pairs


def test_the_pair_is_freed_when_every_prompt_fails(
    run: Run, pairs: list[LoadedPair], tmp_path: Path
) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "x" * 5000}))
    outcome = run("advise", str(file))
    assert outcome.code == 2
    assert "none of the 1 prompts could be recorded" in outcome.err
    assert [pair.closed for pair in pairs] == [1]


def test_help_fits_80_columns_and_loads_no_backend() -> None:
    program = (
        "import sys\n"
        "from pilotfish.cli import main\n"
        "main(['advise', '--help'])\n"
        "print(sorted(n for n in sys.modules if n.startswith('pilotfish.backends')))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "80"},
    ).stdout
    assert "--replay" in output
    assert max(map(len, output.splitlines())) <= 80
    assert output.splitlines()[-1] == "[]"
