"""Services on scripted models, and models that watch or hold up those who use them."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pilotfish.backends.scripted import (
    LogitsFunction,
    ScriptedCache,
    ScriptedModel,
    ScriptedTokenizer,
    random_logits,
)
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.generation import TextEngine
from pilotfish.prefixes import PrefixPool
from pilotfish.server.service import Generation, Service, ServiceLimits
from pilotfish.types import FloatArray, RoundRecord, Segment

# words of one to five characters, whole and in bytes, and an end
PIECES = [
    *(b"a", b"b", b"ab", b"the ", b"fish ", b". ", b"END", b"##"),
    *("é".encode()[:1], "é".encode()[1:], b"shark", b"\n", b"<|end|>"),
]
END = len(PIECES) - 1
VOCAB = len(PIECES)


def words(*ends: int) -> ScriptedTokenizer:
    """Return a tokenizer of `PIECES` whose replies end with `ends`, the last piece if none."""
    tokenizer = ScriptedTokenizer(PIECES, special=(END,), end_ids=(END,))
    tokenizer.end_ids = frozenset(ends or (END,))
    return tokenizer


def cached(logits: LogitsFunction, memory: int = 2) -> LogitsFunction:
    """Return logits, a function of the last `memory` tokens, that are worked out once."""

    @functools.cache
    def row(recent: tuple[int, ...]) -> Any:
        return logits(recent)

    return lambda prefix: row(prefix[-memory:])


def rambling(seed: int = 0) -> LogitsFunction:
    """Return logits of a reply without plan, which ends now and then."""
    return cached(random_logits(VOCAB, seed=seed, memory=2))


class WatchedCache(ScriptedCache):
    """A cache that notes which threads change it."""

    def truncate(self, length: int) -> None:
        self._model.threads.add(threading.get_ident())  # type: ignore[attr-defined]
        super().truncate(length)

    def prefix(self, length: int) -> ScriptedCache:
        self._model.threads.add(threading.get_ident())  # type: ignore[attr-defined]
        return super().prefix(length)

    def close(self) -> None:
        self._model.threads.add(threading.get_ident())  # type: ignore[attr-defined]
        super().close()


class WatchedModel(ScriptedModel):
    """A model that notes which threads use it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.threads: set[int] = set()

    def new_cache(self) -> ScriptedCache:
        self.threads.add(threading.get_ident())
        sequence = super().new_cache().sequence
        return WatchedCache(self, sequence)

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        self.threads.add(threading.get_ident())
        return super().forward(segments)


class GatedModel(WatchedModel):
    """A model whose passes wait to be let through, one by one, until it is `open`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.passes: list[list[tuple[int, int]]] = []  # (sequence, tokens) of each pass
        self._permits = threading.Semaphore(0)
        self._arrivals = threading.Semaphore(0)
        self._is_open = False

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        self._arrivals.release()
        if not self._is_open:
            assert self._permits.acquire(timeout=30), "a pass was never let through"
        self.passes.append([(s.cache.sequence, len(s.token_ids)) for s in segments])  # type: ignore[attr-defined]
        return super().forward(segments)

    def let(self, number: int = 1) -> None:
        """Let so many passes through."""
        self._permits.release(number)

    def open(self) -> None:
        """Let all passes through from now on."""
        self._is_open = True
        self._permits.release(1000)

    async def arrival(self) -> None:
        """Wait until one more pass has begun to wait or was let through."""
        arrived = await asyncio.to_thread(self._arrivals.acquire, timeout=30)
        assert arrived, "no pass was asked for"


def serving_engine(
    target: ScriptedModel | None = None,
    *,
    tokenizer: ScriptedTokenizer | None = None,
    drafter: Any = None,
    num_drafts: int = 4,
    kept: int = 0,
    **options: Any,
) -> TextEngine:
    """Return a text engine on a scripted model, of `rambling` words unless said otherwise.

    kept  ended sequences whose caches are kept; 0: nothing is shared
    """
    target = target or WatchedModel(rambling(), vocab_size=VOCAB)
    engine = Engine(
        target=target,
        drafter=drafter or NoDrafter(),
        controller=FixedController(num_drafts),
        prefixes=PrefixPool(target, most_sequences=kept),
        **options,
    )
    return TextEngine(engine, tokenizer or words())


@asynccontextmanager
async def serving(
    engine: TextEngine, *, watcher: Any = None, clock: Any = None, **limits: Any
) -> AsyncIterator[Service]:
    """Serve inside the block; everything must have ended, and been given back, after it."""
    options = {} if clock is None else {"clock": clock}
    service = Service(engine, ServiceLimits(**limits), watcher=watcher, **options)
    service.start()
    try:
        yield service
    finally:
        await service.drain(30)
    state = service.state
    assert (state.num_running, state.num_waiting, state.num_cache_tokens) == (0, 0, 0)
    assert not state.is_alive


async def read(generation: Generation) -> str:
    """Return the text of all pieces."""
    return "".join([piece.text async for piece in generation])


@dataclass
class CountingWatcher:
    """Counts what it is told, in plain numbers."""

    num_accepted: int = 0
    refusals: list[str] = field(default_factory=list)
    prompts: list[tuple[int, int]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)

    def accepted(self) -> None:
        self.num_accepted += 1

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)

    def read(self, num_tokens: int, num_reused_tokens: int, seconds: float) -> None:
        assert seconds >= 0
        self.prompts.append((num_tokens, num_reused_tokens))

    def round(self, records: Sequence[RoundRecord]) -> None:
        self.rounds.append(len(records))

    def ended(self, outcome: str, **facts: Any) -> None:
        self.outcomes.append(outcome)
        self.ends.append(facts)
