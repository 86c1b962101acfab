"""One engine for many requests: the thread that owns it, and how asyncio reaches it."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pilotfish.config import Request
from pilotfish.engine.round import Clock
from pilotfish.engine.scheduler import Job, Scheduler, StepReport
from pilotfish.engine.session import Session
from pilotfish.errors import ConfigError, PilotfishError, QueueFull, RequestTimedOut, ShuttingDown
from pilotfish.generation import TextEngine, check_prepared
from pilotfish.grammar import Grammar
from pilotfish.server.delivery import Generation, Mailbox, Ticket
from pilotfish.server.limits import ServiceLimits, ServiceState
from pilotfish.server.publisher import Publisher
from pilotfish.server.watcher import NoWatcher, Watcher

__all__ = [
    "Generation",
    "QueueFull",
    "RequestTimedOut",
    "Service",
    "ServiceLimits",
    "ServiceState",
    "ShuttingDown",
]

_LOG = logging.getLogger("pilotfish")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What the engine's thread lets others see, after each step."""

    num_running: int = 0
    num_cache_tokens: int = 0
    num_kept_tokens: int = 0


class Service:
    """Owns an engine and the one thread that uses it.

    `submit` hands requests to the thread, which advances all of them together and hands their
    pieces back to the asyncio loop they came from, round by round. It sleeps when there is nothing
    to do. Nothing here blocks a loop.
    """

    def __init__(
        self,
        engine: TextEngine,
        limits: ServiceLimits | None = None,
        *,
        watcher: Watcher | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.engine = engine
        self.limits = limits or ServiceLimits()
        self._clock = clock
        self._scheduler = Scheduler(
            engine.engine,
            max_running=self.limits.max_running,
            most_tokens=self.limits.most_tokens,
            clock=clock,
        )
        self._publisher = Publisher(watcher or NoWatcher(), clock)
        self._thread = threading.Thread(target=self._serve, name="pilotfish-engine", daemon=True)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # what loops and the thread share, all of it under the lock
        self._lock = threading.Lock()
        self._num_live = 0
        self._is_draining = False
        self._is_over = False
        self._farewells: list[Callable[[], object]] = []
        # of the loop that asked last; servers have one
        self._mailbox: Mailbox | None = None
        # written by the thread alone
        self._snapshot = _Snapshot()
        self._progress_at = clock()
        self._is_ending = False

    def start(self) -> None:
        """Begin to work; what was submitted before waits until then."""
        self._thread.start()

    @property
    def state(self) -> ServiceState:
        """Return where it stands now; any thread may ask."""
        snapshot, num_live = self._snapshot, self._num_live
        since = max(0.0, self._clock() - self._progress_at) if num_live else 0.0
        return ServiceState(
            num_running=min(snapshot.num_running, num_live),
            num_waiting=max(0, num_live - snapshot.num_running),
            num_cache_tokens=snapshot.num_cache_tokens,
            num_kept_tokens=snapshot.num_kept_tokens,
            is_draining=self._is_draining,
            is_alive=self._thread.is_alive() and not self._is_over,
            seconds_since_progress=since,
        )

    def submit(
        self,
        prompt_ids: Sequence[int],
        requests: Sequence[Request],
        grammar: Grammar | None = None,
    ) -> list[Generation]:
        """Return a generation for each request over the same prompt; all of them are taken, or
        none.

        `grammar` is that of their schema, compiled: the engine's thread has no time for it. To be
        called on an asyncio loop, where the generations are then to be read. Raises
        PromptError, ContextLengthExceeded or ConfigError for what can never be served, and
        QueueFull or ShuttingDown for what cannot be now.
        """
        for request in requests:
            check_prepared(request, grammar)
        now = self._clock()
        if self._mailbox is None or self._mailbox.loop is not asyncio.get_running_loop():
            self._mailbox = Mailbox(asyncio.get_running_loop())
        mailbox = self._mailbox
        tickets = [
            Ticket(
                job=self._job(prompt_ids, request, now),
                request=request,
                grammar=grammar,
                mailbox=mailbox,
            )
            for request in requests
        ]
        self._accept(tickets)
        return [Generation(ticket) for ticket in tickets]

    async def drain(self, seconds: float) -> None:
        """Refuse what is new, let what was taken end, cut off what has not after so many seconds,
        and end the thread."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._is_draining = True
            is_over = self._is_over
            self._farewells.append(partial(loop.call_soon_threadsafe, news.set))
        if self._thread.ident is None:
            self.start()
        if not is_over:
            self._commands.put(self._end_when_idle)
            try:
                await asyncio.wait_for(news.wait(), seconds)
            except TimeoutError:
                self._commands.put(self._cut_off)
                await news.wait()
        self._thread.join()  # it has said its last word

    def _job(self, prompt_ids: Sequence[int], request: Request, now: float) -> Job:
        room = self.engine.engine.check(prompt_ids, request.settings)
        longest = room if request.max_tokens is None else min(request.max_tokens, room)
        return Job(
            prompt=prompt_ids,
            num_tokens=len(prompt_ids) + longest,
            begin=self._begin,
            arrived_at=now,
            limit_seconds=self.limits.request_seconds or math.inf,
        )

    def _accept(self, tickets: Sequence[Ticket]) -> None:
        limits, number = self.limits, len(tickets)
        most = limits.max_running + limits.max_waiting
        if number > most:
            raise ConfigError(
                f"{number} choices at once are more than the {most} this server takes"
            )
        with self._lock:
            reason = self._reason_to_refuse(number, most)
            if reason is None:
                self._num_live += number
                self._publisher.tell_accepted(number)
                # inside the lock, so that nothing comes after the command to end
                self._commands.put(partial(self._add, tickets))
        if reason is not None:
            self._publisher.tell_refused(reason, number)
            raise reason

    def _reason_to_refuse(self, number: int, most: int) -> PilotfishError | None:
        if self._is_over:
            return ShuttingDown("the engine has stopped", hint="start the server again")
        if self._is_draining:
            return ShuttingDown("the server is shutting down")
        if self._num_live + number <= most:
            return None
        # replies end at about this pace, and each that does makes room for one
        seconds = number * self._publisher.reply_seconds / self.limits.max_running
        return QueueFull(
            f"{self._num_live} requests run or wait, which is as many as this server takes",
            retry_after_seconds=math.ceil(min(max(1.0, seconds), 600.0)),
            hint="try again later",
        )

    # what follows runs on the engine's thread

    def _serve(self) -> None:
        try:
            while not (self._is_ending and self._scheduler.is_idle):
                command = self._next_command()
                if command is not None:
                    command()
                else:
                    self._advance()
        finally:
            self._say_farewell()

    def _next_command(self) -> Callable[[], None] | None:
        try:
            return self._commands.get(block=self._scheduler.is_idle)
        except queue.Empty:
            return None

    def _add(self, tickets: Sequence[Ticket]) -> None:
        if self._scheduler.is_idle:
            self._progress_at = self._clock()
        self._publisher.expect(tickets)
        self._scheduler.add(ticket.job for ticket in tickets)

    def _begin(self, job: Job) -> Session:
        ticket = self._publisher.ticket_of(job)
        ticket.running = self.engine.open(job.prompt, ticket.request, ticket.grammar)
        ticket.queued_seconds = self._clock() - job.arrived_at
        return ticket.running.session

    def _end_when_idle(self) -> None:
        self._is_ending = True

    def _cut_off(self) -> None:
        self._end_all(ShuttingDown("the server has shut down before the reply ended"))

    def _advance(self) -> None:
        try:
            report = self._scheduler.step()
        except Exception as error:  # a fault of ours must not end the server
            _LOG.exception("the scheduler failed")
            self._end_all(error)
        else:
            self._publish(report)

    def _end_all(self, error: Exception) -> None:
        self._scheduler.end_all(error)
        # all that are known: some may have ended in a step that came to no report
        self._publish(StepReport((), None, self._publisher.jobs))

    def _publish(self, report: StepReport) -> None:
        """Tell the watcher and all readers what a step did."""
        if self._mailbox is not None:
            self._mailbox.give_way()
        news = self._publisher.collect(report, self._scheduler.begun)
        prefixes = self.engine.engine.prefixes
        self._snapshot = _Snapshot(
            self._scheduler.num_running, prefixes.num_live_tokens, prefixes.num_kept_tokens
        )
        self._progress_at = self._clock()
        with self._lock:
            self._num_live -= len(report.ended)
        # last: whoever sees the end of a reply sees its place free
        for each in news:
            each.ticket.mailbox.post(each)

    def _say_farewell(self) -> None:
        """Leave nobody waiting, whatever ended the thread."""
        with self._lock:
            self._is_over = True
            farewells = list(self._farewells)
        while (command := self._last_command()) is not None:
            command()
        self._end_all(ShuttingDown("the engine has stopped", hint="start the server again"))
        for farewell in farewells:
            try:
                farewell()
            except RuntimeError:  # the loop that drains was closed
                continue

    def _last_command(self) -> Callable[[], None] | None:
        try:
            return self._commands.get_nowait()
        except queue.Empty:
            return None
