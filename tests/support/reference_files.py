"""Write tiny GGUF files of the llama, qwen2 and qwen3 families, for checks of the arithmetic.

    write_reference_file(path)                             llama, separate head
    write_reference_file(path, architecture="qwen2")       biases, halves rotated together
    write_reference_file(path, architecture="qwen3")       normalised queries and keys, wide heads
    write_reference_file(path, tied=True)                  the embedding is the head, too

The same arguments write the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from support.tiny_gguf import BEGIN, END, MERGES, vocabulary

WIDTH, INNER, LAYERS = 64, 96, 2
HEADS, KEY_HEADS = 4, 2


def write_reference_file(
    path: Path, *, architecture: str = "llama", tied: bool = False, seed: int = 1
) -> Path:
    """Write a model file in fp32 and return its path; see the module's docstring."""
    writer = gguf.GGUFWriter(str(path), architecture)
    # a head's width need not be the model's over the heads: qwen3 files say it apart
    head_width = 24 if architecture == "qwen3" else WIDTH // HEADS
    _add_shape(writer, head_width)
    _add_tokenizer(writer)
    random = np.random.default_rng(seed)
    size = len(vocabulary()[0])
    writer.add_tensor("token_embd.weight", _matrix(random, size, WIDTH, scale=1.0))
    writer.add_tensor("output_norm.weight", _scales(random, WIDTH))
    if not tied:
        writer.add_tensor("output.weight", _matrix(random, size, WIDTH, scale=0.5))
    for layer in range(LAYERS):
        for name, values in _layer(architecture, random, head_width).items():
            writer.add_tensor(f"blk.{layer}.{name}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: Any, head_width: int) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)


def _add_tokenizer(writer: Any) -> None:
    texts, types = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(texts.index(BEGIN))
    writer.add_eos_token_id(texts.index(END))
    writer.add_add_bos_token(False)


def _layer(
    architecture: str, random: np.random.Generator, head_width: int
) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of one layer by name."""
    query_width, key_width = HEADS * head_width, KEY_HEADS * head_width
    tensors = {
        "attn_norm.weight": _scales(random, WIDTH),
        "attn_q.weight": _matrix(random, query_width, WIDTH),
        "attn_k.weight": _matrix(random, key_width, WIDTH),
        "attn_v.weight": _matrix(random, key_width, WIDTH),
        "attn_output.weight": _matrix(random, WIDTH, query_width),
        "ffn_norm.weight": _scales(random, WIDTH),
        "ffn_gate.weight": _matrix(random, INNER, WIDTH),
        "ffn_up.weight": _matrix(random, INNER, WIDTH),
        "ffn_down.weight": _matrix(random, WIDTH, INNER),
    }
    if architecture == "qwen2":
        widths = {"q": query_width, "k": key_width, "v": key_width}
        tensors |= {f"attn_{n}.bias": _matrix(random, w, scale=0.5) for n, w in widths.items()}
    if architecture == "qwen3":
        tensors |= {f"attn_{n}_norm.weight": _scales(random, head_width) for n in "qk"}
    return tensors


def _matrix(
    random: np.random.Generator, *shape: int, scale: float | None = None
) -> NDArray[np.float32]:
    """Return normal values; without `scale` a matrix doubles a vector's size."""
    size = 2 / shape[-1] ** 0.5 if scale is None else scale
    return (random.standard_normal(shape) * size).astype(np.float32)


def _scales(random: np.random.Generator, width: int) -> NDArray[np.float32]:
    return (1 + 0.1 * random.standard_normal(width)).astype(np.float32)
