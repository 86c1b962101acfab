"""Open a GGUF file in the core, with pilotfish as its reader."""

from __future__ import annotations

import os

from pilotfish_native._core import Model, processor


class ProgramError(Exception):
    """What the user did wrong, in one line; `hint` says what to do about it, or is empty."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def open_file(
    path: str, *, threads: int, instructions: str = "auto", context_size: int, max_sessions: int
) -> Model:
    """Return the model in memory; raises ProgramError for what cannot be opened."""
    available = processor()["available"]
    if instructions not in ("auto", *available):
        raise ProgramError(
            f"instructions {instructions!r} are not available here",
            hint=f"use auto or one of {', '.join(available)}",
        )
    try:
        # here and not above: the core works without it, whoever reads the file
        from pilotfish import gguf
        from pilotfish.backends.native import loading
        from pilotfish.errors import PilotfishError
    except ImportError as error:
        raise ProgramError(
            "model files are read by the package pilotfish, which is not installed",
            hint="pip install pilotfish",
        ) from error
    try:
        header = gguf.check_file(path)
        loading.require_supported(header)
        options = loading.LoadOptions(
            context_size=context_size,
            max_sessions=max_sessions,
            threads=threads,
            cache_type="f16",
            instructions=instructions,
            head_size=0,
            requantize=False,
        )
        return loading.open_core(header, options, vocab_size=0, head_ids=None)
    except PilotfishError as error:
        raise ProgramError(str(error), hint=error.hint) from error


def default_threads() -> int:
    """Return the threads of a pass unless told otherwise: the processors given to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
