"""A model's tokens as llguidance wants them."""

from __future__ import annotations

from typing import Any

from pilotfish.errors import ConfigError
from pilotfish.grammar.library import load_library
from pilotfish.text import Tokenizer

# some tokenizers put a blank before a text, or cut its beginning otherwise: another may help
_BEGINNINGS = ("", "\n")


def make_vocabulary(tokenizer: Tokenizer) -> Any:
    """Return llguidance's tokenizer for ours, which takes half a second for 150,000 tokens.

    Raises MissingExtra, or ConfigError where no token ends a reply.
    """
    library = load_library()
    if not tokenizer.end_ids:
        raise ConfigError("json_schema needs a model with a token that ends replies")
    return library.LLTokenizer(
        library.TokenizerWrapper(_Tokens(tokenizer)),
        eos_token=sorted(tokenizer.end_ids),
        slices=library.LLTokenizer.json_slices(),
    )


class _Tokens:
    """The facts llguidance asks of a tokenizer. Control tokens have no bytes, so that they are
    never part of a text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        end_ids = tokenizer.end_ids
        self._tokenizer = tokenizer
        self.eos_token_id = min(end_ids)
        self.bos_token_id = None
        self.special_token_ids: list[int] = []
        self.tokens = [
            b"" if token in end_ids else tokenizer.token_bytes(token)
            for token in range(tokenizer.vocab_size)
        ]

    def __call__(self, data: bytes) -> list[int]:
        """Return the tokens of a text as the model would cut it; none where it cannot.

        Called from foreign code: whatever it raises would end the reply.
        """
        text = data.decode("utf-8", "ignore")
        for beginning in _BEGINNINGS:
            try:
                ids = self._tokenizer.encode(beginning + text, parse_special=False)
            except Exception:
                continue
            for first in range(min(4, len(ids))):
                if b"".join(self.tokens[token] for token in ids[first:]) == data:
                    return ids[first:]
        return []
