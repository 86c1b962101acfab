"""Text to token ids and back, by the tokenizer inside the GGUF file."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pilotfish.backends.llama.library import load_library
from pilotfish.errors import BackendError

if TYPE_CHECKING:
    from pilotfish.backends.llama.loading import LoadedFile


def count_real_tokens(vocab: Any) -> int:
    """Return 1 + the last id that is not padding: files round the vocabulary up with unused ids."""
    library = load_library()
    unused = library.LLAMA_TOKEN_ATTR_UNUSED
    count: int = library.llama_vocab_n_tokens(vocab)
    while count > 1 and library.llama_vocab_get_attr(vocab, count - 1) & unused:
        count -= 1
    return count


class LlamaTokenizer:
    """The tokenizer of one loaded model; valid as long as the model is open."""

    def __init__(self, loaded: LoadedFile, *, vocab_size: int) -> None:
        self._library = load_library()
        self._vocab = loaded.vocab
        self._size = vocab_size
        self._metadata = loaded.metadata
        self._pieces: list[bytes | None] = [None] * vocab_size
        template = self._library.llama_model_chat_template(loaded.model, None)
        self._template = None if template is None else template.decode("utf-8", "replace")
        self._open = True

    def close(self) -> None:
        """Make every later call an error: the model's memory is gone."""
        self._open = False

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens."""
        return self._size

    @property
    def kind(self) -> str:
        """Return the tokenizer's kind and its pre-tokenizer, e.g. "gpt2/qwen2"."""
        parts = [self._metadata.get(f"tokenizer.ggml.{name}", "") for name in ("model", "pre")]
        return "/".join(part for part in parts if part)

    @cached_property
    def bos_id(self) -> int | None:
        """Return the id that begins a text, or None when the file has none."""
        return self._id_or_none(self._library.llama_vocab_bos(self._checked_vocab()))

    @cached_property
    def eos_id(self) -> int | None:
        """Return the id that ends a text, or None when the file has none."""
        return self._id_or_none(self._library.llama_vocab_eos(self._checked_vocab()))

    @cached_property
    def add_bos(self) -> bool:
        """Return whether the file asks for the beginning-of-text id before a prompt."""
        return bool(self._library.llama_vocab_get_add_bos(self._checked_vocab()))

    @property
    def bos_text(self) -> str:
        """Return the text of the beginning-of-text token, or an empty string."""
        return "" if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_text(self) -> str:
        """Return the text of the end-of-text token, or an empty string."""
        return "" if self.eos_id is None else self.token_text(self.eos_id)

    @cached_property
    def fill_ids(self) -> tuple[int, int, int] | None:
        """Return the ids that mark, in a text with a gap, what comes before the gap, what comes
        after it, and what fills it; None for a model that has not all of them."""
        library, vocab = self._library, self._checked_vocab()
        before, after, filling = (
            self._id_or_none(name(vocab))
            for name in (
                library.llama_vocab_fim_pre,
                library.llama_vocab_fim_suf,
                library.llama_vocab_fim_mid,
            )
        )
        if before is None or after is None or filling is None:
            return None
        return before, after, filling

    @property
    def chat_template(self) -> str | None:
        """Return the file's chat template, or None."""
        return self._template

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Return every id after which a reply ends (end of text, end of turn, ...)."""
        vocab, ends = self._checked_vocab(), self._library.llama_vocab_is_eog
        return frozenset(token_id for token_id in range(self._size) if ends(vocab, token_id))

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Return the texts that `parse_special` turns into control tokens, longest first."""
        library, vocab = self._library, self._checked_vocab()
        special = library.LLAMA_TOKEN_ATTR_CONTROL | library.LLAMA_TOKEN_ATTR_UNKNOWN
        attributes = library.llama_vocab_get_attr
        texts = {
            self.token_text(token_id)
            for token_id in range(self._size)
            if attributes(vocab, token_id) & special
        }
        return tuple(sorted(texts - {""}, key=lambda text: (-len(text), text)))

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the ids of `text`, nothing added before or after.

        With `parse_special` the texts of control tokens become those tokens; without it they are
        ordinary text. Raises BackendError when the tokenizer cannot represent the text.
        """
        vocab, raw = self._checked_vocab(), text.encode("utf-8", "surrogatepass")
        # the buffers are local: several threads may encode at once
        room = len(raw) + 8
        for _ in range(2):
            ids = (self._library.llama_token * room)()
            count: int = self._library.llama_tokenize(
                vocab, raw, len(raw), ids, room, False, parse_special
            )
            if count >= 0:
                return list(ids[:count])
            # a negative count is the room that was needed
            room = -count
        raise BackendError(f"the tokenizer failed on a text of {len(raw)} bytes")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for; control tokens stand for none."""
        self._checked_vocab(token_id)
        piece = self._pieces[token_id]
        if piece is None:
            piece = self._pieces[token_id] = self._read_piece(token_id)
        return piece

    def token_text(self, token_id: int) -> str:
        """Return the token as the file writes it: for messages, not for output."""
        vocab = self._checked_vocab(token_id)
        text: bytes = self._library.llama_vocab_get_text(vocab, token_id)
        return text.decode("utf-8", "replace")

    def token_type(self, token_id: int) -> int:
        """Return the token's attribute bits, as llama.cpp names them (LLAMA_TOKEN_ATTR_...)."""
        return int(self._library.llama_vocab_get_attr(self._checked_vocab(token_id), token_id))

    def is_control(self, token_id: int) -> bool:
        """Return whether the token steers the model and stands for no text."""
        return bool(self._library.llama_vocab_is_control(self._checked_vocab(token_id), token_id))

    def all_token_texts(self) -> list[str]:
        """Return every real token as the file writes it, by id: two models compare with `==`."""
        vocab, text_of = self._checked_vocab(), self._library.llama_vocab_get_text
        # broken UTF-8 keeps its bytes in view, so that different tokens stay different
        return [
            text_of(vocab, token_id).decode("utf-8", "backslashreplace")
            for token_id in range(self._size)
        ]

    def _read_piece(self, token_id: int) -> bytes:
        vocab, room = self._checked_vocab(token_id), 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(room)
            length: int = self._library.llama_token_to_piece(
                vocab, token_id, buffer, room, 0, False
            )
            if length >= 0:
                return buffer.raw[:length]
            room = -length
        raise BackendError(f"the tokenizer cannot write token {token_id}")

    def _id_or_none(self, token_id: int) -> int | None:
        return token_id if 0 <= token_id < self._size else None

    def _checked_vocab(self, token_id: int = 0) -> Any:
        if not self._open:
            raise BackendError("the model of this tokenizer was closed")
        # llama.cpp ends the process on an id outside its table
        if not 0 <= token_id < self._size:
            raise BackendError(f"token id {token_id} is outside the vocabulary of {self._size}")
        return self._vocab
