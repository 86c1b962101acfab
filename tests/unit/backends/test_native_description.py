"""From headers to networks: what is read, what runs elsewhere, and what is damaged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pilotfish import gguf, models
from pilotfish.backends.footprint import format_bytes, read_footprint
from pilotfish.backends.native import NativeModel
from pilotfish.backends.native.description import network_parameters, unsupported_reason
from pilotfish.errors import ModelFileError
from pilotfish.gguf import GgufArray, GgufHeader
from support.tiny_gguf import write_tiny


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> GgufHeader:
    return gguf.check_file(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def changed(header: GgufHeader, **values: Any) -> GgufHeader:
    """Return the header with other values; dots are written __, and None takes a key away."""
    metadata: dict[str, Any] = dict(header.metadata)
    for name, value in values.items():
        key = name.replace("__", ".")
        key = key if key.startswith("general.") else f"llama.{key}"
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value
    return replace(header, metadata=metadata)


def of_architecture(header: GgufHeader, name: str) -> GgufHeader:
    metadata = {
        key.replace("llama.", f"{name}.") if key.startswith("llama.") else key: value
        for key, value in header.metadata.items()
    }
    return replace(header, metadata={**metadata, "general.architecture": name})


def with_tensor(header: GgufHeader, name: str, **values: Any) -> GgufHeader:
    """Return the header with the first tensor renamed, or changed otherwise."""
    first, *others = header.tensors
    return replace(header, tensors=(replace(first, name=name, **values), *others))


def test_the_shape_of_a_network_is_read(header: GgufHeader) -> None:
    parameters = network_parameters(header)
    assert parameters.pop("rms_epsilon") == pytest.approx(1e-5)
    assert parameters == {
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_size": 8,
        "feed_forward_size": 64,
        "vocab_size": 266,
        "rope_size": 8,
        "rope_base": 10000.0,
        "rope_style": "norm",
        "rope_scaling": "linear",
        "rope_factor": 1.0,
        "rope_original_context": 512,
        "yarn_attention_factor": 1.0,
        "yarn_beta_fast": 32.0,
        "yarn_beta_slow": 1.0,
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"attention__head_count_kv": None}, {"num_kv_heads": 4}),
        (
            {"attention__key_length": 16, "attention__value_length": 16},
            {"head_size": 16, "rope_size": 8},
        ),
        ({"rope__dimension_count": None, "rope__freq_base": None}, {"rope_size": 8}),
        ({"rope__freq_base": 500_000.0}, {"rope_base": 500_000.0}),
        ({"rope__scale_linear": 4.0}, {"rope_scaling": "linear", "rope_factor": 4.0}),
        ({"rope__scaling__type": "none"}, {"rope_scaling": "none"}),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 128,
                "rope__scaling__attn_factor": 0.8,
                "rope__scaling__yarn_beta_fast": 16.0,
            },
            {
                "rope_scaling": "yarn",
                "rope_factor": 4.0,
                "rope_original_context": 128,
                "yarn_attention_factor": 0.8,
                "yarn_beta_fast": 16.0,
            },
        ),
    ],
)
def test_what_a_file_may_leave_out_or_say(
    header: GgufHeader, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    file = changed(header, **values)
    assert unsupported_reason(file) is None
    parameters = network_parameters(file)
    assert {name: parameters[name] for name in expected} == expected


@pytest.mark.parametrize(("name", "style"), [("qwen2", "neox"), ("qwen3", "neox")])
def test_each_architecture_rotates_in_its_style(header: GgufHeader, name: str, style: str) -> None:
    file = of_architecture(header, name)
    assert unsupported_reason(file) is None
    assert network_parameters(file)["rope_style"] == style


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"general__architecture": "gemma2"}, "architecture gemma2 is not among llama, qwen2"),
        ({"general__architecture": None}, "architecture unknown"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"attention__sliding_window": 4096}, "sliding window"),
        ({"attention__scale": 0.1}, "scale of its own"),
        ({"attention__head_count_kv": GgufArray(4, 2, 0)}, "head_count_kv differs from layer"),
        ({"feed_forward_length": GgufArray(4, 2, 0)}, "feed_forward_length differs from layer"),
        ({"attention__key_length": 8, "attention__value_length": 16}, "keys and values differ"),
        ({"rope__scaling__type": "longrope"}, "rope scaling longrope"),
    ],
)
def test_what_it_does_not_run_is_a_half_sentence(
    header: GgufHeader, values: dict[str, Any], words: str
) -> None:
    reason = unsupported_reason(changed(header, **values))
    assert reason is not None
    assert words in reason
    assert "\n" not in reason


def test_tensors_and_tokenizers_it_does_not_know_are_named(header: GgufHeader) -> None:
    experts = unsupported_reason(with_tensor(header, "blk.0.ffn_gate_exps.weight"))
    assert experts is not None
    assert "blk.0.ffn_gate_exps.weight" in experts
    small = unsupported_reason(with_tensor(header, "token_embd.weight", type_id=10))
    assert small == "tensor token_embd.weight is in Q2_K, which it does not read"
    words = replace(header, metadata={**header.metadata, "tokenizer.ggml.model": "bert"})
    assert "tokenizer (bert/gpt-2)" in (unsupported_reason(words) or "")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        *[({"block_count": value}, "block_count") for value in (None, 0, -3, 10**6, 2.0, "two")],
        *[({"embedding_length": value}, "embedding_length") for value in (None, 0, True, 2**40)],
        *[({"attention__head_count": value}, "head_count") for value in (None, 0, 7, -1, 2**31)],
        *[({"attention__head_count_kv": value}, "head_count_kv") for value in (0, 3, 8)],
        *[
            ({"attention__layer_norm_rms_epsilon": value}, "rms_epsilon")
            for value in (None, 0.0, -1e-5, float("nan"), float("inf"), "small")
        ],
        *[({"rope__dimension_count": value}, "dimension_count") for value in (0, 7, 64, -2)],
        *[({"rope__freq_base": value}, "freq_base") for value in (0.0, float("nan"), -1.0)],
        *[({"rope__scaling__factor": value}, "factor") for value in (0.0, float("inf"))],
        ({"feed_forward_length": 0}, "feed_forward_length"),
        ({"context_length": 0}, "context_length"),
    ],
)
def test_values_no_network_has_are_named(
    header: GgufHeader, values: dict[str, Any], key: str
) -> None:
    with pytest.raises(ModelFileError, match=rf"tiny\.gguf is damaged: llama\.\S*{key}") as caught:
        network_parameters(changed(header, **values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(32,), (16, 266), (32, 0), (32, 266, 1)])
def test_an_embedding_of_another_shape_is_named(header: GgufHeader, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelFileError, match=r"token_embd\.weight"):
        network_parameters(with_tensor(header, "token_embd.weight", shape=shape))
    with pytest.raises(ModelFileError, match=r"token_embd\.weight"):
        network_parameters(with_tensor(header, "blk.0.attn_q.bias"))


@pytest.mark.models
@pytest.mark.parametrize(
    "options", [{}, {"head_size": 16_384}, {"head_size": 16_384, "requantize": True}]
)
def test_a_footprint_is_near_what_the_loaded_model_takes(options: dict[str, Any]) -> None:
    path = models.resolve("smollm2-135m")
    header = gguf.check_file(path)
    footprint = read_footprint(
        header,
        head_rows=options.get("head_size", 0),
        requantize=options.get("requantize", False),
    )
    with NativeModel(path, threads=1, context_size=64, **options) as model:
        core = model._core
        assert core.weight_bytes == pytest.approx(footprint.weight_bytes, rel=0.05)
        assert core.step_bytes == pytest.approx(footprint.step_bytes, rel=0.05)
        assert core.cache_bytes_per_token == footprint.cache_bytes_per_token


def test_a_footprint_follows_heads_formats_and_ties(header: GgufHeader) -> None:
    whole = read_footprint(header)
    embedding = 266 * 32 * 4
    assert whole.weight_bytes == header.tensor_bytes
    assert whole.step_bytes == header.tensor_bytes - embedding
    assert whole.cache_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert read_footprint(header, cache_type="f32").cache_bytes_per_token == 256
    tied = replace(header, tensors=tuple(t for t in header.tensors if t.name != "output.weight"))
    assert read_footprint(tied).step_bytes == whole.step_bytes
    assert read_footprint(tied).weight_bytes == whole.step_bytes
    assert read_footprint(header, head_rows=133).step_bytes == whole.step_bytes - embedding // 2
    assert read_footprint(header, requantize=True).step_bytes < whole.step_bytes / 5
    assert list(format_bytes(header)) == ["F32"]
