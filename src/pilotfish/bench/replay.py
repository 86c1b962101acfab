"""Recorded replies through real drafters and controllers, with no model.

The engine runs as it always does, on two models that read their rows from a recording and move a
fake clock by what the passes would cost. What comes out is a prediction of the time a reply takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import FakeClock
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.errors import BackendError, ConfigError
from pilotfish.protocols import Controller, Drafter, TargetModel
from pilotfish.types import FloatArray, Segment

_OFF_PATH = 0  # a token that no recording has
_END = 1  # the token after the end of a reply
_NUM_RESERVED = 2
_LEAST_PROBABILITY = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One reply of a target, and what a draft model would have said at each of its positions.

    prompt, reply        token ids
    draft                [len(reply)] the draft model's likeliest token at each position
    draft_probabilities  [len(reply)] its probability; both are empty where no draft model was asked
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    draft: tuple[int, ...] = ()
    draft_probabilities: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.draft), len(self.draft_probabilities)}
        if not self.prompt or not self.reply or not lengths <= {0, len(self.reply)}:
            raise ConfigError(
                f"recording {self.id}: prompt and reply must not be empty, and the draft must have "
                "an entry for each token of the reply, or none"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the recording as plain JSON values."""
        return {
            "id": self.id,
            "category": self.category,
            "prompt": list(self.prompt),
            "reply": list(self.reply),
            "draft": list(self.draft),
            "draft_probabilities": [round(value, 4) for value in self.draft_probabilities],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Recording:
        """Return the recording `to_dict` gave; ConfigError if it is none."""
        try:
            return cls(
                id=str(raw["id"]),
                category=str(raw["category"]),
                prompt=tuple(map(int, raw["prompt"])),
                reply=tuple(map(int, raw["reply"])),
                draft=tuple(map(int, raw["draft"])),
                draft_probabilities=tuple(map(float, raw["draft_probabilities"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a recording: {error!r}") from error


def save_recordings(path: Path, recordings: Iterable[Recording]) -> None:
    """Write recordings, one JSON object a line."""
    lines = [json.dumps(recording.to_dict()) for recording in recordings]
    path.write_text("\n".join(lines) + "\n")


def load_recordings(path: Path) -> list[Recording]:
    """Read what `save_recordings` wrote; ConfigError names the line that is wrong."""
    recordings = []
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            recordings.append(Recording.from_dict(json.loads(line)))
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{path.name}, line {number}: {error}") from error
    return recordings


def _renumbered(recordings: Sequence[Recording]) -> dict[int, int]:
    """Return new numbers for the tokens that occur: rows need not be as wide as a vocabulary."""
    distinct = sorted({t for r in recordings for t in (*r.prompt, *r.reply, *r.draft)})
    return {token: number for number, token in enumerate(distinct, start=_NUM_RESERVED)}


@dataclass(slots=True)
class _Script:
    """A recording in the small vocabulary of the tokens that occur."""

    text: list[int]  # prompt, reply, and the end token
    num_prompt_tokens: int
    guesses: list[int]
    probabilities: Sequence[float]

    @classmethod
    def of(cls, recording: Recording, number: Mapping[int, int]) -> _Script:
        return cls(
            text=[number[t] for t in (*recording.prompt, *recording.reply)] + [_END],
            num_prompt_tokens=len(recording.prompt),
            guesses=[number[t] for t in recording.draft],
            probabilities=recording.draft_probabilities,
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

    def close(self) -> None:
        pass


class _ReplayedModel:
    """A model that knows one recording: what both sides of a replayed pair share."""

    context_size = 1 << 20
    max_width = 1 << 10

    def __init__(
        self, vocab_size: int, curve: CostCurve, clock: FakeClock, overhead: float
    ) -> None:
        self.vocab_size = vocab_size
        self.script = _Script([_END], 1, [], ())
        self._curve = curve
        self._clock = clock
        self._overhead = overhead

    def new_cache(self) -> _Cache:
        return _Cache(self.script)

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        num_tokens = sum(len(segment.token_ids) for segment in segments)
        context = max(len(segment.cache) for segment in segments)
        self._clock.advance(self._seconds(num_tokens, context) + self._overhead)
        return [self._rows(segment) for segment in segments]

    def _seconds(self, num_tokens: int, context: int) -> float:
        widest = self._curve.widths[-1]
        if num_tokens <= widest or widest < 2:
            return self._curve.at(num_tokens, context)
        # a prompt: wide passes, one after the other
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


class Replay:
    """Replays recordings one after the other through one drafter and one controller.

    `make_parts` is given the replayed target and, if the costs have one, the replayed draft model,
    and returns the parts to try: they live as long as the replay, as in a server.
    """

    def __init__(
        self, recordings: Sequence[Recording], costs: PairCosts, make_parts: PartsMaker
    ) -> None:
        self.clock = FakeClock()
        self.recordings = tuple(recordings)
        self._number = _renumbered(recordings)
        vocab_size = len(self._number) + _NUM_RESERVED
        self._target = _ReplayedTarget(vocab_size, costs.target, self.clock, costs.overhead_seconds)
        self._draft = None
        if costs.draft is not None:
            self._draft = _ReplayedDraft(
                vocab_size, costs.draft, self.clock, costs.draft_overhead_seconds
            )
        drafter, controller = make_parts(self._target, self._draft)
        self.engine = Engine(
            target=self._target, drafter=drafter, controller=controller, clock=self.clock
        )

    def run(self, recording: Recording) -> Replayed:
        """Return one of the recordings as this engine would have decoded it."""
        script = _Script.of(recording, self._number)
        for model in (self._target, self._draft):
            if model is not None:
                model.script = script
        session = self.engine.start(
            script.prompt, max_tokens=len(recording.reply), end_ids=frozenset([_END]), seed=0
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
