"""Bits of rows depend on the row alone; and the check that says so notices a single bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pilotfish_native.check import QUICK, Plan, check_bits, differing_bits

from support.tiny_networks import INSTRUCTIONS, TinyNetwork, write_network

MIXED = {
    "token_embd.weight": "Q8_0",
    "output.weight": "Q6_K",
    "blk.0.attn_q.weight": "Q4_K",
    "blk.0.attn_k.weight": "Q5_0",
    "blk.0.attn_v.weight": "Q6_K",
    "blk.0.attn_output.weight": "Q4_1",
    "blk.0.ffn_gate.weight": "Q5_K",
    "blk.0.ffn_up.weight": "F16",
    "blk.0.ffn_down.weight": "Q4_0",
}
SHAPE = {"hidden_size": 256, "num_heads": 7, "num_kv_heads": 1, "head_size": 32}
ALL_THREADS = Plan(
    widths=(1, 3, 8, 13, 64), prompt_cuts=(1, 7, 64, 150), widths_in_batches=(2, 7), threads=(2, 3)
)

# plain C++ is slow
FEW = Plan(widths=(2, 3, 13), prompt_cuts=(7, 150), widths_in_batches=(7,), threads=(2,))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> TinyNetwork:
    path = tmp_path_factory.mktemp("mixed") / "weights"
    return write_network(path, MIXED, num_layers=2, biases=True, **SHAPE)


@pytest.mark.parametrize("cache_type", ["f16", "f32"])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_cuts_widths_neighbours_and_threads_change_no_bit(
    network: TinyNetwork, instructions: str, cache_type: str
) -> None:
    result = check_bits(
        lambda threads: network.open(
            threads=threads, instructions=instructions, cache_type=cache_type
        ),
        plan=FEW if instructions == "portable" else ALL_THREADS,
    )
    assert result["differing_bits"] == 0
    assert result["cases"] >= 6
    assert result["instructions"] == instructions


def test_instruction_sets_agree_on_a_whole_network(network: TinyNetwork) -> None:
    ids = [(11 * i * i + 5 * i) % 70 for i in range(80)]
    expected = rows_of(network.open(), ids)
    for instructions in INSTRUCTIONS:
        rows = rows_of(network.open(instructions=instructions, threads=2), ids)
        assert differing_bits(rows, expected) == 0


def rows_of(core: Any, ids: list[int]) -> NDArray[np.float32]:
    return core.forward([core.new_sequence()], [ids], [0])


class Altered:
    """A model one of whose passes returns one wrong bit in every row."""

    def __init__(self, core: Any, *, width: int, num_segments: int) -> None:
        self._core, self._width, self._num_segments = core, width, num_segments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def forward(self, sequences: Any, token_ids: Any, first_rows: Any) -> Any:
        rows = self._core.forward(sequences, token_ids, first_rows)
        if len(sequences) == self._num_segments and self._width in map(len, token_ids):
            rows.view(np.uint32)[:, 5] ^= 1
        return rows


@pytest.mark.parametrize(
    ("width", "num_segments", "name"),
    [(8, 1, "threads 2, width 8"), (33, 4, "threads 2, width 33 among others")],
)
def test_one_wrong_bit_is_found_and_named(
    network: TinyNetwork, width: int, num_segments: int, name: str
) -> None:
    def open_model(threads: int) -> Any:
        core = network.open(threads=threads)
        return Altered(core, width=width, num_segments=num_segments) if threads == 2 else core

    result = check_bits(open_model, plan=QUICK)
    assert result["differing_bits"] == width
    assert result["differing_cases"] == [name]


def test_bits_are_counted_one_by_one() -> None:
    rows = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)
    assert differing_bits(rows, rows.copy()) == 0
    other = rows.copy()
    other.view(np.uint32)[1, 2] ^= 1
    other.view(np.uint32)[2, 6] ^= 0x80000001
    assert differing_bits(rows, other) == 3
    # equal numbers, other bits
    assert differing_bits(np.zeros((1, 1), "f4"), np.full((1, 1), -0.0, "f4")) == 1
    with pytest.raises(ValueError, match="shapes"):
        differing_bits(rows, rows[:2])
