"""The engine: starts sessions, reads their prompts, runs rounds, ends them. Token ids only."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypedDict

from pilotfish.engine.round import Clock, run_round
from pilotfish.engine.session import Session, never_stops
from pilotfish.errors import ContextLengthExceeded, PilotfishError, PromptError
from pilotfish.prefixes import PrefixPool
from pilotfish.protocols import Constraint, Controller, Drafter, TargetModel
from pilotfish.types import DraftWish, EmittedToken, RoundRecord, SamplingSettings, Segment

if TYPE_CHECKING:
    from typing import Unpack

# Prompts are cut at multiples of this from position 0, so the cut depends on the prompt alone:
# another cut can give other bits on backends whose kernels change with the width.
PROMPT_CHUNK_TOKENS = 256
# seeds stay below 2**53 so that they survive JSON readers that know only doubles
SEED_BITS = 53


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

    Rounds are taken under a lock, so several threads may drive their own sessions. `prefixes` hands
    out the target's caches, with what other sessions have read of the same text.
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
        self._request_ids = itertools.count(1)

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
        many as the context holds. Raises PromptError, ContextLengthExceeded or BackendError.
        """
        settings = settings or SamplingSettings()
        room = self.check(prompt, settings)
        with self._lock:
            cache = self.prefixes.begin(prompt)
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
            self.prefixes.watch(
                session.request_id, cache, session.tokens, num_prompt_tokens=len(prompt)
            )
        return session

    def read(self, session: Session, *, most_tokens: int | None = None) -> bool:
        """Read one pass of the session's prompt; return whether it is read, all but its last token,
        which is pending.

        `most_tokens` makes the pass shorter than usual; it is for targets whose bits do not depend
        on the cut. Once the target is done, drafters read theirs. Of a request that was given up
        nothing is left to read.
        """
        start = self._clock()
        # the lock is taken pass by pass: running sessions go on in between
        with self._lock:
            if session.done:
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
        room = self.target.context_size + 1 - len(prompt)
        self._check_prompt(prompt, room)
        self._check_ids("logit_bias", [*settings.logit_bias, *settings.banned_tokens])
        return room

    def _check_prompt(self, prompt: Sequence[int], room: int) -> None:
        if not prompt:
            raise PromptError("the prompt is empty", hint="give at least one token")
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt)} tokens and the context holds "
                f"{self.target.context_size}",
                hint="shorten the prompt or raise --ctx",
            )
        self._check_ids("prompt", prompt)

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        size = self.target.vocab_size
        wrong = next((token for token in token_ids if not 0 <= token < size), None)
        if wrong is not None:
            raise PromptError(f"{name}: token id {wrong} is outside the vocabulary of {size}")

    def _read_target(self, session: Session, unread: Sequence[int], most_tokens: int) -> None:
        to_next_cut = PROMPT_CHUNK_TOKENS - len(session.cache) % PROMPT_CHUNK_TOKENS
        chunk = unread[: min(to_next_cut, most_tokens)]
        try:
            self.target.forward([Segment(session.cache, chunk, first_row=len(chunk))])
        except PilotfishError as error:
            session.fail(error)
            self.prefixes.distrust(session.request_id)
            raise

    def _prepare_drafter(self, session: Session) -> None:
        try:
            session.is_prepared = not self.drafter.prepare(session.view())
        except Exception as error:  # as in a round: a drafter never costs the reply
            session.drafting_error = error
            session.is_prepared = True

    def step(self, sessions: Sequence[Session]) -> list[RoundRecord]:
        """Advance the sessions that are not done by one round; return the records."""
        with self._lock:
            running = [session for session in sessions if not session.done]
            if not running:
                return []
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

    def finish(self, session: Session) -> None:
        """Give back what the session holds; a running session is cancelled. Safe to repeat."""
        with self._lock:
            session.cancel()
            self.prefixes.end(session.request_id)
            try:
                self.drafter.forget(session.request_id)
            except Exception as error:  # as in a round: a drafter never costs the reply
                session.drafting_error = error
