"""What a loaded model says about itself: every figure is read from the object, not the name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of one loaded model.

    `vocabulary` counts real tokens, `padded_vocabulary` the rows of the head. `step_bytes` are the
    weights that one pass reads. `memory_bytes` is an estimate: weights, the cache of all sequences,
    and the rows of logits.
    """

    backend: str
    path: Path
    description: str
    architecture: str
    parameters: int
    file_bytes: int
    weight_bytes: int
    step_bytes: int
    vocabulary: int
    padded_vocabulary: int
    trained_context: int
    context_size: int
    threads: int
    memory_bytes: int
    library: str
    metadata: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the facts in the form of the JSON output."""
        return {
            "backend": self.backend,
            "path": str(self.path),
            "description": self.description,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "vocabulary": self.vocabulary,
            "bytes": self.file_bytes,
            "memory_bytes": self.memory_bytes,
            "trained_context": self.trained_context,
            "context_size": self.context_size,
            "threads": self.threads,
            "library": self.library,
        }
