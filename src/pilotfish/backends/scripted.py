"""A deterministic model without weights: scripted logits, a fake clock, a record of every step.

It is public: tests, docs and tools run on it in milliseconds. It fails loudly when an engine skips
a position, repeats one without truncating first, or runs past the context.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np

from pilotfish.errors import BackendError, CacheNotTruncatable, NoFreeSlot
from pilotfish.types import FloatArray, Segment

LogitsFunction = Callable[[tuple[int, ...]], "Sequence[float] | FloatArray"]


class FakeClock:
    """A clock that moves only when told; call it to read the seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.seconds += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCosts:
    """What one pass costs on the fake clock, in seconds: a straight line over its tokens, or
    `cost_of` of their number in its place."""

    step_seconds: float = 1.0
    extra_row_seconds: float = 0.0
    fixed_seconds: float = 0.0
    cost_of: Callable[[int], float] | None = None

    def pass_seconds(self, num_tokens: int) -> float:
        """Return the seconds of a pass over `num_tokens` tokens of all its segments."""
        if self.cost_of is not None:
            return self.cost_of(num_tokens) + self.fixed_seconds
        return self.step_seconds + self.extra_row_seconds * (num_tokens - 1) + self.fixed_seconds


@dataclass(slots=True)
class EvaluationLog:
    """Everything a scripted model was asked, in order.

    evaluations  (sequence, position, token id)      truncations  (sequence, new length)
    widths       rows of each decode pass, by segment (prompt passes are not in it)
    copies       (sequence, new sequence, length) of each prefix that was taken over
    """

    evaluations: list[tuple[int, int, int]] = field(default_factory=list)
    truncations: list[tuple[int, int]] = field(default_factory=list)
    widths: list[tuple[int, ...]] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)


class ScriptedCache:
    """The tokens one sequence has evaluated."""

    def __init__(self, model: ScriptedModel, sequence: int) -> None:
        self._model = model
        self.sequence = sequence
        self.tokens: list[int] = []
        self.closed = False

    def __len__(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        """Cut to `length` tokens; CacheNotTruncatable if the model was made so."""
        if not 0 <= length <= len(self.tokens):
            raise BackendError(f"cannot truncate {len(self.tokens)} tokens to {length}")
        if length == len(self.tokens):
            return
        if not self._model.can_truncate:
            raise CacheNotTruncatable("the scripted model was made without truncation")
        self._model.log.truncations.append((self.sequence, length))
        del self.tokens[length:]

    def prefix(self, length: int) -> ScriptedCache:
        """Return a new cache with the first `length` tokens, noted in the log's `copies`."""
        if self.closed:
            raise BackendError("the cache was closed")
        if not 0 <= length <= len(self.tokens):
            raise BackendError(f"cannot copy {length} of {len(self.tokens)} tokens")
        copy = self._model.new_cache()
        copy.tokens = self.tokens[:length]
        self._model.log.copies.append((self.sequence, copy.sequence, length))
        return copy

    def close(self) -> None:
        """Give the place back."""
        self.closed = True
        self._model.forget(self)


class ScriptedModel:
    """A `TargetModel` whose logits are a function of the prefix.

    `logits` maps the tokens up to and including a position to the row [vocab_size] that follows
    it. `fail_at` raises `BackendError` in that pass (counted from 1), once.
    """

    def __init__(
        self,
        logits: LogitsFunction,
        *,
        vocab_size: int,
        context_size: int = 4096,
        max_width: int = 512,
        max_sessions: int = 64,
        can_truncate: bool = True,
        clock: FakeClock | None = None,
        costs: ScriptedCosts | None = None,
        fail_at: int | None = None,
    ) -> None:
        self._logits = logits
        self._clock = clock
        self._costs = costs or ScriptedCosts()
        self._fail_at = fail_at
        self._max_sessions = max_sessions
        self._busy = threading.Lock()
        self._num_passes = 0
        self._num_caches = 0
        self.vocab_size = vocab_size
        self.context_size = context_size
        self.max_width = max_width
        self.can_truncate = can_truncate
        # a cache that is dropped without being closed is not in it
        self._open_caches: WeakValueDictionary[int, ScriptedCache] = WeakValueDictionary()
        self.log = EvaluationLog()

    @property
    def open_caches(self) -> set[int]:
        """Return the sequences of the caches that are open."""
        return set(self._open_caches)

    def new_cache(self) -> ScriptedCache:
        """Return an empty cache; NoFreeSlot when `max_sessions` are open."""
        if len(self._open_caches) >= self._max_sessions:
            raise NoFreeSlot(self._max_sessions)
        self._num_caches += 1
        cache = self._open_caches[self._num_caches] = ScriptedCache(self, self._num_caches)
        return cache

    def forget(self, cache: ScriptedCache) -> None:
        """Take back the place of a cache; callers use `cache.close`."""
        self._open_caches.pop(cache.sequence, None)

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        """Evaluate the segments; BackendError if two threads call at once."""
        if not self._busy.acquire(blocking=False):
            raise BackendError("the scripted model was called by two threads at once")
        try:
            return self._forward(segments)
        finally:
            self._busy.release()

    def _forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        self._num_passes += 1
        if self._num_passes == self._fail_at:
            raise BackendError(f"the scripted model fails in pass {self._num_passes}, as told")
        rows = [self._evaluate(segment) for segment in segments]
        widths = tuple(segment.num_rows for segment in segments if segment.num_rows)
        if widths:
            self.log.widths.append(widths)
        if self._clock is not None:
            num_tokens = sum(len(segment.token_ids) for segment in segments)
            self._clock.advance(self._costs.pass_seconds(num_tokens))
        return rows

    def _evaluate(self, segment: Segment) -> FloatArray:
        cache = segment.cache
        assert isinstance(cache, ScriptedCache), "not a cache of a scripted model"
        assert not cache.closed, "the cache was closed"
        if segment.num_rows > self.max_width:
            raise BackendError(f"{segment.num_rows} rows are more than {self.max_width}")
        rows = np.empty((segment.num_rows, self.vocab_size), dtype=np.float32)
        for index, token in enumerate(segment.token_ids):
            position = len(cache.tokens)
            if position >= self.context_size:
                raise BackendError(
                    f"position {position} is past the context of {self.context_size}"
                )
            if not 0 <= token < self.vocab_size:
                raise BackendError(f"token {token} is not in the vocabulary of {self.vocab_size}")
            cache.tokens.append(token)
            self.log.evaluations.append((cache.sequence, position, token))
            if index >= segment.first_row:
                rows[index - segment.first_row] = self._logits(tuple(cache.tokens))
        return rows


def random_logits(
    vocab_size: int, *, seed: int = 0, scale: float = 2.0, memory: int = 3
) -> LogitsFunction:
    """Return logits that are a fixed random function of the last `memory` tokens."""

    def logits(prefix: tuple[int, ...]) -> FloatArray:
        recent = prefix[-memory:]
        generator = np.random.default_rng([seed, len(recent), *recent])
        return (scale * generator.standard_normal(vocab_size)).astype(np.float32)

    return logits


class ScriptedTokenizer:
    """A tokenizer over a list of byte strings: the longest match from the left.

    Ids follow the list. `special` names entries that are control tokens: they are encoded only
    when asked for, and have no bytes.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        special: Sequence[int] = (),
        end_ids: Sequence[int] = (),
        bos_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
        fill_ids: tuple[int, int, int] | None = None,
    ) -> None:
        self._pieces = list(pieces)
        self._special = frozenset(special)
        self.vocab_size = len(pieces)
        self.end_ids = frozenset(end_ids)
        self.bos_id = bos_id
        self.add_bos = add_bos
        self.chat_template = chat_template
        self.fill_ids = fill_ids
        self.bos_text = "" if bos_id is None else pieces[bos_id].decode()
        self.eos_text = pieces[min(end_ids)].decode() if end_ids else ""
        self.special_texts = tuple(pieces[i].decode() for i in sorted(self._special))
        self.kind = "scripted"
        # the longest piece first, the lowest id among equals
        self._by_first_byte: dict[int, list[int]] = {}
        for i in sorted(range(len(pieces)), key=lambda i: (-len(pieces[i]), i)):
            if pieces[i]:
                self._by_first_byte.setdefault(pieces[i][0], []).append(i)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the ids of the text; BackendError if a byte has no token."""
        data, ids = text.encode(), list[int]()
        position = 0
        while position < len(data):
            token = next(
                (
                    i
                    for i in self._by_first_byte.get(data[position], ())
                    if data.startswith(self._pieces[i], position)
                    and (parse_special or i not in self._special)
                ),
                None,
            )
            if token is None:
                raise BackendError(f"no token begins {data[position : position + 8]!r}")
            ids.append(token)
            position += len(self._pieces[token])
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for a control token."""
        return b"" if token_id in self._special else self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """Return the token as text for messages."""
        return self._pieces[token_id].decode(errors="replace")

    def is_control(self, token_id: int) -> bool:
        """Return whether the token is a control token."""
        return token_id in self._special
