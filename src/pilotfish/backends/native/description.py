"""From the header of a file to the shape of its network, or to why the core does not run it."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from pilotfish.backends.gguf_tokenizer import check_tokenizer_kind
from pilotfish.backends.gguf_tokenizer.tokenizer import tokenizer_kind
from pilotfish.errors import ModelError, ModelFileError
from pilotfish.gguf import GgufArray, GgufHeader

# architecture: which dimensions of a head are rotated together, neighbours or halves
ROPE_STYLES = {"llama": "norm", "qwen2": "neox", "qwen3": "neox"}
FORMATS = frozenset(
    ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
)
_TENSOR_NAMES = re.compile(
    r"(token_embd|output_norm|output|rope_freqs)\.weight"
    r"|blk\.\d+\.((attn|ffn)_norm|attn_(q|k|v|output)|ffn_(gate|up|down)|attn_[qk]_norm)\.weight"
    r"|blk\.\d+\.attn_[qkv]\.bias"
)
_ROPE_SCALINGS = ("none", "linear", "yarn")
# far above any real network and far below what could overflow or fill a machine by itself
_MOST_LAYERS = 1 << 12
_MOST_HEADS = 1 << 14
_MOST_VALUES = 1 << 20
_MOST_TOKENS = 1 << 26


def unsupported_reason(header: GgufHeader) -> str | None:
    """Return why the native core does not run a model, as a half sentence, or None if it does."""
    architecture = header.architecture
    if architecture not in ROPE_STYLES:
        return f"architecture {architecture or 'unknown'} is not among {', '.join(ROPE_STYLES)}"
    keys = _Keys(header)
    if keys.is_set("expert_count"):
        return "it is a mixture of experts"
    if keys.is_set("attention.sliding_window"):
        return "its attention has a sliding window"
    if keys.is_set("attention.scale"):
        return "its attention has a scale of its own"
    for name in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        if isinstance(header.metadata.get(keys.full(name)), GgufArray):
            return f"{keys.full(name)} differs from layer to layer"
    key_size, value_size = (
        header.integer(keys.full(f"attention.{name}_length")) for name in ("key", "value")
    )
    if key_size != value_size:
        return "its keys and values differ in size"
    scaling = _rope_scaling(header)
    if scaling not in _ROPE_SCALINGS:
        return f"rope scaling {scaling} is not among {', '.join(_ROPE_SCALINGS)}"
    return _unsupported_tensor(header) or _unsupported_tokenizer(header)


def network_parameters(header: GgufHeader) -> dict[str, Any]:
    """Return the shape of the network, in the keys of the core.

    For a header without an `unsupported_reason`. Raises ModelFileError naming the key or tensor
    whose value no network can have.
    """
    keys = _Keys(header)
    hidden_size = keys.whole("embedding_length", most=_MOST_VALUES)
    num_heads = keys.whole("attention.head_count", most=_MOST_HEADS)
    num_kv_heads = keys.whole("attention.head_count_kv", default=num_heads, most=_MOST_HEADS)
    if num_heads % num_kv_heads:
        keys.fail("attention.head_count_kv", f"does not divide {num_heads} heads")
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        keys.fail("attention.head_count", f"does not divide a width of {hidden_size}")
    head_size = keys.whole(
        "attention.key_length", default=hidden_size // num_heads, most=_MOST_VALUES
    )
    rope_size = keys.whole("rope.dimension_count", default=head_size, most=head_size)
    if rope_size % 2:
        keys.fail("rope.dimension_count", "is odd")
    return {
        "architecture": header.architecture,
        "num_layers": keys.whole("block_count", most=_MOST_LAYERS),
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "feed_forward_size": keys.whole("feed_forward_length", most=_MOST_VALUES),
        "vocab_size": _embedding_rows(header, hidden_size),
        "rms_epsilon": keys.real("attention.layer_norm_rms_epsilon", most=1.0),
        "rope_size": rope_size,
        "rope_style": ROPE_STYLES[header.architecture],
        **_rope_parameters(header, keys),
    }


def trained_context(header: GgufHeader) -> int:
    """Return how many tokens the model was trained to read at most."""
    return _Keys(header).whole("context_length", most=_MOST_TOKENS)


def _rope_parameters(header: GgufHeader, keys: _Keys) -> dict[str, Any]:
    # older files give the factor of linear scaling under a key of its own
    factor = "rope.scaling.factor" if keys.has("rope.scaling.factor") else "rope.scale_linear"
    return {
        "rope_base": keys.real("rope.freq_base", default=10_000.0),
        "rope_scaling": _rope_scaling(header),
        "rope_factor": keys.real(factor, default=1.0),
        "rope_original_context": keys.whole(
            "rope.scaling.original_context_length",
            default=trained_context(header),
            most=_MOST_TOKENS,
        ),
        "yarn_attention_factor": keys.real(_attention_factor_key(keys), default=1.0),
        "yarn_beta_fast": keys.real("rope.scaling.yarn_beta_fast", default=32.0),
        "yarn_beta_slow": keys.real("rope.scaling.yarn_beta_slow", default=1.0),
    }


def _attention_factor_key(keys: _Keys) -> str:
    known = ("rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor")
    return next((name for name in known if keys.has(name)), known[0])


def _rope_scaling(header: GgufHeader) -> str:
    # a factor without a type is how the first files wrote linear scaling; without one it is 1
    return header.text(f"{header.architecture}.rope.scaling.type", "linear")


def _unsupported_tensor(header: GgufHeader) -> str | None:
    for tensor in header.tensors:
        if not _TENSOR_NAMES.fullmatch(tensor.name):
            return f"tensor {tensor.name:.60} is not part of the networks it knows"
        if tensor.type_name not in FORMATS:
            return f"tensor {tensor.name} is in {tensor.type_name}, which it does not read"
    return None


def _unsupported_tokenizer(header: GgufHeader) -> str | None:
    try:
        check_tokenizer_kind(header)
    except ModelError:
        return f"its tokenizer ({tokenizer_kind(header) or 'absent'}) is not among those it knows"
    return None


def _embedding_rows(header: GgufHeader, hidden_size: int) -> int:
    shape = next((t.shape for t in header.tensors if t.name == "token_embd.weight"), None)
    if shape is None:
        raise ModelFileError(f"{header.path.name} is damaged: it has no tensor token_embd.weight")
    if len(shape) != 2 or shape[0] != hidden_size or not 0 < shape[1] <= _MOST_TOKENS:
        raise ModelFileError(
            f"{header.path.name} is damaged: token_embd.weight has the shape {list(shape)}"
        )
    return shape[1]


class _Keys:
    """Reads the architecture's own keys of a header, each within its limits."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header

    def full(self, name: str) -> str:
        """Return the key as the file writes it."""
        return f"{self._header.architecture}.{name}"

    def has(self, name: str) -> bool:
        """Return whether the file has the key."""
        return self.full(name) in self._header.metadata

    def is_set(self, name: str) -> bool:
        """Return whether the file has the key with a value other than 0 or false."""
        return bool(self._header.metadata.get(self.full(name), False))

    def whole(self, name: str, *, default: int | None = None, most: int) -> int:
        """Return a whole number from 1 to `most`; ModelFileError otherwise."""
        value = self._header.metadata.get(self.full(name), default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            self.fail(name, f"is not a whole number from 1 to {most}")
        return value

    def real(self, name: str, *, default: float | None = None, most: float = 1e12) -> float:
        """Return a number above 0 and at most `most`; ModelFileError otherwise."""
        value = self._header.metadata.get(self.full(name), default)
        # a NaN is not above 0 either
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
            return float(value)
        self.fail(name, f"is not a number above 0 and at most {most:g}")

    def fail(self, name: str, reason: str) -> NoReturn:
        """Raise ModelFileError for a key, with its value."""
        value = self._header.metadata.get(self.full(name))
        shown = "missing" if value is None else f"{value!r:.40}"
        raise ModelFileError(
            f"{self._header.path.name} is damaged: {self.full(name)} ({shown}) {reason}"
        )
