"""Whole networks against double precision: every format, every way of turning, every shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pilotfish_native import Model

from support.network_reference import NetworkReference
from support.tiny_networks import (
    FORMATS,
    INSTRUCTIONS,
    LARGE_FORMATS,
    PLAIN_FORMATS,
    TinyNetwork,
    write_network,
)

IDS = [(11 * i * i + 5 * i) % 70 for i in range(90)]
ROWS_OF_256 = {"hidden_size": 256, "head_size": 64, "feed_forward_size": 256}


def logits_of(core: Model, ids: list[int]) -> NDArray[np.float64]:
    return core.forward([core.new_sequence()], [ids], [0]).astype(np.float64)


def error(rows: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the error of each row as a share of the size of all."""
    difference = np.sqrt(np.square(rows - expected).mean(axis=1))
    return difference / np.sqrt(np.square(expected).mean())


def in_format(path: Path, number_format: str) -> TinyNetwork:
    shape = ROWS_OF_256 if number_format in LARGE_FORMATS else {}
    return write_network(path, number_format, **shape)


@pytest.mark.parametrize("number_format", FORMATS)
def test_the_error_of_a_format_is_that_of_inputs_in_8_bits(
    tmp_path: Path, number_format: str
) -> None:
    network = in_format(tmp_path / "weights", number_format)
    rows = logits_of(network.open(cache_type="f32"), IDS)
    exact = NetworkReference(network).logits(IDS)
    rounded = NetworkReference(network, rounds=True).logits(IDS)
    if number_format in PLAIN_FORMATS:
        assert error(rows, exact).max() < 2e-6
        return
    explained = error(rounded, exact).mean()
    assert error(rows, exact).mean() < 1.1 * explained
    # an input between two levels may go either way, and takes the rows after it along
    assert np.median(error(rows, rounded)[:8]) < 1e-5
    assert error(rows, rounded).mean() < explained / 4


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_a_cache_of_halves_rounds_keys_and_values_and_nothing_else(
    tmp_path: Path, instructions: str
) -> None:
    network = write_network(tmp_path / "weights", "F32")
    rows = logits_of(network.open(instructions=instructions), IDS)
    exact = NetworkReference(network).logits(IDS)
    halves = NetworkReference(network, half_cache=True).logits(IDS)
    assert error(rows, halves).mean() < 1e-4 < error(rows, exact).mean() < 1e-3


YARN = {"rope_scaling": "yarn"}


@pytest.mark.parametrize(
    "shape",
    [
        {"rope_style": "neox"},
        {"rope_size": 8},
        {"rope_size": 8, "rope_style": "neox"},
        {"rope_base": 1e6},
        {"rope_scaling": "linear", "rope_factor": 4.0},
        {"rope_factors": True},
        {"rope_factors": True, "rope_scaling": "linear", "rope_factor": 2.0},
        YARN | {"rope_factor": 4.0},
        YARN | {"rope_factor": 4.0, "rope_style": "neox", "yarn_attention_factor": 0.8},
        YARN | {"rope_factor": 16.0, "rope_base": 5e5, "head_size": 32},
        YARN | {"rope_factor": 8.0, "rope_original_context": 4096, "head_size": 64},
        YARN | {"rope_factor": 2.0, "rope_original_context": 1},
        YARN | {"rope_factor": 2.0, "yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0},
        YARN | {"rope_factor": 8.0, "rope_factors": True},
    ],
    ids=str,
)
def test_positions_turn_as_the_parameters_say(tmp_path: Path, shape: dict[str, Any]) -> None:
    check_against_reference(tmp_path, shape)


@pytest.mark.parametrize(
    "shape",
    [
        {"architecture": "qwen2", "rope_style": "neox", "biases": True},
        {"architecture": "qwen3", "rope_style": "neox", "head_size": 24},
        {"architecture": "qwen3", "rope_style": "neox", "num_layers": 2, "tied": True},
        {"hidden_size": 32, "head_size": 8},
        {"hidden_size": 37, "head_size": 6, "feed_forward_size": 41},
        {"num_heads": 1, "num_kv_heads": 1},
        {"num_heads": 4, "num_kv_heads": 4},
        {"num_heads": 6, "num_kv_heads": 2},
        {"num_heads": 7, "num_kv_heads": 1},
        {"num_heads": 14, "num_kv_heads": 2, "head_size": 64},
        {"num_heads": 3, "num_kv_heads": 3, "head_size": 80},
        {"head_size": 128},
        {"feed_forward_size": 2049},
        {"rms_epsilon": 0.3},
    ],
    ids=str,
)
def test_networks_of_any_shape_are_computed(tmp_path: Path, shape: dict[str, Any]) -> None:
    check_against_reference(tmp_path, shape)


def check_against_reference(tmp_path: Path, shape: dict[str, Any]) -> None:
    network = write_network(tmp_path / "weights", "F32", **shape)
    expected = NetworkReference(network).logits(IDS)
    for instructions in INSTRUCTIONS:
        core = network.open(cache_type="f32", instructions=instructions)
        # plain C++ is slow; the rest reads more than one page of the cache
        count = 20 if instructions == "portable" else len(IDS)
        assert error(logits_of(core, IDS[:count]), expected[:count]).max() < 3e-6


def test_a_mistake_in_the_turns_would_show(tmp_path: Path) -> None:
    rows = [
        NetworkReference(write_network(tmp_path / "weights", "F32", **shape)).logits(IDS)
        for shape in (YARN | {"rope_factor": 4.0}, YARN | {"rope_factor": 4.01}, {})
    ]
    assert error(rows[0], rows[1]).max() > 3e-4
    assert error(rows[0], rows[2]).max() > 3e-2
