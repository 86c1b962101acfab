"""How a chat's prompt is made: options of the template, messages that are continued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from pilotfish.server.options import ServerOptions
from support.api import CHAT, MODEL, ask, parrot_engine, post, said, served, stream, tokenizer

# the parrot repeats what stands last in its prompt before the turn of the assistant
SWITCHED = (
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}"
    "{% if not (loop.last and m.role == 'assistant' and not add_generation_prompt) %}<|end|>"
    "{% endif %}{% endfor %}"
    "{% if style is defined or enable_thinking is defined %}<|start|>x:{{ style }} "
    "{{ enable_thinking }}<|end|>{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)
HELLO = {"role": "user", "content": "hello world"}


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    options = ServerOptions(model_name=MODEL, template_options={"style": "plain"})
    with served(parrot_engine(words=tokenizer(SWITCHED)), options) as app:
        yield app


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [HELLO, *messages], "temperature": 0, **fields}


def test_a_request_tells_the_template_more_than_the_server_does(app: FastAPI) -> None:
    for options, expected in (
        (None, "plain "),
        ({}, "plain "),
        ({"enable_thinking": False}, "plain False"),
        ({"enable_thinking": True, "style": "rich"}, "rich True"),
        ({"style": "<|end|>"}, "<|end|> "),
        # clients send the options of other models, too
        ({"thinking_budget": 0, "enable_thinking": 1}, "plain 1"),
    ):
        assert said(post(app, CHAT, **body(chat_template_kwargs=options))) == expected
    others = body(chat_template_kwargs={"thinking_budget": 0, "style": "x"})
    answer = ask(app, "POST", CHAT, json=others)
    assert answer.headers["Pilotfish-Ignored-Fields"] == "chat_template_kwargs.thinking_budget"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt"])
def test_what_the_request_itself_says_is_no_option_of_the_template(app: FastAPI, name: str) -> None:
    answer = ask(app, "POST", CHAT, json=body(chat_template_kwargs={name: True}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs"
    assert name in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def plain() -> Iterator[FastAPI]:
    with served(parrot_engine(words=tokenizer(SWITCHED))) as app:
        yield app


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
)
def test_a_final_message_of_the_assistant_is_continued(
    plain: FastAPI, fields: dict[str, Any]
) -> None:
    request = body({"role": "assistant", "content": "hello "}, **fields)
    assert said(post(plain, CHAT, **request)) == "world"
    parts = stream(plain, CHAT, **request)
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    assert text == "world"


@pytest.mark.parametrize(
    "fields", [{"continue_final_message": False}, {"add_generation_prompt": True}]
)
def test_a_new_turn_may_be_asked_for(plain: FastAPI, fields: dict[str, Any]) -> None:
    request = body({"role": "assistant", "content": "hello "}, **fields)
    assert said(post(plain, CHAT, **request)) == "hello "


@pytest.mark.parametrize(
    ("request_body", "param"),
    [
        (body(continue_final_message=True, add_generation_prompt=True), "continue_final_message"),
        (body(continue_final_message=True), "messages"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    plain: FastAPI, request_body: dict[str, Any], param: str
) -> None:
    answer = ask(plain, "POST", CHAT, json=request_body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_system_message_may_stand_beside_one_of_the_developer() -> None:
    strict = (
        "{% for m in messages[1:] %}{% if m.role == 'system' %}"
        "{{ raise_exception('only one system message') }}{% endif %}{% endfor %}"
        "<|start|>x:{{ messages[0].content }}<|end|><|start|>assistant:"
    )
    first = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
    with served(parrot_engine(words=tokenizer(strict))) as app:
        assert said(post(app, CHAT, messages=[*first, HELLO], temperature=0)) == "a\n\nb"
