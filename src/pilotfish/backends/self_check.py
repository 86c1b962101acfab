"""What the self-checks of backends share: a text, digests of rows, and results kept on disk.

Results of other measurements are kept likewise, in folders of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pilotfish.config import cache_folder
from pilotfish.types import FloatArray

_SAMPLE_TEXT = """Pilot fish swim beside larger fish and eat what those leave over. They come first,
and the shark decides. In the 1850s sailors wrote that one of them would "lead" a ship for days.

def merge(left: list[int], right: list[int]) -> list[int]:
    result, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i]); i += 1
        else:
            result.append(right[j]); j += 1
    return result + left[i:] + right[j:]

Q: A tank holds 340 litres and loses 12 litres an hour. When is it empty?
A: 340 / 12 = 28.33 hours, so a little after four in the morning of the second day. The answer
does not depend on the shape of the tank, only on how much it held and how fast it leaks.
"""

_FOLDER = "self-check"

RowBits = bytes


def sample_text() -> str:
    """Return the text whose rows the self-checks compare."""
    return _SAMPLE_TEXT


def row_bits(row: FloatArray) -> RowBits:
    """Return a digest of one row's bytes: equal for equal bits only."""
    return hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()


def file_identity(path: Path) -> list[Any]:
    """Return name, bytes and time of change of a file: what tells another file apart."""
    state = path.stat()
    return [path.name, state.st_size, state.st_mtime_ns]


def load_result(description: Mapping[str, Any], *, folder: str = _FOLDER) -> Any:
    """Return the result kept for `description`, or None when there is none that can be read."""
    try:
        stored = json.loads(_file_of(description, folder).read_text())
        return stored["report"] if stored["for"] == description else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def kept_results(folder: str = _FOLDER) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield what can be read of a folder: descriptions, with the results kept for them."""
    for path in sorted((cache_folder() / folder).glob("*.json")):
        try:
            stored = json.loads(path.read_text())
            yield stored["for"], stored["report"]
        except (OSError, ValueError, TypeError, KeyError):
            continue


def save_result(
    description: Mapping[str, Any], result: Mapping[str, Any], *, folder: str = _FOLDER
) -> None:
    """Keep a result; a folder that cannot be written only means checking again next time."""
    target = _file_of(description, folder)
    scratch = target.with_suffix(f".{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps({"for": description, "report": result}, indent=1))
        os.replace(scratch, target)
    except OSError:
        with suppress(OSError):
            scratch.unlink()


def forget_result(description: Mapping[str, Any], *, folder: str = _FOLDER) -> None:
    """Drop the result kept for `description`, if there is one."""
    with suppress(OSError):
        _file_of(description, folder).unlink()


def _file_of(description: Mapping[str, Any], folder: str) -> Path:
    key = json.dumps(description, sort_keys=True).encode()
    return cache_folder() / folder / f"{hashlib.sha256(key).hexdigest()[:24]}.json"
