"""What a stream says while its prompt is read: comments, and how far it is if that is asked for."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from pilotfish.backends.scripted import ScriptedModel
from pilotfish.server.options import ServerOptions
from pilotfish.types import FloatArray
from support.api import (
    CHAT,
    COMPLETION,
    MODEL,
    VOCAB,
    LiveServer,
    ask,
    chat,
    message_of,
    parrot,
    parrot_engine,
    said,
    served,
    stream,
    tokenizer,
)
from support.services import serving_engine
from support.text_engines import text_engine

# longer than one pass over a prompt
LONG = "read all of this, please; " * 40


@pytest.fixture
def app() -> Iterator[FastAPI]:
    with served(parrot_engine(context_size=8000)) as app:
        yield app


def progress(documents: list[dict[str, Any]], index: int = 0) -> list[dict[str, int]]:
    """Return what was told of the prompt of a choice."""
    return [
        one["prompt_progress"]
        for one in documents
        if "prompt_progress" in one and one["choices"][0]["index"] == index
    ]


def test_a_stream_says_how_far_its_prompt_is_read(app: FastAPI) -> None:
    body = chat(LONG, return_progress=True, stream_options={"include_usage": True})
    documents = stream(app, CHAT, **body)
    told = progress(documents)
    num_tokens = documents[-1]["usage"]["prompt_tokens"]
    numbers = [one["processed"] for one in told]
    assert len(numbers) > 2
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == num_tokens
    assert {(one["total"], one["cache"]) for one in told} == {(num_tokens, 0)}
    assert all(one["time_ms"] >= 0 for one in told)
    # all of it before the first word, and nothing is lost by it
    kinds = ["prompt_progress" in one for one in documents]
    assert kinds[1 : 1 + len(told)] == [True] * len(told)
    assert not any(kinds[1 + len(told) :])
    assert message_of(documents)["content"] == LONG


@pytest.mark.parametrize("fields", [{}, {"return_progress": False}, {"return_progress": None}])
def test_nothing_is_said_of_prompts_unasked(app: FastAPI, fields: dict[str, Any]) -> None:
    assert progress(stream(app, CHAT, **chat(LONG, **fields))) == []


def test_each_choice_of_each_prompt_has_its_own_progress(app: FastAPI) -> None:
    prompts = [f"{LONG}{name}|" for name in "ab"]
    body = {"prompt": prompts, "n": 2, "max_tokens": 2, "temperature": 0, "return_progress": True}
    documents = stream(app, COMPLETION, **body)
    for index in range(4):
        told = progress(documents, index)
        assert told[-1]["processed"] == told[-1]["total"] == len(prompts[0])
    assert all(one["choices"][0]["text"] == "" for one in documents if "prompt_progress" in one)


def test_what_was_read_before_counts_as_cached_and_as_read() -> None:
    model = ScriptedModel(parrot, vocab_size=VOCAB, context_size=8000)
    with served(serving_engine(model, tokenizer=tokenizer(), kept=2)) as app:
        body = chat(LONG, return_progress=True, stream_options={"include_usage": True})
        stream(app, CHAT, **body)
        documents = stream(app, CHAT, **body)
        told = progress(documents)
        cached = documents[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        assert all(one["cache"] == cached <= one["processed"] for one in told)


def test_a_whole_reply_has_no_progress_and_says_that_it_was_asked_in_vain(app: FastAPI) -> None:
    answer = ask(app, "POST", CHAT, json=chat("hi", return_progress=True))
    assert answer.status_code == 200
    assert "return_progress" in " ".join(answer.headers.values())
    assert "prompt_progress" not in answer.json()


class Held:
    """A server whose model waits to be let go."""

    def __init__(self, *, ping_seconds: float) -> None:
        self.let_go = threading.Event()

        def logits(prefix: tuple[int, ...]) -> FloatArray:
            assert self.let_go.wait(30)
            return parrot(prefix)

        options = ServerOptions(model_name=MODEL, ping_seconds=ping_seconds)
        self.server = LiveServer(text_engine(logits, words=tokenizer()), options)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held(ping_seconds=0.01)
    yield held
    held.let_go.set()
    held.server.close()


def test_a_silent_stream_sends_comments_until_the_reply_comes(held: Held) -> None:
    body = chat("hello", stream=True)
    lines: list[str] = []
    with httpx.stream("POST", held.server.url + CHAT, json=body, timeout=30) as response:
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(": ping") == 3:
                held.let_go.set()
    assert lines.count(": ping") >= 3
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert message_of([json.loads(one) for one in data[:-1]])["content"] == "hello"
    # each is an event of its own: nothing is glued to it
    assert all(after == "" for before, after in itertools.pairwise(lines) if before)


def test_the_official_client_passes_over_comments(held: Held) -> None:
    with openai.OpenAI(base_url=f"{held.server.url}/v1", api_key="any") as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        chunks = client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, stream=True
        )
        text = ""
        for chunk in chunks:
            held.let_go.set()
            text += chunk.choices[0].delta.content or ""
    assert text == "hello"


def test_a_stream_that_holds_back_what_it_has_is_silent_too() -> None:
    """Hold a stop text back, which is never completed: pieces come often, and nothing is sent."""

    def slow(prefix: tuple[int, ...]) -> FloatArray:
        time.sleep(0.005)
        return parrot(prefix)

    options = ServerOptions(model_name=MODEL, ping_seconds=0.05)
    with served(text_engine(slow, words=tokenizer()), options) as app:
        answer = ask(app, "POST", CHAT, json=chat("a" * 50, stop=["a" * 60], stream=True))
    before, _, _ = answer.text.partition('"content":"a')
    assert before.count(": ping\n\n") >= 2


def test_streams_may_be_silent_for_ever() -> None:
    with served(options=ServerOptions(model_name=MODEL, ping_seconds=0)) as app:
        assert said_in(ask(app, "POST", CHAT, json=chat("hi", stream=True))) == "hi"
        assert said(ask(app, "POST", CHAT, json=chat("hi")).json()) == "hi"


def said_in(answer: httpx.Response) -> str:
    """Return the text of a stream in which there is nothing but data."""
    *data, last, rest = answer.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    message: str = message_of([json.loads(one.removeprefix("data: ")) for one in data])["content"]
    return message
