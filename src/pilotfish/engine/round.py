"""One draft-and-verify round for a list of sessions: plan, draft, score, verify, commit, record."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from pilotfish.engine.session import Session, checked_rows
from pilotfish.errors import PilotfishError
from pilotfish.protocols import Controller, Drafter, TargetModel
from pilotfish.types import EmittedToken, FloatArray, Proposal, RoundRecord, SessionView

Clock = Callable[[], float]


def run_round(
    sessions: Sequence[Session],
    *,
    target: TargetModel,
    drafter: Drafter,
    controller: Controller,
    clock: Clock,
) -> list[RoundRecord]:
    """Advance every session by one round and return one record each.

    A session that fails alone (a broken row, say) ends with its error and has no record; a pass
    that fails ends all sessions of the pass.
    """
    start = clock()
    # 1. plan: how many tokens is each session worth drafting? 0 means plain decoding
    views = [session.view() for session in sessions]
    budgets = plan_budgets(sessions, views, controller, target)
    # 2. draft
    draft_start = clock()
    proposals = propose(sessions, views, budgets, drafter, vocab_size=target.vocab_size)
    draft_seconds = clock() - draft_start
    # 3. score: one target pass over each session's pending token and its proposal
    segments = [session.segment(p) for session, p in zip(sessions, proposals, strict=True)]
    target_start = clock()
    try:
        scores = target.forward(segments)
    except PilotfishError as error:
        for session in sessions:
            session.fail(error)
        return []
    target_seconds = clock() - target_start
    # 4. and 5. verify: pure arithmetic, row by row; commit: the only change to a session
    emitted = [
        verify_and_commit(
            session, checked_rows(rows, num_rows=s.num_rows, vocab_size=target.vocab_size), p
        )
        for session, rows, s, p in zip(sessions, scores, segments, proposals, strict=True)
    ]
    # 6. record
    records = []
    undrafted_seconds = clock() - start - draft_seconds
    plain_seconds = plain_round_seconds(proposals, undrafted_seconds)
    for session, proposal, tokens in zip(sessions, proposals, emitted, strict=True):
        if not tokens:
            continue
        record = RoundRecord(
            request_id=session.request_id,
            source=proposal.source if proposal.token_ids else "none",
            num_drafted=len(proposal.token_ids),
            num_accepted=sum(token.origin != "target" for token in tokens),
            num_emitted=len(tokens),
            num_sessions=len(sessions),
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
            round_seconds=clock() - start,
            reason=proposal.reason,
            plain_seconds=plain_seconds,
            failure=proposal.failure or failure_text(session.drafting_error),
        )
        session.records.append(record)
        records.append(record)
    learn(controller, sessions, records)
    return records


def plan_budgets(
    sessions: Sequence[Session],
    views: Sequence[SessionView],
    controller: Controller,
    target: TargetModel,
) -> list[int]:
    """Return each session's draft budget; a controller that fails costs drafts, never the reply."""
    try:
        return [
            max(0, min(budget, room_for_drafts(session, target)))
            for session, budget in zip(sessions, controller.draft_budgets(views), strict=True)
        ]
    except Exception as error:  # a controller is there for drafts alone: decoding goes on
        give_up_drafting(sessions, error)
        return [0] * len(sessions)


def learn(
    controller: Controller, sessions: Sequence[Session], records: Sequence[RoundRecord]
) -> None:
    """Show the controller what the round was; where it fails, only drafts suffer."""
    try:
        controller.observe(records)
    except Exception as error:  # as in `plan_budgets`: the tokens are out
        give_up_drafting(sessions, error)


def give_up_drafting(sessions: Sequence[Session], error: Exception) -> None:
    """Let the sessions go on without drafts, each with the first error that it met."""
    for session in sessions:
        session.drafting_error = session.drafting_error or error


def failure_text(error: Exception | None) -> str:
    """Return what an error says, or its kind where it says nothing; "" for none."""
    return "" if error is None else str(error) or type(error).__name__


def plain_round_seconds(proposals: Sequence[Proposal], undrafted_seconds: float) -> float | None:
    """Return the seconds of a plain round of these sessions: those of the round itself without its
    drafting where nothing was drafted, else what its controller expects."""
    if not any(proposal.token_ids for proposal in proposals):
        return undrafted_seconds
    expected = (proposal.plain_seconds for proposal in proposals)
    return next((seconds for seconds in expected if seconds is not None), None)


def room_for_drafts(session: Session, target: TargetModel) -> int:
    """Return how many tokens may be drafted: the round's last token needs no draft, and a pass
    has only so many rows. The context is part of `num_tokens_left`."""
    wish = session.wish
    if session.drafting_error is not None or wish.is_off:
        return 0
    room = max(0, min(session.num_tokens_left - 1, target.max_width - 1))
    return room if wish.num_speculative_tokens is None else min(room, wish.num_speculative_tokens)


def propose(
    sessions: Sequence[Session],
    views: Sequence[SessionView],
    budgets: Sequence[int],
    drafter: Drafter,
    *,
    vocab_size: int,
) -> list[Proposal]:
    """Return a proposal for each session; a drafter that fails costs drafts, never the reply."""
    if not any(budgets):
        return [Proposal.empty()] * len(sessions)
    try:
        proposals = drafter.propose(views, budgets)
        return [
            usable(session, proposal.truncated(budget), vocab_size=vocab_size)
            for session, proposal, budget in zip(sessions, proposals, budgets, strict=True)
        ]
    except Exception as error:  # a drafter is optional: whatever it raises, decoding goes on
        if len(sessions) == 1:
            sessions[0].drafting_error = error
            return [Proposal.empty()]
        # ask one by one, so that only the session it fails for loses its drafts
        return [
            propose([session], [view], [budget], drafter, vocab_size=vocab_size)[0]
            for session, view, budget in zip(sessions, views, budgets, strict=True)
        ]


def usable(session: Session, proposal: Proposal, *, vocab_size: int) -> Proposal:
    """Return the proposal as far as the session's constraint allows: no row is scored after it.

    Raises ValueError or TypeError for what no target can score: one bad draft must not fail
    everybody's pass.
    """
    token_ids, laws = proposal.token_ids, proposal.distributions
    if not all(0 <= operator.index(token) < vocab_size for token in token_ids):
        raise ValueError(f"drafts {token_ids} are outside the vocabulary of {vocab_size}")
    if laws is not None and len(laws) != len(token_ids):
        raise ValueError(f"{len(token_ids)} drafts come with {len(laws)} laws")
    if session.constraint is None:
        return proposal
    return proposal.legal_beginning(session.constraint, session.output_ids)


def verify_and_commit(session: Session, rows: FloatArray, proposal: Proposal) -> list[EmittedToken]:
    """Return the tokens this round emits for one session; none if the session failed."""
    try:
        verdict = session.verify(rows, proposal)
        return session.commit(rows, proposal, verdict)
    except PilotfishError as error:
        session.fail(error)
        return []
