"""`pilotfish calibrate` on scripted models: what it prints, keeps and refuses."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pilotfish import build, calibration
from pilotfish.config import EngineConfig
from support.file_model import FileModel

from .conftest import Run


@dataclass
class ScriptedPair:
    """A target and perhaps a draft, as `build.load_pair` returns them."""

    target: FileModel
    draft: FileModel | None
    notices: list[str]

    def close(self) -> None:
        self.target.close()
        if self.draft is not None:
            self.draft.close()


@dataclass
class ScriptedPairs:
    """Loading of pairs, replaced; every model that was loaded, and with what."""

    folder: Path
    models: list[FileModel] = field(default_factory=list)
    configs: list[EngineConfig] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def load_pair(self, config: EngineConfig, **_: Any) -> ScriptedPair:
        self.configs.append(config)
        options = {"max_sessions": config.max_sessions, **self.options}
        target = FileModel(self.folder / "target.gguf", **options)
        draft = FileModel(self.folder / "draft.gguf", **options) if config.draft else None
        self.models += [model for model in (target, draft) if model is not None]
        return ScriptedPair(target, draft, ["a notice"])


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedPairs:
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))
    for name in ("target.gguf", "draft.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    scripted = ScriptedPairs(tmp_path)
    monkeypatch.setattr(build, "load_pair", scripted.load_pair)
    return scripted


def test_the_document_has_the_documented_fields(run: Run, pairs: ScriptedPairs) -> None:
    outcome = run("calibrate", "--json", "--quick")
    document = json.loads(outcome.out)
    assert outcome.code == 0
    widths = [str(width) for width in calibration.QUICK.widths]
    assert list(document["curve_seconds"]) == widths
    assert document["ratio"]["1"] == 1.0
    assert document["read_bandwidth_bytes_per_second"] == 2000
    assert document["floor_seconds"] == 0.5
    assert document["draft_cost_ratio"] > 0
    assert document["overhead_seconds"] > 0
    assert document["context"] == 128
    assert document["sentence"].startswith("On this machine checking 4 tokens costs ")
    assert document["models"]["target"]["path"].endswith("target.gguf")
    assert document["notices"] == ["a notice"]
    assert "note: a notice" in outcome.err


def test_what_was_found_is_kept_for_runs_that_open_one_reply_at_a_time(
    run: Run, pairs: ScriptedPairs
) -> None:
    document = json.loads(run("calibrate", "--json", "--quick", "-d", "none").out)
    config = EngineConfig(target=pairs.configs[0].target, max_sessions=1)
    kept = calibration.load(calibration.describe_pair(pairs.models[0], None, config))
    assert kept is not None
    assert kept.report_dict()["curve_seconds"] == document["curve_seconds"]
    assert all(model.closed for model in pairs.models)


def test_the_sentence_comes_first_and_all_fits_80_columns(run: Run, pairs: ScriptedPairs) -> None:
    outcome = run("calibrate", "--rounds", "1")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].startswith("On this machine checking 4 tokens costs ")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in outcome.out
    for words in ("after 256", "after 480", "draft", "pays from", "GB/s", "up to width"):
        assert words in outcome.out
    for width in calibration.FULL.widths:
        assert sum(line.split()[:1] == [str(width)] for line in lines) == 2, "in table and chart"


@pytest.mark.parametrize("context_size", [1, 2, 40])
def test_a_short_context_is_no_failure(run: Run, pairs: ScriptedPairs, context_size: int) -> None:
    pairs.options["context_size"] = context_size
    assert run("calibrate", "--quick").code == 0


@pytest.mark.parametrize(
    ("arguments", "draft"),
    [
        ((), "qwen2.5-coder-0.5b"),
        (("--draft", "none"), None),
        (("--drafter", "suffix"), None),
        (("-m", "smollm2-135m"), None),
        (("-d", "smollm2-135m"), "smollm2-135m"),
    ],
)
def test_the_default_draft_is_measured_with_the_default_target(
    run: Run, pairs: ScriptedPairs, arguments: tuple[str, ...], draft: str | None
) -> None:
    assert run("calibrate", "--quick", "--json", *arguments).code == 0
    model = pairs.configs[0].draft
    assert (model and model.reference) == draft


def test_the_chart_is_a_picture(run: Run, pairs: ScriptedPairs, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    assert run("calibrate", "--quick", "--png", str(picture)).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rounds", "0"), "--rounds must be a whole number above 0"),
        (("--rounds", "many"), "--rounds must be a whole number above 0"),
        (("--png", "nowhere/curve.png"), "there is no folder nowhere"),
        (("--png", "."), "--png . is a folder"),
        (("-m", "qwen9"), "qwen9"),
    ],
)
def test_bad_options_are_told_before_anything_is_loaded(
    run: Run, pairs: ScriptedPairs, arguments: tuple[str, ...], words: str
) -> None:
    run("calibrate", *arguments).is_one_error(words)
    assert not pairs.configs


def test_without_matplotlib_the_extra_is_named(
    run: Run, pairs: ScriptedPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run("calibrate", "--quick", "--png", "curve.png").is_one_error("'bench'")
    assert not pairs.configs


def test_models_are_freed_when_measuring_fails(
    run: Run, pairs: ScriptedPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileModel, "read_weights", lambda model: 1 / 0)
    assert run("calibrate", "--quick").code == 1
    assert all(model.closed for model in pairs.models)
