"""What each step brought: told to the watcher, and made into news for the readers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from pilotfish.engine.round import Clock
from pilotfish.engine.scheduler import Job, StepReport
from pilotfish.errors import PilotfishError, QueueFull, RequestTimedOut, ShuttingDown
from pilotfish.server.delivery import News, PromptProgress, Ticket
from pilotfish.server.watcher import Watcher

_LOG = logging.getLogger("pilotfish")
# what a reply takes, until one has ended
_FIRST_REPLY_SECONDS = 5.0
_NEWEST_REPLY_SHARE = 0.2


class Publisher:
    """Knows the tickets of all jobs that run or wait; works on the engine's thread, but for what
    it tells of arrivals.

    `reply_seconds` is what a reply takes from its beginning, of late.
    """

    def __init__(self, watcher: Watcher, clock: Clock) -> None:
        self.reply_seconds = _FIRST_REPLY_SECONDS
        self._watcher = watcher
        self._clock = clock
        self._tickets: dict[Job, Ticket] = {}

    def expect(self, tickets: Iterable[Ticket]) -> None:
        """Note tickets until their jobs end."""
        self._tickets.update({ticket.job: ticket for ticket in tickets})

    def ticket_of(self, job: Job) -> Ticket:
        """Return the ticket of a job that has not ended."""
        return self._tickets[job]

    @property
    def jobs(self) -> list[Job]:
        """Return the jobs that have not ended, as far as their readers know."""
        return list(self._tickets)

    def tell_accepted(self, number: int) -> None:
        """Tell the watcher of generations that were taken."""
        for _ in range(number):
            self._tell(self._watcher.accepted)

    def tell_refused(self, reason: PilotfishError, number: int) -> None:
        """Tell the watcher of generations that were not."""
        name = "queue_full" if isinstance(reason, QueueFull) else "shutting_down"
        for _ in range(number):
            self._tell(partial(self._watcher.refused, name))

    def collect(self, report: StepReport, begun: Sequence[Job]) -> list[News]:
        """Tell the watcher what a step did, and return the news of it.

        begun  the jobs that have a session and go on
        """
        now = self._clock()
        if report.records:
            self._tell(partial(self._watcher.round, report.records))
        if report.read is not None and (session := report.read.session) is not None:
            sizes = session.num_prompt_tokens, session.num_reused_tokens
            self._tell(partial(self._watcher.read, *sizes, session.prefill_seconds))
        going_on = [self._news(self._tickets[job], now) for job in begun]
        over = [self._last_news(self._tickets.pop(job), now) for job in report.ended]
        return [*(news for news in going_on if news.piece or news.progress), *over]

    def _news(self, ticket: Ticket, now: float) -> News:
        assert ticket.running is not None, "only what has begun has news"
        try:
            piece = ticket.running.take()
        except Exception as error:  # of the text; the next step ends it
            ticket.running.session.fail(error)
            return News(ticket, None, has_ended=False)
        if piece is not None and ticket.first_token_seconds is None:
            ticket.first_token_seconds = now - ticket.job.arrived_at
        return News(ticket, piece, has_ended=False, progress=_progress(ticket, now))

    def _last_news(self, ticket: Ticket, now: float) -> News:
        job, session = ticket.job, ticket.job.session
        piece = None if session is None else self._news(ticket, now).piece
        if session is not None:
            job.error = job.error or session.error
        if job.error is not None and not isinstance(job.error, PilotfishError):
            _LOG.error("a request failed", exc_info=job.error)
        outcome = outcome_of(job)
        if outcome in ("stop", "length") and job.begun_at is not None:
            seconds = now - job.begun_at
            self.reply_seconds += _NEWEST_REPLY_SHARE * (seconds - self.reply_seconds)
        waited = now - ticket.job.arrived_at
        self._tell(
            partial(
                self._watcher.ended,
                outcome,
                queued_seconds=waited if ticket.queued_seconds is None else ticket.queued_seconds,
                first_token_seconds=ticket.first_token_seconds,
                total_seconds=waited,
                num_prompt_tokens=len(job.prompt),
                num_completion_tokens=0 if session is None else len(session.emitted),
            )
        )
        return News(ticket, piece, has_ended=True)

    def _tell(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:  # counting must not cost replies
            _LOG.exception("the watcher failed")


def _progress(ticket: Ticket, now: float) -> PromptProgress | None:
    """Return how far the prompt is read, where that is news."""
    assert ticket.running is not None, "only what has begun is read"
    session = ticket.running.session
    if session.emitted or session.done:
        return None
    # its last token is read with the first of the reply
    number = session.num_prompt_tokens if session.is_read else len(session.cache)
    if number == ticket.num_read_tokens:
        return None
    ticket.num_read_tokens = number
    begun_at = now if ticket.job.begun_at is None else ticket.job.begun_at
    return PromptProgress(
        num_tokens=session.num_prompt_tokens,
        num_cached_tokens=session.num_reused_tokens,
        num_read_tokens=number,
        seconds=now - begun_at,
    )


def outcome_of(job: Job) -> str:
    """Return how a job that has ended did so, in the words of `Watcher.ended`."""
    if isinstance(job.error, RequestTimedOut):
        return "timeout"
    if isinstance(job.error, ShuttingDown):
        return "cancelled"
    if job.error is not None:
        return "error"
    if job.session is None or job.session.stop_reason is None:
        return "cancelled"
    return job.session.stop_reason.value
