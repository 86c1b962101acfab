"""Log-probabilities of a prompt: those of reading it token by token, in little memory."""

from __future__ import annotations

import numpy as np
import pytest

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.prompt_pass import SCORED_PASS_TOKENS
from pilotfish.engine.session import Session
from pilotfish.prefixes import PrefixPool
from pilotfish.sampling import token_logprobs
from pilotfish.types import SamplingSettings

VOCAB = 11
PROMPT = [int(one) for one in np.random.default_rng(3).integers(0, VOCAB, 300)]
LOGITS = random_logits(VOCAB, seed=1)


def answered(
    prompt: list[int],
    *,
    wanted: int | None,
    unit: int = 1,
    most_tokens: int | None = None,
    **model: int,
) -> tuple[Session, ScriptedModel]:
    target = ScriptedModel(LOGITS, vocab_size=VOCAB, **model)
    engine = Engine(
        target=target,
        drafter=NgramDrafter(),
        controller=FixedController(3),
        prefixes=PrefixPool(target, most_sequences=2, unit=unit),
    )
    settings = SamplingSettings(prompt_logprobs=wanted, temperature=1.0)
    for _ in range(2):  # the second could take over what the first has read
        session = engine.open(prompt, settings=settings, max_tokens=20, seed=4)
        while not engine.read(session, most_tokens=most_tokens):
            pass
        engine.run_together([session])
    return session, target


@pytest.mark.parametrize("unit", [1, 256])
@pytest.mark.parametrize("length", [1, 2, 33, 257, 300])
def test_they_are_those_of_each_token_after_the_ones_before(unit: int, length: int) -> None:
    prompt = PROMPT[:length]
    session, _ = answered(prompt, wanted=2, unit=unit)
    rows = (np.asarray(LOGITS(tuple(prompt[:end])), np.float32) for end in range(1, length))
    expected = [token_logprobs(row, prompt[i + 1], 2) for i, row in enumerate(rows)]
    assert session.prompt_logprobs == expected
    assert session.num_reused_tokens == 0


@pytest.mark.parametrize("unit", [1, 256])
def test_asking_for_them_changes_no_reply(unit: int) -> None:
    with_them, _ = answered(PROMPT, wanted=0, unit=unit)
    without, _ = answered(PROMPT, wanted=None, unit=unit)
    assert with_them.output_ids == without.output_ids
    assert without.prompt_logprobs == []


@pytest.mark.parametrize("most_tokens", [None, 1, 7, 100])
def test_no_cut_of_the_prompt_changes_them(most_tokens: int | None) -> None:
    session, _ = answered(PROMPT, wanted=3, most_tokens=most_tokens)
    assert session.prompt_logprobs == answered(PROMPT, wanted=3)[0].prompt_logprobs


@pytest.mark.parametrize("max_width", [4, 512])
def test_few_rows_are_in_memory_at_once(max_width: int) -> None:
    _, target = answered(PROMPT, wanted=1, max_width=max_width)
    widest = max(max(widths) for widths in target.log.widths)
    assert widest == min(max_width, SCORED_PASS_TOKENS)


def test_where_bits_depend_on_the_cut_the_prompt_is_read_as_in_any_request() -> None:
    _, scored = answered(PROMPT, wanted=1, unit=256)
    _, plain = answered(PROMPT, wanted=None, unit=256)
    # what was read for the rows is given up, part by part
    assert scored.log.truncations[:2] == [(1, 0), (1, 256)]
    assert len(scored.log.evaluations) > len(plain.log.evaluations)
