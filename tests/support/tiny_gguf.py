"""Write tiny GGUF models with random weights: real files for llama.cpp, in milliseconds.

    write_tiny(path)                          two layers of the llama architecture, fp32
    write_tiny(path, padding=7)               unused ids after the real vocabulary
    write_tiny(path, sliding_window=16)       one layer sees only the last 16 tokens (gemma2)
    write_tiny(path, recurrent=True)          a state that cannot forget (mamba)
    write_tiny(path, quantised=True)          matrices in Q8_0

The same arguments write the same bytes. The weights are large enough that greedy text varies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

WIDTH = 32
LAYERS = 2
HEADS = 4
INNER = 64
CONTEXT = 512
# llama.cpp skips merges whose result is missing, so each merge has its token
MERGES = ("t h", "th e", "i n", "a n", "o r", "Ġ t", "Ġ a")
BEGIN, END, TURN = "<|begin|>", "<|end|>", "<|turn|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)

_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


def byte_characters() -> list[str]:
    """Return the character that stands for each byte 0..255 in byte-level vocabularies."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    kept += range(ord("®"), ord("ÿ") + 1)
    spare = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(spare)) for byte in range(256)]


def vocabulary(padding: int = 0) -> tuple[list[str], list[int]]:
    """Return token texts and token types: 256 bytes, the merges, three control tokens, padding."""
    texts = [*byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]
    types = [_NORMAL] * len(texts)
    texts += [BEGIN, END, TURN, *(f"[PAD{i}]" for i in range(padding))]
    types += [_CONTROL] * 3 + [_UNUSED] * padding
    return texts, types


def write_tiny(
    path: Path,
    *,
    seed: int = 1,
    padding: int = 0,
    sliding_window: int = 0,
    recurrent: bool = False,
    quantised: bool = False,
    context: int = CONTEXT,
    layers: int = LAYERS,
    heads: int = HEADS,
    template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write a model file and return its path; see the module's docstring for the options."""
    architecture = "mamba" if recurrent else "gemma2" if sliding_window else "llama"
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_layer_norm_rms_eps(1e-5)
    if recurrent:
        _add_state_shape(writer)
    else:
        _add_attention_shape(writer, sliding_window, heads)
    _add_tokenizer(writer, padding, template)
    weights = _Weights(writer, seed=seed, quantised=quantised)
    size = len(vocabulary(padding)[0])
    # padding rows are the largest: a model that offers them shows in the first token
    embedding = weights.random(size, WIDTH, scale=1.0)
    head = weights.random(size, WIDTH, scale=0.6)
    if padding:
        head[-padding:] *= 4
    weights.add("token_embd.weight", embedding)
    weights.add_norm("output_norm.weight")
    if not sliding_window:
        weights.add("output.weight", head)
    key_width = WIDTH // heads * max(1, heads // 2)
    for layer in range(layers):
        if recurrent:
            _add_state_layer(weights, f"blk.{layer}")
        else:
            _add_attention_layer(weights, f"blk.{layer}", key_width)
        if sliding_window:
            weights.add_norm(f"blk.{layer}.post_attention_norm.weight")
            weights.add_norm(f"blk.{layer}.post_ffw_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class _Weights:
    """Draws arrays from one seed and adds them to the file."""

    def __init__(self, writer: Any, *, seed: int, quantised: bool) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)
        self._quantised = quantised

    def random(self, *shape: int, scale: float) -> NDArray[np.float32]:
        """Return normal values of standard deviation `scale`."""
        return (self._random.standard_normal(shape) * scale).astype(np.float32)

    def add(self, name: str, values: NDArray[np.float32]) -> None:
        """Add a matrix, in Q8_0 where that was asked for and its rows allow it."""
        if self._quantised and values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            self._writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self._writer.add_tensor(name, values)

    def add_matrix(self, name: str, rows: int, columns: int, *, gain: float = 1.0) -> None:
        """Add a random matrix [rows, columns] that keeps a vector's size times `gain`."""
        self.add(name, self.random(rows, columns, scale=gain / columns**0.5))

    def add_norm(self, name: str) -> None:
        """Add the scales of a normalisation, near 1."""
        self.add(name, 1 + self.random(WIDTH, scale=0.1))


def _add_attention_shape(writer: Any, sliding_window: int, heads: int) -> None:
    writer.add_feed_forward_length(INNER)
    head_width = WIDTH // heads
    writer.add_head_count(heads)
    writer.add_head_count_kv(max(1, heads // 2))
    writer.add_rope_dimension_count(head_width)
    writer.add_rope_freq_base(10000.0)
    if sliding_window:
        writer.add_key_length(head_width)
        writer.add_value_length(head_width)
        writer.add_sliding_window(sliding_window)
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)


def _add_state_shape(writer: Any) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(2 * WIDTH)
    writer.add_ssm_state_size(8)
    writer.add_ssm_time_step_rank(2)


def _add_tokenizer(writer: Any, padding: int, template: str | None) -> None:
    texts, types = vocabulary(padding)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(texts.index(BEGIN))
    writer.add_eos_token_id(texts.index(END))
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def _add_attention_layer(weights: _Weights, prefix: str, key_width: int) -> None:
    weights.add_norm(f"{prefix}.attn_norm.weight")
    weights.add_matrix(f"{prefix}.attn_q.weight", WIDTH, WIDTH, gain=2.0)
    weights.add_matrix(f"{prefix}.attn_k.weight", key_width, WIDTH, gain=2.0)
    weights.add_matrix(f"{prefix}.attn_v.weight", key_width, WIDTH, gain=2.0)
    weights.add_matrix(f"{prefix}.attn_output.weight", WIDTH, WIDTH, gain=2.0)
    weights.add_norm(f"{prefix}.ffn_norm.weight")
    weights.add_matrix(f"{prefix}.ffn_gate.weight", INNER, WIDTH)
    weights.add_matrix(f"{prefix}.ffn_up.weight", INNER, WIDTH)
    weights.add_matrix(f"{prefix}.ffn_down.weight", WIDTH, INNER, gain=2.0)


def _add_state_layer(weights: _Weights, prefix: str) -> None:
    inner, state, rank = 2 * WIDTH, 8, 2
    weights.add_norm(f"{prefix}.attn_norm.weight")
    weights.add_matrix(f"{prefix}.ssm_in.weight", 2 * inner, WIDTH)
    weights.add(f"{prefix}.ssm_conv1d.weight", weights.random(inner, 4, scale=0.5))
    weights.add(f"{prefix}.ssm_conv1d.bias", weights.random(inner, scale=0.1))
    weights.add_matrix(f"{prefix}.ssm_x.weight", rank + 2 * state, inner)
    weights.add_matrix(f"{prefix}.ssm_dt.weight", inner, rank)
    weights.add(f"{prefix}.ssm_dt.bias", weights.random(inner, scale=0.1))
    decay = np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
    weights.add(f"{prefix}.ssm_a", -decay)
    weights.add(f"{prefix}.ssm_d", 1 + weights.random(inner, scale=0.1))
    weights.add_matrix(f"{prefix}.ssm_out.weight", WIDTH, inner)
