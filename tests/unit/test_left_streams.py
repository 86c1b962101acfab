"""Streams that are left early, in every way Python knows, give their slot to the next request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.errors import NoFreeSlot
from pilotfish.generation import ReplyStream, TextEngine
from pilotfish.prefixes import PrefixPool
from support.drafters import FunctionDrafter
from support.text_engines import text_engine, tokenizer

PROMPT = "Tell me all of it, and then tell me again."
OPTIONS: dict[str, Any] = {"raw": True, "max_tokens": 12, "seed": 3, "temperature": 0.8}


def one_slot_engine() -> TextEngine:
    """Return an engine with room for one reply in the target and in the draft model."""
    target, draft = (
        ScriptedModel(random_logits(258, seed=2), vocab_size=258, max_sessions=1) for _ in range(2)
    )
    prefixes = PrefixPool(draft, most_sequences=1)
    drafter = ModelDrafter(draft, vocab_size=258, min_survival=0.0, prefixes=prefixes)
    engine = Engine(
        target=target,
        drafter=drafter,
        controller=FixedController(3),
        prefixes=PrefixPool(target, most_sequences=1),
    )
    return TextEngine(engine, tokenizer())


Stream = Callable[[], ReplyStream]


def unread(stream: Stream) -> None:
    stream()


def broken_off(stream: Stream) -> None:
    for _ in stream():
        break


def returned_from(stream: Stream) -> None:
    def first() -> Any:
        for piece in stream():
            return piece

    assert first()


def raised_in(stream: Stream) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for _ in stream():
            raise ZeroDivisionError


def deleted(stream: Stream) -> None:
    one = stream()
    next(one)
    del one


def only_nexted(stream: Stream) -> None:
    next(stream())
    next(iter(stream()))


def closed(stream: Stream) -> None:
    one = stream()
    next(one)
    one.close()
    one.close()


def in_a_block(stream: Stream) -> None:
    with stream() as one:
        next(one)


def in_a_block_that_raises(stream: Stream) -> None:
    with contextlib.suppress(KeyError), stream() as one:
        next(one)
        raise KeyError


def closing(stream: Stream) -> None:
    with contextlib.closing(stream()) as one:
        next(one)


def sliced(stream: Stream) -> None:
    assert len(list(itertools.islice(stream(), 2))) == 2


def zipped(stream: Stream) -> None:
    assert len(list(zip("a", stream(), strict=False))) == 1


def unpacked(stream: Stream) -> None:
    with contextlib.suppress(ValueError):
        _, _ = stream()


def searched(stream: Stream) -> None:
    assert any(piece.tokens for piece in stream())


def generated_from(stream: Stream) -> None:
    def texts() -> Iterator[str]:
        for piece in stream():
            yield piece.text

    one = texts()
    next(one)
    one.close()
    next(texts())


def yielded_from(stream: Stream) -> None:
    def pieces() -> Iterator[Any]:
        yield from stream()

    next(pieces())


def interrupted(stream: Stream) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        for _ in stream():
            raise KeyboardInterrupt


def exited(stream: Stream) -> None:
    with contextlib.suppress(SystemExit):
        for _ in stream():
            raise SystemExit


def left_by_a_thread(stream: Stream) -> None:
    thread = threading.Thread(target=broken_off, args=(stream,))
    thread.start()
    thread.join()


def cancelled_with_its_task(stream: Stream) -> None:
    async def read() -> None:
        for _ in stream():
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def replaced(stream: Stream) -> None:
    one = stream()
    next(one)
    one = None  # type: ignore[assignment]


WAYS = [
    unread, broken_off, returned_from, raised_in, deleted, only_nexted, closed, in_a_block,
    in_a_block_that_raises, closing, sliced, zipped, unpacked, searched, generated_from,
    yielded_from, interrupted, exited, left_by_a_thread, cancelled_with_its_task, replaced,
]  # fmt: skip


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let nothing be freed by chance."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_left_in_any_way_gives_its_slot_to_the_next_one(
    way: Callable[[Stream], None], no_collector: None
) -> None:
    expected = one_slot_engine().generate(PROMPT, **OPTIONS).token_ids
    engine = one_slot_engine()

    def stream() -> ReplyStream:
        # opens a session as streams do, but without looking for what only the collector finds
        prompt_ids = engine.tokenizer.encode(PROMPT, parse_special=False)
        engine.engine.finish(engine.engine.open(prompt_ids))
        return engine.stream(PROMPT, **OPTIONS)

    for _ in range(3):
        way(stream)
        assert engine.generate(PROMPT, **OPTIONS).token_ids == expected
    stream().close()


def test_200_streams_left_leave_nothing_behind(no_collector: None) -> None:
    engine = one_slot_engine()
    for number in range(200):
        WAYS[number % len(WAYS)](lambda: engine.stream(PROMPT, **OPTIONS))
    engine.generate(PROMPT, **OPTIONS)
    assert len(engine.engine.target.open_caches) <= 1  # type: ignore[attr-defined]
    assert not engine.engine._sessions
    assert not engine.engine._drivers
    assert not engine.engine._given_up
    assert not sum(isinstance(each, Session) for each in gc.get_objects())


def test_streams_in_a_circle_of_references_are_found_when_their_slot_is_wanted(
    no_collector: None,
) -> None:
    engine = one_slot_engine()
    expected = engine.generate(PROMPT, **OPTIONS).token_ids
    for _ in range(3):
        circle: list[Any] = [engine.stream(PROMPT, **OPTIONS)]
        next(circle[0])
        circle.append(circle)
        del circle
        assert engine.generate(PROMPT, **OPTIONS).token_ids == expected


def test_a_stream_that_is_held_keeps_its_slot_and_the_error_says_so(no_collector: None) -> None:
    engine = one_slot_engine()
    held = engine.stream(PROMPT, **OPTIONS)
    for _ in held:
        break
    with pytest.raises(NoFreeSlot, match="all 1 sequences") as caught:
        engine.generate(PROMPT, **OPTIONS)
    assert "stream" in caught.value.hint
    del caught
    rest = sum(len(piece.tokens) for piece in held)
    assert 0 < rest < 12
    assert len(engine.generate(PROMPT, **OPTIONS).token_ids) == 12


def test_what_finalizers_drop_in_the_middle_of_a_pass_is_given_back_after_it() -> None:
    """A collector may run at any place of a pass; here the drafter drops streams in it."""
    dropped: list[Any] = []
    finalized: list[str] = []

    def propose(view: Any, budget: int) -> list[int]:
        while dropped:
            dropped.pop()
            finalized.append("in a pass")
        return [1] * budget

    drafter = FunctionDrafter(propose)
    engine = text_engine(random_logits(258), words=tokenizer(), drafter=drafter, max_sessions=4)
    expected = engine.generate(PROMPT, **OPTIONS).token_ids
    for _ in range(5):
        unread_stream = engine.stream(PROMPT, **OPTIONS)
        rounds = engine.engine.run(engine.engine.start([1, 2, 3], max_tokens=5))
        next(rounds)
        owner = type("Owner", (), {})()
        session = engine.engine.start([4, 5], max_tokens=5)
        weakref.finalize(owner, engine.engine.finish, session)
        dropped += [unread_stream, rounds, owner]
        del unread_stream, rounds, owner, session
        assert engine.generate(PROMPT, **OPTIONS).token_ids == expected
    assert len(finalized) == 15
    assert engine.generate(PROMPT, **OPTIONS).token_ids == expected
    assert not engine.engine._sessions
    assert not engine.engine.target.open_caches  # type: ignore[attr-defined]
