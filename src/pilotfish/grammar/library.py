"""Load `llguidance` once."""

from __future__ import annotations

import functools
from types import ModuleType

from pilotfish.errors import MissingExtra


@functools.cache
def load_library() -> ModuleType:
    """Return the module `llguidance`; raises MissingExtra without it."""
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtra("grammar", needed_for="a reply by a JSON schema") from error
    return llguidance
