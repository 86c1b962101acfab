"""The header of one GGUF file: its metadata and its table of tensors."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pilotfish.gguf.cursor import (
    ARRAY,
    ARRAY_DTYPES,
    MAX_KEY_BYTES,
    SCALARS,
    STRING,
    UINT32,
    Cursor,
    GgufArray,
    fail,
    opened_file,
    shown,
)

MAGIC = b"GGUF"
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMENSIONS = 4

# type id -> (name, elements of a block, bytes of a block), from ggml.c; ids left out were removed.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip

MetadataValue: TypeAlias = "bool | int | float | str | GgufArray"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` as in the file (fastest axis first), `offset` from the file's start.

    `part` is the index into `GgufHeader.paths` of the file that holds it.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    num_bytes: int
    part: int = 0

    @property
    def type_name(self) -> str:
        """Return the ggml name of the number format, such as "Q4_K"."""
        return TENSOR_TYPES[self.type_id][0]

    @property
    def num_elements(self) -> int:
        """Return the number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says about itself; after `check_file` of a split model, about all parts."""

    paths: tuple[Path, ...]
    version: int
    metadata: dict[str, MetadataValue]
    tensors: tuple[GgufTensor, ...]
    alignment: int
    data_offset: int
    file_bytes: int

    @property
    def path(self) -> Path:
        """Return the file (the first part of a split model)."""
        return self.paths[0]

    @property
    def architecture(self) -> str:
        """Return `general.architecture`, or "" where the file has none."""
        return self.text("general.architecture")

    @property
    def parameter_count(self) -> int:
        """Return the number of weights in all tensors."""
        return sum(tensor.num_elements for tensor in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        """Return the bytes of all tensors, padding left out."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def vocabulary_size(self) -> int:
        """Return the number of tokens, or 0 where the file has no vocabulary."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, GgufArray):
            return tokens.count
        return self.integer(f"{self.architecture}.vocab_size")

    def text(self, key: str, default: str = "") -> str:
        """Return a string of the metadata, or `default` where it is absent or no string."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default

    def integer(self, key: str, default: int = 0) -> int:
        """Return an integer of the metadata, or `default` where it is absent or no integer."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def array(self, key: str) -> list[str] | NDArray[Any]:
        """Read an array of the metadata from the file: a list of strings, or a NumPy array.

        Bytes of a string that are not UTF-8 become lone surrogates ("surrogateescape"). Raises
        KeyError where `key` is absent or no array, ModelFileError where the file has changed.
        """
        place = self.metadata[key]
        if not isinstance(place, GgufArray):
            raise KeyError(key)
        with opened_file(self.path) as (file, file_bytes):
            cursor = Cursor(file, self.path, file_bytes, start=place.offset)
            if place.element_type == STRING:
                return cursor.strings(place.count, f"array {shown(key)}")
            dtype = ARRAY_DTYPES[place.element_type]
            raw = cursor.take(place.count * dtype.itemsize, f"array {shown(key)}")
            return np.frombuffer(raw, dtype=dtype)


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Return the header of one GGUF file; arrays are located, not loaded.

    Raises ModelFileError for a file that is missing, unreadable, not GGUF, cut or damaged in its
    header. The tensor data are not looked at: `check_file` compares their place with the size.
    """
    path = Path(path)
    with opened_file(path) as (file, file_bytes):
        _check_magic(file, path, file_bytes)
        cursor = Cursor(file, path, file_bytes, start=len(MAGIC))
        version = int(cursor.scalar(UINT32, "the version"))
        _check_version(path, version)
        num_tensors = cursor.count("tensors", least_bytes=24)
        num_values = cursor.count("metadata values", least_bytes=13)
        metadata = _read_metadata(cursor, num_values)
        alignment = _alignment(path, metadata)
        entries = [_read_tensor(cursor) for _ in range(num_tensors)]
        data_offset = -(-cursor.offset // alignment) * alignment
        tensors = _placed(path, entries, data_offset, alignment)
    return GgufHeader((path,), version, metadata, tensors, alignment, data_offset, file_bytes)


def _check_magic(file: BinaryIO, path: Path, file_bytes: int) -> None:
    if file_bytes == 0:
        fail(path, "is empty (0 bytes)", hint="download it again")
    start = file.read(512)
    if start.startswith(MAGIC):
        return
    if MAGIC.startswith(start):
        fail(path, f"is cut: it has only {file_bytes} bytes", hint="download it again")
    fail(path, f"is not a GGUF file: {_guess(start)}")


def _guess(start: bytes) -> str:
    """Return what a file with these first bytes looks like."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")):
        return "it looks like an HTML page, as a failed download leaves behind"
    if text.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the model itself"
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return "it looks like text"
    return f"it starts with {start[:4].hex(' ')} instead of 47 47 55 46"


def _check_version(path: Path, version: int) -> None:
    if version in (2, 3):
        return
    if version in (2 << 24, 3 << 24):
        fail(path, "is a big-endian GGUF file, which is not supported")
    if version == 1:
        fail(path, "is of GGUF version 1, which is not supported", hint="convert the model anew")
    fail(path, f"says GGUF version {version}; versions 2 and 3 are known")


def _read_metadata(cursor: Cursor, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for number in range(1, count + 1):
        key = cursor.string(f"metadata key {number}", limit=MAX_KEY_BYTES, strict=True)
        if key in metadata:
            cursor.fail(f"is damaged: it has metadata key {shown(key)} twice")
        metadata[key] = _read_value(cursor, f"metadata {shown(key)}")
    return metadata


def _read_value(cursor: Cursor, what: str) -> MetadataValue:
    kind = int(cursor.scalar(UINT32, what))
    if kind == STRING:
        return cursor.string(what)
    if kind == ARRAY:
        return cursor.skip_array(what)
    if kind not in SCALARS:
        cursor.fail(f"is damaged: {what} is of unknown type {kind}")
    return cursor.scalar(kind, what)


def _alignment(path: Path, metadata: dict[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or not 0 < value <= _MAX_ALIGNMENT or value & (value - 1):
        fail(path, f"is damaged: alignment {shown(str(value))} is not a power of two")
    return int(value)


def _read_tensor(cursor: Cursor) -> GgufTensor:
    """Return one entry of the tensor table, its offset still relative to the data."""
    name = cursor.string("a tensor name", limit=MAX_KEY_BYTES, strict=True)
    what = f"tensor {shown(name)}"
    num_dimensions = int(cursor.scalar(UINT32, what))
    if num_dimensions > _MAX_DIMENSIONS:
        cursor.fail(f"is damaged: {what} has {num_dimensions} dimensions")
    shape = tuple(int(cursor.scalar(10, what)) for _ in range(num_dimensions))
    type_id = int(cursor.scalar(UINT32, what))
    offset = int(cursor.scalar(10, what))
    if type_id not in TENSOR_TYPES:
        cursor.fail(f"has {what} in number format {type_id}, which is unknown or no longer in use")
    type_name, block_elements, block_bytes = TENSOR_TYPES[type_id]
    num_elements = math.prod(shape)
    if num_elements >= 1 << 63:
        cursor.fail(f"is damaged: {what} has the shape {shape}")
    if (shape[0] if shape else 1) % block_elements:
        cursor.fail(
            f"is damaged: {what} has rows of {shape[0] if shape else 1} in {type_name}, "
            f"not a multiple of {block_elements}"
        )
    num_bytes = num_elements // block_elements * block_bytes
    return GgufTensor(name, shape, type_id, offset, num_bytes)


def _placed(
    path: Path, entries: Sequence[GgufTensor], data_offset: int, alignment: int
) -> tuple[GgufTensor, ...]:
    """Return the tensors with offsets from the file's start."""
    check_unique(path, [tensor.name for tensor in entries], "tensor")
    for tensor in entries:
        if tensor.offset % alignment:
            fail(
                path,
                f"is damaged: {shown(tensor.name)} has an offset not a multiple of {alignment}",
            )
    return tuple(replace(tensor, offset=data_offset + tensor.offset) for tensor in entries)


def check_unique(path: Path, names: Sequence[str], what: str) -> None:
    """Raise ModelFileError if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            fail(path, f"is damaged: it has {what} {shown(name)} twice")
        seen.add(name)
