"""The fp32 reference: it agrees with llama.cpp on fp32 files, and knows what it cannot run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pilotfish.types import FloatArray, Segment
from support.reference_files import write_reference_file
from support.reference_model import ReferenceModel, attended
from support.tiny_gguf import write_tiny

TEXT = [(7 * i * i + 3 * i) % 256 for i in range(150)]


def llama_logits(path: Path) -> FloatArray:
    """Return llama.cpp's logits of TEXT, with fp32 caches."""
    pytest.importorskip("llama_cpp")
    from pilotfish.backends.llama import LlamaModel

    with LlamaModel(path, context_size=256, threads=1, cache_type="f32") as model:
        return model.forward([Segment(model.new_cache(), TEXT)])[0].copy()


@pytest.mark.parametrize("tied", [False, True], ids=["separate-head", "tied-head"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_reference_agrees_with_llama_cpp(architecture: str, tied: bool, tmp_path: Path) -> None:
    path = write_reference_file(tmp_path / "tiny.gguf", architecture=architecture, tied=tied)
    expected = llama_logits(path)
    logits = ReferenceModel(path).logits(TEXT)
    assert logits.dtype == np.float32
    # sizes matter: two rows of zeros agree as well
    assert np.abs(expected).max() > 5
    np.testing.assert_allclose(logits, expected, atol=1e-3)


def test_quantised_weights_are_read_as_what_they_stand_for(tmp_path: Path) -> None:
    exact = ReferenceModel(write_tiny(tmp_path / "exact.gguf", seed=3)).logits(TEXT)
    rounded = ReferenceModel(write_tiny(tmp_path / "q8.gguf", seed=3, quantised=True)).logits(TEXT)
    difference = np.sqrt(np.mean((rounded - exact) ** 2)) / exact.std()
    assert 0 < difference < 0.05


def test_a_row_depends_on_the_tokens_before_it_only(tmp_path: Path) -> None:
    model = ReferenceModel(write_reference_file(tmp_path / "tiny.gguf", architecture="qwen2"))
    whole, part = model.logits(TEXT), model.logits(TEXT[:40])
    np.testing.assert_allclose(whole[:40], part, atol=1e-4)


def test_attention_of_a_single_position_returns_its_value() -> None:
    random = np.random.default_rng(1)
    queries = random.standard_normal((4, 1, 8)).astype(np.float32)
    keys, values = random.standard_normal((2, 2, 1, 8)).astype(np.float32)
    np.testing.assert_allclose(attended(queries, keys, values)[0], np.repeat(values, 2, 0).ravel())


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "mamba.gguf", recurrent=True)
    with pytest.raises(ValueError, match="no reference for the architecture 'mamba'"):
        ReferenceModel(path)
