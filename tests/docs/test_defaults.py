"""Everything public works with nothing but its required arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish import backends, control, drafters, errors
from pilotfish.accounting import metrics
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends import scripted
from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.native import NativeModel
from pilotfish.backends.scripted import ScriptedModel, ScriptedTokenizer, random_logits
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.forced import ForcedDrafter
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.protocols import Controller, Drafter, TargetModel
from pilotfish.text import Detokenizer, ReplyText, StopFinder
from pilotfish.types import (
    Distribution,
    EmittedToken,
    Proposal,
    SamplingSettings,
    Segment,
    SessionView,
)
from support.text_engines import text_engine, tokenizer
from support.tiny_gguf import write_tiny


def small_engine() -> pilotfish.TextEngine:
    return text_engine(random_logits(258), words=tokenizer())


def reply() -> pilotfish.Reply:
    return small_engine().generate("Hi", max_tokens=2)


# how each public name is used with its required arguments only
ROOT_NAMES: dict[str, Callable[[Path], Any]] = {
    "EngineConfig": lambda path: pilotfish.EngineConfig(
        target=pilotfish.ModelConfig(reference="m")
    ),
    "ModelConfig": lambda path: pilotfish.ModelConfig(reference="m"),
    "Piece": lambda path: pilotfish.Piece("text", ()),
    "PilotfishError": lambda path: pilotfish.PilotfishError("message"),
    "Reply": lambda path: reply(),
    "ReplyStream": lambda path: small_engine().stream("Hi"),
    "SamplingSettings": lambda path: pilotfish.SamplingSettings(),
    "SpeculationConfig": lambda path: pilotfish.SpeculationConfig(),
    "TextEngine": lambda path: pilotfish.TextEngine(
        small_engine().engine, small_engine().tokenizer
    ),
    # what it measures by default takes minutes
    "benchmark": lambda path: pilotfish.benchmark(
        str(path), modes="suffix:1", prompts=["Hi"], max_tokens=2
    ),
    "load": lambda path: pilotfish.load(str(path)),
    "load_engine": lambda path: pilotfish.load_engine(
        pilotfish.EngineConfig(target=pilotfish.ModelConfig(reference=str(path)))
    ),
}


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def test_no_public_name_is_left_out() -> None:
    assert set(ROOT_NAMES) == {name for name in pilotfish.__all__ if not name.startswith("__")}


@pytest.mark.parametrize("name", ROOT_NAMES)
def test_public_names_need_only_what_they_require(name: str, tiny_path: Path) -> None:
    made = ROOT_NAMES[name](tiny_path)
    public = getattr(pilotfish, name)
    if isinstance(public, type):
        assert isinstance(made, public)
        repr(made)
    if isinstance(made, pilotfish.TextEngine):
        with made:
            assert made.generate("Hi", max_tokens=2).usage.completion_tokens >= 1


@pytest.mark.models
def test_loading_needs_no_argument_at_all() -> None:
    with pilotfish.load() as engine:
        assert engine.generate("Say hello.", max_tokens=3).text


def drafter_uses(made: Drafter) -> None:
    view = SessionView(1, [1, 2, 1, 2], 2, SamplingSettings(), 7, 0, frozenset())
    assert len(made.propose([view], [2])) == 1
    made.forget(1)


def controller_uses(made: Controller) -> None:
    assert made.draft_budgets([]) == []
    made.observe([])


def model_uses(made: TargetModel) -> None:
    cache = made.new_cache()
    (rows,) = made.forward([Segment(cache, [1, 2])])
    assert rows.shape == (2, made.vocab_size)
    cache.close()


def scripted_model() -> ScriptedModel:
    return ScriptedModel(random_logits(8), vocab_size=8)


PARTS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], None]]] = {
    "NoDrafter": (lambda path: NoDrafter(), drafter_uses),
    "NgramDrafter": (lambda path: NgramDrafter(), drafter_uses),
    "SuffixDrafter": (lambda path: SuffixDrafter(), drafter_uses),
    "PredictionDrafter": (lambda path: PredictionDrafter(), drafter_uses),
    "ModelDrafter": (lambda path: ModelDrafter(scripted_model(), vocab_size=8), drafter_uses),
    "ForcedDrafter": (lambda path: ForcedDrafter(NoDrafter()), drafter_uses),
    "HybridDrafter": (lambda path: HybridDrafter([SuffixDrafter()]), drafter_uses),
    "FixedController": (lambda path: FixedController(4), controller_uses),
    "CostAwareController": (
        lambda path: CostAwareController(PairCosts(target=CostCurve.flat(1.0))),
        lambda made: (drafter_uses(made), controller_uses(made)),
    ),
    "ScriptedModel": (lambda path: scripted_model(), model_uses),
    "LlamaModel": (lambda path: LlamaModel(path), model_uses),
    "NativeModel": (lambda path: NativeModel(path), model_uses),
    "FakeClock": (lambda path: scripted.FakeClock(), lambda clock: clock.advance(clock() + 1)),
    "ScriptedCosts": (lambda path: scripted.ScriptedCosts(), repr),
    "EvaluationLog": (lambda path: scripted.EvaluationLog(), repr),
    "ScriptedTokenizer": (
        lambda path: ScriptedTokenizer([b"a"]),
        lambda made: made.encode("aa", parse_special=True),
    ),
    "Engine": (
        lambda path: Engine(
            target=scripted_model(), drafter=NoDrafter(), controller=FixedController(1)
        ),
        lambda made: next(made.run(made.start([1]))),
    ),
    "Detokenizer": (lambda path: Detokenizer(), lambda made: made.feed(b"a")),
    "StopFinder": (lambda path: StopFinder(), lambda made: made.feed("a")),
    "ReplyText": (lambda path: ReplyText(ScriptedTokenizer([b"a"])), lambda made: made.feed(0)),
    "Proposal": (lambda path: Proposal(), lambda made: made.truncated(0)),
    "Distribution": (lambda path: Distribution.one_hot(3), lambda made: made.probability(3)),
    "EmittedToken": (lambda path: EmittedToken(1, "target"), repr),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_need_only_what_they_require(name: str, tiny_path: Path) -> None:
    make, use = PARTS[name]
    made = make(tiny_path)
    use(made)
    if isinstance(made, LlamaModel | NativeModel):
        made.close()


def classes_below(package: Any) -> set[str]:
    folder = Path(package.__path__[0])
    names = set()
    for path in folder.glob("*.py"):
        module = importlib.import_module(f"{package.__name__}.{path.stem}")
        for name, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__ == module.__name__
            if own and not name.startswith("_") and not getattr(value, "_is_protocol", False):
                names.add(name)
    return names


def test_no_public_part_is_left_out() -> None:
    made_by_others = {
        *("Match", "Continuation", "SuffixAutomaton", "Alignment", "Place"),
        *("ScriptedCache", "ModelFacts", "Footprint", "Exclusive"),
        # what the cost-aware controller is made of, and the draft model's own rule
        *(
            "Prices",
            "LossGuard",
            "LiveCosts",
            "ModelChoice",
            "ModelRule",
            "PassCost",
            "Reliability",
            "RequestState",
        ),
        *("Average", "Averages", "Experience", "Plan", "SurvivalRule"),
    }
    for package in (drafters, control, backends):
        assert classes_below(package) - made_by_others <= set(PARTS)


@pytest.mark.parametrize(
    "function", ["acceptance_rate", "tokens_per_round", "accepted_per_position"]
)
def test_figures_need_only_records(function: str) -> None:
    assert not getattr(metrics, function)([])


def test_errors_need_only_a_message() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.PilotfishError):
            required = {"needed_for": "this"} if kind is errors.MissingExtra else {}
            error = kind("message", **required)
            assert "message" in str(error)
            assert isinstance(error.hint, str)
            assert error.exit_code in (1, 2)
