"""Open a GGUF file and a context over it, with every refusal before the first token."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilotfish import gguf
from pilotfish.backends.footprint import read_footprint
from pilotfish.backends.llama.facts import cache_bytes_per_token, read_metadata
from pilotfish.backends.llama.library import forget_errors, load_library, logged_error
from pilotfish.backends.machine import require_memory
from pilotfish.config import DEFAULT_CONTEXT
from pilotfish.errors import ConfigError, ModelError, ModelFileError

_CACHE_TYPES = ("f32", "f16", "q8_0", "q4_0")
_SCRATCH_BYTES = 64 * 2**20
_CELL_STEP = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to open a model; `spare_cells` are kept beyond `context_size` in every sequence.

    `context_size` 0 stands for the default until the file is known.
    """

    context_size: int
    max_sessions: int
    threads: int
    batch_size: int
    max_rows: int
    cache_type: str
    flash_attention: bool
    repack: bool
    shared_cells: bool
    spare_cells: int

    def __post_init__(self) -> None:
        for name in ("max_sessions", "threads", "batch_size", "max_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.context_size < 0:
            raise ConfigError(f"context_size must be 1 or more, got {self.context_size}")
        if self.cache_type not in _CACHE_TYPES:
            known = ", ".join(_CACHE_TYPES)
            raise ConfigError(f"cache_type must be one of {known}, got {self.cache_type!r}")
        if self.cache_type.startswith("q") and not self.flash_attention:
            raise ConfigError(
                f"cache_type {self.cache_type} needs flash attention",
                hint="turn flash_attention on, or use cache_type f16",
            )

    @property
    def cells_per_sequence(self) -> int:
        """Return the cells one sequence gets: llama.cpp counts them in steps of 256."""
        wanted = self.context_size + self.spare_cells
        return -(-wanted // _CELL_STEP) * _CELL_STEP


class LoadedFile:
    """A model in memory, and its scalar metadata; freed by `close`, at exit at the latest.

    `step_bytes` are the weights that one pass reads, 0 where nobody asked.
    """

    def __init__(self, path: Path, model: Any, *, step_bytes: int = 0) -> None:
        library = load_library()
        self.path = path
        self.model = model
        self.step_bytes = step_bytes
        self.vocab = library.llama_model_get_vocab(model)
        self.padded_vocab_size: int = library.llama_vocab_n_tokens(self.vocab)
        self._finalizer = weakref.finalize(self, library.llama_model_free, model)
        self.metadata: Mapping[str, str] = read_metadata(model)

    def close(self) -> None:
        """Free the model; closing twice does nothing."""
        self._finalizer()


def load_file(path: Path, *, repack: bool) -> LoadedFile:
    """Load a model file.

    Raises ModelFileError for a file that is not a usable GGUF, NotEnoughMemory when the weights do
    not fit, and ModelError for a model that cannot continue a text token by token.
    """
    header = gguf.check_file(path)
    require_memory(path.name, path.stat().st_size + _SCRATCH_BYTES)
    library = load_library()
    params = library.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = repack
    forget_errors()
    model = library.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ModelFileError(
            f"llama.cpp cannot load {path.name}: {logged_error() or 'no reason given'}",
            hint="the architecture may be newer than the installed llama-cpp-python",
        )
    loaded = LoadedFile(path, model, step_bytes=read_footprint(header).step_bytes)
    try:
        _refuse_other_kinds(loaded)
    except ModelError:
        loaded.close()
        raise
    return loaded


def with_context_size(loaded: LoadedFile, options: LoadOptions) -> LoadOptions:
    """Return options with a context size: as wanted, else as trained, at most 4096 tokens."""
    if options.context_size:
        return options
    trained = load_library().llama_model_n_ctx_train(loaded.model)
    return replace(options, context_size=min(trained, DEFAULT_CONTEXT))


def context_bytes(loaded: LoadedFile, options: LoadOptions) -> int:
    """Return what the caches and the rows of logits of one context take (an estimate)."""
    per_token = cache_bytes_per_token(loaded.model, loaded.metadata, options.cache_type)
    caches = per_token * options.cells_per_sequence * options.max_sessions
    # the rows exist twice: in the graph and in the output buffer
    return caches + 2 * 4 * loaded.padded_vocab_size * options.max_rows + _SCRATCH_BYTES


def open_context(loaded: LoadedFile, options: LoadOptions) -> Any:
    """Return a llama.cpp context; raises NotEnoughMemory or ModelError. The caller frees it."""
    require_memory(loaded.path.name, context_bytes(loaded, options))
    library = load_library()
    params = library.llama_context_default_params()
    params.n_ctx = options.cells_per_sequence * options.max_sessions
    # llama.cpp reserves a row for each sequence and ends the process when the batch is smaller
    params.n_batch = params.n_ubatch = max(options.batch_size, options.max_sessions)
    params.n_seq_max = options.max_sessions
    params.n_threads = params.n_threads_batch = options.threads
    enabled, disabled = (
        library.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        library.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    )
    params.flash_attn_type = enabled if options.flash_attention else disabled
    params.type_k = params.type_v = getattr(library, f"GGML_TYPE_{options.cache_type.upper()}")
    # a cache that keeps only the sliding window cannot take back what left it
    params.swa_full = True
    params.kv_unified = options.shared_cells
    params.no_perf = True
    forget_errors()
    context = library.llama_init_from_model(loaded.model, params)
    if not context:
        reason = logged_error() or "no reason given"
        raise ModelError(f"llama.cpp cannot run {loaded.path.name}: {reason}")
    if not library.llama_get_memory(context):
        library.llama_free(context)
        raise ModelError(f"{loaded.path.name} keeps no cache: it is not a model that writes text")
    return context


def _refuse_other_kinds(loaded: LoadedFile) -> None:
    library, name = load_library(), loaded.path.name
    architecture = loaded.metadata.get("general.architecture", "unknown")
    has_encoder = library.llama_model_has_encoder(loaded.model)
    if has_encoder or not library.llama_model_has_decoder(loaded.model):
        raise ModelError(f"{name} ({architecture}) is not a decoder-only model")
    causal = loaded.metadata.get(f"{architecture}.attention.causal", "true")
    if library.llama_model_is_diffusion(loaded.model) or causal == "false":
        raise ModelError(f"{name} ({architecture}) does not write text from left to right")
