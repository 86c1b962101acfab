"""The text before a row: cut and grown in place, its counts always those of a fresh count."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.backends.scripted import ScriptedModel
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.sampling import TokenHistory, adjust_row
from pilotfish.types import SamplingSettings

TOKENS = st.lists(st.integers(0, 9), max_size=12)
# grow by some tokens, or be cut to a share of what follows the prompt
CHANGES = st.lists(TOKENS | st.floats(0, 1), max_size=12)


def recounted(tokens: list[int]) -> dict[int, int]:
    ids, counts = np.unique(np.array(tokens, dtype=np.int64), return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


@given(prompt=TOKENS, changes=CHANGES, asked_first=st.booleans())
def test_counts_are_those_of_the_text_however_it_grew_and_was_cut(
    prompt: list[int], changes: list[Any], asked_first: bool
) -> None:
    history, text = TokenHistory(prompt, num_prompt_tokens=len(prompt)), list(prompt)
    if asked_first:
        _ = history.text_counts, history.output_counts
    for change in changes:
        if isinstance(change, float):
            text = text[: len(prompt) + int(change * (len(text) - len(prompt)))]
            history.truncate(len(text))
        else:
            text += change
            history.extend(change)
    assert len(history) == len(text)
    assert history.output_ids.tolist() == text[len(prompt) :]
    for counts, tokens in (
        (history.text_counts, text),
        (history.output_counts, text[len(prompt) :]),
    ):
        found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
        assert found == recounted(tokens)


@pytest.mark.parametrize("prompt", [[], [1, 2]])
def test_ids_and_counts_are_whole_numbers_however_many_there_are(prompt: list[int]) -> None:
    history = TokenHistory(prompt, num_prompt_tokens=len(prompt))
    for new in ([], [3], list(range(400))):
        history.extend(new)
        counts = history.text_counts
        assert {array.dtype for array in (history.output_ids, counts.ids, counts.counts)} == {
            np.dtype(np.int64)
        }


def test_more_tokens_than_there_was_room_for_are_counted() -> None:
    history = TokenHistory([1, 2], num_prompt_tokens=2)
    assert len(history.text_counts.ids) == 2
    history.extend(list(range(2000)))
    history.extend([7] * 2000)
    assert history.text_counts.counts.sum() == len(history) == 4002
    assert recounted(history.output_ids.tolist())[7] == 2001
    history.truncate(2)
    assert history.text_counts.ids.tolist() == [1, 2]
    assert history.output_counts.ids.tolist() == []


def test_the_prompt_cannot_be_cut() -> None:
    with pytest.raises(AssertionError):
        TokenHistory([1, 2, 3], num_prompt_tokens=3).truncate(2)


def test_rejected_drafts_leave_no_trace_in_penalties() -> None:
    settings = SamplingSettings(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
    generator = np.random.default_rng(4)
    history = TokenHistory([1, 2, 2], num_prompt_tokens=3)
    for _ in range(30):
        history.extend(generator.integers(0, 12, 3).tolist())
        num_tokens = len(history)
        history.extend(generator.integers(0, 12, 5).tolist())
        row = generator.normal(size=12).astype(np.float32)
        adjust_row(row, settings, history, end_ids=frozenset())
        history.truncate(num_tokens)
        text = [1, 2, 2, *history.output_ids.tolist()]
        fresh = TokenHistory(text, num_prompt_tokens=3)
        np.testing.assert_array_equal(
            adjust_row(row, settings, history, end_ids=frozenset()),
            adjust_row(row, settings, fresh, end_ids=frozenset()),
        )


class Rows(ScriptedModel):
    """Gives out the same rows, so that only the engine needs memory."""

    rows = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)

    def forward(self, segments: Any) -> Any:
        for segment in segments:
            segment.cache.tokens.extend(segment.token_ids)
        return [self.rows[: segment.num_rows] for segment in segments]


@pytest.mark.parametrize("drafts", [False, True])
def test_a_round_after_a_long_text_needs_no_more_memory_than_after_a_short_one(
    drafts: bool,
) -> None:
    """What copies or sorts the text for a row needs memory for it."""

    def peak(num_prompt_tokens: int) -> int:
        def model() -> Rows:
            return Rows(lambda _: Rows.rows[0], vocab_size=16, context_size=10**6)

        drafter = ModelDrafter(model(), vocab_size=16, min_survival=0.0) if drafts else NoDrafter()
        engine = Engine(target=model(), drafter=drafter, controller=FixedController(4))
        settings = SamplingSettings(
            temperature=1.0, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
        )
        session = engine.start([1] * num_prompt_tokens, settings=settings, seed=1, max_tokens=200)
        peaks = []
        for _ in range(10):
            tracemalloc.start()
            engine.step([session])
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert session.num_tokens_left < 200
        return min(peaks)

    peak(10)  # what is made once is made
    assert peak(60_000) < peak(300) + 20_000
