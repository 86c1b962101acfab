"""What a tiny network computes, in double precision: the yardstick of the kernels.

    NetworkReference(network).logits(ids)                   weights as the file has them
    NetworkReference(network, rounds=True).logits(ids)      inputs of products in 8 bits, too

With `rounds` the inputs of a matrix in a format of blocks are rounded as the kernels do it: 256
values to a scale for the large formats, 32 for the small ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.reference_model import attended, rotated
from support.tiny_networks import LARGE_FORMATS, PLAIN_FORMATS, TinyNetwork

Doubles = NDArray[np.float64]


class NetworkReference:
    """One network; positions start at 0 and all go through one pass."""

    def __init__(
        self, network: TinyNetwork, *, rounds: bool = False, half_cache: bool = False
    ) -> None:
        self._network = network
        self._shape = network.parameters
        self._rounds = rounds
        self._half_cache = half_cache

    def logits(self, ids: Sequence[int]) -> Doubles:
        """Return the logits [len(ids), vocabulary]."""
        tensors = self._network.tensors
        head = "output" if "output.weight" in tensors else "token_embd"
        return self._product(head, self.hidden(ids))

    def hidden(self, ids: Sequence[int]) -> Doubles:
        """Return the normalised states [len(ids), hidden size] that the head reads."""
        states = self._values("token_embd.weight")[list(ids)]
        turns = rotations(self._network, len(ids))
        for layer in range(self._shape["num_layers"]):
            prefix = f"blk.{layer}."
            normed = self._norm(f"{prefix}attn_norm", states)
            states = states + self._attention(prefix, normed, turns)
            normed = self._norm(f"{prefix}ffn_norm", states)
            gate = self._product(f"{prefix}ffn_gate", normed)
            mixed = gate / (1 + np.exp(-gate)) * self._product(f"{prefix}ffn_up", normed)
            states = states + self._product(f"{prefix}ffn_down", mixed)
        return self._norm("output_norm", states)

    def _attention(self, prefix: str, states: Doubles, turns: NDArray[np.complex128]) -> Doubles:
        shape, halves = self._shape, self._shape["rope_style"] == "neox"
        queries = self._heads(f"{prefix}attn_q", states, shape["num_heads"])
        keys = self._heads(f"{prefix}attn_k", states, shape["num_kv_heads"])
        values = self._heads(f"{prefix}attn_v", states, shape["num_kv_heads"])
        queries, keys = (rotated(heads, turns, halves=halves) for heads in (queries, keys))
        if self._half_cache:
            keys, values = (kept.astype(np.float16).astype(np.float64) for kept in (keys, values))
        return self._product(f"{prefix}attn_output", attended(queries, keys, values))

    def _heads(self, name: str, states: Doubles, num_heads: int) -> Doubles:
        rows = self._product(name, states).reshape(len(states), num_heads, -1)
        if f"{name}_norm.weight" in self._network.tensors:
            rows = self._norm(f"{name}_norm", rows)
        return rows.transpose(1, 0, 2)

    def _product(self, name: str, states: Doubles) -> Doubles:
        kind = self._network.tensors[f"{name}.weight"].format
        if self._rounds and kind not in PLAIN_FORMATS:
            states = rounded(states, 256 if kind in LARGE_FORMATS else 32)
        product = states @ self._values(f"{name}.weight").T
        bias = f"{name}.bias"
        return product + self._values(bias) if bias in self._network.tensors else product

    def _norm(self, name: str, states: Doubles) -> Doubles:
        mean = np.square(states).mean(axis=-1, keepdims=True)
        scale = np.sqrt(mean + self._shape["rms_epsilon"])
        return states / scale * self._values(f"{name}.weight")

    def _values(self, name: str) -> Doubles:
        return self._network.tensors[name].values.astype(np.float64)


def rounded(states: NDArray[Any], block: int) -> Doubles:
    """Return states [rows, width] after rounding each `block` values to 8 bits with one scale."""
    single = states.astype(np.float32)
    width = single.shape[-1]
    padded = np.pad(single, ((0, 0), (0, -width % block))).reshape(len(single), -1, block)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    levels = np.rint(padded * (np.float32(127) / np.maximum(largest, np.float32(1e-30))))
    back = levels.astype(np.float64) * (largest / np.float32(127))
    return back.reshape(len(single), -1)[:, :width]


def rotations(network: TinyNetwork, num_positions: int) -> NDArray[np.complex128]:
    """Return the turn of each pair of dimensions, magnitude included [positions, pairs].

    Scaling "linear" slows every pair by the factor. "yarn" (arXiv 2309.00071, section 3.2, with
    the ramp over dimensions that llama.cpp uses) leaves fast pairs alone, slows slow ones, mixes
    in between, and makes queries and keys larger.
    """
    shape = network.parameters
    size, factor = shape["rope_size"], shape["rope_factor"]
    pairs = np.arange(size // 2)
    speeds = shape["rope_base"] ** (-2.0 * pairs / size)
    if "rope_freqs.weight" in network.tensors:
        speeds = speeds / network.tensors["rope_freqs.weight"].values.astype(np.float64)
    magnitude, slowed = 1.0, speeds / factor
    if shape["rope_scaling"] == "linear":
        speeds = slowed
    elif shape["rope_scaling"] == "yarn":
        low, high = (_pair_of_turns(shape, shape[f"yarn_beta_{side}"]) for side in ("fast", "slow"))
        low, high = max(0, math.floor(low)), min(size - 1, math.ceil(high))
        share = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        speeds = slowed * share + speeds * (1 - share)
        magnitude = shape["yarn_attention_factor"] * (1 + 0.1 * math.log(factor))
    turns: NDArray[np.complex128] = magnitude * np.exp(
        1j * np.outer(np.arange(num_positions), speeds)
    )
    return turns


def _pair_of_turns(shape: dict[str, Any], turns: float) -> float:
    """Return the pair, as a real number, that turns so often over the context trained on."""
    context, base = shape["rope_original_context"], shape["rope_base"]
    wavelength = context / (turns * 2 * math.pi)
    return float(shape["rope_size"] * math.log(wavelength) / (2 * math.log(base)))
