"""What stands for a single token where a reader wants to see one."""

from __future__ import annotations

from pilotfish.text.tokenizer import Tokenizer


class TokenTexts:
    """The texts and bytes of single tokens of one tokenizer; control tokens by their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, token_id: int) -> tuple[str, bytes]:
        """Return what stands for a token alone, and its bytes: none for a control token. A part of
        a character is shown as U+FFFD."""
        data = self._tokenizer.token_bytes(token_id)
        if not data:
            return self._tokenizer.token_text(token_id), b""
        return data.decode("utf-8", "replace"), data
