"""Read the bytes of a header from a file that is not trusted."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

from pilotfish.errors import ModelFileError

# Limits far above any real model (262k tokens, 600k merges, 30 MB of header) and far below harm.
_MAX_HEADER_BYTES = 256 << 20
_MAX_STRING_BYTES = 64 << 20
MAX_KEY_BYTES = 1 << 16
_MAX_ENTRIES = 1 << 16
_MAX_ARRAY_ELEMENTS = 1 << 22

STRING, ARRAY, UINT32 = 8, 9, 4
_SCALAR_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
SCALARS = {kind: struct.Struct("<" + code) for kind, code in _SCALAR_FORMATS.items()}
ARRAY_DTYPES = {
    kind: np.dtype(("<" + code) if code != "?" else np.bool_)
    for kind, code in _SCALAR_FORMATS.items()
}
_UINT64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufArray:
    """Where an array of the metadata lies; `GgufHeader.array` reads it."""

    element_type: int
    count: int
    offset: int


def fail(path: Path, reason: str, *, hint: str = "") -> NoReturn:
    """Raise ModelFileError with one line that names the file."""
    raise ModelFileError(f"{shown(str(path))} {reason}", hint=hint)


def shown(text: str) -> str:
    """Return `text` fit for one line of a message."""
    short = text if len(text) <= 300 else text[:300] + "..."
    return short if short.isprintable() else repr(short)


@contextmanager
def opened_file(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading and give it with its size in bytes."""
    try:
        # asked before opening: opening a pipe would wait for its other end
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            fail(path, "is a directory, not a GGUF file")
        if not stat.S_ISREG(mode):
            fail(path, "is not a regular file")
        with open(path, "rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        fail(path, "does not exist")
    except PermissionError:
        fail(path, "cannot be read: no permission")
    except OSError as error:
        fail(path, f"cannot be read: {error.strerror or error}")
    except ValueError as error:  # a NUL byte in the name
        fail(path, f"cannot be read: {error}")


class Cursor:
    """Reads a header from front to back, never past the file's end and never too much."""

    def __init__(self, file: BinaryIO, path: Path, file_bytes: int, *, start: int) -> None:
        self._file, self._path, self._file_bytes, self._start = file, path, file_bytes, start
        self._buffer = bytearray()
        self._position = 0
        self._elements_left = _MAX_ARRAY_ELEMENTS
        file.seek(start)

    @property
    def offset(self) -> int:
        """The place of the next byte in the file."""
        return self._start + self._position

    def fail(self, reason: str) -> NoReturn:
        """Raise ModelFileError for this file."""
        fail(self._path, reason)

    def need(self, num_bytes: int, what: str, *, position: int | None = None) -> None:
        """Buffer `num_bytes` from `position` (default: here), or say that the file is cut."""
        end = (self._position if position is None else position) + num_bytes
        if end <= len(self._buffer):
            return
        if self._start + end > self._file_bytes:
            self.fail(
                f"is cut or damaged: {what} ends at byte {self._start + end:,} "
                f"but the file has {self._file_bytes:,} bytes"
            )
        if end > _MAX_HEADER_BYTES:
            self.fail(f"is damaged: a header of more than {_MAX_HEADER_BYTES >> 20} MiB ({what})")
        # doubling keeps the number of reads small for headers with large vocabularies
        missing = max(end - len(self._buffer), len(self._buffer), 1 << 16)
        self._buffer += self._file.read(missing)
        if end > len(self._buffer):
            self.fail(f"is cut: it became shorter while {what} was read")

    def take(self, num_bytes: int, what: str) -> bytes:
        """Return the next `num_bytes`."""
        self.need(num_bytes, what)
        begin, self._position = self._position, self._position + num_bytes
        return bytes(self._buffer[begin : self._position])

    def scalar(self, kind: int, what: str) -> bool | int | float:
        """Return the next value of a scalar type."""
        layout = SCALARS[kind]
        value: bool | int | float = layout.unpack(self.take(layout.size, what))[0]
        return value

    def count(self, what: str, *, least_bytes: int) -> int:
        """Return the next 64-bit count, refusing what the rest of the file cannot hold."""
        count = int(self.scalar(10, f"the number of {what}"))
        if count > _MAX_ENTRIES:
            self.fail(f"is damaged: it says it has {count:,} {what}")
        if self.offset + count * least_bytes > self._file_bytes:
            self.fail(
                f"is cut or damaged: {count:,} {what} do not fit into {self._file_bytes:,} bytes"
            )
        return count

    def string(self, what: str, *, limit: int = _MAX_STRING_BYTES, strict: bool = False) -> str:
        """Return the next string; where `strict`, bytes that are not UTF-8 are an error."""
        length = int(self.scalar(10, what))
        if length > limit:
            self.fail(f"is damaged: {what} has a length of {length:,} bytes")
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8", "strict" if strict else "replace")
        except UnicodeDecodeError:
            self.fail(f"is damaged: {what} is not UTF-8")

    def strings(self, count: int, what: str) -> list[str]:
        """Return the next `count` strings of an array."""
        found: list[str] = []
        self._walk(count, what, lambda raw: found.append(raw.decode("utf-8", "surrogateescape")))
        return found

    def skip_array(self, what: str) -> GgufArray:
        """Step over the next array and return its place."""
        kind = int(self.scalar(UINT32, what))
        count = int(self.scalar(10, what))
        if kind != STRING and kind not in SCALARS:
            self.fail(f"is damaged: {what} is an array of unknown type {kind}")
        if count > self._elements_left:
            self.fail(f"is damaged: {what} says it has {count:,} elements")
        self._elements_left -= count
        place = GgufArray(kind, count, self.offset)
        if kind == STRING:
            self._walk(count, what, None)
        else:
            num_bytes = count * SCALARS[kind].size
            self.need(num_bytes, what)
            self._position += num_bytes
        return place

    def _walk(self, count: int, what: str, visit: Callable[[bytearray], None] | None) -> None:
        # The one loop over hundreds of thousands of tokens: local names, checks only where needed.
        self.need(count * 8, what)
        position, buffer, read_length = self._position, self._buffer, _UINT64.unpack_from
        for _ in range(count):
            if position + 8 > len(buffer):
                self.need(8, what, position=position)
            (length,) = read_length(buffer, position)
            end = position + 8 + length
            if end > len(buffer):
                self.need(length, what, position=position + 8)
            if visit is not None:
                visit(buffer[position + 8 : end])
            position = end
        self._position = position
