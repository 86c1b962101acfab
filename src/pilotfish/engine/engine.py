"""The engine: starts sessions, reads their prompts, runs rounds, ends them. Token ids only."""

from __future__ import annotations

import gc
import itertools
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict, TypeVar

from pilotfish.engine.prompt_pass import read_pass
from pilotfish.engine.round import Clock, run_round
from pilotfish.engine.session import Session, never_stops, require_room
from pilotfish.errors import (
    BackendError,
    NoFreeSlot,
    PilotfishError,
    PromptError,
)
from pilotfish.prefixes import PrefixPool
from pilotfish.protocols import Constraint, Controller, Drafter, TargetModel
from pilotfish.types import DraftWish, EmittedToken, RoundRecord, SamplingSettings

if TYPE_CHECKING:
    from typing import Unpack

# Prompts are cut at multiples of this from position 0, so the cut depends on the prompt alone:
# another cut can give other bits on backends whose kernels change with the width.
PROMPT_CHUNK_TOKENS = 256
# seeds stay below 2**53 so that they survive JSON readers that know only doubles
SEED_BITS = 53
# a thread waits for a slot no longer than this while nothing at all is done by others
MOST_IDLE_SECONDS = 60.0
_SECONDS_BETWEEN_LOOKS = 0.5

T = TypeVar("T")


class SessionOptions(TypedDict, total=False):
    """The options of `Engine.open` and `Engine.start`."""

    settings: SamplingSettings | None
    max_tokens: int | None
    seed: int | None
    end_ids: frozenset[int]
    completes_stop: Callable[[int], bool]
    wish: DraftWish | None
    constraint: Constraint | None


class Engine:
    """Runs requests on a target model with a drafter and a controller.

    Passes are taken under a lock, so several threads may drive their own sessions. `prefixes` hands
    out the target's caches, with what other sessions have read of the same text.

    Sessions belong to those who opened them: one that is dropped without being finished, in
    whatever way, gives its cache back before the next pass.
    """

    def __init__(
        self,
        *,
        target: TargetModel,
        drafter: Drafter,
        controller: Controller,
        verify_rule: str = "match",
        clock: Clock = time.perf_counter,
        prefixes: PrefixPool | None = None,
    ) -> None:
        self.prefixes = prefixes or PrefixPool(target)
        self.target = target
        self.drafter = drafter
        self.controller = controller
        self._verify_rule = verify_rule
        self._clock = clock
        self._lock = threading.RLock()
        self._slot_freed = threading.Condition(self._lock)
        self._request_ids = itertools.count(1)
        self._sessions: dict[int, weakref.ref[Session]] = {}
        # requests that are over and still hold something: finalizers run at any time, in a pass
        # too, so all they do is to leave a note here
        self._given_up: deque[int] = deque()
        self._is_busy = False
        # threads that wait for a slot, in turn, and who advanced each session last
        self._waiting_threads: list[int] = []
        self._drivers: dict[int, int] = {}
        self._num_passes = 0

    def open(
        self,
        prompt: Sequence[int],
        *,
        settings: SamplingSettings | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        end_ids: frozenset[int] = frozenset(),
        completes_stop: Callable[[int], bool] = never_stops,
        wish: DraftWish | None = None,
        constraint: Constraint | None = None,
    ) -> Session:
        """Return a session whose prompt is to be read by `read`, pass by pass.

        A prompt may fill the context exactly; it then gets one token. `max_tokens` None is as
        many as the context holds. Raises PromptError, ContextLengthExceeded or BackendError, which
        is NoFreeSlot where as many sessions are open as the target has slots.
        """
        settings = settings or SamplingSettings()
        room = self.check(prompt, settings)
        with self._exclusively():
            # rows come from passes, so that nothing read before is of use where they are wanted
            begins_anew = settings.prompt_logprobs is not None
            cache = self.prefixes.begin(prompt[:1] if begins_anew else prompt)
            try:
                session = Session(
                    next(self._request_ids),
                    prompt,
                    cache,
                    settings=settings,
                    seed=secrets.randbits(SEED_BITS) if seed is None else seed,
                    end_ids=end_ids,
                    num_tokens_left=room if max_tokens is None else min(max_tokens, room),
                    completes_stop=completes_stop,
                    verify_rule=self._verify_rule,
                    wish=wish,
                    constraint=constraint,
                )
            except BaseException:
                cache.close()
                raise
            self._register(session)
        return session

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the engine for one pass, after giving back what has been given up."""
        with self._lock:
            try:
                self._is_busy = True
                self._release_given_up()
                yield
            finally:
                self._is_busy = False

    def _register(self, session: Session) -> None:
        key, given_up = session.request_id, self._given_up
        self._sessions[key] = weakref.ref(session, lambda _: given_up.append(key))
        self._drivers[key] = threading.get_ident()
        self.prefixes.watch(
            key, session.cache, session.tokens, num_prompt_tokens=session.num_prompt_tokens
        )

    def _release_given_up(self) -> None:
        while self._given_up:
            self._release(self._given_up[0])
            self._given_up.popleft()  # last: the note stays until all is given back

    def _release(self, key: int) -> None:
        reference = self._sessions.pop(key, None)
        self._drivers.pop(key, None)
        try:
            self.prefixes.end(key)
        finally:
            self._slot_freed.notify_all()
            self._forget(key, None if reference is None else reference())

    def _forget(self, key: int, session: Session | None) -> None:
        try:
            self.drafter.forget(key)
        except Exception as error:  # as in a round: a drafter never costs the reply
            if session is not None:
                session.drafting_error = error

    def read(self, session: Session, *, most_tokens: int | None = None) -> bool:
        """Read one pass of the session's prompt; return whether it is read, all but its last token,
        which is pending.

        `most_tokens` makes the pass shorter than usual; it is for targets whose bits do not depend
        on the cut. Once the target is done, drafters read theirs. Of a request that was given up
        nothing is left to read.
        """
        start = self._clock()
        # the lock is taken pass by pass: running sessions go on in between
        with self._exclusively():
            if not self._can_go_on(session):
                return True
            unread = session.tokens[len(session.cache) : -1]
            if unread:
                self._read_target(session, unread, most_tokens or PROMPT_CHUNK_TOKENS)
            else:
                self._prepare_drafter(session)
                session.draft_prefill_seconds += self._clock() - start
        session.prefill_seconds += self._clock() - start
        return session.is_read

    def start(self, prompt: Sequence[int], **options: Unpack[SessionOptions]) -> Session:
        """Return a session whose prompt is read, all but its last token, which is pending.

        The options are those of `open`, which it raises like.
        """
        session = self.open(prompt, **options)
        try:
            while not self.read(session):
                pass
        except BaseException:
            self.finish(session)
            raise
        return session

    @property
    def reads_in_any_parts(self) -> bool:
        """Return whether the bits of a prompt do not depend on its cut into passes."""
        return self.prefixes.unit == 1

    def check(self, prompt: Sequence[int], settings: SamplingSettings) -> int:
        """Return the most tokens a reply may have; raises PromptError or ContextLengthExceeded as
        `open` does. Any thread may call it at any time."""
        room = require_room(prompt, self.target.context_size)
        self._check_ids("prompt", prompt)
        self._check_ids("logit_bias", [*settings.logit_bias, *settings.banned_tokens])
        return room

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        size = self.target.vocab_size
        wrong = next((token for token in token_ids if not 0 <= token < size), None)
        if wrong is not None:
            raise PromptError(f"{name}: token id {wrong} is outside the vocabulary of {size}")

    def _read_target(self, session: Session, unread: Sequence[int], most_tokens: int) -> None:
        to_next_cut = PROMPT_CHUNK_TOKENS - len(session.cache) % PROMPT_CHUNK_TOKENS
        chunk = unread[: min(to_next_cut, most_tokens)]
        try:
            with self.prefixes.changing([session.request_id]):
                read_pass(session, chunk, self.target, any_cut=self.reads_in_any_parts)
        except PilotfishError as error:
            session.fail(error)
            raise

    def _prepare_drafter(self, session: Session) -> None:
        try:
            session.is_prepared = not self.drafter.prepare(session.view())
        except Exception as error:  # as in a round: a drafter never costs the reply
            session.drafting_error = error
            session.is_prepared = True

    def step(self, sessions: Sequence[Session]) -> list[RoundRecord]:
        """Advance the sessions that are not done by one round; return the records.

        A session whose earlier pass was broken off, by Ctrl-C say, ends with an error: its cache
        may say anything.
        """
        with self._exclusively():
            running = [session for session in sessions if self._can_go_on(session)]
            if not running:
                return []
            with self.prefixes.changing([session.request_id for session in running]):
                records = run_round(
                    running,
                    target=self.target,
                    drafter=self.drafter,
                    controller=self.controller,
                    clock=self._clock,
                )
            for session in running:
                if session.error is not None:
                    self.prefixes.distrust(session.request_id)
            return records

    def _can_go_on(self, session: Session) -> bool:
        """Return whether the session is to be advanced, by the thread that asks."""
        if session.done:
            return False
        self._num_passes += 1
        self._drivers[session.request_id] = threading.get_ident()
        if self.prefixes.is_broken_off(session.request_id):
            session.fail(BackendError("an earlier pass of this request was broken off"))
        return not session.done

    def run(self, session: Session) -> Generator[list[EmittedToken], None, None]:
        """Yield what each round emits until the session is done; raises its error if it failed.

        The session is finished when the iterator ends, is closed, or raises.
        """
        try:
            while not session.done:
                before = len(session.emitted)
                self.step([session])
                if len(session.emitted) > before:
                    yield session.emitted[before:]
        finally:
            self.finish(session)
        if session.error is not None:
            raise session.error

    def run_together(self, sessions: Sequence[Session]) -> None:
        """Advance all sessions together until every one is done, then finish them."""
        try:
            while not all(session.done for session in sessions):
                self.step(sessions)
        finally:
            for session in sessions:
                self.finish(session)

    def clear(self) -> None:
        """Forget the texts of ended requests: past replies, and what is kept of prompts."""
        with self._exclusively():
            self.prefixes.clear()
            getattr(self.drafter, "clear", lambda: None)()

    def finish(self, session: Session) -> None:
        """Give back what the session holds; a running session is cancelled. Safe to repeat.

        Inside a pass, where a finalizer may call it, that is left for the end of the pass.
        """
        session.cancel()
        self._given_up.append(session.request_id)
        with self._lock:
            if not self._is_busy:
                with self._exclusively():
                    pass

    def wait_for_slot(self, open_session: Callable[[], T], *, waits: bool = True) -> T:
        """Return what `open_session` returns; it is called again while it raises NoFreeSlot and
        other threads are at work on sessions that will end. Threads get their turns in the order in
        which they came.

        Raises NoFreeSlot where none will be free: whoever holds them waits here, too, or has ended,
        or has done nothing for long. Without `waits` it does so at once, also where other threads
        wait: a free slot is theirs.
        """
        if not waits:
            with self._lock:
                if self._waiting_threads:
                    raise NoFreeSlot(len(self._sessions))
                return open_session()
        me = threading.get_ident()
        try:
            # before the lock: who takes it again and again must see that somebody waits
            self._waiting_threads.append(me)
            with self._lock:
                try:
                    return self._open_in_turn(me, open_session)
                finally:
                    self._stop_waiting(me)
        finally:
            self._stop_waiting(me)  # where the lock was never taken

    def _stop_waiting(self, thread: int) -> None:
        with self._lock:
            if thread in self._waiting_threads:
                self._waiting_threads.remove(thread)
                self._slot_freed.notify_all()

    def _open_in_turn(self, me: int, open_session: Callable[[], T]) -> T:
        idle_seconds, num_passes, has_collected = 0.0, self._num_passes, False
        while True:
            is_stuck = idle_seconds >= MOST_IDLE_SECONDS or not self._others_work()
            # who holds slots and waits for more gives way to those who wait for theirs
            holds_some = me in self._drivers.values()
            if self._waiting_threads[0] == me or (is_stuck and holds_some):
                try:
                    return open_session()
                except NoFreeSlot:
                    if is_stuck and has_collected:
                        raise
            if is_stuck and not has_collected:
                # streams that were left may wait for the garbage collector
                gc.collect()
                has_collected = True
            elif self._slot_freed.wait(_SECONDS_BETWEEN_LOOKS) or self._num_passes != num_passes:
                idle_seconds, num_passes = 0.0, self._num_passes
            else:
                idle_seconds += _SECONDS_BETWEEN_LOOKS

    @property
    def num_waiting_threads(self) -> int:
        """Return how many threads wait for a slot."""
        return len(self._waiting_threads)

    def _others_work(self) -> bool:
        """Return whether a session is in the hands of a thread that lives and does not wait."""
        alive = {thread.ident for thread in threading.enumerate()}
        return bool(alive.intersection(self._drivers.values()).difference(self._waiting_threads))
