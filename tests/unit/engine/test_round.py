"""One round by hand: who gets how many drafts, what is made of bad ones, and what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.scripted import FakeClock, ScriptedModel
from pilotfish.control.fixed import FixedController
from pilotfish.engine.round import (
    failure_text,
    plain_round_seconds,
    plan_budgets,
    propose,
    room_for_drafts,
    run_round,
)
from pilotfish.engine.session import Session
from pilotfish.errors import BackendError
from pilotfish.sampling import token_logprobs
from pilotfish.types import (
    Distribution,
    DraftWish,
    FloatArray,
    Proposal,
    SamplingSettings,
    Segment,
    SessionView,
)

VOCAB = 12
PROMPT = (1, 2, 3)


def counting(prefix: tuple[int, ...]) -> FloatArray:
    """The reply to the prompt is 5 6 7 8 9 10 11 11 ..."""
    return np.eye(VOCAB, dtype=np.float32)[min(len(prefix) + 2, VOCAB - 1)]


class Parts:
    """A target, a controller and a drafter that take 100, 1 and 10 seconds, and the stop detector
    of a session, which takes 1000 for each token; sessions are begun by hand."""

    def __init__(self, proposals: dict[int, Proposal] | None = None, budget: int = 4) -> None:
        self.clock = FakeClock()
        self.target = ScriptedModel(counting, vocab_size=VOCAB, max_width=64)
        self.proposals = proposals or {}
        self.budget = budget
        self.asked: list[list[int]] = []
        self.observed: list[Any] = []

    def begin(self, request_id: int = 1, **options: Any) -> Session:
        cache = self.target.new_cache()
        self.target.forward([Segment(cache, PROMPT[:-1])])
        return Session(
            request_id,
            PROMPT,
            cache,
            settings=options.pop("settings", SamplingSettings()),
            seed=7,
            end_ids=options.pop("end_ids", frozenset()),
            num_tokens_left=options.pop("num_tokens_left", 20),
            completes_stop=self.completes_stop,
            **options,
        )

    def completes_stop(self, token: int) -> bool:
        self.clock.advance(1000)
        return False

    def draft_budgets(self, views: Sequence[SessionView]) -> list[int]:
        self.clock.advance(1)
        return [self.budget] * len(views)

    def observe(self, records: Any) -> None:
        self.observed.append(records)

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        self.clock.advance(10)
        self.asked.append(list(budgets))
        return [self.proposals[view.request_id] for view in views]

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        self.clock.advance(100)
        return self.target.forward(segments)

    @property
    def vocab_size(self) -> int:
        return VOCAB

    @property
    def max_width(self) -> int:
        return self.target.max_width

    def run(self, *sessions: Session) -> Any:
        return run_round(
            sessions,
            target=self,  # type: ignore[arg-type]
            drafter=self,  # type: ignore[arg-type]
            controller=self,  # type: ignore[arg-type]
            clock=self.clock,
        )


def test_a_record_says_what_happened_and_where_the_time_went() -> None:
    proposal = Proposal((5, 6, 0), "suffix", reason="it pays", plain_seconds=70.0)
    parts = Parts({1: proposal, 2: Proposal((), "model", reason="it does not", failure="broken")})
    sessions = [parts.begin(1), parts.begin(2)]
    first, second = parts.run(*sessions)
    assert parts.asked == [[4, 4]]
    assert parts.observed == [[first, second]]
    assert [session.records for session in sessions] == [[first], [second]]
    assert (first.request_id, first.source, first.reason) == (1, "suffix", "it pays")
    assert (first.num_drafted, first.num_accepted, first.num_emitted) == (3, 2, 3)
    assert (second.request_id, second.source, second.reason) == (2, "none", "it does not")
    assert (second.num_drafted, second.num_accepted, second.num_emitted) == (0, 0, 1)
    for record in (first, second):
        assert record.num_sessions == 2
        assert (record.draft_seconds, record.target_seconds) == (10, 100)
        # with the plan and four tokens committed
        assert record.round_seconds == 4111
        assert record.plain_seconds == 70.0
    assert (first.failure, second.failure) == ("", "broken")
    assert [session.output_ids for session in sessions] == [[5, 6, 7], [5]]


def test_what_a_round_without_drafts_takes_is_what_plain_decoding_takes() -> None:
    parts = Parts({1: Proposal.empty()})
    parts.clock.advance(50_000)
    (record,) = parts.run(parts.begin())
    assert (record.plain_seconds, record.round_seconds, record.draft_seconds) == (1101, 1111, 10)
    drafted, silent = Proposal((5,), plain_seconds=3.0), Proposal((6,))
    assert plain_round_seconds([silent, drafted], 9.0) == 3.0
    assert plain_round_seconds([silent], 9.0) is None
    assert plain_round_seconds([Proposal(plain_seconds=3.0)], 9.0) == 9.0


@pytest.mark.parametrize(
    ("wish", "left", "room"),
    [
        (DraftWish(), 20, 19),
        (DraftWish(), 2, 1),
        (DraftWish(), 1, 0),
        (DraftWish(), 500, 63),
        (DraftWish(num_speculative_tokens=3), 20, 3),
        (DraftWish(num_speculative_tokens=30), 20, 19),
        (DraftWish(num_speculative_tokens=0), 20, 0),
        (DraftWish(drafter="none"), 20, 0),
    ],
)
def test_drafts_are_as_many_as_the_reply_the_pass_and_the_request_have_room_for(
    wish: DraftWish, left: int, room: int
) -> None:
    parts = Parts(budget=1000)
    session = parts.begin(num_tokens_left=left, wish=wish)
    target: Any = parts
    assert room_for_drafts(session, target) == room
    views = [session.view()]
    assert plan_budgets([session], views, FixedController(1000), target) == [room]
    assert plan_budgets([session], views, FixedController(2), target) == [min(2, room)]
    session.drafting_error = ValueError()
    assert room_for_drafts(session, target) == 0


LAWS = tuple(Distribution.one_hot(token) for token in (5, 6))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (Proposal((5, VOCAB)), r"drafts \(5, 12\) are outside the vocabulary of 12"),
        (Proposal((-1,)), r"drafts \(-1,\) are outside the vocabulary of 12"),
        (Proposal((5, 6, 7), "model", LAWS), "3 drafts come with 2 laws"),
    ],
)
def test_a_bad_proposal_costs_its_session_its_drafts_and_says_why(bad: Proposal, told: str) -> None:
    parts = Parts({1: bad, 2: Proposal((5, 6), "model")})
    sessions = [parts.begin(1), parts.begin(2)]
    first, second = parts.run(*sessions)
    assert (first.num_drafted, second.num_drafted) == (0, 2)
    # asked again one by one, with the same budgets
    assert parts.asked == [[4, 4], [4], [4]]
    error = sessions[0].drafting_error
    assert isinstance(error, ValueError)
    with pytest.raises(ValueError, match=told):
        raise error
    assert first.failure == str(error)
    assert sessions[1].drafting_error is None
    assert (second.failure, second.source) == ("", "model")


def test_a_drafter_that_forgets_sessions_is_asked_for_each_alone() -> None:
    class Forgetful(Parts):
        def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
            return super().propose(views, budgets)[:1]

    parts = Forgetful({1: Proposal((5, 6), "model"), 2: Proposal((5,), "model")})
    sessions = [parts.begin(1), parts.begin(2)]
    assert [record.num_drafted for record in parts.run(*sessions)] == [2, 1]
    assert parts.asked == [[4, 4], [4], [4]]
    assert [session.drafting_error for session in sessions] == [None, None]


def test_nobody_is_asked_where_nobody_has_room() -> None:
    parts = Parts({1: Proposal((5,))}, budget=0)
    (record,) = parts.run(parts.begin())
    assert (parts.asked, record.num_drafted, record.draft_seconds) == ([], 0, 0)
    # a proposal is cut to its budget
    parts = Parts({1: Proposal((5, 6, 7), "model"), 2: Proposal((5,), "model")}, budget=2)
    sessions = [parts.begin(1), parts.begin(2)]
    views = [session.view() for session in sessions]
    proposals = propose(sessions, views, [2, 0], parts, vocab_size=VOCAB)  # type: ignore[arg-type]
    assert [one.token_ids for one in proposals] == [(5, 6), ()]


class FirstOnly:
    """A constraint under which so many drafts are legal."""

    def __init__(self, num_legal: int) -> None:
        self.number = num_legal
        self.asked: list[Any] = []

    def num_legal(self, output_ids: Any, draft_ids: Any) -> int:
        self.asked.append((list(output_ids), draft_ids))
        return self.number

    def allowed(self, output_ids: Any) -> Any:
        return np.ones(VOCAB, dtype=bool)

    def forced(self, output_ids: Any) -> tuple[int, ...]:
        return ()


def test_drafts_that_a_constraint_rules_out_are_not_scored() -> None:
    constraint = FirstOnly(2)
    parts = Parts({1: Proposal((5, 6, 7), "model")})
    session = parts.begin(constraint=constraint)
    (record,) = parts.run(session)
    assert (record.num_drafted, session.output_ids) == (2, [5, 6, 7])
    parts.proposals = {1: Proposal((8, 9, 10), "model")}
    parts.run(session)
    assert constraint.asked == [([], (5, 6, 7)), ([5, 6, 7], (8, 9, 10))]


def test_a_pass_that_fails_ends_its_sessions_without_a_record() -> None:
    parts = Parts({1: Proposal((5,)), 2: Proposal.empty()})
    sessions = [parts.begin(1), parts.begin(2)]
    parts.target._fail_at = parts.target._num_passes + 1
    assert parts.run(*sessions) == []
    for session in sessions:
        assert isinstance(session.error, BackendError)
        assert session.done
        assert (session.records, session.output_ids) == ([], [])
    assert parts.observed == []


def test_a_target_that_returns_too_little_is_a_fault_and_no_shorter_round() -> None:
    parts = Parts({1: Proposal.empty(), 2: Proposal.empty()})
    sessions = [parts.begin(1), parts.begin(2)]
    target = parts.target

    class Forgetful(ScriptedModel):
        def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
            return target.forward(segments)[:1]

    parts.target = Forgetful(counting, vocab_size=VOCAB)
    with pytest.raises(ValueError, match="zip"):
        parts.run(*sessions)


def test_a_broken_row_ends_its_session_and_has_no_record() -> None:
    class Broken(Parts):
        def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
            rows = super().forward(segments)
            rows[0][:] = np.nan
            return rows

    parts = Broken({1: Proposal.empty(), 2: Proposal((5,), "model")})
    sessions = [parts.begin(1), parts.begin(2)]
    (record,) = parts.run(*sessions)
    assert (record.request_id, record.num_sessions) == (2, 2)
    assert isinstance(sessions[0].error, BackendError)
    assert (sessions[0].records, sessions[1].records) == ([], [record])


def test_log_probabilities_are_those_of_the_rows_of_the_pass() -> None:
    parts = Parts({1: Proposal((5, 0), "model")})
    session = parts.begin(settings=SamplingSettings(logprobs=1))
    parts.run(session)
    told = [token.logprobs for token in session.emitted]
    expected = [
        token_logprobs(counting((*PROMPT, *drafts)), token, 1)
        for drafts, token in (((), 5), ((5,), 6))
    ]
    assert told == expected


def test_a_failure_is_told_by_what_it_says_or_by_its_kind() -> None:
    assert failure_text(None) == ""
    assert failure_text(ValueError("broken")) == "broken"
    assert failure_text(KeyboardInterrupt()) == "KeyboardInterrupt"  # type: ignore[arg-type]
