"""Tools and schemas over the API: calls are found, answered, and never half a call is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from support.api import (
    CHAT,
    TEMPLATE,
    ask,
    chat,
    knowing,
    message_of,
    parrot_engine,
    post,
    said,
    served,
    stream,
    tokenizer,
)

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}
CALL = '{"name": "weather", "arguments": {"city": "Zürich"}}'
TWO_CALLS = (
    f"<think>I need it.</think> A moment.\n<tool_call>\n{CALL}\n</tool_call>\n"
    '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served() as app:
        yield app


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 4, 7, 400])
def test_tool_calls_are_the_same_for_every_number_of_tokens_in_a_round(num_drafts: int) -> None:
    reply = [*TWO_CALLS.encode(), 257]
    engine = parrot_engine(drafter=knowing(reply, 0), num_drafts=num_drafts)
    with served(engine) as app:
        body = chat(TWO_CALLS, tools=[WEATHER])
        whole = post(app, CHAT, **body)["choices"][0]
        assert whole["finish_reason"] == "tool_calls"
        message = whole["message"]
        assert message["content"] == "<think>I need it.</think> A moment."
        assert [call["function"] for call in message["tool_calls"]] == [
            {"name": "weather", "arguments": '{"city": "Zürich"}'},
            {"name": "weather", "arguments": "{}"},
        ]
        streamed = message_of(stream(app, CHAT, **body))
        assert streamed["finish_reason"] == "tool_calls"
        assert streamed["content"] == message["content"]
        assert [call["index"] for call in streamed["tool_calls"]] == [0, 1]
        assert [c["function"] for c in streamed["tool_calls"]] == [
            call["function"] for call in message["tool_calls"]
        ]


def test_a_reply_of_calls_alone_has_no_content(app: FastAPI) -> None:
    body = chat(f"<tool_call>{CALL}</tool_call>", tools=[WEATHER], tool_choice="auto")
    message = post(app, CHAT, **body)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["id"].startswith("call_")


def test_what_looks_like_a_call_is_text_where_no_tools_are_used(app: FastAPI) -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    assert said(post(app, CHAT, **chat(text))) == text
    assert said(post(app, CHAT, **chat(text, tools=[WEATHER], tool_choice="none"))) == text
    assert message_of(stream(app, CHAT, **chat(text)))["content"] == text
    broken = "<tool_call>{broken}</tool_call>"
    choice = post(app, CHAT, **chat(broken, tools=[WEATHER]))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (broken, "stop")


@pytest.mark.parametrize("num_drafts", [0, 3, 400])
def test_one_call_at_a_time_ends_the_reply_with_the_first_whole_one(num_drafts: int) -> None:
    arguments = {"city": "</tool_call> } Zürich"}
    call = json.dumps({"name": "weather", "args": arguments}, ensure_ascii=False)
    text = f"A moment.<tool_call>{call}</tool_call>{TWO_CALLS}"
    engine = parrot_engine(drafter=knowing([*text.encode(), 257], 0), num_drafts=num_drafts)
    with served(engine) as app:
        body = chat(text, tools=[WEATHER], parallel_tool_calls=False)
        document = post(app, CHAT, **body)
        choice = document["choices"][0]
        assert choice["message"]["content"] == "A moment."
        (found,) = choice["message"]["tool_calls"]
        assert json.loads(found["function"]["arguments"]) == arguments
        assert choice["finish_reason"] == "tool_calls"
        # with the token that completes it, whatever the rounds
        num_tokens = document["usage"]["completion_tokens"]
        assert num_tokens == len(f"A moment.<tool_call>{call}".encode())
        streamed = message_of(stream(app, CHAT, **body))
        assert streamed["content"] == "A moment."
        assert [one["function"] for one in streamed["tool_calls"]] == [found["function"]]
        # what must be longer is, and the reader sees nothing of it
        longer = post(app, CHAT, **body, min_tokens=num_tokens + 9)
        assert longer["usage"]["completion_tokens"] == num_tokens + 9
        assert longer["choices"][0]["message"]["content"] == "A moment."


def test_calls_and_answers_go_back_to_the_model(app: FastAPI) -> None:
    function = {"name": "weather", "arguments": '{"city": "Zürich"}'}
    messages = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    document = post(app, CHAT, messages=messages, tools=[WEATHER], temperature=0)
    assert said(document) == "rain"
    # the template writes the arguments one by one, so they came to it as an object
    written = TEMPLATE.count("{{ name }}={{ value }}")
    assert written == 1
    with_call = document["usage"]["prompt_tokens"]
    del messages[1]["tool_calls"]
    document = post(app, CHAT, messages=messages, tools=[WEATHER], temperature=0)
    call = "<tool_call>weather(city=Zürich)</tool_call>"
    assert with_call - document["usage"]["prompt_tokens"] == len(call.encode())


def test_tools_need_a_template_that_knows_them() -> None:
    with served(parrot_engine(words=tokenizer("{{ messages[0].content }}"))) as app:
        answer = ask(app, "POST", CHAT, json=chat("hi", tools=[WEATHER]))
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools"


def test_a_schema_holds_the_reply() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["yes", "no"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    with served() as app:
        for text in ("?", '{"a": 1}', "hello"):
            body = chat(text, response_format=wanted, max_tokens=200, seed=2)
            value = json.loads(said(post(app, CHAT, **body)))
            assert value.keys() == {"a", "b"}
            assert value["b"] in ("yes", "no")
        anything = chat('{"x":[1]}', response_format={"type": "json_object"}, max_tokens=50)
        assert json.loads(said(post(app, CHAT, **anything)))["x"] == [1]


@pytest.mark.parametrize(
    "schema", [{"type": "nothing"}, {"$ref": "#/missing"}, {"type": 3}, {"not": {}}, False]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_used_is_told_before_anything_is_sent(
    app: FastAPI, schema: dict[str, Any], stream: bool
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = ask(app, "POST", CHAT, json=chat("x", response_format=wanted, stream=stream))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format"
