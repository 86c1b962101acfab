"""What a loaded model says about itself: every figure is read from the object, not the name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pilotfish.backends.facts import ModelFacts
from pilotfish.backends.footprint import BYTES_PER_VALUE
from pilotfish.backends.llama.library import library_version, load_library

if TYPE_CHECKING:
    from pilotfish.backends.llama.loading import LoadedFile, LoadOptions


def read_text(function: Callable[..., int], *arguments: object) -> str:
    """Return what a C function of the form f(..., buffer, size) -> length writes."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = function(*arguments, buffer, size)
        if length < size:
            return buffer.value.decode("utf-8", "replace")
        size = length + 1


def read_metadata(model: Any) -> dict[str, str]:
    """Return the file's scalar metadata as text, in the file's order."""
    library = load_library()
    key_at, value_at = (
        library.llama_model_meta_key_by_index,
        library.llama_model_meta_val_str_by_index,
    )
    count = library.llama_model_meta_count(model)
    return {read_text(key_at, model, i): read_text(value_at, model, i) for i in range(count)}


def cache_bytes_per_token(model: Any, metadata: Mapping[str, str], cache_type: str) -> int:
    """Return the bytes of keys and values that one token adds over all layers (an estimate)."""
    library = load_library()
    prefix = f"{metadata.get('general.architecture', '')}.attention"
    heads = max(1, library.llama_model_n_head(model))
    default_width = library.llama_model_n_embd(model) // heads
    widths = [
        int(metadata.get(f"{prefix}.{name}_length", default_width)) for name in ("key", "value")
    ]
    values = library.llama_model_n_head_kv(model) * sum(widths) * library.llama_model_n_layer(model)
    return int(values * BYTES_PER_VALUE[cache_type])


def read_facts(
    loaded: LoadedFile, *, vocabulary: int, options: LoadOptions, context_bytes: int
) -> ModelFacts:
    """Return the facts of a loaded model; `context_bytes` is what its context takes."""
    library, model = load_library(), loaded.model
    weight_bytes = library.llama_model_size(model)
    return ModelFacts(
        backend="llama",
        path=loaded.path,
        description=read_text(library.llama_model_desc, model),
        architecture=loaded.metadata.get("general.architecture", "unknown"),
        parameters=library.llama_model_n_params(model),
        file_bytes=loaded.path.stat().st_size,
        weight_bytes=weight_bytes,
        step_bytes=loaded.step_bytes,
        vocabulary=vocabulary,
        padded_vocabulary=loaded.padded_vocab_size,
        trained_context=library.llama_model_n_ctx_train(model),
        context_size=options.context_size,
        threads=options.threads,
        memory_bytes=weight_bytes + context_bytes,
        library=library_version(),
        metadata=loaded.metadata,
    )
