"""Recorded replies through real drafters and controllers, with no model.

The engine runs as it always does, on two models that read their rows from a recording and move a
fake clock by what the passes would cost. What comes out is a prediction of the time a reply takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import FakeClock
from pilotfish.bench.recording import NO_DRAFT, Recording
from pilotfish.bench.runner import Clock
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.errors import BackendError
from pilotfish.protocols import Controller, Drafter, TargetModel
from pilotfish.types import FloatArray, Proposal, RoundRecord, Segment, SessionView

_OFF_PATH = 0  # a token that no recording has
_END = 1  # the token after the end of a reply
_NUM_RESERVED = 2
_LEAST_PROBABILITY = 1e-4


def _renumbered(recordings: Sequence[Recording]) -> dict[int, int]:
    """Return new numbers for the tokens that occur: rows need not be as wide as a vocabulary."""
    distinct = sorted({t for r in recordings for t in (*r.prompt, *r.reply, *r.draft)} - {NO_DRAFT})
    return {token: number for number, token in enumerate(distinct, start=_NUM_RESERVED)}


@dataclass(slots=True)
class _Script:
    """A recording in the small vocabulary of the tokens that occur."""

    text: list[int]  # prompt, reply, and the end token
    num_prompt_tokens: int
    guesses: list[int]
    probabilities: Sequence[float]
    end_ids: frozenset[int] = frozenset([_END])
    max_tokens: int = 1

    @classmethod
    def of(cls, recording: Recording, number: Mapping[int, int]) -> _Script:
        return cls(
            text=[number[t] for t in (*recording.prompt, *recording.reply)] + [_END],
            num_prompt_tokens=len(recording.prompt),
            guesses=[number.get(t, _OFF_PATH) for t in recording.draft],
            probabilities=recording.draft_probabilities,
            end_ids=frozenset(number[t] for t in recording.end_ids if t in number) | {_END},
            max_tokens=recording.limit,
        )

    @property
    def prompt(self) -> list[int]:
        return self.text[: self.num_prompt_tokens]

    def next_token(self, length: int) -> int:
        """Return what follows the first `length` tokens."""
        return self.text[min(length, len(self.text) - 1)]

    def guess(self, length: int) -> tuple[int, float]:
        """Return the draft model's token after the first `length` tokens, and its probability."""
        index = length - self.num_prompt_tokens
        if 0 <= index < len(self.guesses):
            return self.guesses[index], self.probabilities[index]
        return _END, 0.5


@dataclass(slots=True)
class _Cache:
    """The tokens one replayed model has read; the first `num_on_path` are the recording's."""

    script: _Script
    tokens: list[int] = field(default_factory=list)
    num_on_path: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        length = len(self.tokens)
        if self.num_on_path == length and self.script.next_token(length) == token:
            self.num_on_path += 1
        self.tokens.append(token)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise BackendError(f"cannot truncate {len(self.tokens)} tokens to {length}")
        del self.tokens[length:]
        self.num_on_path = min(self.num_on_path, length)

    def prefix(self, length: int) -> _Cache:
        return _Cache(self.script, self.tokens[:length], min(self.num_on_path, length))

    def close(self) -> None:
        pass


class _ReplayedModel:
    """A model that knows one recording: what both sides of a replayed pair share.

    reading_seconds  a token of a prompt; None: what the widest measured passes take
    """

    context_size = 1 << 20
    max_width = 1 << 10

    def __init__(
        self,
        vocab_size: int,
        curve: CostCurve,
        clock: FakeClock,
        *,
        overhead: float = 0.0,
        reading_seconds: float | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.script = _Script([_END], 1, [], ())
        self.num_passes = 0
        self._curve = curve
        self._clock = clock
        self._overhead = overhead
        self._reading_seconds = reading_seconds

    def new_cache(self) -> _Cache:
        return _Cache(self.script)

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        self.num_passes += 1
        num_tokens = sum(len(segment.token_ids) for segment in segments)
        if any(segment.num_rows for segment in segments):
            context = max(len(segment.cache) for segment in segments)
            self._clock.advance(self._curve.at(num_tokens, context) + self._overhead)
        else:
            self._clock.advance(self._reading(num_tokens, len(segments[0].cache)))
        return [self._rows(segment) for segment in segments]

    def _reading(self, num_tokens: int, context: int) -> float:
        widest = self._curve.widths[-1]
        if self._reading_seconds is not None:
            return self._reading_seconds * num_tokens
        if num_tokens <= widest or widest < 2:
            return self._curve.at(num_tokens, context)
        # wide passes, one after the other
        return self._curve.at(widest, context) * num_tokens / widest

    def _rows(self, segment: Segment) -> FloatArray:
        cache = segment.cache
        assert isinstance(cache, _Cache), "not a cache of a replayed model"
        rows = np.zeros((segment.num_rows, self.vocab_size), dtype=np.float32)
        for index, token in enumerate(segment.token_ids):
            cache.append(token)
            if index >= segment.first_row:
                self._fill(rows[index - segment.first_row], cache)
        return rows

    def _fill(self, row: FloatArray, cache: _Cache) -> None:
        raise NotImplementedError


class _ReplayedTarget(_ReplayedModel):
    def _fill(self, row: FloatArray, cache: _Cache) -> None:
        # rows of rejected drafts are never looked at: their place is all that matters
        row[cache.script.next_token(len(cache.tokens))] = 20.0


class _ReplayedDraft(_ReplayedModel):
    """Off the recording's path it stays as sure of itself as it was there, and is wrong."""

    def _fill(self, row: FloatArray, cache: _Cache) -> None:
        length = len(cache.tokens)
        token, probability = cache.script.guess(length)
        if cache.num_on_path < length:
            token = _OFF_PATH
        probability = min(max(probability, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
        rest = (1 - probability) / (len(row) - 1)
        # the guess must stay the largest, however small its share among few tokens
        row[:] = min(math.log(rest), math.log(probability) - 1e-3)
        row[token] = math.log(probability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What takes time in a replay beside the passes that the curves have.

    drafting_seconds       looking for drafts in the text and deciding, in each round
    reading_seconds        a token of a prompt, for the target; None: what wide passes take
    draft_reading_seconds  the same for the draft model
    """

    drafting_seconds: float = 0.0
    reading_seconds: float | None = None
    draft_reading_seconds: float | None = None


class _Parts:
    """The drafter and the controller of a replay; what they do takes time on its clock.

    engine_seconds    of a round, drafted in or not; drafting_seconds come before its pass
    own_seconds       what they took by `timer`, round by round; without those in which the draft
                      model was asked, whose tokens have a price of their own
    """

    def __init__(
        self,
        parts: tuple[Drafter, Controller],
        draft: _ReplayedModel | None,
        clock: FakeClock,
        *,
        engine_seconds: float,
        drafting_seconds: float,
        timer: Clock,
    ) -> None:
        self.drafter, self._controller = parts
        self.own_seconds: list[float] = []
        self._draft = draft
        self._clock = clock
        self._engine_seconds = engine_seconds
        self._drafting_seconds = drafting_seconds
        self._timer = timer
        self._spent = 0.0
        self._num_draft_passes = 0

    def prepare(self, view: SessionView) -> bool:
        return self.drafter.prepare(view)

    def forget(self, request_id: int) -> None:
        self.drafter.forget(request_id)

    def draft_budgets(self, views: Sequence[SessionView]) -> list[int]:
        self._num_draft_passes = self._count_draft_passes()
        self._clock.advance(self._engine_seconds)
        start = self._timer()
        budgets = self._controller.draft_budgets(views)
        self._spent = self._timer() - start
        return budgets

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        self._clock.advance(self._drafting_seconds)
        start = self._timer()
        proposals = self.drafter.propose(views, budgets)
        self._spent += self._timer() - start
        return proposals

    def observe(self, records: Sequence[RoundRecord]) -> None:
        start = self._timer()
        self._controller.observe(records)
        self._spent += self._timer() - start
        if self._count_draft_passes() == self._num_draft_passes:
            self.own_seconds.append(self._spent)

    def _count_draft_passes(self) -> int:
        return 0 if self._draft is None else self._draft.num_passes


PartsMaker = Callable[[TargetModel, "TargetModel | None"], tuple[Drafter, Controller]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of one recording: its session, whose records hold the times, and the tokens."""

    recording: Recording
    session: Session

    @property
    def seconds(self) -> float:
        """Return the time of the rounds."""
        return sum(record.round_seconds for record in self.session.records)

    @property
    def total_seconds(self) -> float:
        """Return the time of the rounds and of reading the prompt, by both models."""
        return self.session.prefill_seconds + self.seconds


class Replay:
    """Replays recordings one after the other through one drafter and one controller.

    `make_parts` is given the replayed target and, if the costs have one, the replayed draft model,
    and returns the parts to try: they live as long as the replay, as in a server. `timer` measures
    what these parts take themselves.
    """

    def __init__(
        self,
        recordings: Sequence[Recording],
        costs: PairCosts,
        make_parts: PartsMaker,
        *,
        pace: Pace | None = None,
        timer: Clock | None = None,
    ) -> None:
        pace = pace or Pace()
        self.clock = FakeClock()
        self.recordings = tuple(recordings)
        self._number = _renumbered(recordings)
        vocab_size = len(self._number) + _NUM_RESERVED
        self._target = _ReplayedTarget(
            vocab_size, costs.target, self.clock, reading_seconds=pace.reading_seconds
        )
        self._draft = None
        if costs.draft is not None:
            self._draft = _ReplayedDraft(
                vocab_size,
                costs.draft,
                self.clock,
                overhead=costs.draft_overhead_seconds,
                reading_seconds=pace.draft_reading_seconds,
            )
        self._parts = _Parts(
            make_parts(self._target, self._draft),
            self._draft,
            self.clock,
            engine_seconds=costs.overhead_seconds,
            drafting_seconds=pace.drafting_seconds,
            timer=timer or self.clock,
        )
        self.engine = Engine(
            target=self._target, drafter=self._parts, controller=self._parts, clock=self.clock
        )

    @property
    def own_seconds(self) -> list[float]:
        """Return what drafter and controller took by the timer, round by round, but for rounds in
        which the draft model was asked."""
        return self._parts.own_seconds

    def clear(self) -> None:
        """Let the drafter forget past replies, as a benchmark does."""
        clear = getattr(self._parts.drafter, "clear", None)
        if clear is not None:
            clear()

    def run(self, recording: Recording) -> Replayed:
        """Return one of the recordings as this engine would have decoded it."""
        script = _Script.of(recording, self._number)
        for model in (self._target, self._draft):
            if model is not None:
                model.script = script
        session = self.engine.start(
            script.prompt, max_tokens=script.max_tokens, end_ids=script.end_ids, seed=0
        )
        for _ in self.engine.run(session):
            pass
        assert session.output_ids == script.text[script.num_prompt_tokens : -1], "the text changed"
        return Replayed(recording=recording, session=session)


def plain_seconds(recording: Recording, costs: PairCosts) -> float:
    """Return the seconds of decoding the reply token by token, the first of its rounds included."""
    first = len(recording.prompt)
    context = range(first - 1, first - 1 + len(recording.reply))
    return sum(costs.target.at(1, length) + costs.overhead_seconds for length in context)
