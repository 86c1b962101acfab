"""Pages of other origins: which of them may call the server, and what their browsers are told."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotfish.server.errors import ApiError

ANY = "*"
# apps built on web pages have schemes of their own; a file on disk has the origin "null"
_ORIGIN = re.compile(r"(?!https?://$)[a-z][a-z0-9+.-]*://[^/?#@\s]*", re.IGNORECASE)
_METHODS = "GET, HEAD, POST"
# how long a browser need not ask again
_PREFLIGHT_SECONDS = 600


def is_origin(text: str) -> bool:
    """Return whether text can name origins: one, those that a "*" makes of it, or all."""
    if text in (ANY, "null"):
        return True
    return _ORIGIN.fullmatch(text) is not None and text.count(ANY) <= 1


def matches(origin: str, pattern: str) -> bool:
    """Return whether an origin is one of those that a pattern names."""
    if pattern == ANY:
        return True
    start, star, end = pattern.casefold().partition(ANY)
    origin = origin.casefold()
    if not star:
        return origin == start
    if len(origin) < len(start) + len(end) or "/" in origin[len(start) :]:
        return False
    return origin.startswith(start) and origin.endswith(end)


class CrossOrigin:
    """Answers browsers that ask whether a page of another origin may send a request, and lets the
    pages that may read the answers.

    It keeps nobody out who is no browser: that is what keys and host names are for.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a browser's question, or pass the request on and mark its answer."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin is None:
            await self._app(scope, receive, send)
            return
        is_allowed = any(matches(origin, pattern) for pattern in self._origins)
        is_question = "access-control-request-method" in headers
        if scope["method"] == "OPTIONS" and is_question:
            answer = self._permission(headers) if is_allowed else _refusal(origin)
            await answer(scope, receive, self._marking(send, origin) if is_allowed else send)
            return
        await self._app(scope, receive, self._marking(send, origin) if is_allowed else send)

    def _permission(self, headers: Headers) -> Response:
        """Allow what is asked for: clients send headers of their own, and none can do harm."""
        allowed = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
        }
        if (wanted := headers.get("access-control-request-headers")) is not None:
            allowed["Access-Control-Allow-Headers"] = wanted
        # asked of servers in the reader's own network
        if "access-control-request-private-network" in headers:
            allowed["Access-Control-Allow-Private-Network"] = "true"
        return Response(status_code=204, headers=allowed)

    def _marking(self, send: Send, origin: str) -> Send:
        """Return a `send` that lets the page of an origin read the answer and all its headers."""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers["Access-Control-Allow-Origin"] = ANY if ANY in self._origins else origin
                headers["Access-Control-Expose-Headers"] = ANY
                headers.add_vary_header("Origin")
                message = {**message, "headers": headers.raw}
            await send(message)

        return marked


def _refusal(origin: str) -> Response:
    shown = origin[:100]
    message = f"pages of {shown!a} may not call this server (allow it with --cors-origin {shown})"
    return ApiError(403, message, code="wrong_origin").response
