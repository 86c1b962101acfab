"""The tokens of a GGUF file, checked: their texts, what each is for, and which end a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotfish.backends.gguf_tokenizer.roles import Roles, find_roles, is_byte_text
from pilotfish.gguf import GgufArray, GgufHeader
from pilotfish.gguf.cursor import fail, shown

KEY = "tokenizer.ggml."


@dataclass(frozen=True, eq=False, slots=True)
class Vocabulary:
    """All tokens of a file, the unused ones at its end included.

    texts  by id, as the file writes them; bytes that are not UTF-8 are lone surrogates
    ids    the id of each text
    roles  what the tokens are for
    """

    texts: list[str]
    ids: dict[str, int]
    roles: Roles

    def num_real(self) -> int:
        """Return 1 + the last id that is not padding: files round up with unused ids."""
        size = len(self.texts)
        while size > 1 and size - 1 in self.roles.unused:
            size -= 1
        return size

    def special_ids(self, *, parse_special: bool) -> list[int]:
        """Return the tokens that are found in a text as a whole, in the order they are looked for.

        Those the model's maker defined always are; control tokens only with `parse_special`.
        """
        roles = self.roles
        hidden = roles.control | roles.unknown
        found = roles.user_defined | hidden if parse_special else roles.user_defined - hidden
        return sorted(found, key=lambda token_id: (-len(utf8(self.texts[token_id])), token_id))


def utf8(text: str) -> bytes:
    """Return the bytes of a text of the file."""
    return text.encode("utf-8", "surrogateescape")


def read_vocabulary(header: GgufHeader) -> Vocabulary:
    """Return the vocabulary of a file; ModelFileError says what is wrong with a bad one."""
    # llama.cpp gives tokens without text this name, so that texts stay distinct
    texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(read_strings(header, "tokens"))]
    if not texts:
        fail(header.path, "is damaged: its vocabulary is empty")
    ids = {text: token_id for token_id, text in enumerate(texts)}
    if len(ids) != len(texts):
        twice = next(text for token_id, text in enumerate(texts) if ids[text] != token_id)
        fail(header.path, f"is damaged: it has token {shown(twice)} twice")
    types = read_numbers(header, "token_type", len(texts), kinds="iu")
    roles = find_roles(header, texts, ids, types)
    for token_id in roles.byte:
        if not is_byte_text(texts[token_id]):
            fail(header.path, f"is damaged: byte token {token_id} is {shown(texts[token_id])}")
    return Vocabulary(texts, ids, roles)


def read_strings(header: GgufHeader, name: str) -> list[str]:
    """Return the array of strings `tokenizer.ggml.<name>`; ModelFileError where there is none."""
    value = _read_array(header, name)
    if not isinstance(value, list):
        fail(header.path, f"is damaged: it has no list of strings {KEY}{name}")
    return value


def read_numbers(header: GgufHeader, name: str, size: int, *, kinds: str) -> NDArray[Any] | None:
    """Return the first `size` numbers of `tokenizer.ggml.<name>`, or None where it is absent.

    kinds  the kinds of number types allowed, as NumPy names them ("iu" integers, "f" floats)
    """
    value = _read_array(header, name)
    if value is None:
        return None
    if isinstance(value, list) or value.dtype.kind not in kinds:
        fail(header.path, f"is damaged: {KEY}{name} holds values of another type")
    if len(value) < size:
        fail(header.path, f"is damaged: {len(value):,} values of {KEY}{name} for {size:,} tokens")
    return value[:size]


def _read_array(header: GgufHeader, name: str) -> list[str] | NDArray[np.generic] | None:
    value = header.metadata.get(KEY + name)
    if value is None:
        return None
    if not isinstance(value, GgufArray):
        fail(header.path, f"is damaged: {KEY}{name} is not an array")
    return header.array(KEY + name)
