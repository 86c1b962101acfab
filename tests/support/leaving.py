"""Every way to leave a stream before its end, each a function of what opens the stream."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pilotfish.generation import ReplyStream

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
