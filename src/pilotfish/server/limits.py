"""What a service takes on at once, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.types import require_in_range


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """What a service takes on at once. Each choice of a request is a session of its own.

    max_running      sessions at once
    max_waiting      sessions that may wait for a place
    request_seconds  from the arrival of a request to its end; 0: no limit
    most_tokens      prompts and longest replies of all running sessions together; one that is
                     larger runs alone. None: no limit but the places
    """

    max_running: int = 8
    max_waiting: int = 64
    request_seconds: float = 600.0
    most_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_running", 1), ("max_waiting", 0), ("most_tokens", 1)):
            value = getattr(self, name)
            if value is None and name == "most_tokens":
                continue
            wanted = f"a whole number, {least} or more"
            require_in_range(name, value, wanted, low=least, whole=True)
        wanted = "seconds, 0 (no limit) or more"
        require_in_range("request_seconds", self.request_seconds, wanted, low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """Where a service stands.

    num_running             sessions with a place, those that read their prompt included
    num_waiting             sessions without
    num_cache_tokens        tokens in the caches of those that run
    num_kept_tokens         tokens in caches kept for texts that begin alike
    seconds_since_progress  since the last step, while there is something to do; else 0
    """

    num_running: int
    num_waiting: int
    num_cache_tokens: int
    num_kept_tokens: int
    is_draining: bool
    is_alive: bool
    seconds_since_progress: float
