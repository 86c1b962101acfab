"""From the engine's thread to asyncio: the pieces of a reply, as they are made."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pilotfish.config import Request
from pilotfish.engine.scheduler import Job
from pilotfish.errors import PilotfishError
from pilotfish.generation import Piece, Reply, RunningReply
from pilotfish.grammar import Grammar

_MOST_SECONDS_GIVEN = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress:
    """How far a prompt is read.

    num_tokens         of the prompt
    num_cached_tokens  those that need not be read, as another request had them
    num_read_tokens    those that are done, the cached ones among them
    seconds            since the request has a place
    """

    num_tokens: int
    num_cached_tokens: int
    num_read_tokens: int
    seconds: float


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """A generation as the engine's thread and its reader share it.

    The thread writes what comes before `progress`; the reader's loop owns the rest, and learns of
    news by its mailbox alone.
    """

    job: Job
    request: Request
    grammar: Grammar | None = None
    mailbox: Mailbox
    running: RunningReply | None = None
    queued_seconds: float | None = None
    first_token_seconds: float | None = None
    num_read_tokens: int | None = None
    progress: PromptProgress | None = None
    pieces: deque[Piece] = field(default_factory=deque)
    has_ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class News:
    """What one round brought for one generation."""

    ticket: Ticket
    piece: Piece | None
    has_ended: bool
    progress: PromptProgress | None = None


class Mailbox:
    """Brings news to one loop, all that has come since the last time at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._news: deque[News] = deque()
        self._is_empty = threading.Event()
        self._is_empty.set()

    def post(self, news: News) -> None:
        """Leave news; to be called on the engine's thread. Where the loop was closed the request is
        cancelled: nobody reads it any more."""
        self._news.append(news)
        if not self._is_empty.is_set() and not self.loop.is_closed():
            return  # it is woken already
        self._is_empty.clear()
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            self._news.clear()
            news.ticket.job.cancel()

    def give_way(self) -> None:
        """Wait a moment for the loop if it has not looked since it was woken; to be called on the
        engine's thread, between rounds.

        A thread whose calls into libraries are many and short lets go of Python's lock so often,
        for so short a time, that others hardly ever get it. Rounds of real models leave it free.
        """
        if not self._is_empty.is_set():
            self._is_empty.wait(_MOST_SECONDS_GIVEN)

    def _deliver(self) -> None:
        # first: what comes while the rest is delivered wakes the loop again
        self._is_empty.set()
        while self._news:
            news = self._news.popleft()
            if news.progress is not None:
                news.ticket.progress = news.progress
            if news.piece is not None:
                news.ticket.pieces.append(news.piece)
            news.ticket.has_ended = news.has_ended
            news.ticket.news.set()


class Generation:
    """A reply that is made, as an async iterator over its pieces, one a round.

    What is not read waits; a slow reader holds nobody up. An object that is dropped cancels its
    request, as `cancel` does.
    """

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._reply: Reply | None = None
        weakref.finalize(self, ticket.job.cancel).atexit = False

    @property
    def queued_seconds(self) -> float | None:
        """Return how long it waited for a place, or None while it does."""
        return self._ticket.queued_seconds

    @property
    def first_token_seconds(self) -> float | None:
        """Return how long after its arrival the first token came, or None before."""
        return self._ticket.first_token_seconds

    @property
    def reply(self) -> Reply:
        """Return the reply when it has ended, a cancelled one as far as it came. Raises the error
        of one that failed, and PilotfishError for one that still runs or never began."""
        ticket = self._ticket
        if not ticket.has_ended:
            raise PilotfishError("the reply has not ended", hint="iterate to the end first")
        if ticket.job.error is not None:
            raise ticket.job.error
        if ticket.running is None:
            raise PilotfishError("the request was cancelled before it began")
        if self._reply is None:
            self._reply = ticket.running.reply
        return self._reply

    def cancel(self) -> None:
        """End it within one round; what was made until then can still be read. Safe to repeat."""
        self._ticket.job.cancel()

    async def wait(self) -> Reply:
        """Return the reply once it has ended; raises as `reply` does."""
        while not self._ticket.has_ended:
            await self._news()
        return self.reply

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Piece:
        while (piece := self._next()) is None:
            await self._news()
        return piece

    async def with_progress(self) -> AsyncIterator[Piece | PromptProgress]:
        """Yield how far the prompt is read whenever that has changed, then the pieces. Who is late
        learns the newest only."""
        told = None
        while True:
            if self._ticket.progress is not told:
                told = self._ticket.progress
                assert told is not None, "what was read stays read"
                yield told
            try:
                piece = self._next()
            except StopAsyncIteration:
                return
            if piece is not None:
                yield piece
            elif self._ticket.progress is told:
                await self._news()

    def _next(self) -> Piece | None:
        """Return the next piece, or None while there is none. Raises StopAsyncIteration, or the
        error, where none will be."""
        ticket = self._ticket
        if ticket.pieces:
            return ticket.pieces.popleft()
        if not ticket.has_ended:
            return None
        if ticket.job.error is not None:
            raise ticket.job.error
        raise StopAsyncIteration

    async def _news(self) -> None:
        self._ticket.news.clear()
        await self._ticket.news.wait()
