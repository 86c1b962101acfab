"""Write tiny networks with random weights in any number format, for the kernels alone.

    network = write_network(folder / "weights", "Q4_K", hidden_size=256)
    core = network.open(threads=1)
    network.tensors["output.weight"].values     float32 [rows, columns], as the file has them

The file holds the tensors and nothing else; the core is told where they lie. The same arguments
write the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pilotfish_native
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

LARGE_FORMATS = ("Q4_K", "Q5_K", "Q6_K")
SMALL_FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
PLAIN_FORMATS = ("F32", "F16", "BF16")
FORMATS = (*PLAIN_FORMATS, *SMALL_FORMATS, *LARGE_FORMATS)
INSTRUCTIONS = tuple(pilotfish_native.processor()["available"])

# bytes of a block of 256; the place of d, and of dmin where there is one; how large a product of
# scale and value is, and which min takes the mean away
_LARGE_BLOCKS = {
    "Q4_K": (144, 0, 2, 170.0, 7.5),
    "Q5_K": (176, 0, 2, 340.0, 15.5),
    "Q6_K": (210, 208, None, 1370.0, 0.0),
}
_DEFAULTS: dict[str, Any] = {
    "architecture": "llama",
    "num_layers": 1,
    "hidden_size": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_size": 16,
    "feed_forward_size": 96,
    "vocab_size": 70,
    "rms_epsilon": 1e-5,
    "rope_base": 10000.0,
    "rope_style": "norm",
    "rope_scaling": "none",
    "rope_factor": 1.0,
    "rope_original_context": 64,
    "yarn_attention_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its bytes in the file, and the values they stand for."""

    format: str
    raw: NDArray[np.uint8]
    values: NDArray[np.float32]

    @property
    def shape(self) -> list[int]:
        """Return the shape with the fastest axis first, as files write it."""
        return list(self.values.shape[::-1])


@dataclass(frozen=True, slots=True)
class TinyNetwork:
    """A network on disk, and everything the core must be told to open it."""

    path: Path
    parameters: dict[str, Any]
    tensors: Mapping[str, Tensor]
    offsets: dict[str, int] = field(default_factory=dict)

    def entries(self) -> list[tuple[str, list[int], int, int, int, int]]:
        """Return the tensors in the form of the core."""
        return [
            (name, t.shape, type_id(t.format), self.offsets[name], t.raw.size, 0)
            for name, t in self.tensors.items()
        ]

    def open(self, *, threads: int = 1, **options: Any) -> pilotfish_native.Model:
        """Return the model in memory."""
        return pilotfish_native.Model(
            [str(self.path)], self.entries(), self.parameters, threads=threads, **options
        )


def type_id(name: str) -> int:
    """Return ggml's number of a format."""
    return int(GGMLQuantizationType[name])


def shape_of_network(**changes: Any) -> dict[str, Any]:
    """Return the core's parameters of a small network, with changes."""
    parameters = _DEFAULTS | changes
    return {"rope_size": parameters["head_size"]} | parameters


def write_network(
    path: Path,
    number_format: str | Mapping[str, str] = "F32",
    *,
    seed: int = 1,
    tied: bool = False,
    biases: bool = False,
    rope_factors: bool = False,
    changed: Callable[[str, NDArray[np.float32]], NDArray[np.float32]] | None = None,
    **parameters: Any,
) -> TinyNetwork:
    """Write a network and return it.

    number_format   of all matrices; or by tensor name, F32 for those not named
    tied            the embedding is the head, too
    biases          queries, keys and values have them
    rope_factors    each pair of dimensions turns at a speed of its own
    changed         has the last word on the values of a tensor, by name
    """
    shape = shape_of_network(**parameters)
    random = np.random.default_rng(seed)
    wanted = _wanted_values(shape, random, tied=tied, biases=biases, rope_factors=rope_factors)
    tensors = {}
    for name, values in wanted.items():
        values = values if changed is None else changed(name, values)
        kind = number_format if isinstance(number_format, str) else number_format.get(name, "F32")
        tensors[name] = make_tensor(kind if values.ndim == 2 else "F32", values, random)
    return save(TinyNetwork(path, shape, tensors))


def save(network: TinyNetwork) -> TinyNetwork:
    """Write the tensors to the network's file and return the network with their places."""
    offsets, content = {}, bytearray()
    for name, tensor in network.tensors.items():
        content += bytes(-len(content) % 32)
        offsets[name] = len(content)
        content += tensor.raw.tobytes()
    network.path.write_bytes(content)
    return TinyNetwork(network.path, network.parameters, network.tensors, offsets)


def make_tensor(
    number_format: str, values: NDArray[np.float32], random: np.random.Generator
) -> Tensor:
    """Return `values` in a format; for large ones, random blocks of about their size instead."""
    if number_format in LARGE_FORMATS:
        raw = _random_large_blocks(number_format, values, random)
    else:
        raw = quantize(values, GGMLQuantizationType[number_format]).view(np.uint8)
    raw = np.ascontiguousarray(raw)
    back = np.asarray(dequantize(raw, GGMLQuantizationType[number_format]), np.float32)
    return Tensor(number_format, raw, back.reshape(values.shape))


def _random_large_blocks(
    number_format: str, values: NDArray[np.float32], random: np.random.Generator
) -> NDArray[np.uint8]:
    size, place, min_place, spread, mean = _LARGE_BLOCKS[number_format]
    rows, columns = values.shape
    blocks = random.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    width = float(values.std()) / spread
    for at, factor in ((place, 1.0), (min_place, mean)):
        if at is not None:
            scales = width * factor * random.uniform(0.7, 1.3, blocks.shape[:2])
            halves = scales.astype(np.float16)[..., None].view(np.uint8)
            blocks[..., at : at + 2] = halves
    return blocks.reshape(rows, -1)


def _wanted_values(
    shape: dict[str, Any],
    random: np.random.Generator,
    *,
    tied: bool,
    biases: bool,
    rope_factors: bool,
) -> dict[str, NDArray[np.float32]]:
    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        scale = gain / math.sqrt(columns)
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    def scales(size: int) -> NDArray[np.float32]:
        return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)

    hidden, inner = shape["hidden_size"], shape["feed_forward_size"]
    queries, keys = (shape["head_size"] * shape[f"num_{kind}heads"] for kind in ("", "kv_"))
    tensors = {
        "token_embd.weight": matrix(shape["vocab_size"], hidden, gain=math.sqrt(hidden)),
        "output_norm.weight": scales(hidden),
    }
    if not tied:
        tensors["output.weight"] = matrix(shape["vocab_size"], hidden)
    if rope_factors:
        tensors["rope_freqs.weight"] = random.uniform(1, 4, shape["rope_size"] // 2).astype("f4")
    for layer in range(shape["num_layers"]):
        prefix = f"blk.{layer}."
        tensors |= {
            f"{prefix}attn_norm.weight": scales(hidden),
            f"{prefix}attn_q.weight": matrix(queries, hidden, gain=2),
            f"{prefix}attn_k.weight": matrix(keys, hidden, gain=2),
            f"{prefix}attn_v.weight": matrix(keys, hidden),
            f"{prefix}attn_output.weight": matrix(hidden, queries),
            f"{prefix}ffn_norm.weight": scales(hidden),
            f"{prefix}ffn_gate.weight": matrix(inner, hidden),
            f"{prefix}ffn_up.weight": matrix(inner, hidden),
            f"{prefix}ffn_down.weight": matrix(hidden, inner),
        }
        if biases:
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                tensors[f"{prefix}attn_{name}.bias"] = scales(size) - np.float32(0.7)
        if shape["architecture"] == "qwen3":
            for name in "qk":
                tensors[f"{prefix}attn_{name}_norm.weight"] = scales(shape["head_size"])
    return tensors
