"""A plain fp32 forward pass over a GGUF file: what the logits of backends are measured against.

    ReferenceModel(path).logits(token_ids)     float32 [len(token_ids), vocabulary]

Weights are de-quantised one matrix at a time by the `gguf` package and dropped again, the head in
slices of its rows, so a large file needs little memory beside the logits. All positions go through
one pass; there is no cache. Architectures: llama, qwen2, qwen3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from pilotfish.gguf import GgufHeader, GgufTensor, read_header

Floats = NDArray[np.float32]

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_HEAD_ROWS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers of a network that its matrices do not tell."""

    num_layers: int
    num_heads: int
    num_key_heads: int
    head_width: int
    rope_width: int
    rope_base: float
    rope_halves: bool
    epsilon: float

    @classmethod
    def of(cls, header: GgufHeader) -> Shape:
        """Return the shape a file's metadata describe; raises ValueError for other families."""
        name = header.architecture
        if name not in ARCHITECTURES:
            raise ValueError(f"no reference for the architecture {name!r}")
        if header.text(f"{name}.rope.scaling.type", "none") != "none":
            raise ValueError("no reference for scaled positions")
        num_heads = header.integer(f"{name}.attention.head_count")
        head_width = header.integer(f"{name}.embedding_length") // num_heads
        head_width = header.integer(f"{name}.attention.key_length", head_width)
        return cls(
            num_layers=header.integer(f"{name}.block_count"),
            num_heads=num_heads,
            num_key_heads=header.integer(f"{name}.attention.head_count_kv", num_heads),
            head_width=head_width,
            rope_width=header.integer(f"{name}.rope.dimension_count", head_width),
            rope_base=_number(header, f"{name}.rope.freq_base", 10000.0),
            rope_halves=name != "llama",
            epsilon=_number(header, f"{name}.attention.layer_norm_rms_epsilon", 1e-5),
        )


class ReferenceModel:
    """One file; every call reads the weights it needs."""

    def __init__(self, path: Path) -> None:
        """Read the header of the file at `path`; raises ValueError for other architectures."""
        header = read_header(path)
        self.path = path
        self.shape = Shape.of(header)
        self._tensors = {tensor.name: tensor for tensor in header.tensors}

    @property
    def vocab_size(self) -> int:
        """Return the rows of the head, padding included."""
        return self._tensors[self._head_name].shape[1]

    def logits(self, token_ids: Sequence[int]) -> Floats:
        """Return the logits [len(token_ids), vocab_size] of all positions."""
        hidden = self.hidden_states(token_ids)
        logits = np.empty((len(hidden), self.vocab_size), np.float32)
        for begin in range(0, self.vocab_size, _HEAD_ROWS):
            rows = slice(begin, min(begin + _HEAD_ROWS, self.vocab_size))
            logits[:, rows] = hidden @ self._read(self._head_name, rows).T
        return logits

    def hidden_states(self, token_ids: Sequence[int]) -> Floats:
        """Return the normalised states [len(token_ids), embedding] that the head reads."""
        states = self._read("token_embd.weight", np.asarray(token_ids))
        turns = rotations(self.shape, len(states), self._optional("rope_freqs.weight"))
        for layer in range(self.shape.num_layers):
            prefix = f"blk.{layer}"
            states = states + self._attention(
                prefix, self._norm(f"{prefix}.attn_norm", states), turns
            )
            states = states + self._feed_forward(prefix, self._norm(f"{prefix}.ffn_norm", states))
        return self._norm("output_norm", states)

    @property
    def _head_name(self) -> str:
        return "output.weight" if "output.weight" in self._tensors else "token_embd.weight"

    def _attention(self, prefix: str, states: Floats, turns: NDArray[np.complex64]) -> Floats:
        shape = self.shape
        queries = self._heads(f"{prefix}.attn_q", states, shape.num_heads)
        keys = self._heads(f"{prefix}.attn_k", states, shape.num_key_heads)
        values = self._heads(f"{prefix}.attn_v", states, shape.num_key_heads)
        queries = rotated(queries, turns, halves=shape.rope_halves)
        keys = rotated(keys, turns, halves=shape.rope_halves)
        mixed = attended(queries, keys, values)
        return self._product(f"{prefix}.attn_output", mixed)

    def _feed_forward(self, prefix: str, states: Floats) -> Floats:
        gate = self._product(f"{prefix}.ffn_gate", states)
        with np.errstate(over="ignore"):  # exp of a large negative gate: the quotient is 0
            gate /= 1 + np.exp(-gate)
        return self._product(f"{prefix}.ffn_down", gate * self._product(f"{prefix}.ffn_up", states))

    def _heads(self, name: str, states: Floats, num_heads: int) -> Floats:
        """Return a projection as [heads, positions, head width], normalised where the file says."""
        rows = self._product(name, states).reshape(len(states), num_heads, self.shape.head_width)
        if f"{name}_norm.weight" in self._tensors:
            rows = self._norm(f"{name}_norm", rows)
        return rows.transpose(1, 0, 2)

    def _product(self, name: str, states: Floats) -> Floats:
        product = states @ self._read(f"{name}.weight").T
        bias = self._optional(f"{name}.bias")
        return product if bias is None else product + bias

    def _norm(self, name: str, states: Floats) -> Floats:
        mean = np.square(states).mean(axis=-1, keepdims=True)
        return (
            states / np.sqrt(mean + np.float32(self.shape.epsilon)) * self._read(f"{name}.weight")
        )

    def _optional(self, name: str) -> Floats | None:
        return self._read(name) if name in self._tensors else None

    def _read(self, name: str, rows: Any = slice(None)) -> Floats:
        """Return a tensor, or some of its rows, in fp32."""
        tensor: GgufTensor = self._tensors[name]
        raw = np.memmap(self.path, np.uint8, "r", tensor.offset, (tensor.num_bytes,))
        by_row = raw.reshape(*tensor.shape[:0:-1], -1)
        return np.asarray(
            dequantize(np.asarray(by_row[rows]), GGMLQuantizationType(tensor.type_id))
        )


def rotations(shape: Shape, num_positions: int, factors: Floats | None) -> NDArray[np.complex64]:
    """Return the turn of each pair of dimensions as unit numbers [positions, rope width / 2]."""
    pairs = np.arange(shape.rope_width // 2)
    frequencies = shape.rope_base ** (-2.0 * pairs / shape.rope_width)
    if factors is not None:
        frequencies = frequencies / factors
    return np.exp(1j * np.outer(np.arange(num_positions), frequencies)).astype(np.complex64)


def rotated(heads: Floats, turns: NDArray[np.complex64], *, halves: bool) -> Floats:
    """Return heads [heads, positions, width] turned by position.

    A pair is dimension i with i + half (`halves`), or two neighbours; dimensions beyond the pairs
    stay.
    """
    count = turns.shape[1]
    first = slice(0, count) if halves else slice(0, 2 * count, 2)
    second = slice(count, 2 * count) if halves else slice(1, 2 * count, 2)
    turned = (heads[..., first] + 1j * heads[..., second]) * turns
    result = heads.copy()
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


def attended(queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Return causal attention [positions, heads * width].

    queries         [heads, positions, width]
    keys, values    [key heads, positions, width]; each serves heads / key heads neighbours
    """
    num_heads, num_positions, width = queries.shape
    grouped = queries.reshape(len(keys), -1, num_positions, width)
    scores = grouped @ keys[:, None].swapaxes(-1, -2) / np.float32(np.sqrt(width))
    scores[..., ~np.tri(num_positions, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ values[:, None]).reshape(num_heads, num_positions, width)
    return mixed.transpose(1, 0, 2).reshape(num_positions, -1)


def _number(header: GgufHeader, key: str, default: float) -> float:
    return float(header.metadata.get(key, default))  # type: ignore[arg-type]
