"""A lock between processes, held by a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pilotfish.errors import DownloadError

_POLL_SECONDS = 0.1

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: BinaryIO) -> None:
        """Lock the first byte of the file, or raise OSError where another process has it."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(file: BinaryIO) -> None:
        """Lock the file, or raise BlockingIOError where another process has it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def exclusive(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`, waiting as long as another process has it.

    `on_wait` is called once before waiting. The operating system drops the lock with the process,
    so a killed one leaves none behind. Raises DownloadError where the disk cannot lock files.
    """
    with _opened(path) as file:
        while True:
            try:
                _try_lock(file)
                break
            except (BlockingIOError, PermissionError):  # msvcrt reports a held lock as the latter
                if on_wait is not None:
                    on_wait()
                    on_wait = None
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                raise DownloadError(f"cannot lock {path}: {error.strerror}", hint=_HINT) from error
        yield  # closing the file gives the lock back


_HINT = "set PILOTFISH_CACHE to a folder on a local disk you may write to"


def _opened(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab")
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error.strerror}", hint=_HINT) from error
