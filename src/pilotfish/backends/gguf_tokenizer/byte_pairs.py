"""Byte-level tokens: every byte is written as one character, and pairs are merged by rank."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from pilotfish.backends.gguf_tokenizer.pretokenizers import PreTokenizer
from pilotfish.backends.gguf_tokenizer.vocabulary import Vocabulary, read_strings, utf8
from pilotfish.gguf import GgufHeader
from pilotfish.gguf.cursor import fail, shown


def _byte_characters() -> list[str]:
    """Return the character that stands for each byte 0..255: itself where it can be seen."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(0x100)
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}


def byte_pair_bytes(text: str) -> bytes:
    """Return the bytes an ordinary token stands for."""
    try:
        return bytes([_BYTES[character] for character in text])
    except KeyError:
        # not written in bytes: a text added as it is
        return utf8(text)


def byte_pair_encoder(
    header: GgufHeader, vocabulary: Vocabulary, cuts: PreTokenizer
) -> Callable[[str], list[int]]:
    """Return a function from text to ids; ModelFileError when the merges do not fit the tokens."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    merges = _read_merges(header)
    ids, missing = _encodable(vocabulary)
    try:
        model = models.BPE(
            vocab=ids,
            merges=merges,
            unk_token=missing,
            fuse_unk=False,
            ignore_merges=cuts.ignore_merges,
        )
    except Exception as error:  # the library raises nothing more special
        reason = shown(str(error).rpartition(": ")[2])
        fail(header.path, f"is damaged: its merges do not fit its tokens ({reason})")
    tokenizer = Tokenizer(model)
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cuts.patterns]
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytewise])
    missing_id = None if missing is None else ids[missing]

    def encode(text: str) -> list[int]:
        # unlike `encode` this lets other threads run: a long prompt must not hold up a server
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        found: list[int] = encoding.ids
        # bytes without a token are left out, as llama.cpp does
        return found if missing_id is None else [i for i in found if i != missing_id]

    return encode


def _encodable(vocabulary: Vocabulary) -> tuple[dict[str, int], str | None]:
    """Return the tokens that text can become, and the stand-in for bytes that have none, or None.

    Without the stand-in the neighbours of such a byte could merge across the gap.
    """
    ids = vocabulary.ids
    try:
        "".join(vocabulary.texts).encode()
    except UnicodeEncodeError:
        ids = {text: i for text, i in ids.items() if utf8(text).decode("utf-8", "ignore") == text}
    if all(character in ids for character in _CHARACTERS):
        return ids, None
    # blanks have characters of their own, so no text can spell this
    missing = next(" " * length for length in count(1) if " " * length not in ids)
    return {**ids, missing: len(vocabulary.texts)}, missing


def _read_merges(header: GgufHeader) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    # of a pair that occurs twice the first counts
    for text in dict.fromkeys(read_strings(header, "merges")):
        left, _, right = text.partition(" ")
        if not left or not right:
            fail(header.path, f"is damaged: {shown(text)} is no merge of two tokens")
        merges.append((left, right))
    return merges
