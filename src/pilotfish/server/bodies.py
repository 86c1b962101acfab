"""The bodies of requests while they are read: how large they may be, and how long they may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from starlette.requests import ClientDisconnect

from pilotfish.server.connections import connection_of
from pilotfish.server.errors import ApiError
from pilotfish.server.options import ServerOptions

# all bodies together may have as many bytes as so many of the largest
MOST_LARGE_BODIES = 16


class _Arrival:
    """A body on its way."""

    def __init__(self, patience: asyncio.Timeout) -> None:
        self.data = bytearray()
        self.patience = patience
        self.gave_way = False


class Bodies:
    """Reads bodies, many at once, within one limit of bytes for each and one for all.

    Where all of them would have too many bytes, the one that has been on its way longest is given
    up, so that those who send nothing more keep nobody out.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._most_bytes = options.max_body_bytes
        self._seconds = options.client_seconds
        self._arrivals: dict[_Arrival, None] = {}  # oldest first
        self.num_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """Give the bytes of a body. They count until the block ends, where nothing else may keep
        them: a reply takes longer than its request. Raises ApiError."""
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._most_bytes:
            raise self._too_large()
        arrival = _Arrival(asyncio.timeout(self._seconds))
        try:
            await self._receive(arrival, request)
            yield arrival.data
        finally:
            self._release(arrival)

    async def _receive(self, arrival: _Arrival, request: Request) -> None:
        self._arrivals[arrival] = None
        try:
            with connection_of(request.scope).awaiting_body():
                async with arrival.patience:
                    async for part in request.stream():
                        self._take(arrival, part)
        except ClientDisconnect as error:
            raise ApiError(400, "the body is incomplete", code="invalid_json") from error
        except TimeoutError as error:
            raise _too_many() if arrival.gave_way else self._too_slow() from error
        finally:
            self._arrivals.pop(arrival, None)

    def _take(self, arrival: _Arrival, part: bytes) -> None:
        if arrival.gave_way:
            raise _too_many()
        arrival.data += part
        self.num_bytes += len(part)
        if len(arrival.data) > self._most_bytes:
            raise self._too_large()
        while self.num_bytes > self._most_bytes * MOST_LARGE_BODIES:
            oldest = next(iter(self._arrivals))
            self._give_up(oldest)
            if oldest is arrival:
                raise _too_many()

    def _give_up(self, arrival: _Arrival) -> None:
        del self._arrivals[arrival]
        self._release(arrival)
        arrival.gave_way = True
        if not arrival.patience.expired():
            arrival.patience.reschedule(asyncio.get_running_loop().time())

    def _release(self, arrival: _Arrival) -> None:
        """Count the bytes of a body no more, and let go of them; safe to repeat."""
        self.num_bytes -= len(arrival.data)
        arrival.data = bytearray()

    def _too_large(self) -> ApiError:
        message = f"the body has more than {self._most_bytes} bytes"
        return ApiError(413, message, code="body_too_large")

    def _too_slow(self) -> ApiError:
        message = f"the body did not arrive within {self._seconds:g} seconds"
        return ApiError(408, message, code="request_not_sent", headers={"Connection": "close"})


def _too_many() -> ApiError:
    message = "too many requests are being read (try again later)"
    return ApiError(503, message, code="too_busy", headers={"Retry-After": "1"})
