"""The demo's judgement: the same text, a difference by rounding, or one that is a fault."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pilotfish
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.generation import TextEngine

from .conftest import Run, ScriptedProgram

DEMO = Path(__file__).parents[3] / "scripts" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def scripted_demo(
    demo: ModuleType, program: ScriptedProgram, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    def load(target: str, *, drafter: str, strict: bool, **_: Any) -> TextEngine:
        return program.load_engine(
            EngineConfig(
                target=ModelConfig(reference=target),
                speculation=SpeculationConfig(drafter=drafter, strict=strict),
            )
        )

    monkeypatch.setattr(pilotfish, "load", load)
    monkeypatch.setattr(demo, "fetch", lambda *references: None)
    return demo


def test_the_same_text_is_exit_code_0(
    scripted_demo: ModuleType, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert scripted_demo.main(["--max-tokens", "60"]) == 0
    out = capfd.readouterr().out
    assert "same text: yes, bit for bit" in out
    assert "tokens per round" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("margin", "second_best", "explained"),
    [(0.2, True, True), (1.0, True, True), (1.1, True, False), (0.2, False, False)],
)
def test_only_a_near_second_best_token_is_explained_by_rounding(
    demo: ModuleType, margin: float, second_best: bool, explained: bool
) -> None:
    comparison = demo.Comparison(token_index=5, margin=margin, second_best=second_best)
    assert comparison.explained is explained
    assert ("does not explain" in demo.verdict(comparison)) is not explained
    exact = replace(comparison, bit_identical=True)
    assert not exact.explained
    assert "nothing excuses" in demo.verdict(exact)
    assert demo.Comparison(bit_identical=True).explained


def test_another_text_is_exit_code_1(
    scripted_demo: ModuleType,
    program: ScriptedProgram,
    run: Run,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = scripted_demo.pilotfish.load

    def other(target: str, *, drafter: str, **options: Any) -> TextEngine:
        if drafter != "none":
            program.scripts[1] = [*program.script(1)[:20], ord("?"), *program.script(1)[21:]]
        engine: TextEngine = load(target, drafter=drafter, **options)
        return engine

    monkeypatch.setattr(pilotfish, "load", other)
    assert scripted_demo.main(["--max-tokens", "60"]) == 1
    assert "same text: up to token 20" in capfd.readouterr().out


def test_the_draft_is_fetched_only_when_it_drafts(demo: ModuleType) -> None:
    for drafter, wanted in (("suffix", None), ("none", None), ("auto", "d"), ("model", "d")):
        assert demo.used_draft(argparse.Namespace(draft="d"), drafter) == wanted


def test_the_first_differing_token_is_found_with_its_margin(
    scripted_demo: ModuleType, program: ScriptedProgram
) -> None:
    arguments = argparse.Namespace(target="smollm2-135m", draft="none", backend="native")
    plain = scripted_demo.reply_of(arguments, "none", max_tokens=10)
    assert scripted_demo.compare(plain, plain).token_index is None
    shorter = scripted_demo.reply_of(arguments, "none", max_tokens=9)
    assert scripted_demo.compare(plain, shorter).token_index == 9
    original = program.logits

    def changed(prefix: tuple[int, ...]) -> Any:
        row = original(prefix)
        row[row.argmax()], row[7] = 0.0, 50.0
        return row

    program.logits = changed  # type: ignore[method-assign]
    comparison = scripted_demo.compare(
        plain, scripted_demo.reply_of(arguments, "none", max_tokens=10)
    )
    assert comparison.token_index == 0
    assert comparison.margin == pytest.approx(50.0)
    assert not comparison.explained
