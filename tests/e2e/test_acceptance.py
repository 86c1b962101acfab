"""How often drafts of the real pair stand: numbers that must not move unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pilotfish.accounting.metrics import acceptance_rate
from pilotfish.bench.workload import own_workload
from pilotfish.build import ModelPair, load_pair, text_engine
from pilotfish.config import EngineConfig, ModelConfig, Request
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET
from pilotfish.types import RoundRecord

pytestmark = pytest.mark.models

# rows of the native kernels have the same bits on every machine, and so have these shares
GOLDEN = {"model": 0.746, "suffix": 0.405}
MOST_CHANGE = 0.05
TOKENS = 48


@pytest.fixture(scope="module")
def pair() -> Iterator[ModelPair]:
    def side(reference: str) -> ModelConfig:
        return ModelConfig(reference=reference, backend="native", context_size=1024)

    loaded = load_pair(EngineConfig(target=side(DEFAULT_TARGET), draft=side(DEFAULT_DRAFT)))
    yield loaded
    loaded.close()


@pytest.mark.parametrize("drafter", GOLDEN)
def test_acceptance_is_what_it_was(pair: ModelPair, drafter: str) -> None:
    speculation = replace(
        pair.config.speculation, drafter=drafter, controller="fixed", num_speculative_tokens=4
    )
    engine = text_engine(pair, speculation)
    records: list[RoundRecord] = []
    for prompt in own_workload().limited(6).prompts:
        ids = engine.prompt_ids(prompt.content, Request())
        session = engine.engine.start(ids, max_tokens=TOKENS, end_ids=engine.tokenizer.end_ids)
        for _ in engine.engine.run(session):
            pass
        records += session.records
    assert acceptance_rate(records) == pytest.approx(GOLDEN[drafter], abs=MOST_CHANGE)
