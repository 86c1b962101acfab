"""Damage GGUF files in many ways, each case decided by its number.

    anatomy = Anatomy.of(content)
    damaged(anatomy, 17)          the bytes of case 17

A case is cut, has flipped bits in its header, or has a field (a count, a length, a shape, an
offset, a type, a value) that says something else. Cases past the header's reader matter most, so
most change one field only.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_REALS = (0.0, -0.0, -1.0, 1e-45, 1e-6, 1.0, 1e38, float("inf"), float("-inf"), float("nan"))


@dataclass(slots=True)
class Anatomy:
    """Where the fields of a file lie: (offset, bytes) each, by what they are."""

    content: bytes
    header_bytes: int = 0
    fields: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, content: bytes) -> Anatomy:
        """Return the anatomy of a whole GGUF file of version 3."""
        anatomy = cls(content)
        num_tensors, num_values = struct.unpack_from("<QQ", content, 8)
        anatomy._note("count", 8, 8)
        anatomy._note("count", 16, 8)
        at = 24
        for _ in range(num_values):
            at = anatomy._value(anatomy._string(at))
        for _ in range(num_tensors):
            at = anatomy._string(at)
            (num_dimensions,) = struct.unpack_from("<I", content, at)
            anatomy._note("dimensions", at, 4)
            at += 4
            for _ in range(num_dimensions):
                anatomy._note("shape", at, 8)
                at += 8
            anatomy._note("format", at, 4)
            anatomy._note("offset", at + 4, 8)
            at += 12
        anatomy.header_bytes = at
        return anatomy

    def _note(self, kind: str, at: int, size: int) -> None:
        self.fields.setdefault(kind, []).append((at, size))

    def _string(self, at: int) -> int:
        (length,) = struct.unpack_from("<Q", self.content, at)
        self._note("length", at, 8)
        self._note("text", at + 8, length)
        return at + 8 + length

    def _value(self, at: int) -> int:
        (kind,) = struct.unpack_from("<I", self.content, at)
        self._note("kind", at, 4)
        at += 4
        if kind == _STRING:
            return self._string(at)
        if kind != _ARRAY:
            self._note("real" if kind in (6, 12) else "whole", at, _SIZES[kind])
            return at + _SIZES[kind]
        element, count = struct.unpack_from("<IQ", self.content, at)
        self._note("kind", at, 4)
        self._note("length", at + 4, 8)
        at += 12
        if element == _STRING:
            for _ in range(count):
                at = self._string(at)
            return at
        return at + count * _SIZES[element]


def damaged(anatomy: Anatomy, number: int) -> bytes:
    """Return the file of one case; the same number gives the same bytes."""
    source = random.Random(number)
    changes: tuple[Callable[[Anatomy, random.Random, bytearray], None], ...]
    changes = (_cut, _flip, _count, _field, _field, _field, _field, _field)
    content = bytearray(anatomy.content)
    changes[number % len(changes)](anatomy, source, content)
    return bytes(content)


def _cut(anatomy: Anatomy, source: random.Random, content: bytearray) -> None:
    whole = source.random() < 0.5
    del content[source.randrange(len(content) if whole else anatomy.header_bytes) :]


def _flip(anatomy: Anatomy, source: random.Random, content: bytearray) -> None:
    for _ in range(source.choice((1, 1, 2, 8))):
        content[source.randrange(anatomy.header_bytes)] ^= 1 << source.randrange(8)


def _count(anatomy: Anatomy, source: random.Random, content: bytearray) -> None:
    _put_whole(source, content, *source.choice(anatomy.fields["count"] + anatomy.fields["length"]))


def _field(anatomy: Anatomy, source: random.Random, content: bytearray) -> None:
    kinds = ("whole", "whole", "real", "shape", "shape", "format", "offset", "dimensions", "kind")
    kind = source.choice((*kinds, "text"))
    at, size = source.choice(anatomy.fields[kind])
    if kind == "real":
        content[at : at + size] = struct.pack("<f" if size == 4 else "<d", source.choice(_REALS))
    elif kind == "text":
        for place in range(at, at + size):
            content[place] = source.randrange(256) if source.random() < 0.3 else content[place]
    elif kind in ("format", "kind", "dimensions"):
        content[at : at + size] = source.randrange(48).to_bytes(size, "little")
    else:
        _put_whole(source, content, at, size)


def _put_whole(source: random.Random, content: bytearray, at: int, size: int) -> None:
    old, most = int.from_bytes(content[at : at + size], "little"), 256**size - 1
    near = (old - 1, old + 1, old * 2, old // 2, old + 32, 0, 1, 2, 3)
    far = (source.randint(0, most), most, most // 2, most // 2 + 1, most // 4, 1 << 20, 1 << 31)
    value = source.choice(near if source.random() < 0.6 else far)
    content[at : at + size] = (value % (most + 1)).to_bytes(size, "little")
