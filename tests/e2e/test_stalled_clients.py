"""Clients that send too little, too slowly or nothing, and those that read nothing: none of them
takes much memory, and none keeps others out."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from pilotfish.server.options import ServerOptions
from pilotfish.types import FloatArray
from support.api import CHAT, MODEL, LiveServer, chat, parrot, said, tokenizer
from support.text_engines import text_engine

# only what hangs takes so long
WATCHDOG_SECONDS = 30.0
LONG, SHORT = 60.0, 0.2
BODY = json.dumps(chat("hi")).encode()
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()


class Server(LiveServer):
    """A server of small limits, and raw connections to it."""

    def __init__(self, *, held: threading.Event | None = None, **limits: float) -> None:
        def logits(prefix: tuple[int, ...]) -> FloatArray:
            assert held is None or held.wait(WATCHDOG_SECONDS)
            return parrot(prefix)

        patient = {"client_seconds": LONG, "idle_seconds": LONG}
        options = ServerOptions(model_name=MODEL, **{**patient, **limits})  # type: ignore[arg-type]
        super().__init__(text_engine(logits, words=tokenizer()), options)
        self._clients = ExitStack()

    def connect(self, sent: bytes = b"", *, buffer_bytes: int | None = None) -> socket.socket:
        """Return a connection over which something was sent."""
        client = self._clients.enter_context(socket.socket())
        if buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.settimeout(WATCHDOG_SECONDS)
        client.connect(self.socket.getsockname())
        client.sendall(sent)
        return client

    @property
    def num_requests(self) -> int:
        """Return how many requests run or wait."""
        return self.service.state.num_running + self.service.state.num_waiting

    def replies(self) -> bool:
        """Return whether somebody who does as he should has his reply."""
        answer = httpx.post(self.url + CHAT, json=chat("hi"), timeout=WATCHDOG_SECONDS)
        return said(answer.json()) == "hi"

    def close(self) -> None:
        """Hang up, and end the server."""
        self._clients.close()
        super().close()


@contextmanager
def serving(**limits: float) -> Iterator[Server]:
    server = Server(**limits)
    try:
        yield server
    finally:
        server.close()


def stalled(length: int, *, sent: int) -> bytes:
    """Return a request of which a part of the body is missing."""
    return HEAD + f"Content-Length: {length}\r\n\r\n".encode() + b" " * sent


def rest(client: socket.socket) -> bytes:
    """Return what comes until the server hangs up."""
    received = b""
    while part := client.recv(65536):
        received += part
    return received


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once a condition holds."""
    until = time.monotonic() + WATCHDOG_SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.002)


def answered(clients: list[socket.socket], number: int) -> list[socket.socket]:
    """Wait until so many have an answer, and return those that have."""
    found: list[socket.socket] = []
    while len(found) < number:
        found, _, _ = select.select(clients, [], [], WATCHDOG_SECONDS)
        assert found, "nobody is answered"
    return found


def test_bodies_that_stall_hold_no_more_than_so_many_bytes_together() -> None:
    with serving(max_body_bytes=1000) as server:
        clients = [server.connect(stalled(1000, sent=900)) for _ in range(40)]
        # 17 of these fit into 16,000 bytes
        told = answered(clients, 40 - 17)
        for client in told:
            head = client.recv(65536)
            assert head.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in head.lower()
        assert len(told) == 40 - 17
        assert server.replies()
        # who was kept can still send the rest
        left = next(client for client in reversed(clients) if client not in told)
        left.sendall(b" " * 100)
        assert left.recv(65536).startswith(b"HTTP/1.1 400")


def test_a_body_that_stops_is_told_that_time_is_over() -> None:
    with serving(client_seconds=SHORT) as server:
        answer = rest(server.connect(stalled(1000, sent=900)))
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.2 seconds" in answer
        assert server.replies()


@pytest.mark.parametrize("sent", [b"", b"GET /hea", HEAD, stalled(10**6, sent=1)])
def test_who_sends_byte_after_byte_is_cut_off_all_the_same(sent: bytes) -> None:
    with serving(client_seconds=SHORT) as server:
        client = server.connect(sent)
        client.settimeout(SHORT / 8)
        answer, is_open = b"", True
        while is_open:
            try:
                client.sendall(b"x")
                part = client.recv(65536)
            except TimeoutError:
                continue
            except ConnectionError:
                part = b""
            answer, is_open = answer + part, bool(part)
        assert not answer or answer.startswith(b"HTTP/1.1 408")


def test_a_head_that_stops_is_told_so() -> None:
    with serving(client_seconds=SHORT) as server:
        answer = rest(server.connect(b"GET /health HTTP/1.1\r\nHost: localh"))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        assert json.loads(body)["error"]["code"] == "request_not_sent"


def test_connections_without_a_request_are_closed_without_a_word() -> None:
    with serving(idle_seconds=SHORT) as server:
        assert rest(server.connect()) == b""
        answer = rest(server.connect(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (b"GET /hea", b"HTTP/1.1 503"), (stalled(1000, sent=900), b"HTTP/1.1 503")],
)
def test_who_sends_nothing_makes_room_for_others(sent: bytes, answer: bytes) -> None:
    with serving(max_connections=4) as server:
        first, *_ = [server.connect(sent) for _ in range(4)]
        assert server.replies()
        assert rest(first).startswith(answer)
        assert server.replies()


def test_who_is_being_answered_makes_room_for_nobody() -> None:
    held = threading.Event()
    with serving(max_connections=3, held=held) as server:
        whole = HEAD + f"Connection: close\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY
        asking = [server.connect(whole) for _ in range(3)]
        wait_for(lambda: server.num_requests == 3)
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url + "/health").raise_for_status()
        held.set()
        assert all(rest(client).startswith(b"HTTP/1.1 200") for client in asking)
        assert server.replies()


@pytest.mark.parametrize("streams", [True, False])
def test_who_reads_nothing_of_an_answer_loses_the_connection(streams: bool) -> None:
    body = json.dumps(chat("?", max_tokens=900, n=4, logprobs=True, stream=streams)).encode()
    ask = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with serving(client_seconds=SHORT) as server:
        # what is on the way between both is to be small
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client = server.connect(ask, buffer_bytes=4096)
        wait_for(lambda: len(server.connections) == 1)
        wait_for(lambda: len(server.connections) == 0)
        assert b"200" in client.recv(12)
        # the end of a stream, and of a whole reply
        assert not rest(client).endswith((b"0\r\n\r\n", b"}}}"))
        wait_for(lambda: server.num_requests == 0)
        assert server.replies()
