"""What this package asks of a model's tokenizer. Backends bring the implementation."""

from __future__ import annotations

from typing import Protocol


class Tokenizer(Protocol):
    """The tokenizer of one model, with the facts about its control tokens."""

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens."""

    @property
    def bos_id(self) -> int | None:
        """Return the id of the beginning token, or None when the model has none."""

    @property
    def add_bos(self) -> bool:
        """Return whether every prompt of this model begins with the beginning token."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the ids that end a reply (end of text, of turn, of generation)."""

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Return the texts of the control tokens."""

    @property
    def fill_ids(self) -> tuple[int, int, int] | None:
        """Return the ids that mark, in a text with a gap, what comes before the gap, what comes
        after it, and what fills it; None for a model that has not all of them."""

    @property
    def chat_template(self) -> str | None:
        """Return the model's chat template (Jinja), or None when it has none."""

    @property
    def bos_text(self) -> str:
        """Return the text of the beginning token, empty when there is none."""

    @property
    def eos_text(self) -> str:
        """Return the text of the end token, empty when there is none."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the ids of `text`, never with a beginning token that the text does not contain.

        With `parse_special` the texts of control tokens become those tokens.
        """

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token, its leading space included; b"" for control tokens."""

    def token_text(self, token_id: int) -> str:
        """Return the token as the file writes it: for messages, and for tokens without bytes."""
