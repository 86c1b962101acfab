"""The errors pilotfish raises.

PilotfishError
├── ConfigError              an option or setting is unknown or out of range
│   └── PromptError          a prompt cannot be used (empty, too long, not text)
│       └── ContextLengthExceeded
├── ModelError               something about a model
│   ├── UnknownModel         a reference names nothing we can find
│   ├── ModelFileError       a file is cut, false, incomplete or unreadable
│   ├── DownloadError        no source could deliver the file, or its checksum is wrong
│   ├── CacheNotTruncatable  the model keeps state that cannot discard rejected tokens
│   ├── VocabularyMismatch   draft and target do not share their tokens
│   └── NotEnoughMemory      the model does not fit
├── BackendError             a backend failed while running
│   └── NoFreeSlot           as many sequences as the model was loaded for are in use
├── StrictUnavailable        strict mode was asked for and the self-check failed
├── ServiceError             a request was not served for a reason that lies outside of it
│   ├── QueueFull            too many requests wait already
│   ├── RequestTimedOut      it took longer than a request may
│   └── ShuttingDown         the server ends, or its engine has ended
└── MissingExtra             an optional library is not installed

Every error has a one-line message and, where there is something to do about it, a `hint`.
`assert` is for our own bugs only.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

# where the sources lie, if this is a clone of them
_SOURCES = Path(__file__).resolve().parents[2]
# below this a suggestion misleads more often than it helps: --help for --model
_NEAR = 0.75
_MOST_COMPARED = 100
_FEWEST_LETTERS = 3


class PilotfishError(Exception):
    """The root of all errors of this package; `hint` says what to do about it, or is empty."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(PilotfishError):
    """An option or setting is unknown or out of range."""


class PromptError(ConfigError):
    """A prompt cannot be used."""


class ContextLengthExceeded(PromptError):
    """A prompt does not fit the context; the message gives both numbers."""


class ModelError(PilotfishError):
    """Something about a model."""


class UnknownModel(ModelError):
    """A model reference names nothing we can find."""


class ModelFileError(ModelError):
    """A model file is cut, false, incomplete or unreadable."""


class DownloadError(ModelError):
    """No source could deliver a file, or what it delivered is not the file."""


class CacheNotTruncatable(ModelError):
    """The model keeps state that cannot discard rejected tokens."""


class VocabularyMismatch(ModelError):
    """Draft and target do not share their tokens."""


class NotEnoughMemory(ModelError):
    """A model does not fit into the free memory."""


class BackendError(PilotfishError):
    """A backend failed while running."""

    exit_code = 1


class NoFreeSlot(BackendError):
    """As many sequences as the model was loaded for are in use."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(
            f"all {num_slots} sequences of this model are in use",
            hint="end a stream or close a cache, or load the model with a larger max_sessions",
        )


class StrictUnavailable(PilotfishError):
    """Strict mode was asked for and the width self-check failed."""


class ServiceError(PilotfishError):
    """A request was not served, or not to its end, for a reason that lies outside of it."""

    exit_code = 1


class QueueFull(ServiceError):
    """Too many requests wait already; `retry_after_seconds` is when to come again."""

    def __init__(self, message: str, *, retry_after_seconds: int = 1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds


class RequestTimedOut(ServiceError):
    """A request took longer than a request may, the time it waited included."""


class ShuttingDown(ServiceError):
    """The server ends, or its engine has ended: nothing new is begun."""


class MissingExtra(PilotfishError):
    """An optional library is not installed."""

    def __init__(self, extra: str, *, needed_for: str, hint: str = "") -> None:
        super().__init__(
            f"{needed_for} needs the optional dependency '{extra}'",
            hint=hint or _installing(extra),
        )


def _installing(extra: str) -> str:
    """Return the command that installs what an extra needs: the script of a clone, elsewhere the
    libraries by name, as no index need know this package."""
    script = _SOURCES / "scripts" / "install"
    if script.is_file():
        return f"{shlex.quote(str(script))} {extra}"
    try:
        requirements = metadata.requires("pilotfish") or []
    except metadata.PackageNotFoundError:
        requirements = []
    parts = (requirement.partition(";") for requirement in requirements)
    names = [name.strip() for name, _, marker in parts if _is_of(extra, marker)]
    return f"pip install {shlex.join(names)}" if names else f"install the extra {extra}"


def _is_of(extra: str, marker: str) -> bool:
    return marker.strip().replace('"', "'") == f"extra == '{extra}'"


def near_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that `name` was most likely meant to be, or "" where none is near.

    Near is one that differs in a letter or so, or the only one that begins with it. Case, dashes,
    dots and the like do not count.
    """
    by_letters = {_letters(one): one for one in known}
    wanted = _letters(name[:_MOST_COMPARED])
    if close := difflib.get_close_matches(wanted, by_letters, n=1, cutoff=_NEAR):
        return by_letters[close[0]]
    begun = [letters for letters in by_letters if letters.startswith(wanted)]
    return by_letters[begun[0]] if len(begun) == 1 and len(wanted) >= _FEWEST_LETTERS else ""


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
