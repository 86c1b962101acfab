"""Open connections: how many there may be at once, and how long a client may keep one waiting.

It is either the client's turn, to send a request or to take in an answer, or the server's. Clients
that do nothing in their turn lose their connection after a while, and at once where others need
the place.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pilotfish.server.errors import ApiError
from pilotfish.server.options import ServerOptions

log = logging.getLogger("pilotfish.server")

_KEY = "pilotfish.connection"
_MOST_SECONDS_BETWEEN_LOOKS = 1.0
_TOO_MANY = ApiError(503, "too many connections are open (try again later)", code="too_busy")
_TOO_SLOW = ApiError(408, "the request did not arrive in time", code="request_not_sent")


class Connections:
    """All open connections of a server.

    Beyond `max_connections` the client that has let the server wait longest makes room. Where none
    does, as all requests are being answered, the new connection is refused.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._most = options.max_connections
        self._client_seconds = options.client_seconds
        self._idle_seconds = options.idle_seconds
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, **options: Any) -> Connection:
        """Return what uvicorn talks to a new client by."""
        return Connection(self, **options)

    def enter(self, connection: Connection) -> None:
        """Count a new connection, and make room for it or refuse it."""
        self._open.add(connection)
        if len(self._open) <= self._most:
            return
        waiting = [one for one in self._open if one.is_clients_turn and one is not connection]
        if not waiting:
            log.warning("a connection was refused: %d are open, all in use", self._most)
            connection.end(_TOO_MANY)
            return
        # the one that opened or ended a request longest ago
        min(waiting, key=lambda one: one.since).end(_TOO_MANY)

    def leave(self, connection: Connection) -> None:
        """Forget a connection; safe to repeat."""
        self._open.discard(connection)

    async def watch(self) -> None:
        """End connections whose clients have done nothing for too long, until cancelled."""
        loop = asyncio.get_running_loop()
        shortest = min(self._client_seconds, self._idle_seconds)
        while True:
            await asyncio.sleep(min(_MOST_SECONDS_BETWEEN_LOOKS, shortest / 4))
            self.look(loop.time())

    def look(self, now: float) -> None:
        """End the connections whose clients have done nothing for too long by now."""
        for connection in list(self._open):
            seconds = now - connection.since
            is_idle_too_long = connection.is_idle and seconds > self._idle_seconds
            if is_idle_too_long or connection.seconds_unread(now) > self._client_seconds:
                connection.end()
            elif connection.has_sent_part and seconds > self._client_seconds:
                connection.end(_TOO_SLOW)


class Connection(H11Protocol):
    """One connection, which knows whose turn it is.

    since  when the turn of the client began, where it is the client's
    """

    def __init__(self, connections: Connections, *, app_state: dict[str, Any], **rest: Any) -> None:
        super().__init__(app_state={**app_state, _KEY: self}, **rest)
        self._connections = connections
        self._num_answers = 0
        self._awaits_body = False
        self.has_sent_part = False
        self._is_held_up = False
        self._num_unread_bytes = 0
        self._unread_since = self.since = self.loop.time()

    @property
    def is_clients_turn(self) -> bool:
        """Return whether the client has a request to send, or the rest of one."""
        return self._num_answers == 0 or self._awaits_body

    @property
    def is_idle(self) -> bool:
        """Return whether no part of a request has come."""
        return self._num_answers == 0 and not self.has_sent_part

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, as uvicorn begins to listen."""
        super().connection_made(transport)
        self._connections.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        self._connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note that a request has begun, and read on."""
        if self.is_idle:
            self.has_sent_part, self.since = True, self.loop.time()
        super().data_received(data)

    def pause_writing(self) -> None:
        """Note that the client is behind with reading."""
        self._is_held_up = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        self._is_held_up = False
        super().resume_writing()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Make it the server's turn inside the block."""
        self._num_answers += 1
        self.has_sent_part = False
        try:
            yield
        finally:
            self._num_answers -= 1
            self.since = self.loop.time()

    @contextmanager
    def awaiting_body(self) -> Iterator[None]:
        """Make it the client's turn once more inside the block; how long is the block's affair."""
        self._awaits_body, self.since = True, self.loop.time()
        try:
            yield
        finally:
            self._awaits_body = False

    def seconds_unread(self, now: float) -> float:
        """Return for how long the client has taken in nothing of what waits for it. While more is
        added that cannot be told, and is no matter until no more fits."""
        number = self.transport.get_write_buffer_size()
        may_grow = self._num_answers > 0 and not self._is_held_up
        if may_grow or number == 0 or number < self._num_unread_bytes:
            self._unread_since = now
        self._num_unread_bytes = number
        return now - self._unread_since

    def end(self, last_words: ApiError | None = None) -> None:
        """Hang up, with last words where part of a request has come and the client listens."""
        self._connections.leave(self)
        if last_words is not None and not self.is_idle and not self._num_unread():
            self.transport.write(_as_bytes(last_words))
        if self._num_unread():
            self.transport.abort()  # nobody reads it, so it would never be sent
        else:
            self.transport.close()

    def _num_unread(self) -> int:
        return self.transport.get_write_buffer_size()


def _as_bytes(error: ApiError) -> bytes:
    """Return the whole answer to a request that no route will see."""
    body = json.dumps(error.document).encode()
    head = (
        f"HTTP/1.1 {error.status} Error\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class NoConnection:
    """Stands for the connection of an app that is called without one."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Change nothing."""
        yield

    @contextmanager
    def awaiting_body(self) -> Iterator[None]:
        """Change nothing."""
        yield


def connection_of(scope: Scope) -> Connection | NoConnection:
    """Return the connection that a request came by."""
    found: Connection | None = scope.get("state", {}).get(_KEY)
    return found or NoConnection()


class Turns:
    """Tells the connection of each request that it is the server's turn until it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        with connection_of(scope).answering():
            await self._app(scope, receive, send)
