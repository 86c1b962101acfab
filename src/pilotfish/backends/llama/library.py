"""Load `llama_cpp` once: threads placed, log kept, functions as the C API has them."""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from types import ModuleType
from typing import Any

from pilotfish.backends.llama.placement import PASS_PLACEMENT, protected_placement
from pilotfish.errors import MissingExtra

_ERROR_LEVEL = 4
_CONTINUED_LEVEL = 5
_error_lines: deque[str] = deque(maxlen=20)
_last_level = 0
_kept_alive: list[Any] = []


def _keep_errors(level: int, text: bytes | None, _user_data: object) -> None:
    # called from C: an exception here would only be printed, so nothing in it may raise
    global _last_level
    line = (text or b"").decode("utf-8", "replace").strip()
    actual = _last_level if level == _CONTINUED_LEVEL else level
    _last_level = actual
    if actual == _ERROR_LEVEL and line:
        _error_lines.append(line)


@functools.cache
def load_library() -> ModuleType:
    """Return the module `llama_cpp`, loaded and silenced; raises MissingExtra without it."""
    try:
        # OpenMP binds the loading thread while it loads, not only at the first pass
        with protected_placement(), PASS_PLACEMENT:
            import llama_cpp
    except ImportError as error:
        raise MissingExtra("llama", needed_for="the llama.cpp backend") from error
    callback = llama_cpp.llama_log_callback(_keep_errors)
    # the C side holds a bare pointer: the callback must outlive every call into the library
    _kept_alive.append(callback)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    module: ModuleType = llama_cpp
    return module


def forget_errors() -> None:
    """Drop the error lines kept so far, so that the next ones belong to the next call."""
    _error_lines.clear()


def logged_error() -> str:
    """Return the first error line llama.cpp logged since `forget_errors`, or an empty string.

    The first names the cause; those after it only say who passed it on.
    """
    return _error_lines[0] if _error_lines else ""


def library_version() -> str:
    """Return which build runs: package version and the CPU features it was compiled for."""
    library = load_library()
    features = library.llama_print_system_info().decode("utf-8", "replace").strip()
    return f"llama-cpp-python {library.__version__}; {features}"
