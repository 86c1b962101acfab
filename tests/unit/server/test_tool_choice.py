"""Calls that a request demands: a grammar holds the reply to them, and clients see calls alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from pilotfish.server.tagged_calls import TaggedCallReader
from pilotfish.server.tools import whole_calls
from support.api import (
    CHAT,
    ask,
    chat,
    choices_of,
    knowing,
    message_of,
    parrot_engine,
    post,
    served,
    stream,
)
from support.counted_text import CountedText, Work


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    """Return a tool; without parameters where none are given."""
    given = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **given, **fields}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER, TIME = tool("weather", CITY, strict=True), tool("time")
TOOLS = [WEATHER, TIME]
ANSWER = {"type": "json_schema", "json_schema": {"name": "answer", "schema": CITY}}


def written(name: str, arguments: str) -> str:
    """Return a call as the model writes it where a grammar holds it to calls."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ROME, NOW = written("weather", '{"city": "Rome"}'), written("time", "{}")


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served() as app:
        yield app


def asked(text: str = "?", **fields: Any) -> dict[str, Any]:
    """Return the body of a chat with tools, whose model would rather say anything else."""
    return chat(text, **{"tools": TOOLS, "max_tokens": 400, **fields})


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return names and arguments of calls, of which a stream has several parts."""
    calls: dict[int, list[str]] = {}
    for number, part in enumerate(message["tool_calls"]):
        call = calls.setdefault(part.get("index", number), [])
        if "id" in part:
            assert part["id"].startswith("call_")
            call.append(part["function"]["name"])
        call.append(part["function"]["arguments"])
    return [(name, json.loads("".join(texts))) for name, *texts in calls.values()]


def both(app: FastAPI, body: dict[str, Any]) -> tuple[list[tuple[str, Any]], str, Any]:
    """Return the calls of a reply, why it ended and its text, which are the same streamed."""
    choice = post(app, CHAT, **body)["choices"][0]
    message, reason = choice["message"], choice["finish_reason"]
    streamed = message_of(stream(app, CHAT, **body))
    calls = calls_of({"tool_calls": message.get("tool_calls", [])})
    assert (calls_of(streamed), streamed["finish_reason"]) == (calls, reason)
    assert streamed["content"] == (message["content"] or "")
    return calls, reason, message["content"]


def ignored(app: FastAPI, body: dict[str, Any]) -> str | None:
    """Return which fields the answer names as ignored, if any."""
    return ask(app, "POST", CHAT, json=body).headers.get("Pilotfish-Ignored-Fields")


CHOICES: list[tuple[Any, set[str], str]] = [
    ("required", {"weather", "time"}, "tool_calls"),
    (named("weather"), {"weather"}, "stop"),
    (named("time"), {"time"}, "stop"),
    (allowed("required", "time"), {"time"}, "tool_calls"),
    (allowed("required", "time", "weather"), {"weather", "time"}, "tool_calls"),
]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(("choice", "names", "reason"), CHOICES)
def test_a_call_that_is_demanded_is_made_whatever_the_model_would_say(
    app: FastAPI, choice: Any, names: set[str], reason: str, temperature: float
) -> None:
    found = set()
    for seed in range(3):
        body = asked(tool_choice=choice, temperature=temperature, seed=seed)
        calls, ended, text = both(app, {**body, "parallel_tool_calls": False})
        ((name, arguments),) = calls
        found.add(name)
        assert arguments.keys() == ({"city"} if name == "weather" else set())
        # as OpenAI has it: a reply of a call that was named ends as text does
        assert (ended, text) == (reason, None)
    assert found <= names


@pytest.mark.parametrize("num_drafts", [0, 1, 3, 400])
def test_several_calls_are_the_same_for_every_number_of_tokens_in_a_round(num_drafts: int) -> None:
    text = f"{ROME}\n{NOW}\n{ROME}"
    engine = parrot_engine(drafter=knowing([*text.encode(), 257]), num_drafts=num_drafts)
    expected = [("weather", {"city": "Rome"}), ("time", {}), ("weather", {"city": "Rome"})]
    with served(engine) as app:
        body = asked(text, tool_choice="required")
        assert both(app, body) == (expected, "tool_calls", None)
        first = both(app, {**body, "parallel_tool_calls": False})
        assert first == (expected[:1], "tool_calls", None)


def test_arguments_are_streamed_as_they_come(app: FastAPI) -> None:
    body = asked(ROME, tool_choice=named("weather"))
    deltas = [one["delta"] for one in choices_of(stream(app, CHAT, **body))]
    assert deltas[0] == {"role": "assistant", "content": None}
    first, *more = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert first["function"] == {"name": "weather", "arguments": ""}
    assert first["index"] == 0
    # every token of the arguments is a part of its own: nothing waits for the end
    assert [one["function"]["arguments"] for one in more] == list('{"city": "Rome"}')
    assert all(one.keys() == {"index", "function"} for one in more)


@pytest.mark.parametrize("max_tokens", [1, 20, 48, 52])
def test_a_call_that_is_cut_is_given_as_far_as_it_came(app: FastAPI, max_tokens: int) -> None:
    body = asked(ROME, tool_choice="required", max_tokens=max_tokens)
    choice = post(app, CHAT, **body)["choices"][0]
    came = ROME[:max_tokens].partition('"arguments": ')
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
    arguments = [one["function"]["arguments"] for one in choice["message"].get("tool_calls", [])]
    assert arguments == ([came[2]] if came[1] else [])
    streamed = message_of(stream(app, CHAT, **body))
    assert "".join(one["function"]["arguments"] for one in streamed["tool_calls"]) == came[2]
    assert streamed["content"] == ""


@pytest.mark.parametrize("text", [f"{ROME}\n{NOW}\n{ROME}", '{"city":"<tool_call>"}'])
def test_what_is_read_does_not_depend_on_the_cut(text: str) -> None:
    for size in (1, 2, 5, 13, 400):
        reader, work = TaggedCallReader(), Work()
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        found = [part for one in pieces for part in reader.feed(CountedText.of(one, work))]
        calls = [(call.name, call.arguments) for call in whole_calls(found)]
        assert "".join(part for part in found if isinstance(part, str)) == ("" if calls else text)
        rome = ("weather", '{"city": "Rome"}')
        assert calls == ([rome, ("time", "{}"), rome] if text.startswith(ROME) else [])
        assert work.num_characters <= 60 * len(text)


def test_the_work_grows_with_the_length_of_the_arguments() -> None:
    for number in (1000, 4000):
        text = written("f", json.dumps({"text": "<tool_call>" * number}))
        reader, work = TaggedCallReader(), Work()
        for character in text:
            reader.feed(CountedText.of(character, work))
        assert work.num_characters <= 10 * len(text)


ODD_NAMES = ["a.b-c_d", 'we"ird', "back\\slash", "Zürich 世界", 'x", "arguments": {', "new\nline"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_functions_may_have_any_name(app: FastAPI, name: str) -> None:
    body = asked(tools=[tool(name), WEATHER], tool_choice=named(name))
    assert both(app, body) == ([(name, {})], "stop", None)


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (None, "{}"),
        ({}, '{"any": [1, 2]}'),
        ({"type": "object"}, "{}"),
        ({"properties": {"n": {"type": "integer"}}, "required": ["n"]}, '{"n": 5}'),
        ({"type": ["object", "null"]}, '{"a": null}'),
        ({"$ref": "#/$defs/a", "$defs": {"a": CITY}}, '{"city": "Oslo"}'),
        ({"anyOf": [CITY, {"type": "object", "additionalProperties": False}]}, "{}"),
    ],
)
@pytest.mark.parametrize("strict", [True, False, None])
def test_parameters_may_be_missing_or_any_schema_of_an_object(
    app: FastAPI, parameters: Any, arguments: str, strict: bool | None
) -> None:
    call = written("f", arguments)
    body = asked(call, tools=[tool("f", parameters, strict=strict)], tool_choice="required")
    assert both(app, body) == ([("f", json.loads(arguments))], "tool_calls", None)


def test_arguments_that_the_schema_forbids_are_not_made(app: FastAPI) -> None:
    text = written("time", '{"zone": "here"}')
    assert both(app, asked(text, tool_choice=named("time")))[0] == [("time", {})]
    text = written("weather", '{"city": "much too long"}')
    ((_, arguments),) = both(app, asked(text, tool_choice=named("weather")))[0]
    assert len(arguments["city"]) <= 6


def test_a_schema_that_cannot_be_enforced_is_refused_by_strict_functions_alone(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"type": "object", "not": {"required": ["a"]}}
    body = asked(written("f", '{"x": 1}'), tool_choice="required")
    answer = ask(app, "POST", CHAT, json={**body, "tools": [TIME, tool("f", odd, strict=True)]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools[1].function.parameters")
    assert "not is not enforced" in error["message"]
    assert "json_schema" not in error["message"]
    with caplog.at_level(logging.WARNING, "pilotfish.server"):
        calls, *_ = both(app, {**body, "tools": [TIME, tool("f", odd)]})
    assert calls == [("f", {"x": 1})]
    assert "tools[1].function.parameters: not is not enforced" in caplog.messages[0]
    assert ignored(app, {**body, "tools": [TIME, tool("f", odd)]}) == "tools.function.parameters"
    for kind in ("string", ["array"]):
        body["tools"] = [tool("f", {"type": kind})]
        error = ask(app, "POST", CHAT, json=body).json()["error"]
        assert error["param"] == "tools[0].function.parameters"


def test_a_stop_text_does_not_cut_calls_that_are_demanded(app: FastAPI) -> None:
    body = asked(ROME, tool_choice="required", stop=["\n", "Rome", "}"])
    assert both(app, body) == ([("weather", {"city": "Rome"})], "tool_calls", None)
    assert ignored(app, body) == "stop"
    assert ignored(app, asked(ROME, tool_choice="required")) is None


def test_with_a_schema_of_the_reply_the_model_chooses_between_it_and_calls(app: FastAPI) -> None:
    for choice in (None, "auto", allowed("auto", "weather", "time")):
        body = asked('{"city":"Oslo"}', response_format=ANSWER, tool_choice=choice)
        assert both(app, body) == ([], "stop", '{"city":"Oslo"}')
        body = asked(f"{ROME}\n{NOW}", response_format=ANSWER, tool_choice=choice)
        calls = [("weather", {"city": "Rome"}), ("time", {})]
        assert both(app, body) == (calls, "tool_calls", None)
        single = both(app, {**body, "parallel_tool_calls": False})
        assert single == (calls[:1], "tool_calls", None)
    body = asked("no JSON at all", response_format=ANSWER)
    calls, reason, text = both(app, body)
    assert (len(calls) == 0, reason) == (text is not None, "tool_calls" if calls else "stop")
    # an answer that looks like a call is an answer
    looks = '{"name": "weather", "arguments": {}}'.replace(" ", "")
    body = asked(looks, response_format={"type": "json_object"})
    assert both(app, body) == ([], "stop", looks)


def test_a_demanded_call_comes_before_a_schema_of_the_reply(app: FastAPI) -> None:
    body = asked('{"city":"Oslo"}', response_format=ANSWER, tool_choice=named("time"))
    assert both(app, body) == ([("time", {})], "stop", None)
    assert ignored(app, body) == "response_format"
    body = asked(ROME, response_format=ANSWER, tool_choice="none")
    calls, _, text = both(app, body)
    assert (calls, json.loads(text).keys()) == ([], {"city"})


def test_tools_that_are_not_allowed_are_not_called(app: FastAPI) -> None:
    with_both = post(app, CHAT, **asked("hi"))["usage"]["prompt_tokens"]
    one = post(app, CHAT, **asked("hi", tool_choice=allowed("auto", "weather")))
    # where nothing else would see to it, the model is not shown the others
    assert one["usage"]["prompt_tokens"] < with_both
    demanded = post(app, CHAT, **asked("hi", tool_choice=named("time")))
    assert demanded["usage"]["prompt_tokens"] == with_both
    none = post(app, CHAT, **asked(ROME, tool_choice=allowed("auto")))
    assert none["choices"][0]["message"]["content"] == ROME


def test_answers_of_tools_may_follow_a_demanded_call(app: FastAPI) -> None:
    body = asked(tool_choice=named("weather"))
    message = post(app, CHAT, **body)["choices"][0]["message"]
    call_id = message["tool_calls"][0]["id"]
    answer = {"role": "tool", "tool_call_id": call_id, "content": "rain"}
    messages = [*body["messages"], message, answer]
    reply = post(app, CHAT, messages=messages, tools=TOOLS, temperature=0)
    assert reply["choices"][0]["message"]["content"] == "rain"
    again = {"messages": messages, "tools": TOOLS, "tool_choice": named("time"), "temperature": 0}
    assert both(app, again)[0] == [("time", {})]


def test_choices_of_one_request_have_calls_of_their_own(app: FastAPI) -> None:
    body = asked(tool_choice=named("weather"), n=3, temperature=1, seed=4)
    choices = post(app, CHAT, **body)["choices"]
    parts = stream(app, CHAT, **body)
    for index, choice in enumerate(choices):
        assert calls_of(message_of(parts, index)) == calls_of(choice["message"])
    assert len({one["message"]["tool_calls"][0]["id"] for one in choices}) == 3


def test_log_probabilities_and_reports_come_with_calls(app: FastAPI) -> None:
    body = asked(ROME, tool_choice="required", logprobs=True, speculation={"report": True})
    document = post(app, CHAT, **body)
    (choice,) = document["choices"]
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == ROME
    assert len(entries) == document["usage"]["completion_tokens"]
    parts = choices_of(stream(app, CHAT, **body))
    streamed = [entry for part in parts for entry in (part["logprobs"] or {}).get("content", [])]
    assert streamed == entries


@pytest.mark.parametrize(
    ("choice", "tools", "message"),
    [
        ("required", [], "there are no tools"),
        ("any", TOOLS, "must be auto, none, required"),
        (named("tome"), TOOLS, '"tome", which is not among the tools'),
        (named("time"), None, "there are no tools"),
        ({"type": "function"}, TOOLS, '{"name": ...}'),
        ({"type": "function", "name": "time"}, TOOLS, '{"name": ...}'),
        ({"type": "custom", "custom": {"name": "time"}}, TOOLS, "must be auto, none, required"),
        (allowed("required"), TOOLS, "there are no tools"),
        (allowed("none", "time"), TOOLS, "must have a mode, auto or required"),
        (allowed("auto", "tome"), TOOLS, "not among the tools"),
        ({"type": "allowed_tools", "allowed_tools": ["time"]}, TOOLS, "must have a mode"),
        ({}, TOOLS, "must be auto"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_choice_that_is_none_is_told_before_anything_is_sent(
    app: FastAPI, choice: Any, tools: Any, message: str, streamed: bool
) -> None:
    answer = ask(
        app, "POST", CHAT, json=chat("x", tools=tools, tool_choice=choice, stream=streamed)
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tool_choice"
    assert message in error["message"]


def test_a_schema_of_the_reply_that_cannot_be_used_is_told_by_its_own_name(app: FastAPI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
    answer = ask(app, "POST", CHAT, json=asked(response_format=wanted))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format"
