"""The tokenizer a GGUF file describes, without the library that usually runs such files."""

from __future__ import annotations

from pilotfish.backends.gguf_tokenizer.tokenizer import (
    GgufTokenizer,
    GgufTokens,
    check_tokenizer_kind,
    tokenizer_kind,
)

__all__ = ["GgufTokenizer", "GgufTokens", "check_tokenizer_kind", "tokenizer_kind"]
