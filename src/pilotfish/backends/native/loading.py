"""Open a file in the core, with every refusal before the first token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pilotfish.backends.footprint import read_footprint
from pilotfish.backends.machine import require_memory
from pilotfish.backends.native.description import (
    network_parameters,
    trained_context,
    unsupported_reason,
)
from pilotfish.backends.native.library import load_library
from pilotfish.config import DEFAULT_CONTEXT
from pilotfish.errors import ConfigError, ModelError, ModelFileError, NotEnoughMemory
from pilotfish.gguf import GgufHeader

if TYPE_CHECKING:
    from pilotfish_native import Model

CACHE_TYPES = ("f16", "f32")
MAX_WIDTH = 64
_SCRATCH_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to open a model; `head_size` and `requantize` are for drafts.

    `most_cached_tokens` is what all sequences together hold at most; 0: all their contexts, full.
    """

    context_size: int
    max_sessions: int
    threads: int
    cache_type: str
    instructions: str
    head_size: int
    requantize: bool
    most_cached_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("context_size", "max_sessions", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.head_size < 0:
            raise ConfigError(f"head_size must be 0 (whole) or more, got {self.head_size}")
        if self.cache_type not in CACHE_TYPES:
            known = ", ".join(CACHE_TYPES)
            raise ConfigError(
                f"cache_type of the native backend must be one of {known}, got {self.cache_type!r}",
                hint="other types need --backend llama",
            )
        instructions = ("auto", *load_library().processor()["available"])
        if self.instructions not in instructions:
            raise ConfigError(
                f"instructions must be one of {', '.join(instructions)}, got {self.instructions!r}"
            )


def require_supported(header: GgufHeader) -> None:
    """Raise ModelError when the core does not run the model."""
    reason = unsupported_reason(header)
    if reason is not None:
        raise ModelError(
            f"{header.path.name} does not run on the native backend: {reason}",
            hint="use --backend llama",
        )


def default_context(header: GgufHeader) -> int:
    """Return the context a model gets unless told otherwise: as trained, at most 4096 tokens."""
    return min(trained_context(header), DEFAULT_CONTEXT)


def needed_bytes(header: GgufHeader, options: LoadOptions, *, weight_bytes: int = 0) -> int:
    """Return what a model takes in memory: weights, the caches of all sequences, rows of logits.

    `weight_bytes` is what its weights take; 0: an estimate from the header.
    """
    print_of = read_footprint(
        header,
        cache_type=options.cache_type,
        head_rows=options.head_size,
        requantize=options.requantize,
    )
    cached_tokens = options.context_size * options.max_sessions
    if options.most_cached_tokens:
        cached_tokens = min(cached_tokens, options.most_cached_tokens)
    caches = print_of.cache_bytes_per_token * cached_tokens
    rows = 4 * header.vocabulary_size * MAX_WIDTH
    return (weight_bytes or print_of.weight_bytes) + caches + rows + _SCRATCH_BYTES


def open_core(
    header: GgufHeader,
    options: LoadOptions,
    *,
    vocab_size: int,
    head_ids: NDArray[np.int32] | None,
) -> Model:
    """Return the model in memory; raises ModelFileError or NotEnoughMemory.

    vocab_size  real tokens, which must have rows in the embedding
    head_ids    int32 [n] the rows of the head to keep; None: all
    """
    name = header.path.name
    parameters = network_parameters(header)
    if parameters["vocab_size"] < vocab_size:
        raise ModelFileError(
            f"{name} is damaged: {vocab_size} tokens, {parameters['vocab_size']} embeddings"
        )
    require_memory(name, needed_bytes(header, options))
    try:
        core: Model = load_library().Model(
            [str(path) for path in header.paths],
            [(t.name, t.shape, t.type_id, t.offset, t.num_bytes, t.part) for t in header.tensors],
            parameters,
            **_core_options(options, head_ids),
        )
    except (ValueError, OSError) as error:
        raise ModelFileError(f"{name} cannot be loaded: {error}") from error
    except MemoryError as error:
        raise NotEnoughMemory(f"{name} does not fit into memory") from error
    return core


def _core_options(options: LoadOptions, head_ids: NDArray[np.int32] | None) -> dict[str, Any]:
    return {
        "threads": options.threads,
        "instructions": options.instructions,
        "cache_type": options.cache_type,
        "head_ids": head_ids,
        "requantize": options.requantize,
    }
