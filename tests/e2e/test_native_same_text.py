"""The promise on the native backend: the same ids bit for bit, whatever is drafted or shared.

Alone, among other sessions, and with the prompt cut elsewhere; on a tiny pair and on the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pilotfish.backends.native import NativeModel
from pilotfish.build import load_model
from pilotfish.config import (
    DEFAULT_DRAFT_HEAD_SIZE,
    EngineConfig,
    ModelConfig,
    SpeculationConfig,
)
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET
from pilotfish.protocols import Drafter
from pilotfish.types import DraftWish, SamplingSettings
from support.tiny_gguf import write_tiny

PLACES = 3
SETTINGS = {
    "greedy": SamplingSettings(),
    "seeded": SamplingSettings(temperature=0.8),
    "penalised": SamplingSettings(
        temperature=1.0, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.2
    ),
}
DRAFTERS = ("ngram", "suffix", "model", "hybrid")


@dataclass(frozen=True)
class Pair:
    """Target and draft, prompts, and how long the replies get."""

    target: NativeModel
    draft: NativeModel
    prompts: list[list[int]]
    num_tokens: int

    def drafter(self, name: str) -> Drafter:
        model = ModelDrafter(
            self.draft,
            vocab_size=self.target.vocab_size,
            min_survival=0.05,
            head=self.draft.head,
        )
        made: dict[str, Drafter] = {
            "none": NoDrafter(),
            "ngram": NgramDrafter(),
            "suffix": SuffixDrafter(min_probability=0.1),
            "model": model,
            "prediction": PredictionDrafter(),
            "hybrid": HybridDrafter([SuffixDrafter(min_probability=0.5), model]),
        }
        return made[name]


def make_pair(target: str, draft: str, head_size: int) -> tuple[NativeModel, NativeModel]:
    sides = [
        ModelConfig(reference=name, backend="native", context_size=256) for name in (target, draft)
    ]
    config = EngineConfig(
        target=sides[0],
        draft=sides[1],
        max_sessions=PLACES,
        speculation=SpeculationConfig(draft_head_size=head_size),
    )
    loaded = load_model(sides[0], config), load_model(sides[1], config, as_draft=True)
    assert isinstance(loaded[0], NativeModel)
    assert isinstance(loaded[1], NativeModel)
    return loaded


@pytest.fixture(scope="module", params=["tiny", pytest.param("real", marks=pytest.mark.models)])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    if request.param == "tiny":
        folder = tmp_path_factory.mktemp("pair")
        target, draft = (
            str(write_tiny(folder / f"{role}.gguf", quantised=True, layers=layers))
            for role, layers in (("target", 2), ("draft", 1))
        )
        models = make_pair(target, draft, 150)
        prompts = [[(7 * i * i + shift) % 256 for i in range(70)] for shift in (1, 5)] + [[17]]
        num_tokens = 40
    else:
        models = make_pair(DEFAULT_TARGET, DEFAULT_DRAFT, DEFAULT_DRAFT_HEAD_SIZE)
        texts = ["def add(a, b):\n    return a + b\n\n" * 4, "请用一句话介绍鲨鱼 🦈.", "a"]
        prompts = [models[0].tokenizer.encode(text, parse_special=False) for text in texts]
        num_tokens = 10
    with models[0] as target_model, models[1] as draft_model:
        yield Pair(target_model, draft_model, prompts, num_tokens)


def run_together(
    pair: Pair, drafter: str, prompts: list[list[int]], **options: Any
) -> list[Session]:
    rule = options.pop("rule", "match")
    engine = Engine(
        target=pair.target,
        drafter=pair.drafter(drafter),
        controller=FixedController(options.pop("number", 5)),
        verify_rule=rule,
    )
    options = {"seed": 5, "max_tokens": pair.num_tokens} | options
    sessions = [engine.start(prompt, **options) for prompt in prompts]
    engine.run_together(sessions)
    for session in sessions:
        assert session.error is None
        assert session.drafting_error is None
    return sessions


def alone(pair: Pair, drafter: str, **options: Any) -> list[list[int]]:
    return [
        run_together(pair, drafter, [prompt], **options)[0].output_ids for prompt in pair.prompts
    ]


def together(pair: Pair, drafter: str, **options: Any) -> list[list[int]]:
    return [one.output_ids for one in run_together(pair, drafter, pair.prompts, **options)]


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_drafter_no_neighbour_and_no_cut_changes_a_reply(
    pair: Pair, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"settings": SETTINGS[settings]}
    plain = alone(pair, "none", **options)
    assert together(pair, "none", **options) == plain
    accepted = {}
    for number, drafter in enumerate(DRAFTERS):
        assert alone(pair, drafter, number=3 + 2 * number, **options) == plain, drafter
        sessions = run_together(pair, drafter, pair.prompts, **options)
        assert [session.output_ids for session in sessions] == plain, drafter
        accepted[drafter] = sum(r.num_accepted for s in sessions for r in s.records)
    assert accepted["model"] > 0, "no draft of the model was ever taken: nothing is tested"
    for chunk in (1, 7, 64):
        monkeypatch.setattr("pilotfish.engine.engine.PROMPT_CHUNK_TOKENS", chunk)
        assert together(pair, "hybrid", **options) == plain


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_prediction_changes_a_reply(pair: Pair, settings: str) -> None:
    options: dict[str, Any] = {"settings": SETTINGS[settings]}
    plain = alone(pair, "none", **options)
    for change in (
        lambda reply: reply,
        lambda reply: [*reply[:4], 17, 17, *reply[5:]],
        lambda reply: reply[::-1],
    ):
        predictions = [tuple(change(reply)) for reply in plain]
        num_accepted = 0
        for prompt, reply, prediction in zip(pair.prompts, plain, predictions, strict=True):
            wish = DraftWish(prediction=prediction)
            (session,) = run_together(pair, "prediction", [prompt], wish=wish, number=8, **options)
            assert session.output_ids == reply
            num_accepted += sum(record.num_accepted for record in session.records)
        assert num_accepted > 0 or predictions[0] == tuple(plain[0][::-1])
    # one prediction for all, which is right for the first of them
    wish = DraftWish(prediction=tuple(plain[0]))
    assert together(pair, "prediction", wish=wish, **options) == plain


@pytest.mark.parametrize("drafter", ["none", "suffix", "model"])
def test_the_token_rule_gives_the_same_reply_alone_and_in_a_batch(
    pair: Pair, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"settings": SETTINGS["seeded"], "rule": "token"}
    plain = alone(pair, drafter, **options)
    assert together(pair, drafter, **options) == plain
    monkeypatch.setattr("pilotfish.engine.engine.PROMPT_CHUNK_TOKENS", 7)
    assert together(pair, drafter, **options) == plain
