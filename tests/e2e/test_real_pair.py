"""The main job on the real pair on llama.cpp: the same text with every drafter, in strict mode."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pilotfish.build import load_model
from pilotfish.config import EngineConfig, ModelConfig, Request
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.generation import TextEngine
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET
from pilotfish.types import SamplingSettings
from support.drafters import oracle, random_tokens

if TYPE_CHECKING:
    from pilotfish.build import LoadedModel

pytestmark = pytest.mark.models

PROMPTS = [
    "Write a Python function that adds two numbers, then repeat it with type hints.",
    "请用一句话介绍鲨鱼 🦈.",
    "a",
]
SETTINGS = {
    "greedy": SamplingSettings(),
    "penalised": SamplingSettings(
        temperature=1.0, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.2
    ),
}
TOKENS = 10


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[LoadedModel, LoadedModel]]:
    target_config = ModelConfig(reference=DEFAULT_TARGET, backend="llama", context_size=512)
    draft_config = ModelConfig(reference=DEFAULT_DRAFT, backend="llama", context_size=256)
    config = EngineConfig(target=target_config, draft=draft_config)
    with (
        load_model(target_config, config, strict=True) as target,
        load_model(draft_config, config, strict=False) as draft,
    ):
        yield target, draft


def run(
    target: LoadedModel, drafter: Any, prompt: list[int], settings: SamplingSettings
) -> Session:
    engine = Engine(target=target, drafter=drafter, controller=FixedController(5))
    session = engine.start(
        prompt,
        settings=settings,
        seed=5,
        max_tokens=TOKENS,
        end_ids=target.tokenizer.end_ids,
    )
    for _ in engine.run(session):
        pass
    assert session.drafting_error is None
    return session


@pytest.mark.parametrize("settings", list(SETTINGS))
@pytest.mark.parametrize("prompt_index", range(len(PROMPTS)))
def test_strict_mode_gives_the_same_ids_with_every_drafter(
    pair: tuple[LoadedModel, LoadedModel], prompt_index: int, settings: str
) -> None:
    target, draft = pair
    text = TextEngine(
        Engine(target=target, drafter=NoDrafter(), controller=FixedController(0)),
        target.tokenizer,
    )
    prompt = text.prompt_ids(PROMPTS[prompt_index], Request(raw=prompt_index == 2))
    sampling = SETTINGS[settings]
    plain = run(target, NoDrafter(), prompt, sampling).output_ids
    vocab_size = target.vocab_size
    model = ModelDrafter(draft, vocab_size=vocab_size)
    drafters = {
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
        "model": model,
        "hybrid": HybridDrafter([SuffixDrafter(), model]),
        "random": random_tokens(vocab_size),
        "oracle-3": oracle(plain, errs_every=3, vocab_size=vocab_size),
    }
    accepted = {}
    for name, drafter in drafters.items():
        reply = run(target, drafter, prompt, sampling)
        assert reply.output_ids == plain, name
        accepted[name] = sum(r.num_accepted for r in reply.records)
    # the drafts were really used, and really refused
    assert accepted["oracle-3"] > 0
    assert accepted["random"] <= 1


def test_the_exactness_field_tells_what_was_checked(pair: tuple[LoadedModel, LoadedModel]) -> None:
    exactness = pair[0].exactness
    assert exactness["level"] == "bit-identical"
    assert exactness["checked_widths"]


@pytest.mark.parametrize("backend", ["auto", "llama"])
def test_the_command_line_prints_one_json_document(backend: str) -> None:
    command = [
        sys.executable, "-m", "pilotfish", "generate", "--target", "smollm2-135m", "--json",
        "--max-tokens", "12", "--logprobs", "2", "--backend", backend, "Say hello."
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    reply = json.loads(done.stdout)
    assert reply["usage"]["completion_tokens"] == len(reply["token_ids"]) == len(reply["logprobs"])
    assert reply["models"]["target"]["vocabulary"] == 49_152
    assert reply["models"]["target"]["backend"] == {"auto": "native"}.get(backend, backend)
    level = {"auto": "bit-identical"}.get(backend, "in distribution")
    assert reply["exactness"]["level"] == level
    assert reply["text"]


def test_a_draft_with_another_tokenizer_is_refused_naming_both() -> None:
    command = [
        sys.executable, "-m", "pilotfish", "generate", "--target", "smollm2-135m",
        "--draft", DEFAULT_DRAFT, "hello"
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert "draft" in lines[0]
    assert "target" in lines[0]
    assert lines[1].startswith("hint: ")


@pytest.mark.parametrize("backend", ["native", "llama"])
def test_a_batch_on_one_model_equals_the_solo_runs(backend: str) -> None:
    config = ModelConfig(reference="smollm2-135m", backend=backend, context_size=256)
    with load_model(config, EngineConfig(target=config, max_sessions=3), strict=True) as target:
        engine = Engine(target=target, drafter=SuffixDrafter(), controller=FixedController(3))
        text = TextEngine(engine, target.tokenizer)
        prompts = ["Count to ten.", "Name three fish.", "Say hello hello hello."]
        options: dict[str, Any] = {"max_tokens": 16, "seed": 4, "temperature": 0.7}
        solo = [text.generate(prompt, **options).token_ids for prompt in prompts]
        together = [reply.token_ids for reply in text.generate_batch(prompts, **options)]
        assert together == solo
