"""Load `pilotfish_native` once, and say which build runs."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

from pilotfish.backends.self_check import file_identity
from pilotfish.errors import MissingExtra


@functools.cache
def load_library() -> ModuleType:
    """Return the module `pilotfish_native`; raises MissingExtra without it."""
    try:
        import pilotfish_native
    except ImportError as error:
        raise MissingExtra(
            "pilotfish-native",
            needed_for="the native backend",
            hint="scripts/install in the sources builds it, with a C++ compiler; or use "
            "--backend llama",
        ) from error
    module: ModuleType = pilotfish_native
    return module


def missing_reason() -> str | None:
    """Return why no file can run on the native backend here, or None when some can."""
    try:
        available = load_library().processor()["available"]
    except MissingExtra:
        return "the package pilotfish-native is not installed"
    return None if available else "this processor has none of the instruction sets it knows"


def library_version(instructions: str) -> str:
    """Return which build runs, with the instruction set in use."""
    return f"pilotfish-native {load_library().__version__}; {instructions}"


def library_identity() -> list[Any]:
    """Return what tells one build of the library from another: its version and its file."""
    library = load_library()
    return [library.__version__, *file_identity(Path(library._core.__file__))]
