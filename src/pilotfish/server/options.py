"""How the server listens, and whom it lets in."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pilotfish.server.origins import is_origin
from pilotfish.types import require, require_in_range

DEFAULT_PORT = 8000
REASONING_FORMATS = ("auto", "none")
DEFAULT_BODY_BYTES = 4 * 1024 * 1024
MOST_PORTS = 65_535
_NAME = re.compile(r"(?:\*\.)?[\w-]+(?:\.[\w-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the HTTP side needs to know; the models and the queue have options of their own.

    api_key           asked of every request that touches data; None asks nothing
    cors_origins      web origins whose pages may call the server; "*" is all, and in place of a
                      part of an origin whatever stands there
    allowed_hosts     names that the server is called by, besides those of this machine;
                      "*.a.example" is every name below, "*" every name
    max_body_bytes    the largest request body
    max_connections   how many may be open at once
    client_seconds    how long a client may take to send a request, or take in nothing of an answer
    idle_seconds      how long a connection may stay open without a request
    ping_seconds      how long a stream may be silent until it sends a comment; 0: for ever
    log_prompts       whether prompts may be written to the log
    drain_seconds     how long running replies may go on once the server is told to stop
    model_name        what the model is called in the API
    reasoning_format  "auto" gives reasoning a field of its own, "none" leaves it in the content
    template_options  what the chat template is told where a request does not say otherwise
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = DEFAULT_BODY_BYTES
    max_connections: int = 512
    client_seconds: float = 60.0
    # above what proxies and clients have, so that it is they who hang up: a request that meets a
    # connection just being closed fails
    idle_seconds: float = 75.0
    ping_seconds: float = 10.0
    log_prompts: bool = False
    drain_seconds: float = 30.0
    model_name: str = "pilotfish"
    reasoning_format: str = "auto"
    template_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("host", "model_name"):
            value = getattr(self, name)
            require(isinstance(value, str) and bool(value), name, value, "text")
        wanted = f"a port from 0 to {MOST_PORTS}"
        require_in_range("port", self.port, wanted, low=0, high=MOST_PORTS + 1, whole=True)
        if self.api_key is not None:
            usable = isinstance(self.api_key, str) and bool(self.api_key.strip())
            # the value is not shown: it may be nearly right
            require(usable and self.api_key.isascii(), "api_key", "...", "ASCII text, not blank")
        for origin in self.cors_origins:
            wanted = "'*', 'null' or an origin such as https://example.org or app://localhost"
            require(is_origin(origin), "cors_origins", origin, wanted)
        for name in self.allowed_hosts:
            wanted = "'*' or a host name without port, such as gpu.example.org or *.example.org"
            require(_is_host(name), "allowed_hosts", name, wanted)
        wanted = "a whole number above 0"
        for name in ("max_body_bytes", "max_connections"):
            require_in_range(name, getattr(self, name), wanted, low=1, whole=True)
        for name in ("client_seconds", "idle_seconds"):
            seconds = getattr(self, name)
            wanted = "seconds above 0"
            require_in_range(name, seconds, wanted, low=0)
            require(seconds > 0, name, seconds, wanted)
        wanted = "a finite number, 0 or more"
        for name in ("ping_seconds", "drain_seconds"):
            require_in_range(name, getattr(self, name), wanted, low=0)

        formats = REASONING_FORMATS
        wanted = "one of " + ", ".join(formats)
        require(self.reasoning_format in formats, "reasoning_format", self.reasoning_format, wanted)

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def checks_hosts(self) -> bool:
        """Return whether the name counts that clients call the server by: on addresses that others
        can reach any name may be right, unless some are given."""
        return "*" not in self.allowed_hosts and (self.is_local or bool(self.allowed_hosts))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address stands for this machine alone."""
    name = host.casefold()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_host(text: str) -> bool:
    if text == "*" or _NAME.fullmatch(text):
        return True
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False
