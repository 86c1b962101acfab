"""What running a model costs in bytes, from the header of its file alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pilotfish.gguf import GgufHeader, GgufTensor

BYTES_PER_VALUE = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
# 32 weights of 4 bits with a scale of 16
_BYTES_PER_REQUANTIZED_WEIGHT = 18 / 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one model.

    weight_bytes           the weights in memory
    step_bytes             the weights one pass reads: all but the embedding, of which a pass reads
                           a row for each token
    cache_bytes_per_token  keys and values of one token over all layers
    """

    weight_bytes: int
    step_bytes: int
    cache_bytes_per_token: int


def read_footprint(
    header: GgufHeader, *, cache_type: str = "f16", head_rows: int = 0, requantize: bool = False
) -> Footprint:
    """Return the footprint of a model.

    head_rows    rows of the head that are kept; 0: all
    requantize   matrices of more than 4 bits are kept in 4 bits
    """
    sizes = {t.name: _bytes_of(t, requantize) for t in header.tensors}
    embedding = next((t for t in header.tensors if t.name == _EMBEDDING), None)
    if embedding is None:
        weights = step = sum(sizes.values())
    else:
        vocab_size = embedding.shape[-1]
        body = sum(size for name, size in sizes.items() if name not in (_EMBEDDING, _HEAD))
        # a tied head is the embedding read as a matrix
        head = sizes.get(_HEAD, sizes[_EMBEDDING])
        if 0 < head_rows < vocab_size:
            head = head * head_rows // vocab_size
        shared = _HEAD not in sizes and not head_rows and not requantize
        step = body + head
        weights = step + (0 if shared else embedding.num_bytes)
    return Footprint(
        weight_bytes=weights,
        step_bytes=step,
        cache_bytes_per_token=int(_cached_values(header) * BYTES_PER_VALUE[cache_type]),
    )


def format_bytes(header: GgufHeader) -> Mapping[str, int]:
    """Return the bytes of the weights in each number format, most bytes first."""
    formats: Counter[str] = Counter()
    for tensor in header.tensors:
        formats[tensor.type_name] += tensor.num_bytes
    return dict(formats.most_common())


def _bytes_of(tensor: GgufTensor, requantize: bool) -> int:
    small = int(tensor.num_elements * _BYTES_PER_REQUANTIZED_WEIGHT)
    # Q4_1 is a format of 4 bits with more bytes
    is_wide = len(tensor.shape) > 1 and not tensor.type_name.startswith("Q4")
    return min(small, tensor.num_bytes) if requantize and is_wide else tensor.num_bytes


def _cached_values(header: GgufHeader) -> int:
    """Return how many numbers one token adds to the cache; 0 where the header does not say."""

    def value(name: str, default: int = 0) -> int:
        return header.integer(f"{header.architecture}.{name}", default)

    heads = value("attention.head_count")
    head_size = value("embedding_length") // heads if heads > 0 else 0
    sizes = value("attention.key_length", head_size) + value("attention.value_length", head_size)
    return value("block_count") * value("attention.head_count_kv", heads) * sizes
