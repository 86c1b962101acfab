"""Many requests on one engine: who gets a place, whose prompt is read next, rounds of all together.

One thread, no waiting inside, token ids only: the same calls give the same steps.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pilotfish.engine.engine import Engine
from pilotfish.engine.round import Clock
from pilotfish.engine.session import Session
from pilotfish.errors import BackendError, RequestTimedOut
from pilotfish.types import IdArray, RoundRecord, common_length

# prompts are read in passes this short where their cut changes no bit: they cost no more a token
# than long ones, and nobody waits long for his turn; while replies run, shorter still, as each pass
# is a gap in all of them
SHORT_PASS_TOKENS = 64
SHORTEST_PASS_TOKENS = 32


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A request on its way through a scheduler.

    prompt         its token ids, [n] in `ids`
    num_tokens     of the prompt and the longest reply together
    begin          opens its session; called again while all places of the model are taken
    arrived_at     on the scheduler's clock
    limit_seconds  from its arrival to its end

    Everything else is the scheduler's to set; `error` is why it failed, whether or not it had a
    session.
    """

    prompt: Sequence[int]
    num_tokens: int
    begin: Callable[[Job], Session]
    arrived_at: float = 0.0
    limit_seconds: float = math.inf
    is_cancelled: bool = False
    session: Session | None = None
    error: Exception | None = None
    begun_at: float | None = None
    has_ended: bool = False
    ids: IdArray = field(init=False)

    def __post_init__(self) -> None:
        self.ids = np.asarray(self.prompt, dtype=np.int64)

    def cancel(self) -> None:
        """Let it end before its next pass; any thread may call this, at any time."""
        self.is_cancelled = True


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did.

    records  of its round, one for each session in it
    read     the job whose prompt is complete now, if any
    ended    the jobs that ended, each once
    """

    records: Sequence[RoundRecord]
    read: Job | None
    ended: Sequence[Job]


class Scheduler:
    """Takes jobs, first come first served, and advances all that have a place, step by step.

    max_running  jobs that may have a place at once
    most_tokens  `num_tokens` of all of them together; one that is larger runs alone. None: no limit

    Nobody overtakes: while the oldest waiting job does not fit, those behind it wait, too. Once
    they have places, prompts are read in turn, a pass at a time, and every reply advances in every
    round, so neither long prompts nor long replies hold up others.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_running: int,
        most_tokens: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._engine = engine
        self._max_running = max_running
        self._most_tokens = most_tokens
        self._clock = clock
        self._waiting: deque[Job] = deque()
        self._placed: list[Job] = []
        self._reading: deque[Job] = deque()  # whose turn it is to read comes first
        self._is_full = False  # the model has no slot left until a job of ours ends

    @property
    def num_waiting(self) -> int:
        """Return how many jobs wait for a place."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Return how many jobs have a place."""
        return len(self._placed)

    @property
    def begun(self) -> list[Job]:
        """Return the jobs that have a session."""
        return [job for job in self._placed if job.session is not None]

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to do."""
        return not self._waiting and not self._placed

    @property
    def _replying(self) -> list[Session]:
        return [job.session for job in self._placed if job.session and job.session.is_read]

    def add(self, jobs: Iterable[Job]) -> None:
        """Let jobs wait for places, in this order."""
        self._waiting.extend(jobs)

    def step(self) -> StepReport:
        """Drop what is late or cancelled, begin what fits, run one round, read one prompt pass."""
        ended = self._drop()
        self._place()
        ended += self._begin()
        records = self._run_round()
        ended += self._end_those_done()
        read = self._read_pass()
        ended += self._end_those_done()
        return StepReport(records, read, ended)

    def end_all(self, error: Exception | None = None) -> list[Job]:
        """End every job, with an error or as cancelled; return them."""
        jobs = [*self._placed, *self._waiting]
        for job in jobs:
            if job.session is not None and error is not None:
                self._fail(job.session, error)
            self._end(job, error)
        return jobs

    def _drop(self) -> list[Job]:
        now, dropped = self._clock(), []
        for job in [*self._placed, *self._waiting]:
            if job.is_cancelled:
                self._end(job)
            elif now - job.arrived_at >= job.limit_seconds:
                limit = f"the {job.limit_seconds:g} seconds that a request may take are over"
                self._end(job, RequestTimedOut(limit))
            else:
                continue
            dropped.append(job)
        return dropped

    def _place(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            self._placed.append(self._waiting.popleft())

    def _fits(self, job: Job) -> bool:
        if len(self._placed) >= self._max_running:
            return False
        if self._most_tokens is None or not self._placed:
            return True
        return job.num_tokens + sum(j.num_tokens for j in self._placed) <= self._most_tokens

    def _begin(self) -> list[Job]:
        """Open the sessions of those that have a place; return those that failed."""
        failed: list[Job] = []
        for job in [job for job in self._placed if job.session is None]:
            if self._is_full:
                break
            if self._is_read_for_another(job):
                continue
            try:
                job.session = job.begin(job)
            except Exception as error:
                if isinstance(error, BackendError) and self.begun:
                    self._is_full = True
                    break
                self._end(job, error)
                failed.append(job)
                continue
            job.begun_at = self._clock()
            self._reading.append(job)
        return failed

    def _is_read_for_another(self, job: Job) -> bool:
        """Return whether what the job's prompt begins with is just being read for another one."""
        prefixes = self._engine.prefixes
        for leader in self._reading:
            num_common = common_length(leader.ids[:-1], job.ids[:-1])
            shared = prefixes.num_shared(num_common)
            # a drafter reads after the target; where all is common it reads for both
            is_whole = num_common == len(leader.ids) - 1
            if shared and (is_whole or shared > prefixes.num_known(job.prompt)):
                return True
        return False

    def _run_round(self) -> Sequence[RoundRecord]:
        sessions = self._replying
        if not sessions:
            return ()
        try:
            return self._engine.step(sessions)
        except Exception as error:  # whatever it is, it ends this pass and nothing else
            for session in sessions:
                self._fail(session, error)
            return ()

    def _read_pass(self) -> Job | None:
        """Read one pass of the prompt whose turn it is; return the job if that completes it."""
        job = next((job for job in self._reading if not job.is_cancelled), None)
        if job is None:
            return None
        assert job.session is not None, "only jobs with a session read"
        self._reading.remove(job)
        try:
            is_read = self._read(job.session)
        except Exception as error:  # likewise
            self._fail(job.session, error)
            return None
        if not is_read:
            self._reading.append(job)
        return job if is_read else None

    def _read(self, session: Session) -> bool:
        most_tokens = None
        if self._engine.reads_in_any_parts:
            most_tokens = SHORTEST_PASS_TOKENS if self._replying else SHORT_PASS_TOKENS
        is_short = len(session.tokens) - 1 - len(session.cache) <= SHORTEST_PASS_TOKENS
        is_read = self._engine.read(session, most_tokens=most_tokens)
        # what is soon read is read by drafters as well before it is another's turn
        return is_read or (is_short and self._engine.read(session))

    def _fail(self, session: Session, error: Exception) -> None:
        """End a session whose pass failed; nobody may take over what is in its cache."""
        session.fail(error)
        self._engine.prefixes.distrust(session.request_id)

    def _end_those_done(self) -> list[Job]:
        done = [job for job in self.begun if job.session and job.session.done]
        for job in done:
            assert job.session is not None
            self._end(job, job.session.error)
        return done

    def _end(self, job: Job, error: Exception | None = None) -> None:
        """Take the job's place back; the only way a job ends."""
        assert not job.has_ended, "a job ends once"
        job.has_ended, job.error, self._is_full = True, error, False
        if job in self._placed:
            self._placed.remove(job)
        else:
            self._waiting.remove(job)
        if job in self._reading:
            self._reading.remove(job)
        if job.session is None:
            return
        try:
            self._engine.finish(job.session)
        except Exception as failure:  # a place may be lost: that is no good end
            job.error = job.error or failure
