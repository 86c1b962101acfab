"""Tokens as the API shows them."""

from __future__ import annotations

from pilotfish.backends.scripted import ScriptedTokenizer
from pilotfish.server.tokens import CompletionLogprobs, chat_logprobs
from pilotfish.text import TokenTexts
from pilotfish.types import EmittedToken, TokenLogprobs

# a letter twice, as a token and as the byte it is, and two control tokens
TEXTS = TokenTexts(ScriptedTokenizer([b"a", b"a", b"<|x|>", b"<|y|>"], special=[2, 3]))


def emitted(*top: tuple[int, float]) -> EmittedToken:
    return EmittedToken(top[0][0], "target", TokenLogprobs(top[0][0], top[0][1], top))


def test_of_tokens_of_one_name_the_likelier_is_told() -> None:
    (top,) = CompletionLogprobs(TEXTS).add([emitted((1, -0.1), (0, -2.5), (2, -3.0))])[
        "top_logprobs"
    ]
    assert top == {"a": -0.1, "<|x|>": -3.0}


def test_tokens_without_text_go_by_their_names() -> None:
    (entry,) = chat_logprobs([emitted((3, -0.5), (2, -1.0))], TEXTS)["content"]
    assert (entry["token"], entry["bytes"]) == ("<|y|>", [])
    assert [one["token"] for one in entry["top_logprobs"]] == ["<|y|>", "<|x|>"]
