"""Who gets in: keys, host names, origins; and the access log.

Open without a key are `/health`, and the pages with their files, which hold no data: they ask for
the key and send it with what they call.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotfish.server.canonical import CanonicalRequest
from pilotfish.server.connections import Turns
from pilotfish.server.errors import ApiError
from pilotfish.server.options import ServerOptions, is_loopback
from pilotfish.server.origins import CrossOrigin

log = logging.getLogger("pilotfish.server.access")

_OPEN_PATHS = ("/", "/docs", "/health", "/favicon.ico")
_OPEN_FOLDER = "/assets/"


def guard(app: FastAPI, options: ServerOptions) -> None:
    """Put all checks around the app; the outermost is added last."""
    if options.api_key is not None:
        app.add_middleware(KeyCheck, api_key=options.api_key)
    app.add_middleware(CrossOrigin, origins=options.cors_origins)
    if options.checks_hosts:
        app.add_middleware(HostCheck, allowed_hosts=options.allowed_hosts)
    app.add_middleware(CanonicalRequest)
    app.add_middleware(AccessLog)
    app.add_middleware(Turns)


def note(scope: Scope, **facts: Any) -> None:
    """Leave facts about a request for its line in the access log."""
    scope.setdefault("pilotfish.facts", {}).update(facts)


class AccessLog:
    """Writes one line for each request: method, path, status, milliseconds, tokens. Query strings,
    headers and bodies are left out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and write its line when it has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        facts: dict[str, Any] = scope.setdefault("pilotfish.facts", {})

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            milliseconds = (time.perf_counter() - start) * 1000
            line = [scope["method"], repr(scope["path"])[1:-1], str(status or "-")]
            line += [f"{milliseconds:.0f} ms", *(f"{key}={facts[key]}" for key in facts)]
            log.info(" ".join(line))


class HostCheck:
    """Refuses requests that name another host than this machine or one that is allowed.

    A page of another site can have its own name point here and would then pass for ours.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str] = ()) -> None:
        self._app = app
        self._allowed = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if its Host header is one that the server answers for."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "localhost")
            name = host_name(host)
            if not is_loopback(name) and not is_allowed_host(name, self._allowed):
                shown = host[:100]
                error = ApiError(
                    403,
                    f"the server does not answer for the host {shown!a} (call it by localhost, or "
                    "allow the name with --allowed-host)",
                    code="wrong_host",
                )
                await error.response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def host_name(host: str) -> str:
    """Return the name in a Host header: without port, without the dot of a full name, an address
    of version 6 without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def is_allowed_host(name: str, allowed: Sequence[str]) -> bool:
    """Return whether a host is among those allowed; `*.example.org` is every name below."""
    name = name.casefold()
    for one in allowed:
        one = one.casefold()
        if name == one or (one.startswith("*.") and name.endswith(one[1:]) and name != one[1:]):
            return True
    return False


class KeyCheck:
    """Asks for the key, in constant time whatever was sent."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if it carries the key, or needs none."""
        if scope["type"] == "http" and not _is_open(scope) and not self._has_key(scope):
            error = ApiError(
                401,
                "the API key is missing or wrong (send the header Authorization: Bearer KEY)",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        is_key = hmac.compare_digest(key.strip().encode("latin-1", "replace"), self._key)
        return scheme.lower() == "bearer" and is_key


def _is_open(scope: Scope) -> bool:
    is_reading = scope["method"] in ("GET", "HEAD")
    path: str = scope["path"]
    return is_reading and (path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER))
