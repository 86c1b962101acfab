"""`echo` of a completion: the prompt before the reply, with its log-probabilities where asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from pilotfish.backends.scripted import ScriptedTokenizer
from pilotfish.prefixes import PrefixPool
from pilotfish.server.tokens import CompletionLogprobs, Echo
from pilotfish.text import TokenTexts
from pilotfish.types import TokenLogprobs
from support.api import (
    COMPLETION,
    ask,
    choices_of,
    knowing,
    parrot_engine,
    post,
    said,
    served,
    stream,
)
from support.text_engines import END, START


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    engine = parrot_engine(drafter=knowing([*b"ab", END]), num_drafts=3)
    engine.engine.prefixes = PrefixPool(engine.engine.target, most_sequences=2)
    with served(engine) as app:
        yield app


def whole_and_streamed(app: FastAPI, **body: Any) -> tuple[str, dict[str, Any] | None]:
    """Return text and figures of a completion, which a stream must tell, too."""
    body = {"temperature": 0, "echo": True, **body}
    document = post(app, COMPLETION, **body)
    figures = document["choices"][0]["logprobs"]
    parts = choices_of(stream(app, COMPLETION, **body))
    assert "".join(part["text"] for part in parts) == said(document)
    streamed = [part["logprobs"] for part in parts if part["logprobs"]]
    if figures is None:
        assert streamed == []
    else:
        for name, values in figures.items():
            assert [value for part in streamed for value in part[name]] == values
    return said(document), figures


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("ab|", "ab|ab"),
        ([*b"ab|"], "ab|ab"),
        ("é|", "é|é"),
        ([*"é|".encode()], "é|é"),
    ],
)
def test_the_prompt_stands_before_the_reply(app: FastAPI, prompt: object, text: str) -> None:
    assert whole_and_streamed(app, prompt=prompt) == (text, None)


def test_every_choice_repeats_its_own_prompt(app: FastAPI) -> None:
    document = post(app, COMPLETION, prompt=["ab|", "c|"], n=2, echo=True, temperature=0)
    texts = [said(document, index) for index in range(4)]
    assert texts == ["ab|ab", "ab|ab", "c|c", "c|c"]


def test_tokens_of_the_prompt_have_figures_but_the_first(app: FastAPI) -> None:
    prompt = "ab|ab"
    text, figures = whole_and_streamed(app, prompt=prompt, logprobs=2)
    assert text == prompt
    assert figures is not None
    assert figures["tokens"] == [*prompt, "<|end|>"]
    assert figures["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert figures["token_logprobs"][0] is figures["top_logprobs"][0] is None
    for token, logprob, top in list(
        zip(figures["tokens"], figures["token_logprobs"], figures["top_logprobs"], strict=True)
    )[1:]:
        assert len(top) == 2
        assert logprob <= max(top.values())
        assert top.get(token, logprob) == logprob
    # what the model says of tokens of a reply it says of the same tokens in a prompt
    reply = post(app, COMPLETION, prompt="ab|", logprobs=2, temperature=0)
    own = reply["choices"][0]["logprobs"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert figures[name][3:] == own[name]


def test_figures_without_alternatives(app: FastAPI) -> None:
    _, figures = whole_and_streamed(app, prompt="ab|", logprobs=0)
    assert figures is not None
    assert figures["top_logprobs"] == [None, *[{}] * 5]


def test_what_was_read_for_another_request_is_read_again(app: FastAPI) -> None:
    """Figures come from passes, and kept texts have none."""
    long = "ab|" * 40
    for fields in ({}, {"echo": True}, {"echo": True, "logprobs": 1}):
        document = post(app, COMPLETION, prompt=long, temperature=0, **fields)
        cached = document["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (cached == 0) == ("logprobs" in fields) or not fields
    assert len(document["choices"][0]["logprobs"]["tokens"]) > len(long)


def test_echo_and_suffix_exclude_each_other(app: FastAPI) -> None:
    answer = ask(app, "POST", COMPLETION, json={"prompt": "a", "echo": True, "suffix": "b"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")


def test_offsets_are_places_in_the_text_that_is_repeated() -> None:
    words = ScriptedTokenizer([b" a", b"b", b"\xc3", b"\xa9", b"<s>"], special=[4])
    texts = TokenTexts(words)

    def offsets(prompt: str | list[int], ids: list[int]) -> list[int]:
        logprobs = CompletionLogprobs(texts)
        echo = Echo.of(prompt, ids, texts)
        entries = [TokenLogprobs(one, -1.0, ()) for one in ids[1:]]
        found = logprobs.add_prompt(echo, entries)["text_offset"]
        return [*found, len(echo.text)]

    # a beginning token that was put before it, a blank that the tokenizer put before it
    assert offsets("abé", [4, 0, 1, 2, 3]) == [0, 0, 1, 2, 2, 3]
    assert offsets("<s> ab", [4, 0, 1]) == [0, 3, 5, 6]
    assert offsets([4, 1, 2, 3], [4, 1, 2, 3]) == [0, 3, 4, 4, 5]


def test_a_control_token_in_a_prompt_goes_by_its_name(app: FastAPI) -> None:
    text, _ = whole_and_streamed(app, prompt=[START, *b"x:ab", END, START, *b"assistant:"])
    assert text == "<|start|>x:ab<|end|><|start|>assistant:ab"
