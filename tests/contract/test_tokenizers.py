"""What every tokenizer keeps to: bytes come back, control tokens only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pilotfish import models
from pilotfish.backends.gguf_tokenizer import GgufTokenizer
from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.scripted import ScriptedTokenizer
from pilotfish.gguf import read_header
from pilotfish.grammar import JsonGrammars
from pilotfish.text import Tokenizer
from support.tiny_gguf import write_tiny

TEXTS = {
    "plain": "The quick brown fox.",
    "blanks": "  two,\ttab,\n\n and three   ",
    "accents": "naïve café, żółć",
    "cjk": "日本語のテキスト 和中文",
    "emoji": "fish 🐟, family 👩‍👩‍👧, flag 🇨🇿",
    "code": "def f(x: int) -> int:\n\treturn x**2  # <|not|> [special] {%raw%}\n",
    "empty": "",
}


def scripted() -> ScriptedTokenizer:
    pieces = [bytes([i]) for i in range(256)]
    pieces += [b" the", b"ing", "日本".encode(), b"<|start|>", b"<|end|>"]
    return ScriptedTokenizer(pieces, special=(259, 260), end_ids=(260,), bos_id=259)


@pytest.fixture(
    scope="module",
    params=[
        "scripted",
        *(
            pytest.param((name, way), marks=marks, id=f"{name}-{way}")
            for name, marks in {
                "tiny": (),
                "padded": (),
                "smollm2-135m": pytest.mark.models,
                "qwen2.5-coder-0.5b": pytest.mark.models,
            }.items()
            for way in ("llama", "header")
        ),
    ],
)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tokenizer]:
    if request.param == "scripted":
        yield scripted()
        return
    files: dict[str, Callable[[], Path]] = {
        "tiny": lambda: write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"),
        "padded": lambda: write_tiny(tmp_path_factory.mktemp("tiny") / "pad.gguf", padding=9),
    }
    name, way = request.param
    path = files.get(name, lambda: models.resolve(name))()
    if way == "header":
        yield GgufTokenizer(read_header(path))
        return
    with LlamaModel(path, context_size=64, threads=1) as model:
        yield model.tokenizer


@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_bytes_of_the_tokens_join_to_the_text(
    tokenizer: Tokenizer, text: str, parse_special: bool
) -> None:
    ids = tokenizer.encode(text, parse_special=parse_special)
    assert all(type(token) is int and 0 <= token < tokenizer.vocab_size for token in ids)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert bool(ids) == bool(text)


def test_nothing_is_put_before_a_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a", parse_special=True) == tokenizer.encode("a", parse_special=False)
    assert tokenizer.bos_id not in tokenizer.encode("a", parse_special=True)


def test_end_tokens_are_control_tokens_without_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.end_ids
    for token in tokenizer.end_ids:
        assert 0 <= token < tokenizer.vocab_size
        assert tokenizer.token_bytes(token) == b""


def test_control_texts_become_their_tokens_only_when_asked(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_texts
    control: set[int] = set()
    for text in tokenizer.special_texts:
        ids = tokenizer.encode(text, parse_special=True)
        assert len(ids) == 1
        control |= set(ids)
    assert len(control) == len(tokenizer.special_texts)
    assert tokenizer.end_ids <= control
    for text in tokenizer.special_texts:
        spelled = tokenizer.encode(f"a{text}b", parse_special=False)
        assert not control.intersection(spelled)
        assert b"".join(map(tokenizer.token_bytes, spelled)) == f"a{text}b".encode()
        meant = tokenizer.encode(f"a{text}b", parse_special=True)
        assert len(control.intersection(meant)) == 1


def test_beginning_and_end_have_texts_where_they_have_ids(tokenizer: Tokenizer) -> None:
    if tokenizer.bos_id is None:
        assert not tokenizer.add_bos
        assert tokenizer.bos_text == ""
    else:
        assert tokenizer.encode(tokenizer.bos_text, parse_special=True) == [tokenizer.bos_id]
    (end,) = tokenizer.encode(tokenizer.eos_text, parse_special=True)
    assert end in tokenizer.end_ids


def test_a_json_schema_can_be_followed_to_its_end(tokenizer: Tokenizer) -> None:
    colours = {"type": "object", "properties": {"naïve 🐟": {"const": 7}}, "required": ["naïve 🐟"]}
    asked = (
        JsonGrammars(tokenizer).compiled({**colours, "additionalProperties": False}).constraint()
    )
    text = '{"naïve 🐟":7}'
    forced = asked.forced([])
    spelled = b"".join(map(tokenizer.token_bytes, forced))
    assert text.encode().startswith(spelled)
    assert len(spelled) > 3
    whole = tokenizer.encode(text, parse_special=False)
    assert asked.num_legal([], whole) == len(whole)
    assert set(np.flatnonzero(asked.allowed(whole)).tolist()) == tokenizer.end_ids
    silent = [t for t in range(tokenizer.vocab_size) if not tokenizer.token_bytes(t)]
    assert not asked.allowed(whole[:3])[silent].any()
