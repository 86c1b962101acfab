"""`pilotfish bench` on a scripted pair: what it loads, measures, prints, writes and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilotfish import build, models
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.accounting.costs import ModelSize
from pilotfish.cli.bench import speedup_cell
from pilotfish.config import EngineConfig, SpeculationConfig
from pilotfish.generation import Facts, TextEngine

from .conftest import Run, ScriptedProgram

TARGET, DRAFT = "/models/scripted.gguf", "/models/draft.gguf"


@dataclass
class ScriptedPair:
    """A pair of models with the loading of files replaced."""

    program: ScriptedProgram
    config: EngineConfig
    notices: list[str] = field(default_factory=lambda: ["a notice"])
    closed: int = 0
    calibration: None = None

    @property
    def target(self) -> Any:
        return SimpleNamespace(facts=SimpleNamespace(memory_bytes=1000, threads=2))

    @property
    def draft(self) -> Any:
        if self.config.draft is None:
            return None
        return SimpleNamespace(facts=SimpleNamespace(memory_bytes=300, backend="native"))

    def close(self) -> None:
        self.closed += 1


@dataclass
class Loads:
    """What was loaded, and the configurations of the engines over it."""

    pairs: list[ScriptedPair] = field(default_factory=list)
    engines: list[SpeculationConfig] = field(default_factory=list)


@pytest.fixture
def loads(program: ScriptedProgram, monkeypatch: pytest.MonkeyPatch) -> Loads:
    loads = Loads()

    def load_pair(config: EngineConfig, **_: Any) -> ScriptedPair:
        loads.pairs.append(ScriptedPair(program, config))
        return loads.pairs[-1]

    def text_engine(pair: ScriptedPair, speculation: SpeculationConfig, **_: Any) -> TextEngine:
        loads.engines.append(speculation)
        config = EngineConfig(target=pair.config.target, speculation=speculation)
        engine = program.load_engine(config)
        facts: Any = {"target": {"path": TARGET, "parameters": 7}, "draft": None}
        if pair.config.draft is not None:
            facts["draft"] = {"path": DRAFT, "parameters": 3}
        size = ModelSize(parameters=7, weight_bytes=8, step_bytes=9, cache_bytes_per_token=1)
        described = Facts(models=facts, target_size=size, draft_size=facts["draft"] and size)
        return TextEngine(engine.engine, engine.tokenizer, facts=described, close=pair.close)

    monkeypatch.setattr(build, "load_pair", load_pair)
    monkeypatch.setattr(build, "text_engine", text_engine)
    return loads


@pytest.fixture
def workload(tmp_path: Path) -> str:
    rows = [
        {"id": f"{category}-{i}", "category": category, "prompt": f"{category} number {i}"}
        for category in ("chat", "story")
        for i in range(2)
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


FIELDS = {"modes", "plain", "prompts", "workload", "models", "memory", "calibration", "provenance"}
SPEEDUP = {"geomean", "low", "high"}


def test_json_is_one_document_with_the_documented_fields(
    run: Run, loads: Loads, workload: str
) -> None:
    outcome = run("bench", "--workload", workload, "--modes", "suffix,ngram:3", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == "note: a notice\n"
    document = json.loads(outcome.out)
    assert document.keys() == FIELDS
    assert list(document["modes"]) == ["suffix", "ngram:3"]
    suffix = document["modes"]["suffix"]
    assert suffix["speedup"].keys() == suffix["total_speedup"].keys() == SPEEDUP
    assert list(suffix["by_category"]) == ["chat", "story"]
    assert suffix["by_category"]["chat"]["prompts"] == 2
    assert suffix["same_text"] == [4, 4]
    assert 0 < suffix["acceptance_rate"] <= 1
    assert document["plain"]["costs"]["compute"]["target_passes_per_token"] == 1
    assert document["workload"]["name"] == "mine.jsonl"
    assert document["models"]["target"] == {
        "name": models.DEFAULT_TARGET,
        "file": "scripted.gguf",
        "parameters": 7,
    }
    assert document["models"]["draft"] is None
    assert document["memory"]["target"] == 1000
    assert document["memory"]["peak_process"] > 0
    assert [pair.closed for pair in loads.pairs] == [1]


def test_the_command_is_kept_as_it_was_typed_but_for_folders(
    run: Run, loads: Loads, workload: str
) -> None:
    outcome = run(
        "bench", f"--workload={workload}", "--limit", "1", "--modes", "suffix", "--keep-store",
        "-m", "smollm2-135m", "--rounds", "1", "--json", "--verbose",
    )  # fmt: skip
    command = json.loads(outcome.out)["provenance"]["command"]
    assert command == (
        "pilotfish bench --target smollm2-135m --modes suffix --workload mine.jsonl --limit 1 "
        "--rounds 1 --keep-store --json"
    )


def test_the_table_fits_80_columns_and_begins_with_the_findings(
    run: Run, loads: Loads, workload: str
) -> None:
    outcome = run(
        "bench", "--workload", workload, "--modes", "suffix:7,ngram,auto", "--rounds", "1"
    )
    lines = outcome.out.splitlines()
    assert outcome.code == 0, outcome.err
    assert max(map(len, lines)) <= 80
    assert "…" not in outcome.out
    assert lines[0].startswith(("suffix:7", "ngram", "auto"))
    rows = [line.split() for line in lines]
    assert sum(row[:1] == ["suffix:7"] and len(row) >= 5 for row in rows) >= 3
    assert ["chat", "(2)"] in rows
    assert ["story", "(2)"] in rows
    assert [row[-3:] for row in rows if row[:1] == ["auto"] and "of" in row[-3:]] == [
        ["4", "of", "4"]
    ]


def test_skipped_prompts_and_repeated_runs_are_told(
    run: Run, loads: Loads, program: ScriptedProgram, tmp_path: Path
) -> None:
    program.context_size = 400
    file = tmp_path / "mine.jsonl"
    rows = [{"id": "short", "prompt": "hello"}, {"id": "long", "prompt": "x" * 500}]
    file.write_text("\n".join(map(json.dumps, rows)))
    outcome = run("bench", "--workload", str(file), "--modes", "suffix", "--keep-store")
    assert outcome.code == 0
    assert "skipped long: the prompt has" in outcome.err
    assert "suffix on repeated prompts: " in outcome.out
    assert "1 of 2 prompts failed" in outcome.out


def test_files_hold_the_document_and_the_report(
    run: Run, loads: Loads, workload: str, tmp_path: Path
) -> None:
    output, html = tmp_path / "out.json", tmp_path / "out.html"
    arguments = ("--workload", workload, "--modes", "suffix", "--rounds", "1", "--json")
    outcome = run("bench", *arguments, "--output", str(output), "--html", str(html))
    assert outcome.code == 0, outcome.err
    assert json.loads(output.read_text()) == json.loads(outcome.out)
    text = html.read_text()
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert str(tmp_path) not in text + output.read_text()


def test_predictions_stand_beside_what_was_measured(
    run: Run, loads: Loads, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = SimpleNamespace(costs=PairCosts(target=CostCurve.flat(1.0)))
    facts = SimpleNamespace(memory_bytes=1000, threads=2, backend="native")
    monkeypatch.setattr(ScriptedPair, "measured_costs", lambda pair: costs, raising=False)
    monkeypatch.setattr(ScriptedPair, "target", SimpleNamespace(facts=facts))
    arguments = ("--workload", workload, "--modes", "suffix,ngram:3", "--rounds", "1", "--predict")
    document = json.loads(run("bench", *arguments, "--json").out)
    assert document.keys() == FIELDS | {"prediction"}
    assert list(document["prediction"]) == ["suffix", "ngram:3"]
    assert document["prediction"]["suffix"].keys() == {"expected", "low", "high"}
    lines = run("bench", *arguments).out.splitlines()
    predicted = [line for line in lines if "was predicted" in line]
    assert [line.partition(":")[0] for line in predicted] == ["suffix", "ngram"]
    assert all("measured: off by " in line for line in predicted)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("arguments", "draft", "modes"),
    [
        ((), models.DEFAULT_DRAFT, ["none", "auto", "suffix", "model"]),
        (("--draft", "none"), None, ["none", "auto", "suffix"]),
        (("-m", "smollm2-135m"), None, ["none", "auto", "suffix"]),
        (("--modes", "suffix"), None, ["none", "suffix"]),
        (("--modes", "none"), None, ["none"]),
        (("--modes", "model:2"), models.DEFAULT_DRAFT, ["none", "model"]),
        (
            ("-m", "smollm2-135m", "-d", models.DEFAULT_DRAFT),
            models.DEFAULT_DRAFT,
            ["none", "auto", "suffix", "model"],
        ),
    ],
)
def test_modes_are_by_default_all_that_can_run_and_a_draft_is_loaded_when_one_needs_it(
    run: Run,
    loads: Loads,
    workload: str,
    arguments: tuple[str, ...],
    draft: str | None,
    modes: list[str],
) -> None:
    outcome = run("bench", "--workload", workload, "--limit", "1", "--rounds", "1", *arguments)
    assert outcome.code == 0, outcome.err
    (pair,) = loads.pairs
    assert (pair.config.draft and pair.config.draft.reference) == draft
    assert [engine.drafter for engine in loads.engines] == modes


def test_sampling_and_limits_reach_every_reply(run: Run, loads: Loads, workload: str) -> None:
    outcome = run(
        "bench", "--workload", workload, "--modes", "suffix", "--rounds", "1", "--limit", "2",
        "--temperature", "0.5", "--seed", "3", "--max-tokens", "5", "--json",
    )  # fmt: skip
    document = json.loads(outcome.out)
    assert [prompt["id"] for prompt in document["prompts"]] == ["chat-0", "story-0"]
    assert [prompt["reply_tokens"] for prompt in document["prompts"]] == [5, 5]
    found = document["workload"]
    assert (found["temperature"], found["seed"], found["max_tokens"]) == (0.5, 3, 5)


BAD = {
    ("--modes", "sufix"): "unknown mode: 'sufix'",
    ("--modes", ""): "unknown mode: ''",
    ("--modes", "suffix:x"): "unknown mode: 'suffix:x'",
    ("--modes", "model", "--draft", "none"): "mode model needs a draft model",
    ("-m", "smollm2-135m", "--modes", "auto,model:3"): "mode model:3 needs a draft model",
    ("--limit", "0"): "--limit must be a whole number above 0",
    ("--limit", "few"): "--limit must be",
    ("--rounds", "0"): "--rounds must be",
    ("--rounds", "1.5"): "--rounds must be",
    ("--max-tokens", "0"): "--max-tokens must be",
    ("--temperature", "-1"): "--temperature must be",
    ("--temperature", "hot"): "--temperature must be",
    ("--seed", "x"): "--seed must be",
    ("--workload", "missing.jsonl"): "cannot read the workload missing.jsonl",
    ("--drafter", "suffix"): "--drafter has no meaning in bench",
    ("--num-speculative-tokens", "3"): "--num-speculative-tokens has no meaning in bench",
    ("--output", "/no/such/folder/out.json"): "--output: there is no folder /no/such/folder",
    ("--output", "."): "--output . is a folder",
    ("--html", "/no/such/folder/out.html"): "--html: there is no folder /no/such/folder",
    ("--target", "smollm2-135"): "smollm2-135",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_line_with_a_hint_and_nothing_is_loaded(
    run: Run, loads: Loads, arguments: tuple[str, ...]
) -> None:
    run("bench", *arguments).is_one_error(BAD[arguments])
    assert not loads.pairs


def test_a_report_needs_its_library_before_anything_is_measured(
    run: Run, loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = run("bench", "--modes", "suffix", "--html", str(tmp_path / "out.html"))
    outcome.is_one_error("'bench'", "charts")
    assert not loads.pairs


def test_the_pair_is_freed_when_every_prompt_fails(
    run: Run, loads: Loads, program: ScriptedProgram, tmp_path: Path
) -> None:
    program.context_size = 200
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "x" * 500}))
    outcome = run("bench", "--workload", str(file), "--modes", "suffix")
    assert outcome.code == 2
    assert "none of the 1 prompts could be answered" in outcome.err
    assert [pair.closed for pair in loads.pairs] == [1]


def test_a_speedup_without_an_interval_is_shown_without_one() -> None:
    assert speedup_cell({"geomean": 1.5, "low": 1.25, "high": 1.75}) == "1.50x (1.25-1.75)"
    assert speedup_cell({"geomean": 1.5, "low": None, "high": None}) == "1.50x"
    assert speedup_cell(None) == "-"


def test_help_fits_80_columns_and_loads_no_backend() -> None:
    program = (
        "import sys\n"
        "from pilotfish.cli import main\n"
        "main(['bench', '--help'])\n"
        "print(sorted(n for n in sys.modules if n.startswith('pilotfish.backends')))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "80"},
    ).stdout
    assert "--modes" in output
    assert max(map(len, output.splitlines())) <= 80
    assert output.splitlines()[-1] == "[]"
