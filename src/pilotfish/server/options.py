"""How the server listens, and whom it lets in."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from pilotfish.types import require, require_in_range

DEFAULT_PORT = 8000
DEFAULT_BODY_BYTES = 4 * 1024 * 1024
MOST_PORTS = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the HTTP side needs to know; the models and the queue have options of their own.

    api_key         asked of every request that touches data; None asks nothing
    cors_origins    web origins whose pages may call the server; "*" is all
    max_body_bytes  the largest request body
    log_prompts     whether prompts may be written to the log
    drain_seconds   how long running replies may go on once the server is told to stop
    model_name      what the model is called in the API
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = DEFAULT_BODY_BYTES
    log_prompts: bool = False
    drain_seconds: float = 30.0
    model_name: str = "pilotfish"

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
            is_origin = origin == "*" or origin.startswith(("http://", "https://"))
            wanted = "'*' or an origin such as https://example.org"
            require(is_origin and not origin.endswith("/"), "cors_origins", origin, wanted)
        wanted = "a whole number above 0"
        require_in_range("max_body_bytes", self.max_body_bytes, wanted, low=1, whole=True)
        wanted = "a finite number, 0 or more"
        require_in_range("drain_seconds", self.drain_seconds, wanted, low=0)

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address stands for this machine alone."""
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
