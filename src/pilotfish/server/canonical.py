"""Brings what proxies and HTTP clients make of one request into the one form that routes know.

HEAD is GET without the body; a path may have slashes too many, or stand behind a whole address, as
clients that take this server for their proxy write it. Nothing is redirected to a whole address,
which would be wrong behind a proxy.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ADDRESS = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_SLASHES = re.compile(r"/{2,}")


def canonical_path(path: str) -> str:
    """Return a path, still encoded, as routes have it: without address, doubled slashes, and
    slashes at its end; that of the whole server, which is asked for as `*`, is `/`."""
    if found := _ADDRESS.match(path):
        path = path[found.end() :]
    if path in ("", "*"):
        return "/"
    return _SLASHES.sub("/", path).rstrip("/") or "/"


class CanonicalRequest:
    """Passes requests on in their canonical form."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; to HEAD, send what GET is answered, without the body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # as it was sent: an encoded slash belongs to a name
        path: str = scope.get("raw_path", b"").decode("latin-1") or quote(scope["path"])
        root = quote(scope.get("root_path", ""))  # where the app is a part of another one
        below = canonical_path(path.removeprefix(root))
        canonical = {**scope, "path": unquote((root if path.startswith(root) else "") + below)}
        if is_head:
            canonical["method"] = "GET"
        await self._app(canonical, receive, without_body if is_head else send)
