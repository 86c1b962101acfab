"""A tiny vocabulary of pieces of JSON, in which most texts can be cut in several ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pilotfish.backends.scripted import ScriptedTokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["red", "blue"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
START, END, OTHER_END = 0, 1, 2
PIECES = [
    *(b"<|start|>", b"<|end|>", b"<|stop|>"),
    *(bytes([byte]) for byte in b'{}[]":, -0123456789abderlu'),
    *(
        b'{"',
        b'":',
        b'"}',
        b'{"a":',
        b',"b":',
        b'"red',
        b'red"',
        b"blue",
        b'"blue"}',
        b"12",
        b"345",
    ),
]
CLOSING = PIECES.index(b"]")


def json_tokenizer() -> ScriptedTokenizer:
    """Return the tokenizer: two tokens end a reply, a third is a control token as well."""
    return ScriptedTokenizer(PIECES, special=(START, END, OTHER_END), end_ids=(END, OTHER_END))


def text_of(token_ids: Sequence[int]) -> str:
    """Return the text of a reply."""
    tokenizer = json_tokenizer()
    return b"".join(tokenizer.token_bytes(token) for token in token_ids).decode()


def is_valid(text: str) -> bool:
    """Return whether a text is what `SCHEMA` asks for."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.keys() == {"a", "b"}
        and isinstance(value["a"], int)
        and value["b"] in ("red", "blue")
    )
