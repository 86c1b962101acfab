"""Products of one matrix: the integers are exact, and no bit depends on anything but the row.

The networks here have one layer that adds nothing, so that the head reads what `hidden` returns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pilotfish_native import Model

from support.network_reference import rounded
from support.tiny_networks import (
    FORMATS,
    INSTRUCTIONS,
    LARGE_FORMATS,
    PLAIN_FORMATS,
    TinyNetwork,
    write_network,
)

IDS = [(11 * i * i + 5 * i) % 70 for i in range(64)]
# an even and an odd number of blocks; rows of plain numbers need no blocks
WIDTHS_OF_ROWS = {"large": (256, 768), "small": (32, 160, 192), "plain": (37, 64)}


def kind_of(number_format: str) -> str:
    if number_format in LARGE_FORMATS:
        return "large"
    return "plain" if number_format in PLAIN_FORMATS else "small"


def layer_adds_nothing(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.zeros_like(values) if name.endswith(("output.weight", "ffn_down.weight")) else values


def head_alone(path: Path, number_format: str, width: int, **options: Any) -> TinyNetwork:
    def changed(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values if name == "output.weight" else layer_adds_nothing(name, values)

    formats = {"output.weight": number_format} | options.pop("formats", {})
    return write_network(path, formats, hidden_size=width, changed=changed, **options)


def rows_of(core: Model, ids: list[int], width: int) -> NDArray[np.float32]:
    """Return the logits of `ids`, evaluated `width` tokens at a time."""
    sequence = core.new_sequence()
    pieces = [ids[i : i + width] for i in range(0, len(ids), width)]
    return np.concatenate([core.forward([sequence], [piece], [0]).copy() for piece in pieces])


CASES = [(name, width) for name in FORMATS for width in WIDTHS_OF_ROWS[kind_of(name)]]


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize(("number_format", "width"), CASES)
def test_a_product_is_that_of_the_weights_and_the_rounded_inputs(
    tmp_path: Path, number_format: str, width: int, instructions: str
) -> None:
    network = head_alone(tmp_path / "weights", number_format, width)
    core = network.open(instructions=instructions)
    logits = rows_of(core, IDS[:5], 5).astype(np.float64)
    inputs = core.hidden().astype(np.float64)
    if number_format not in PLAIN_FORMATS:
        inputs = rounded(core.hidden(), 256 if number_format in LARGE_FORMATS else 32)
    expected = inputs @ network.tensors["output.weight"].values.astype(np.float64).T
    np.testing.assert_allclose(logits, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("number_format", "width"), CASES)
def test_embeddings_are_the_weights_of_their_rows(
    tmp_path: Path, number_format: str, width: int
) -> None:
    formats = {"token_embd.weight": number_format}
    network = head_alone(tmp_path / "weights", "F32", width, formats=formats)
    core = network.open()
    rows_of(core, IDS, 64)
    states = network.tensors["token_embd.weight"].values[IDS].astype(np.float64)
    states /= np.sqrt(np.square(states).mean(axis=1, keepdims=True) + 1e-5)
    expected = states * network.tensors["output_norm.weight"].values
    np.testing.assert_allclose(core.hidden(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("number_format", ["Q4_K", "Q8_0", "F16"])
def test_any_number_of_rows_works(tmp_path: Path, number_format: str, vocab_size: int) -> None:
    network = head_alone(tmp_path / "weights", number_format, 256, vocab_size=vocab_size)
    for instructions in INSTRUCTIONS:
        core = network.open(instructions=instructions)
        logits = rows_of(core, [0], 1)
        assert logits.shape == (1, vocab_size)
        expected = core.hidden() @ network.tensors["output.weight"].values.T
        np.testing.assert_allclose(logits, expected, atol=0.05 * np.abs(expected).max() + 0.02)


@pytest.mark.parametrize("number_format", FORMATS)
def test_every_width_and_every_instruction_set_gives_the_same_bits(
    tmp_path: Path, number_format: str
) -> None:
    width = 256 if number_format in LARGE_FORMATS else 96
    small = {"num_heads": 1, "num_kv_heads": 1, "head_size": 8, "feed_forward_size": 32}
    network = head_alone(tmp_path / "weights", number_format, width, vocab_size=20, **small)
    ids = [token % 20 for token in IDS]
    single = rows_of(network.open(), ids, 1)
    for instructions in INSTRUCTIONS:
        core = network.open(instructions=instructions)
        # plain C++ is slow, and its tiles are small
        for rows in (*range(1, 12), 31, 64) if instructions == "portable" else range(1, 65):
            wide = core.forward([core.new_sequence()], [ids[:rows]], [0])
            np.testing.assert_array_equal(wide.view(np.uint32), single[:rows].view(np.uint32))
