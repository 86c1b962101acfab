"""A scripted model that says it came from a file, for what is kept by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pilotfish.backends.facts import ModelFacts
from pilotfish.backends.scripted import ScriptedModel, ScriptedTokenizer

VOCABULARY = 256


class FileModel(ScriptedModel):
    """A model of 256 tokens, one a byte, that reads its weights in half a second."""

    def __init__(
        self, path: Path, *, context_size: int = 512, max_sessions: int = 64, **facts: Any
    ) -> None:
        super().__init__(
            lambda prefix: [1.0] * VOCABULARY,
            vocab_size=VOCABULARY,
            context_size=context_size,
            max_sessions=max_sessions,
        )
        values: dict[str, Any] = dict.fromkeys(
            ("parameters", "file_bytes", "weight_bytes", "vocabulary", "padded_vocabulary"), 1
        )
        values |= {"trained_context": 512, "context_size": context_size, "memory_bytes": 1}
        values |= {"description": "", "architecture": "llama", "metadata": {}, "step_bytes": 1000}
        values |= {"backend": "llama", "library": "version 1", "threads": 2, "path": path}
        self.facts = ModelFacts(**(values | facts))
        self.tokenizer = ScriptedTokenizer([bytes([i]) for i in range(VOCABULARY)])
        self.readings = 0
        self.closed = False

    def read_weights(self) -> tuple[float, int]:
        """Return seconds and bytes, and count the call."""
        self.readings += 1
        return 0.5, self.facts.step_bytes

    def close(self) -> None:
        """Say that the model was closed."""
        self.closed = True
