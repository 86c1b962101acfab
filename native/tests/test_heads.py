"""Heads of drafts: a part of the rows, rows added later, weights rounded to 4 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pilotfish_native import Model

from support.tiny_networks import FORMATS, INSTRUCTIONS, LARGE_FORMATS, TinyNetwork, write_network

IDS = [(11 * i * i + 5 * i) % 70 for i in range(20)]
ROWS_OF_256 = {"hidden_size": 256, "head_size": 64, "feed_forward_size": 256}


def in_format(path: Path, number_format: str, *, tied: bool = False) -> TinyNetwork:
    shape = ROWS_OF_256 if number_format in LARGE_FORMATS else {}
    return write_network(path, number_format, tied=tied, **shape)


def rows_of(core: Model, ids: list[int] = IDS) -> NDArray[np.float32]:
    return core.forward([core.new_sequence()], [ids], [0]).copy()


def ids_of(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def same(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(
        rows.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("number_format", FORMATS)
def test_rows_of_a_part_have_the_bits_of_the_whole(
    tmp_path: Path, number_format: str, tied: bool
) -> None:
    network = in_format(tmp_path / "weights", number_format, tied=tied)
    whole = rows_of(network.open())
    kept = ids_of(0, 3, 4, 9, 31, 69)
    core = network.open(head_ids=kept)
    assert core.vocab_size == 6
    assert core.step_bytes < network.open().step_bytes
    same(rows_of(core), whole[:, kept])
    for added in (
        ids_of(),
        ids_of(50),
        ids_of(2, 1, 60, 59, 58, 57, 56, 55, 54, 53, 52),
        ids_of(7),
    ):
        core.extend_head(added)
        kept = np.concatenate([kept, added])
        assert core.vocab_size == len(kept)
        same(rows_of(core), whole[:, kept])


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_head_grows_to_the_whole_vocabulary_and_no_further(
    tmp_path: Path, instructions: str
) -> None:
    network = in_format(tmp_path / "weights", "Q5_1")
    core = network.open(head_ids=ids_of(35), instructions=instructions)
    order = np.random.default_rng(3).permutation([i for i in range(70) if i != 35])
    for part in np.array_split(order, 20):
        core.extend_head(part.astype(np.int32))
    same(rows_of(core), rows_of(network.open())[:, [35, *order]])
    with pytest.raises(ValueError, match="full"):
        core.extend_head(ids_of(35))
    # as large as it was, and still at work
    assert rows_of(core).shape == (len(IDS), 70)


def test_a_growing_head_needs_no_file_name(tmp_path: Path) -> None:
    network = in_format(tmp_path / "weights", "Q8_0")
    whole = rows_of(network.open())
    core = network.open(head_ids=ids_of(1))
    network.path.unlink()
    core.extend_head(ids_of(2, 3))
    same(rows_of(core), whole[:, [1, 2, 3]])


@pytest.mark.parametrize(
    "ids",
    [ids_of(), ids_of(3, 2), ids_of(3, 3), ids_of(-1, 2), ids_of(70), ids_of(2**31 - 1)],
    ids=str,
)
def test_wrong_parts_are_refused(tmp_path: Path, ids: NDArray[np.int32]) -> None:
    network = in_format(tmp_path / "weights", "F32")
    with pytest.raises(ValueError, match="head_ids"):
        network.open(head_ids=ids)


@pytest.mark.parametrize("ids", [ids_of(-1), ids_of(5, 70), ids_of(2**31 - 1)], ids=str)
def test_wrong_additions_are_refused_and_change_nothing(
    tmp_path: Path, ids: NDArray[np.int32]
) -> None:
    network = in_format(tmp_path / "weights", "F32")
    core = network.open(head_ids=ids_of(1, 5))
    before = rows_of(core)
    with pytest.raises(ValueError, match="vocabulary"):
        core.extend_head(ids)
    same(rows_of(core), before)
    with pytest.raises(ValueError, match="whole"):
        network.open().extend_head(ids_of(1))


@pytest.mark.parametrize("number_format", [name for name in FORMATS if not name.startswith("Q4")])
def test_weights_of_more_than_4_bits_are_rounded_to_4(tmp_path: Path, number_format: str) -> None:
    network = in_format(tmp_path / "weights", number_format)
    plain, small = network.open(), network.open(requantize=True)
    assert small.step_bytes < plain.step_bytes
    rows, rounded = rows_of(plain), rows_of(small)
    # 4 bits leave a noise of about a tenth of the weights' size in every matrix
    error = np.sqrt(np.square(rounded - rows).mean() / np.square(rows).mean())
    assert 0.01 < error < 0.4
    kept = ids_of(5, 6, 40)
    part = network.open(requantize=True, head_ids=kept)
    same(rows_of(part), rounded[:, kept])
    part.extend_head(ids_of(7, 8))
    same(rows_of(part), rounded[:, [5, 6, 40, 7, 8]])


@pytest.mark.parametrize("number_format", ["Q4_0", "Q4_1", "Q4_K"])
def test_weights_of_4_bits_stay_as_they_are(tmp_path: Path, number_format: str) -> None:
    network = in_format(tmp_path / "weights", number_format)
    same(rows_of(network.open(requantize=True)), rows_of(network.open()))


def test_rounding_to_4_bits_keeps_most_of_a_matrix(tmp_path: Path) -> None:
    def only_head(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        no_part = name.endswith(("attn_output.weight", "ffn_down.weight"))
        return np.zeros_like(values) if no_part else values

    network = write_network(tmp_path / "weights", "F32", hidden_size=512, changed=only_head)
    rows, rounded = (rows_of(network.open(requantize=value)) for value in (False, True))
    error = np.sqrt(np.square(rounded - rows).mean() / np.square(rows).mean())
    # uniform rounding of normal weights to 16 levels up to their largest: about 8 %
    assert error < 0.1
