"""Check that a model's file, or all the parts of a split one, are whole."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from pilotfish.gguf.cursor import fail, shown
from pilotfish.gguf.header import GgufHeader, check_unique, read_header

_MAX_PARTS = 1 << 12
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def check_file(path: str | os.PathLike[str]) -> GgufHeader:
    """Return the header of a model after checking that every tensor lies inside its file.

    Of a split model `path` must be part 1; all parts must be there, and the header returned has
    the tensors of all of them. Raises ModelFileError with one line that names file and reason.
    """
    header = read_header(path)
    num_parts = header.integer("split.count", 1)
    parts = [header] if num_parts <= 1 else _read_parts(header, num_parts)
    for part in parts:
        _check_ranges(part)
    tensors = tuple(
        replace(tensor, part=number) for number, part in enumerate(parts) for tensor in part.tensors
    )
    if not tensors:
        fail(header.path, "holds no tensors, so it is not a model's weights")
    check_unique(header.path, [tensor.name for tensor in tensors], "tensor")
    wanted = header.integer("split.tensors.count", len(tensors))
    if num_parts > 1 and wanted != len(tensors):
        fail(
            header.path,
            f"is split: {wanted} tensors expected, the parts together have {len(tensors)}",
        )
    return replace(header, paths=tuple(part.path for part in parts), tensors=tensors)


def split_names(name: str) -> list[str]:
    """Return the names of all parts if `name` is like "x-00001-of-00003.gguf", else [name]."""
    match = _SPLIT_NAME.fullmatch(name)
    if match is None or not 0 < int(match["count"]) <= _MAX_PARTS:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def _check_ranges(header: GgufHeader) -> None:
    expected = max((tensor.offset + tensor.num_bytes for tensor in header.tensors), default=0)
    if expected > header.file_bytes:
        fail(
            header.path,
            f"is cut: expected {expected:,} bytes but it has {header.file_bytes:,}",
            hint="download it again",
        )


def _read_parts(first: GgufHeader, num_parts: int) -> list[GgufHeader]:
    """Return the headers of all parts of a split model, `first` being what was asked for."""
    path, names = first.path, split_names(first.path.name)
    number = first.integer("split.no") + 1
    if number != 1:
        start = f"start from {shown(names[0])}" if len(names) == num_parts else "start from part 1"
        fail(path, f"is part {number} of {num_parts} of a split model", hint=start)
    if len(names) != num_parts or names[0] != path.name:
        fail(
            path,
            f"is part 1 of {num_parts} of a split model, but its name does not say so",
            hint=f"name the parts like model-00001-of-{num_parts:05d}.gguf",
        )
    missing = [name for name in names[1:] if not (path.parent / name).exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        fail(path, f"is part 1 of {num_parts}, but {shown(missing[0])}{more} is missing")
    parts = [first, *(read_header(path.parent / name) for name in names[1:])]
    for i, part in enumerate(parts):
        said = (part.integer("split.no") + 1, part.integer("split.count", 1))
        if said != (i + 1, num_parts):
            fail(
                part.path,
                f"should be part {i + 1} of {num_parts} but is part {said[0]} of {said[1]}",
            )
    return parts
