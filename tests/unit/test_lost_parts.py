"""A part that was asked for and does not take part is told wherever figures are told."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilotfish import build, models
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import ScriptedModel
from pilotfish.build import load_engine, loading
from pilotfish.calibration import Calibration
from pilotfish.cli.options import EngineOptions
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.engine.engine import Engine
from pilotfish.errors import ConfigError, ModelFileError
from pilotfish.generation import Facts, TextEngine
from pilotfish.types import FloatArray
from support.text_engines import reply_logits, tokenizer
from support.tiny_gguf import write_tiny

WORDS = tokenizer()
REPLY = [*b"one two three one two three"]
# rows that cost next to nothing: whatever is offered is tried
CHEAP = PairCosts(target=CostCurve.flat(1.0, row_seconds=1e-4), draft=CostCurve.flat(1e-4))
DEAR = CostCurve.flat(3.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def config(path: Path, *, has_draft: bool = True, **speculation: Any) -> EngineConfig:
    one = ModelConfig(reference=str(path), threads=1, context_size=64)
    return EngineConfig(
        target=one,
        draft=one if has_draft else None,
        speculation=SpeculationConfig(**speculation),
        kept_sequences=1,
    )


@pytest.fixture
def dear_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every calibration say that a draft token costs three steps of the target."""
    costs = PairCosts(target=CostCurve.flat(1.0), draft=DEAR)
    found = Calibration(costs=costs, minima=costs.target)
    monkeypatch.setattr(loading.calibration, "costs_for", lambda *models, **_: found)


@pytest.mark.usefixtures("dear_drafts")
@pytest.mark.parametrize(("drafter", "others"), [("auto", ["prediction", "suffix"]), ("model", [])])
def test_a_draft_model_that_cannot_pay_is_told_everywhere(
    tiny: Path, drafter: str, others: list[str]
) -> None:
    with load_engine(config(tiny, drafter=drafter)) as engine:
        told = engine.facts.speculation
        assert (told["on"], told["drafters"]) == (bool(others), others)
        assert "the draft model is not used" in told["reason"]
        assert any("the draft model is not used" in notice for notice in engine.notices)
        reply = engine.generate("Go:", raw=True, max_tokens=5)
        assert reply.stats.speculation["on"] == bool(others)
        assert "the draft model is not used" in reply.stats.speculation["reason"]
        with pytest.raises(ConfigError, match="drafter model is not loaded"):
            engine.generate("Go:", raw=True, drafter="model")


@pytest.mark.parametrize(
    ("speculation", "reason"),
    [
        ({"drafter": "suffix"}, "drafter suffix"),
        ({"drafter": "none"}, "drafter none"),
        ({"num_speculative_tokens": 0}, "turned off"),
    ],
)
def test_a_draft_model_that_nothing_asks_is_not_loaded_and_this_is_told(
    tiny: Path, speculation: dict[str, Any], reason: str
) -> None:
    with load_engine(config(tiny, controller="fixed", **speculation)) as engine:
        assert engine.facts.models["draft"] is None
        (notice,) = engine.notices
        assert notice.startswith(f"the draft model {tiny} is not loaded: ")
        assert reason in notice
    with load_engine(config(tiny, has_draft=False, controller="fixed", **speculation)) as engine:
        assert engine.notices == ()


def test_a_model_that_cannot_keep_what_it_read_says_so(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "state.gguf", recurrent=True)
    with load_engine(config(path, has_draft=False, drafter="none")) as engine:
        assert any("kept for prompts that begin alike" in notice for notice in engine.notices)


def broken_draft(prefix: tuple[int, ...]) -> FloatArray:
    return np.full(WORDS.vocab_size, np.nan, dtype=np.float32)


def engine_of(speculation: SpeculationConfig) -> TextEngine:
    """Return an engine whose draft model has rows that are no numbers."""
    ids = len(WORDS.encode("say:", parse_special=False))
    target = ScriptedModel(
        reply_logits(REPLY, vocab_size=WORDS.vocab_size, num_prompt_tokens=ids),
        vocab_size=WORDS.vocab_size,
    )
    draft = ScriptedModel(broken_draft, vocab_size=WORDS.vocab_size)
    drafter, controller = build.make_parts(
        target, draft, speculation, backend="native", costs=lambda: CHEAP
    )
    facts = Facts(speculation_on=True, drafters=("suffix", "model"), speculation_reason="fixed")
    return TextEngine(
        Engine(target=target, drafter=drafter, controller=controller), WORDS, facts=facts
    )


@pytest.mark.parametrize("controller", ["auto", "fixed"])
@pytest.mark.parametrize("drafter", ["auto", "model"])
def test_a_draft_model_whose_rows_are_no_numbers_is_told_everywhere(
    controller: str, drafter: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(SpeculationConfig(controller=controller, drafter=drafter))
    with caplog.at_level(logging.WARNING, "pilotfish"):
        reply = engine.generate("say:", raw=True, max_tokens=40)
        engine.generate("say:", raw=True, max_tokens=40)
    assert reply.text.encode() == bytes(REPLY), "drafts are lost, and nothing else"
    told = reply.stats.speculation
    ((failure, rounds),) = told["failures"].items()
    assert failure.startswith("the draft model: ")
    assert "nan" in failure
    assert 0 < rounds <= reply.stats.rounds
    assert told["on"]
    assert f"a drafter failed in {rounds} of {reply.stats.rounds} rounds" in told["reason"]
    assert engine.notices == (f"a drafter failed: {failure}",)
    assert [one.getMessage() for one in caplog.records] == list(engine.notices), "told once"


def test_a_drafter_that_breaks_is_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks:
        def prepare(self, view: Any) -> bool:
            return False

        def propose(self, views: Any, budgets: Any) -> Any:
            raise RuntimeError("out of ideas")

        def forget(self, request_id: int) -> None:
            pass

    engine = engine_of(SpeculationConfig(controller="fixed", drafter="suffix"))
    engine.engine.drafter = Breaks()
    for _ in range(2):
        stats = engine.generate("say:", raw=True, max_tokens=9).stats
        assert stats.speculation["failures"] == {"out of ideas": stats.rounds}
        assert stats.speculation["reason"] == "the drafter failed: out of ideas"
    assert engine.notices == ("a drafter failed: out of ideas",)


def test_a_reply_that_lost_nothing_has_no_failures() -> None:
    engine = engine_of(SpeculationConfig(controller="fixed", drafter="suffix"))
    stats = engine.generate("say:", raw=True, max_tokens=9).stats
    assert stats.speculation["failures"] == {}
    assert engine.notices == ()


def test_a_damaged_default_draft_is_no_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path))
    assert EngineOptions().engine_config().draft is None, "it is not downloaded"
    path = models.cache.named_path(models.NAMED_MODELS[models.DEFAULT_DRAFT])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF and no more")
    with pytest.raises(ModelFileError, match="is damaged") as caught:
        EngineOptions().engine_config()
    assert f"pilotfish models pull {models.DEFAULT_DRAFT}" in caught.value.hint
    assert "--draft none" in caught.value.hint
    assert EngineOptions(draft="none").engine_config().draft is None
