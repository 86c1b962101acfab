"""Read the header of a GGUF model file, and say in one line what is wrong with a bad one.

Nothing here trusts the file: every count and length is compared with the file's size and with a
fixed limit before anything is allocated, and every fault ends in ModelFileError. The layout is
that of the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3.
"""

from __future__ import annotations

from pilotfish.gguf.check import check_file, split_names
from pilotfish.gguf.cursor import GgufArray
from pilotfish.gguf.header import (
    TENSOR_TYPES,
    GgufHeader,
    GgufTensor,
    MetadataValue,
    read_header,
)

__all__ = [
    "TENSOR_TYPES",
    "GgufArray",
    "GgufHeader",
    "GgufTensor",
    "MetadataValue",
    "check_file",
    "read_header",
    "split_names",
]
