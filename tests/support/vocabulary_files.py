"""Vocabularies without weights, what llama.cpp makes of them, and text that is hard to cut.

write_vocabulary(path, model="gpt2", texts=[...], merges=[...], pre="qwen2")
with llama_tokenizer(path) as tokenizer: ...     llama.cpp's tokenizer of such a file
byte_pair_vocabulary(mixed_text(1, 4000))        tokens and merges in which every cut shows
mixed_text(seed, num_bytes)                      the same seed writes the same text
"""

from __future__ import annotations

import functools
import random
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf

from pilotfish.backends.llama.library import load_library
from pilotfish.backends.llama.loading import LoadedFile
from pilotfish.backends.llama.tokenizer import LlamaTokenizer, count_real_tokens
from support.tiny_gguf import byte_characters

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def write_vocabulary(
    path: Path,
    *,
    model: str,
    texts: Sequence[str | bytes],
    types: Sequence[int] | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    pre: str = "",
    **values: Any,
) -> Path:
    """Write a file of a vocabulary alone; `values` are further keys of `tokenizer.ggml`."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(texts))
    if types is not None:
        writer.add_token_types(list(types))
    if merges is not None:
        writer.add_token_merges(list(merges))
    if scores is not None:
        writer.add_token_scores(list(scores))
    for name, value in values.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@contextmanager
def llama_tokenizer(path: Path) -> Iterator[LlamaTokenizer]:
    """Give llama.cpp's tokenizer of a file, its weights not loaded."""
    library = load_library()
    params = library.llama_model_default_params()
    params.vocab_only = True
    model = library.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp refuses {path.name}"
    loaded = LoadedFile(path, model)
    try:
        yield LlamaTokenizer(loaded, vocab_size=count_real_tokens(loaded.vocab))
    finally:
        loaded.close()


def byte_pair_vocabulary(text: str, num_merges: int = 250) -> tuple[list[str], list[str]]:
    """Return tokens and merges of the pairs a text has most, across all borders of words."""
    characters = byte_characters()
    symbols = [characters[byte] for byte in text.encode()]
    tokens, merges = list(characters), []
    while len(merges) < num_merges:
        (left, right), _ = Counter(pairwise(symbols)).most_common(1)[0]
        merged: list[str] = []
        for symbol in symbols:
            if merged and merged[-1] == left and symbol == right:
                merged[-1] = left + right
            else:
                merged.append(symbol)
        symbols = merged
        merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
    return tokens, merges


_POOLS = (
    "abcdefgXYZ 'stREllveD", "'s 'S 'll 'RE ", "0123456789", "٣४²Ⅷ½", "   \t", "\n\r\n \r",
    "\u00a0\u2003\u3000\u0085", "àéñüßœŁΩЖя", "日本語のテキスト漢字한국어", "العربية فارسی",
    "हिन्दी বাংলা ไทย", "🐟👍🏽👩\u200d👩\u200d👧🇨🇿", "\u0301\u0308\u200d\ufeff\u200b",
    "\0\x01\x04\x1c\x7f",
    "!?.,;:/|-_$+=~^`#&*", "<|>[](){}", "。\uff0c\uff01\uff1f「」…\u2018\u2019", "\u017f\u212aµªǅ",
)  # fmt: skip


def mixed_text(seed: int, num_bytes: int, *, whole: Sequence[str] = ("<|im_start|>",)) -> str:
    """Return at least `num_bytes` of text from many scripts; `whole` texts appear cut and uncut."""
    choose = random.Random(seed)
    pieces: list[str] = []
    while num_bytes > 0:
        if choose.random() < 0.06:
            text = choose.choice(whole)
            piece = choose.choice((text, text + text, text[:-1], text[1:], f"<|{text}|>"))
        else:
            piece = "".join(choose.choices(choose.choice(_POOLS), k=choose.randint(1, 9)))
        pieces.append(piece)
        num_bytes -= len(piece.encode())
    return "".join(pieces)


def every_character(*, step: int = 1) -> str:
    """Return every `step`-th character of Unicode 3.2: no library's table is older."""
    return _old_characters()[::step]


@functools.cache
def _old_characters() -> str:
    category = unicodedata.ucd_3_2_0.category
    characters = map(chr, range(sys.maxunicode + 1))
    return "".join(c for c in characters if category(c) not in ("Cn", "Co", "Cs"))
