"""What asks for nothing is ignored and named; what would change the reply is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pytest
from fastapi import FastAPI

from pilotfish.server.ignored import (
    HEADER,
    IN_CHATS,
    IN_COMPLETIONS,
    IN_MESSAGES,
    OF_PARTS,
    OF_REQUESTS,
    Unsupported,
)
from support.api import CHAT, COMPLETION, ask, chat, parrot_engine, said, served

COMPLETE = {"prompt": "hi|", "temperature": 0}


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served(parrot_engine()) as app:
        yield app


def batched(items: Iterable[Any], number: int) -> Iterator[Sequence[Any]]:
    rest = iter(items)
    while some := list(islice(rest, number)):
        yield some


def ignored(app: FastAPI, path: str, body: Mapping[str, Any], reply: str = "hi") -> list[str]:
    """Return the fields a request's answer names as ignored; the reply must be this one."""
    answer = ask(app, "POST", path, json=dict(body))
    assert answer.status_code == 200, answer.text
    assert said(answer.json()) == reply
    return answer.headers.get(HEADER, "").split(", ")


def refused(app: FastAPI, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answer = ask(app, "POST", path, json=dict(body))
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])


def test_a_request_of_which_nothing_is_ignored_has_no_header(app: FastAPI) -> None:
    assert ignored(app, CHAT, chat("hi")) == [""]
    assert ignored(app, COMPLETION, COMPLETE) == [""]


@pytest.mark.parametrize("value", [None, True, "text", {"a": {"b": 1}}, ["x"]], ids=str)
def test_fields_that_change_no_reply_are_ignored_whatever_they_say(
    app: FastAPI, value: object
) -> None:
    fields = dict.fromkeys(OF_REQUESTS[:20], value)
    assert ignored(app, CHAT, chat("hi", **fields)) == list(fields)
    fields = dict.fromkeys(OF_REQUESTS[-20:], value)
    assert ignored(app, COMPLETION, {**COMPLETE, **fields}) == list(fields)


@pytest.mark.parametrize(("path", "table"), [(CHAT, IN_CHATS), (COMPLETION, IN_COMPLETIONS)])
def test_what_is_not_supported_is_ignored_where_its_value_asks_for_nothing(
    app: FastAPI, path: str, table: Mapping[str, Unsupported]
) -> None:
    body = chat("hi") if path == CHAT else COMPLETE
    neutral = [dict.fromkeys(table, value) for value in (None, "", [], {})]
    for place in range(max(len(field.neutral) for field in table.values())):
        neutral.append(
            {name: field.neutral[place] for name, field in table.items() if field.neutral[place:]}
        )
    for fields in neutral:
        for some in batched(fields.items(), 20):
            assert ignored(app, path, {**body, **dict(some)}) == [name for name, _ in some]
    for name, field in table.items():
        error = refused(app, path, {**body, name: "something"})
        assert error["message"] == f"{name} is not supported ({field.instead})"
        assert (error["param"], error["code"]) == (name, "unsupported_field")


def test_true_is_not_one_and_false_is_not_zero(app: FastAPI) -> None:
    assert ignored(app, CHAT, chat("hi", repeat_penalty=1.0)) == ["repeat_penalty"]
    for field in ({"repeat_penalty": True}, {"mirostat": False}, {"ignore_eos": 0}):
        refused(app, CHAT, chat("hi", **field))


def test_null_asks_for_nothing_whatever_the_name(app: FastAPI) -> None:
    assert ignored(app, CHAT, chat("hi", brightness=None)) == ["brightness"]
    message = {"role": "user", "content": "hi", "tool_calls": None, "colour": None}
    body = {"messages": [message], "temperature": 0, "stream_options": {"x": None}, "stream": None}
    wanted = ["messages.tool_calls", "messages.colour", "stream_options.x", "stream_options"]
    assert sorted(ignored(app, CHAT, body)) == sorted(wanted)
    assert refused(app, CHAT, chat("hi", brightness=0))["code"] == "unknown_field"


def test_what_clients_note_down_in_messages_is_ignored(app: FastAPI) -> None:
    notes = {name: {"type": "ephemeral"} for name in OF_PARTS[:10]}
    call = {"id": "1", "index": 0, "function": {"name": "f", "arguments": "{}"}}
    call["function"] |= {"parsed_arguments": {}}  # type: ignore[operator]
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "s", **notes}]},
        {"role": "assistant", "content": "a", "tool_calls": [call], "audio": None, "refusal": "r"},
        {"role": "tool", "content": "4", "tool_call_id": "1", "metadata": {}},
        {"role": "user", "content": "hi"},
    ]
    tool = {"type": "function", "function": {"name": "f"}, "cache_control": {"type": "ephemeral"}}
    body = {"messages": messages, "tools": [tool], "temperature": 0}
    assert set(ignored(app, CHAT, body)) == {
        *(f"messages.content.{name}" for name in notes),
        *("messages.tool_calls.function.parsed_arguments", "messages.tool_calls.index"),
        *("messages.audio", "messages.refusal", "messages.metadata", "tools.cache_control"),
    }


def test_thoughts_in_earlier_replies_are_not_read(app: FastAPI) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    parts = [thought, {"type": "text", "text": "a"}]
    messages = [{"role": "assistant", "content": parts}, {"role": "user", "content": "hi"}]
    body = {"messages": messages, "temperature": 0}
    wanted = ["messages.content.thinking", "messages.content.signature"]
    assert ignored(app, CHAT, body) == wanted
    messages[1]["content"] = [thought]
    assert refused(app, CHAT, body)["param"] == "messages[1].content[0].type"


@pytest.mark.parametrize("name", IN_MESSAGES)
def test_what_a_message_carries_beside_its_text_is_refused_unless_empty(
    app: FastAPI, name: str
) -> None:
    message: dict[str, Any] = {"role": "user", "content": "hi", name: []}
    body = {"messages": [message], "temperature": 0}
    assert ignored(app, CHAT, body) == [f"messages.{name}"]
    message[name] = ["x"]
    error = refused(app, CHAT, body)
    assert error["code"] == "unsupported_field"
    assert error["param"] == f"messages[0].{name}"


def test_stream_options_without_a_stream_ask_for_nothing(app: FastAPI) -> None:
    body = chat("hi", stream_options={"include_usage": True})
    assert ignored(app, CHAT, body) == ["stream_options"]
    answer = ask(app, "POST", CHAT, json={**body, "stream": True, "user": "u"})
    assert answer.headers[HEADER] == "user"


def test_log_probabilities_that_are_switched_off_are_not_asked_for(app: FastAPI) -> None:
    assert ignored(app, COMPLETION, {**COMPLETE, "logprobs": False}) == [""]
    assert refused(app, COMPLETION, {**COMPLETE, "logprobs": True})["param"] == "logprobs"


def test_the_header_is_short_and_in_one_line_whatever_the_names(app: FastAPI) -> None:
    names = ["a\r\nSet-Cookie: x", "\u2028", "x" * 5000, *(f"k{index}" for index in range(5000))]
    body = json.dumps(chat("hi", **dict.fromkeys(names))).encode()
    answer = ask(app, "POST", CHAT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    header = answer.headers[HEADER]
    assert header.startswith('"a\\r\\nSet-Cookie: x", "\\u2028", xxx')
    assert header.endswith(", ...")
    assert len(header) < 2000


# bodies as clients send them, cut to what is of their own making
AS_SENT: dict[str, dict[str, Any]] = {
    # a reply of OpenAI's client put back as it came: model_dump() of a parsed message
    "openai-python": {
        "messages": [
            {"role": "user", "content": "2 + 2?"},
            {
                "role": "assistant", "content": "4", "refusal": None, "annotations": [],
                "audio": None, "function_call": None, "tool_calls": None, "parsed": {"n": 4},
            },
            {"role": "user", "content": "hi"},
        ],
        "metadata": {"run": "1"}, "store": False, "user": "u",
    },
    "langchain": {
        "messages": [
            {"role": "system", "content": "s"},
            {
                "role": "assistant", "content": None,
                "tool_calls": [
                    {"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "4"},
            {"role": "user", "content": [{"type": "text", "text": "hi", "id": "x"}]},
        ],
        "n": 1, "stream": False, "logprobs": False, "parallel_tool_calls": None,
        "reasoning_effort": None, "verbosity": None, "service_tier": None,
    },
    "litellm": {
        "messages": [
            {
                "role": "assistant", "content": "a", "reasoning_content": "r",
                "thinking_blocks": [{"type": "thinking", "thinking": "r"}],
                "provider_specific_fields": {"citations": None}, "tool_calls": [],
                "function_call": None,
            },
            {"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}},
        ],
        "litellm_trace_id": "t", "stream_options": {"include_usage": True},
    },
    "cline": {
        "messages": [
            {"role": "system", "content": [
                {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}
            ]},
            {"role": "assistant", "content": "a", "reasoning_details": [{"type": "summary"}]},
            {"role": "user", "content": [
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
            ]},
        ],
        "stream_options": {"include_usage": True}, "transforms": ["middle-out"],
        "provider": {"sort": "price"},
    },
    "open-webui": {
        "messages": [{"role": "user", "content": "hi", "id": "m1", "timestamp": 1, "files": []}],
        "chat_id": "c", "session_id": "s", "id": "m2", "metadata": {"features": {}},
        "keep_alive": "5m",
    },
    "ai-sdk": {
        "messages": [
            {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": []},
            {"role": "user", "content": "hi", "providerOptions": {"x": {}}},
        ],
        "response_format": {"type": "text"}, "stop": [], "tools": None,
    },
    "others": {
        "messages": [{"role": "user", "content": "hi"}],
        "repeat_penalty": 1.0, "mirostat": 0, "typical_p": 1, "tfs_z": 1.0, "top_a": 0,
        "ignore_eos": False, "skip_special_tokens": True, "guided_json": None, "grammar": "",
        "cache_prompt": True, "best_of": 1, "length_penalty": 1.0, "functions": [],
        "function_call": "auto", "audio": None, "web_search_options": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("client", AS_SENT)
def test_requests_as_clients_send_them_are_answered(app: FastAPI, client: str) -> None:
    ignored(app, CHAT, {"temperature": 0, **AS_SENT[client]})
