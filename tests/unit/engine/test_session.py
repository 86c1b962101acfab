"""One session by hand: which noise decides what, what a round changes, and what it hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.scripted import ScriptedCache, ScriptedModel, random_logits
from pilotfish.engine.session import Session, checked_rows
from pilotfish.sampling import Stream, draw, noise_key, token_logprobs, uniform
from pilotfish.types import (
    Distribution,
    DraftWish,
    FloatArray,
    Proposal,
    SamplingSettings,
    Segment,
    StopReason,
    Verdict,
)
from pilotfish.verify import acceptance_probability, residual_distribution

VOCAB = 6
PROMPT = (1, 2, 3)


def session_of(
    settings: SamplingSettings | None = None, *, seed: int = 7, rule: str = "match", **options: Any
) -> Session:
    """Return a session whose prompt is read, all but its last token."""
    model = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    cache = model.new_cache()
    model.forward([Segment(cache, PROMPT[:-1])])
    return Session(
        4,
        PROMPT,
        cache,
        settings=settings or SamplingSettings(temperature=1.0),
        seed=seed,
        end_ids=options.pop("end_ids", frozenset()),
        num_tokens_left=options.pop("num_tokens_left", 9),
        verify_rule=rule,
        **options,
    )


def scored(session: Session, proposal: Proposal) -> None:
    """Put what a round evaluates into the cache."""
    assert isinstance(session.cache, ScriptedCache)
    session.cache.tokens += session.segment(proposal).token_ids


def rows_of(*laws: Sequence[float]) -> FloatArray:
    return np.log(np.array(laws, dtype=np.float32))


def random_rows(count: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(count, VOCAB)).astype(np.float32)


def by_hand(
    rows: FloatArray, proposal: Proposal, *, seed: int, round_index: int
) -> tuple[int, int]:
    """The token rule with each draw from the stream and place it belongs to."""
    position = len(PROMPT)

    def law(index: int) -> Distribution:
        weights = np.exp(rows[index].astype(np.float64))
        return Distribution.dense(weights / weights.sum())

    for index, token in enumerate(proposal.token_ids):
        chance = acceptance_probability(law(index), proposal.law(index), token)
        key = noise_key(seed, position + index, Stream.ACCEPTANCE, round_index)
        if uniform(key) >= chance:
            rest = residual_distribution(law(index), proposal.law(index))
            key = noise_key(seed, position + index, Stream.CORRECTION, round_index)
            return index, draw(rest, key)
    number = len(proposal.token_ids)
    key = noise_key(seed, position + number, Stream.CORRECTION, round_index)
    return number, draw(law(number), key)


@pytest.mark.parametrize("round_index", [0, 3])
def test_each_decision_of_the_token_rule_has_the_noise_of_its_stream_place_and_round(
    round_index: int,
) -> None:
    accepted = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        laws = tuple(Distribution.dense(law) for law in rng.dirichlet(np.ones(VOCAB), size=3))
        drafts = tuple(int(rng.choice(VOCAB, p=law.probs)) for law in laws)
        proposal, rows = Proposal(drafts, "model", laws), random_rows(4, seed)
        session = session_of(seed=seed, rule="token")
        session.records += [None] * round_index  # type: ignore[list-item]
        verdict = session.verify(rows, proposal)
        expected = by_hand(rows, proposal, seed=seed, round_index=round_index)
        assert (verdict.num_accepted, verdict.next_token) == expected
        accepted.add(verdict.num_accepted)
    assert accepted == {0, 1, 2, 3}


@pytest.mark.parametrize("rule", ["match", "token"])
def test_drafts_before_a_row_count_for_its_penalties_and_leave_no_trace(rule: str) -> None:
    # the largest is the same in all rows, and what the text has is out of the question
    settings = SamplingSettings(presence_penalty=50.0, temperature=0.0)
    rows = rows_of(*[(0.05, 0.06, 0.07, 0.12, 0.3, 0.4)] * 4)
    session = session_of(settings, rule=rule)
    proposal = Proposal((5, 4, 5), "model")
    verdict = session.verify(rows, proposal)
    assert (verdict.num_accepted, verdict.next_token) == (2, 3)
    # the same again: nothing of the drafts was kept
    assert session.verify(rows, proposal) == verdict
    scored(session, proposal)
    session.commit(rows, proposal, verdict)
    assert session.output_ids == [5, 4, 3]
    # what the round committed counts in the next one
    assert session.verify(rows, Proposal((2, 1), "model")) == Verdict(2, 0)


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_a_round_hands_out_tokens_with_origin_and_the_row_they_come_from(
    logprobs: int | None,
) -> None:
    session = session_of(SamplingSettings(logprobs=logprobs))
    rows, proposal = random_rows(4), Proposal((5, 4, 3), "suffix")
    scored(session, proposal)
    emitted = session.commit(rows, proposal, Verdict(2, 1))
    assert [(one.token_id, one.origin) for one in emitted] == [
        (5, "suffix"),
        (4, "suffix"),
        (1, "target"),
    ]
    for index, one in enumerate(emitted):
        expected = None if logprobs is None else token_logprobs(rows[index], one.token_id, logprobs)
        assert one.logprobs == expected
    assert session.emitted == emitted
    assert (session.output_ids, session.tokens) == ([5, 4, 1], [*PROMPT, 5, 4, 1])
    assert session.num_tokens_left == 6
    # the last one is pending
    assert session.cache.tokens == [*PROMPT, 5, 4]  # type: ignore[attr-defined]
    assert (session.done, session.stop_reason) == (False, None)


@pytest.mark.parametrize(
    ("options", "kept", "reason"),
    [
        ({"num_tokens_left": 2}, [5, 4], StopReason.LENGTH),
        ({"end_ids": frozenset({4})}, [5, 4], StopReason.STOP),
        ({"completes_stop": lambda token: token == 5}, [5], StopReason.STOP),
        ({"completes_stop": lambda token: token == 0}, [5, 4, 3, 1], None),
    ],
)
def test_one_cut_holds_for_tokens_usage_and_cache(
    options: dict[str, Any], kept: list[int], reason: StopReason | None
) -> None:
    session = session_of(**options)
    proposal = Proposal((5, 4, 3), "model")
    scored(session, proposal)
    emitted = session.commit(random_rows(4), proposal, Verdict(3, 1))
    assert [one.token_id for one in emitted] == session.output_ids == kept
    assert session.num_tokens_left == options.get("num_tokens_left", 9) - len(kept)
    assert (session.stop_reason, session.done) == (reason, reason is not None)
    assert len(session.cache) == len(session.tokens) - 1


def test_a_view_says_what_the_session_is() -> None:
    settings, wish, constraint = SamplingSettings(min_tokens=2), DraftWish(), object()
    session = session_of(
        settings,
        seed=11,
        rule="token",
        wish=wish,
        constraint=constraint,
        end_ids=frozenset({5}),
        num_tokens_left=8,
    )
    session.records.append(None)  # type: ignore[arg-type]
    view = session.view()
    assert (view.request_id, view.tokens, view.num_prompt_tokens) == (4, [*PROMPT], 3)
    assert view.settings is settings
    assert view.wish is wish
    assert view.constraint is constraint
    assert (view.seed, view.round_index, view.end_ids) == (11, 1, frozenset({5}))
    assert (view.needs_laws, view.num_tokens_left) == (True, 8)
    assert not session_of().view().needs_laws
    assert session_of().view().wish == DraftWish()


def test_a_prompt_is_read_when_the_target_and_drafters_have_read_it() -> None:
    session = session_of()
    assert (session.prefill_seconds, session.draft_prefill_seconds) == (0, 0)
    assert not session.is_read
    session.is_prepared = True
    assert session.is_read
    session.cache.truncate(1)
    assert not session.is_read
    assert session.num_reused_tokens == 2


class Only:
    """A constraint that allows one token."""

    def __init__(self, token_id: int) -> None:
        self.mask = np.arange(VOCAB) == token_id

    def allowed(self, output_ids: Any) -> Any:
        return self.mask


@pytest.mark.parametrize("rule", ["match", "token"])
def test_what_a_constraint_rules_out_is_neither_accepted_nor_chosen(rule: str) -> None:
    session = session_of(rule=rule, constraint=Only(2))
    assert session.verify(random_rows(2), Proposal((5,), "model")) == Verdict(0, 2)
    assert session.verify(random_rows(2), Proposal((2,), "model")) == Verdict(1, 2)


def test_the_first_end_of_a_session_stands() -> None:
    session = session_of()
    session.cancel()
    assert session.stop_reason is StopReason.CANCELLED
    failed = session_of()
    failed.fail(error := ValueError("broken"))
    failed.cancel()
    assert (failed.error, failed.stop_reason) == (error, StopReason.ERROR)


def test_rows_of_a_prompt_are_those_before_its_tokens_and_no_more() -> None:
    session = session_of(SamplingSettings(prompt_logprobs=1))
    rows = random_rows(2)
    session.note_prompt(rows, 0)
    expected = [token_logprobs(row, token, 1) for row, token in zip(rows, PROMPT[1:], strict=True)]
    assert session.prompt_logprobs == expected
    with pytest.raises(ValueError, match="zip"):
        session.note_prompt(rows, 1)


def test_rows_of_another_shape_or_kind_are_a_fault_of_the_model() -> None:
    rows = random_rows(2)
    assert checked_rows(rows, num_rows=2, vocab_size=VOCAB) is rows
    for num_rows, vocab_size in ((1, VOCAB), (2, VOCAB + 1)):
        with pytest.raises(AssertionError, match=r"rows \(2, 6\), not"):
            checked_rows(rows, num_rows=num_rows, vocab_size=vocab_size)
    with pytest.raises(AssertionError, match="rows of float64"):
        checked_rows(rows.astype(np.float64), num_rows=2, vocab_size=VOCAB)
