"""Choosing from a row by hand-worked cases: what is kept, in which order, and what is told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pilotfish.errors import BackendError, ConfigError
from pilotfish.sampling import (
    Sampler,
    Stream,
    TokenHistory,
    draw,
    gumbel_noise,
    legal_row,
    noise_key,
    row_law,
    seeded_choice,
    token_logprobs,
)
from pilotfish.sampling.choice import scattered
from pilotfish.types import Distribution, FloatArray, SamplingSettings

END = 7


def row_of(*logits: float) -> FloatArray:
    return np.array(logits, dtype=np.float32)


def test_a_draw_never_takes_what_has_no_weight() -> None:
    law = Distribution(np.array([2, 5, 9]), np.array([0.0, 1.0, 0.0]))
    assert {draw(law, key) for key in range(50)} == {5}


def test_a_row_of_a_part_becomes_one_by_token() -> None:
    whole = scattered(row_of(1.0, 2.0), np.array([3, 1]))
    assert whole.tolist() == [-math.inf, 2.0, -math.inf, 1.0]
    assert whole.dtype == np.float32


def test_what_a_constraint_rules_out_has_no_weight() -> None:
    allowed = np.array([True, False, True])
    assert legal_row(row_of(1, 2, 3), allowed).tolist() == [1, -math.inf, 3]
    # tokens that the constraint does not know, and a row that is shorter than it
    assert legal_row(row_of(1, 2, 3, 4), allowed).tolist() == [1, -math.inf, 3, -math.inf]
    assert legal_row(row_of(1, 2), allowed).tolist() == [1, -math.inf]
    parts = legal_row(row_of(1, 2, 3, 4), allowed, np.array([2, 9, 1, 3]))
    assert parts.tolist() == [1, -math.inf, -math.inf, -math.inf]
    assert parts.dtype == legal_row(row_of(1, 2, 3, 4), allowed).dtype == np.float32


def test_the_law_of_a_part_is_that_of_its_tokens_in_their_order() -> None:
    row, ids = row_of(math.log(1), math.log(6), math.log(1)), np.array([9, 4, 6])
    law = row_law(row, SamplingSettings(temperature=1.0), ids)
    assert law.ids.tolist() == [4, 6, 9]
    np.testing.assert_allclose(law.probs, [0.75, 0.125, 0.125])
    hot = row_law(row, SamplingSettings(temperature=2.0), ids)
    np.testing.assert_allclose(hot.probs, np.sqrt([6, 1, 1]) / (2 + math.sqrt(6)))
    best = row_law(row, SamplingSettings(), ids)
    assert (best.ids.tolist(), best.probs.tolist()) == ([4], [1.0])


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.2}])
@pytest.mark.parametrize("size", [5, 4_000])
def test_a_choice_is_the_largest_logit_over_temperature_plus_its_noise(
    filters: dict[str, Any], size: int
) -> None:
    rng = np.random.default_rng(size)
    settings = SamplingSettings(temperature=0.7, **filters)
    for key in range(30):
        row = (rng.normal(size=size) * 2).astype(np.float32)
        law = row_law(row, settings)
        scores = row[law.ids].astype(np.float64) / 0.7 + gumbel_noise(key, law.ids)
        assert seeded_choice(row, settings, key) == law.ids[np.argmax(scores)]


# tokens whose bound is hardly above their score under `noise_key(1, 1)`: by 0.0003 and less
TIGHT = (1_712_366, 12_918_388, 19_301_542)


@pytest.mark.parametrize("token", TIGHT)
def test_an_entry_whose_bound_is_hardly_above_its_score_is_not_lost(token: int) -> None:
    ids, row = np.arange(2_100), np.full(2_100, -40.0, dtype=np.float32)
    ids[700], row[700] = token, 20.0
    assert seeded_choice(row, SamplingSettings(temperature=1.0), noise_key(1, 1), ids) == token


def test_an_entry_of_a_part_is_judged_by_the_noise_of_its_token() -> None:
    ids, row = np.arange(2_100)[::-1].copy(), np.full(2_100, -40.0, dtype=np.float32)
    row[700] = 20.0
    for key in range(40):
        settings = SamplingSettings(temperature=1.0)
        assert seeded_choice(row, settings, noise_key(key, 1), ids) == ids[700]


def test_log_probabilities_name_the_token_and_the_largest() -> None:
    row = row_of(0.0, math.log(2), -math.inf, 0.0, math.log(4))
    told = token_logprobs(row, 1, 9)
    assert told.token_id == 1
    assert told.logprob == pytest.approx(math.log(1 / 4))
    # without what the model itself rules out; of equals, the lowest id first
    assert [token for token, _ in told.top] == [4, 1, 0, 3]
    assert [value for _, value in told.top] == pytest.approx(
        [math.log(share) for share in (1 / 2, 1 / 4, 1 / 8, 1 / 8)]
    )
    assert token_logprobs(row, 4, 0).top == ()
    assert token_logprobs(row, 4, 0).logprob == pytest.approx(math.log(1 / 2))
    levels = np.random.default_rng(1).integers(0, 3, 200).astype(np.float32)
    expected = sorted(range(200), key=lambda token: (-levels[token], token))
    assert [token for token, _ in token_logprobs(levels, 0, 150).top] == expected[:150]


class Allowing:
    """A constraint that allows some tokens, and notes what it was asked."""

    def __init__(self, *token_ids: int, size: int = 8) -> None:
        self.mask = np.zeros(size, dtype=bool)
        self.mask[list(token_ids)] = True
        self.asked: list[list[int]] = []

    def allowed(self, output_ids: Any) -> Any:
        self.asked.append(list(output_ids))
        return self.mask


ROW = row_of(5, 4, 3, 2, 1, 0, -1, -2)


def choose(
    settings: SamplingSettings,
    *,
    constraint: Any = None,
    row: FloatArray = ROW,
    ids: Any = None,
    output: tuple[int, ...] = (),
) -> int:
    sampler = Sampler(settings, 3, frozenset({END}), constraint)
    return sampler.choose(row, TokenHistory([1, 2, *output], num_prompt_tokens=2), ids)


def test_a_constraint_is_asked_for_the_reply_and_decides_what_may_follow() -> None:
    constraint = Allowing(2, 4)
    assert choose(SamplingSettings(), constraint=constraint, output=(6, 5)) == 2
    assert constraint.asked == [[6, 5]]
    # a long row, of which little is left
    long_row = np.concatenate([ROW, np.full(100, 9.0, dtype=np.float32)])
    assert choose(SamplingSettings(), constraint=Allowing(3, 5), row=long_row) == 3
    # and a part of a row
    part, ids = row_of(1, 2, 3), np.array([5, 2, 0])
    assert choose(SamplingSettings(), constraint=Allowing(5, 2), row=part, ids=ids) == 2


def test_a_reply_that_must_end_ends_however_short() -> None:
    settings = SamplingSettings(min_tokens=3)
    assert choose(settings, constraint=Allowing(END)) == END
    # where it may also go on, it goes on, until it is long enough
    assert choose(settings, constraint=Allowing(END, 6), row=-ROW) == 6
    assert choose(settings, constraint=Allowing(END, 6), row=-ROW, output=(1, 1)) == 6
    assert choose(settings, constraint=Allowing(END, 6), row=-ROW, output=(1, 1, 1)) == END


def test_a_constraint_that_leaves_nothing_is_an_error_that_says_so() -> None:
    for size in (8, 200):
        settings = SamplingSettings(banned_tokens=(2, 4))
        row = np.zeros(size, dtype=np.float32)
        constraint = Allowing(2, 4, size=size)
        with pytest.raises(ConfigError, match=r"2 may follow here, and logit_bias") as caught:
            choose(settings, constraint=constraint, row=row)
        assert caught.value.hint.startswith("ban fewer tokens")
    with pytest.raises(ConfigError, match="0 may follow here"):
        choose(SamplingSettings(), constraint=Allowing())


def test_a_sampler_chooses_with_the_noise_of_the_place_after_the_text() -> None:
    settings = SamplingSettings(temperature=1.0)
    sampler = Sampler(settings, 3, frozenset())
    row = np.zeros(50, dtype=np.float32)
    for length in range(1, 9):
        history = TokenHistory([1] * length, num_prompt_tokens=1)
        assert sampler.choose(row, history) == seeded_choice(row, settings, noise_key(3, length))
    assert sampler.key(4, Stream.DRAFT, 6) == noise_key(3, 4, Stream.DRAFT, 6)


def test_a_row_without_a_largest_number_says_what_it_has_and_why() -> None:
    with pytest.raises(BackendError, match="largest logit is nan") as caught:
        choose(SamplingSettings(), row=row_of(1, math.nan, 2))
    assert caught.value.hint.startswith("the model file or the backend is broken, or every token")
    with pytest.raises(BackendError, match="largest logit is -inf"):
        choose(SamplingSettings(banned_tokens=tuple(range(8))))
