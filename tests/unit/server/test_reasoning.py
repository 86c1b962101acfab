"""Reasoning in a field of its own, streamed and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from pilotfish.backends.scripted import ScriptedTokenizer
from pilotfish.server.options import ServerOptions
from support.api import (
    CHAT,
    COMPLETION,
    MODEL,
    TEMPLATE,
    ask,
    chat,
    choices_of,
    knowing,
    parrot_engine,
    post,
    said,
    served,
    stream,
    tokenizer,
)
from support.text_engines import END, START, text_engine

THINKING = TEMPLATE + "{# <think> </think> #}"
TEXT = "<think>\nLet me see.\n</think>\n\nIt is 4."


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served(parrot_engine(words=tokenizer(THINKING))) as app:
        yield app


def deltas(documents: list[dict[str, Any]], field: str) -> str:
    return "".join(choice["delta"].get(field) or "" for choice in choices_of(documents))


def message(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["choices"][0]["message"]
    return found


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (TEXT, "Let me see.", "It is 4."),
        ("It is 4.", None, "It is 4."),
        ("It <think>is</think> 4.", None, "It <think>is</think> 4."),
        ("<think>never ends", "never ends", ""),
        ("<think></think>4", None, "4"),
    ],
)
def test_reasoning_has_a_field_of_its_own(
    app: FastAPI, text: str, reasoning: str | None, content: str
) -> None:
    whole = message(post(app, CHAT, **chat(text)))
    assert (whole.get("reasoning_content"), whole["content"]) == (reasoning, content)
    documents = stream(app, CHAT, **chat(text))
    assert deltas(documents, "reasoning_content") == (reasoning or "")
    assert deltas(documents, "content") == content


def test_drafts_change_neither_part() -> None:
    reply = [*TEXT.encode(), END]
    for number in (1, 5, 40):
        engine = parrot_engine(
            words=tokenizer(THINKING), drafter=knowing(reply, 7), num_drafts=number
        )
        with served(engine) as app:
            documents = stream(app, CHAT, **chat(TEXT))
            assert deltas(documents, "reasoning_content") == "Let me see."
            assert deltas(documents, "content") == "It is 4."


def test_every_token_has_its_figures_once(app: FastAPI) -> None:
    body = chat(TEXT, logprobs=True, speculation={"report": True})
    whole = post(app, CHAT, **body)["choices"][0]["logprobs"]["content"]
    parts = choices_of(stream(app, CHAT, **body))
    streamed = [one for part in parts if part["logprobs"] for one in part["logprobs"]["content"]]
    assert streamed == whole
    tokens = [one for part in parts for one in part.get("speculation", {}).get("tokens", [])]
    assert "".join(one["text"] for one in tokens) == TEXT


@pytest.mark.parametrize("word", ["auto", "deepseek", "none", None])
def test_the_request_says_whether_it_is_split(app: FastAPI, word: str | None) -> None:
    whole = message(post(app, CHAT, **chat(TEXT, reasoning_format=word)))
    if word == "none":
        assert whole["content"] == TEXT
        assert "reasoning_content" not in whole
    else:
        assert whole["content"] == "It is 4."


def test_the_server_says_it_for_requests_that_do_not() -> None:
    options = ServerOptions(model_name=MODEL, reasoning_format="none")
    with served(parrot_engine(words=tokenizer(THINKING)), options) as app:
        assert said(post(app, CHAT, **chat(TEXT))) == TEXT
        assert said(post(app, CHAT, **chat(TEXT, reasoning_format="auto"))) == "It is 4."


def test_without_marks_in_template_and_vocabulary_nothing_is_split() -> None:
    with served() as app:
        assert said(post(app, CHAT, **chat(TEXT))) == TEXT
        assert said(post(app, COMPLETION, prompt=TEXT + "|", temperature=0, max_tokens=99)) == TEXT


def test_a_call_that_the_model_only_thinks_of_is_none(app: FastAPI) -> None:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "go")]
    text = f"<think>{call}</think>{call.replace('look', 'go')} and more"
    for fields in ({}, {"parallel_tool_calls": False}):
        body = {"temperature": 0, "tools": tools, **fields}
        body["messages"] = [{"role": "user", "content": text}]
        choice = post(app, CHAT, **body)["choices"][0]
        (made,) = choice["message"]["tool_calls"]
        assert made["function"]["name"] == "go"
        assert choice["message"]["reasoning_content"] == call


def test_marks_that_are_control_tokens_are_found() -> None:
    pieces = [*(bytes([i]) for i in range(256)), b"<|start|>", b"<|end|>", b"<think>", b"</think>"]
    words = ScriptedTokenizer(
        pieces, special=(START, END, 258, 259), end_ids=(END,), chat_template=THINKING
    )
    reply = [258, *b"hm", 259, *b"4", END]

    def logits(prefix: tuple[int, ...]) -> list[float]:
        begun = len(prefix) - prefix[::-1].index(START) + len("assistant:")
        return [30.0 * (i == reply[len(prefix) - begun]) for i in range(len(pieces))]

    with served(text_engine(logits, words=words)) as app:
        whole = message(post(app, CHAT, **chat("?")))
        assert (whole["reasoning_content"], whole["content"]) == ("hm", "4")


def test_reasoning_of_earlier_messages_is_the_templates_to_write() -> None:
    template = (
        "{% for m in messages %}<|start|>x:{{ m.reasoning_content }}<|end|>{% endfor %}"
        "<|start|>assistant:"
    )
    with served(parrot_engine(words=tokenizer(template))) as app:
        earlier = {"role": "assistant", "content": "4", "reasoning_content": "hm"}
        body = {"messages": [earlier], "continue_final_message": False, "temperature": 0}
        assert said(post(app, CHAT, **body)) == "hm"


def test_another_word_is_refused(app: FastAPI) -> None:
    answer = ask(app, "POST", CHAT, json=chat("hi", reasoning_format="x"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_format")
