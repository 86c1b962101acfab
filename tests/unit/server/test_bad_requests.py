"""Whatever is sent gets an answer in OpenAI's form that names the field, and harms nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from support.api import CHAT, COMPLETION, MODEL, ask, chat, parrot_engine, served

SURROGATE = "\ud800"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served(parrot_engine(context_size=64)) as app:
        yield app


def error_of(app: FastAPI, path: str, status: int = 400, **request: Any) -> dict[str, Any]:
    """Return the error of a request, after checking its form and that the next one works."""
    answer = ask(app, "POST", path, **request)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = json.loads(answer.content.decode("ascii"))["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400
    fine = ask(app, "POST", CHAT, json=chat("ok"))
    assert fine.json()["choices"][0]["message"]["content"] == "ok"
    return dict(error)


# field of a chat: values that are refused
BAD_CHAT: dict[str, list[Any]] = {
    "messages": [None, [], "hi", {}, [3], [None]],
    "temperature": [-1, 2.5, "hot", True, [], 10**400],
    "top_p": [0, -1, 2, "most", {}],
    "min_p": [-0.1, 1.5],
    "top_k": [-2, 1.5, 2**70, "all"],
    "n": [0, -1, 10**6, 1.5, "two", True],
    "max_tokens": [0, -1, 1.5, "many", -(10**30)],
    "max_completion_tokens": [0, -1, 1.5, False],
    "min_tokens": [-1, 0.5],
    "repetition_penalty": [0, -1, 1e-300, 1e300],
    "presence_penalty": [-3, 3, "much"],
    "frequency_penalty": [-2.1, "x"],
    "logit_bias": [[1], {"5": 101}, {"5": None}, {"a": 1}, {"-1": 1}, {"5.0": 1}, {"999": 1}],
    "seed": [1.5, "x", 2**63, 10**3000],
    "stop": ["", [""], 3, [3], ["x"] * 17, {"a": 1}],
    "stream": ["yes", 1],
    "stream_options": [{"include_usage": 3}, {"chunk_include_usage": True}, 3],
    "logprobs": ["yes", 3],
    "top_logprobs": [-1, 21, 1.5, 5],
    "model": [3, [], {}],
    "tools": [3, [{}], [{"type": "function"}], [{"type": "web", "function": {"name": "f"}}]],
    "tool_choice": ["required", "never", {"type": "function", "function": {"name": "f"}}, 3],
    "response_format": [3, {}, {"type": "xml"}, {"type": "json_schema"}],
    "modalities": [["audio"], "text"],
    "speculation": [True, {"drafter": "fast"}, {"num_speculative_tokens": -1}, {"x": 1}],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in BAD_CHAT for value in BAD_CHAT[field]]
)
def test_a_bad_value_is_told_by_the_name_of_its_field(
    app: FastAPI, field: str, value: object
) -> None:
    error = error_of(app, CHAT, json={**chat("hi"), field: value})
    assert error["param"] is not None
    assert error["param"].startswith(field)
    assert field in error["message"]


@pytest.mark.parametrize(
    "prompt",
    [
        None, [], [[]], [[1], []], 3, {"a": 1}, [1, "a"], [None], [1.5], [-1], [258], [[258]],
        [True], [10**30], ["a"] * 65, "", [""], SURROGATE, ["a", SURROGATE], " " * 1_000_000,
    ],
)  # fmt: skip
def test_a_prompt_that_cannot_be_used_is_told_so(app: FastAPI, prompt: object) -> None:
    error = error_of(app, COMPLETION, content=json.dumps({"prompt": prompt}), headers=JSON)
    assert error["param"].startswith("prompt")


def test_a_missing_prompt_or_message_is_told_so(app: FastAPI) -> None:
    assert error_of(app, COMPLETION, json={})["message"] == "prompt is missing"
    assert error_of(app, CHAT, json={})["message"] == "messages is missing"
    error = error_of(app, CHAT, json={"messages": [{"role": "user"}]})
    assert (error["param"], error["code"]) == ("messages[0].content", "missing_field")


@pytest.mark.parametrize(("field", "value"), [("suffix", "x"), ("best_of", 3)])
def test_what_completions_cannot_do_is_told_so(app: FastAPI, field: str, value: object) -> None:
    assert error_of(app, COMPLETION, json={"prompt": "a|", field: value})["param"] == field


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "judge", "content": "x"}, "messages[0]"),
        ({"content": "x"}, "messages[0]"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "nmae": "y"}, "messages[0].nmae"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1]"}}],
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_message_that_cannot_be_used_is_named(
    app: FastAPI, message: dict[str, Any], param: str
) -> None:
    assert error_of(app, CHAT, json={"messages": [message]})["param"] == param


def test_an_unknown_field_is_named_with_a_close_one(app: FastAPI) -> None:
    error = error_of(app, CHAT, json=chat("hi", temprature=1))
    assert error["message"] == "unknown field: temprature (did you mean temperature?)"
    assert error["param"] == "temprature"
    error = error_of(app, CHAT, json=chat("hi", speculation={"num_speculativ_tokens": 1}))
    assert "did you mean num_speculative_tokens?" in error["message"]
    error = error_of(app, CHAT, json=chat("hi", functions=[{}]))
    assert error["message"] == "functions is not supported (use tools)"
    error = error_of(app, CHAT, content=json.dumps(chat("hi", **{"\u2028": 1})), headers=JSON)
    assert error["message"] == 'unknown field: "\\u2028"'


BODIES = {
    "empty": b"",
    "blank": b"  \n",
    "cut": b'{"messages": [',
    "two": b"{} {}",
    "no object": b"[1]",
    "null": b"null",
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": Infinity}',
    "minus Infinity": b'{"temperature": -Infinity}',
    "too large a number": b'{"temperature": 1e999}',
    "too many digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "arrays nested deeply": b"[" * 10_000 + b"]" * 10_000,
    "objects nested deeply": b'{"metadata":' * 10_000 + b"1" + b"}" * 10_000,
    "not UTF-8": b'{"user": "\xff"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a lone surrogate": b'{"messages": [{"role": "user", "content": "\\udc00"}]}',
    "a lone surrogate in a name": b'{"\\ud800": 1}',
    "control characters": b'{"user": "\x00"}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_body_that_is_no_request_is_told_so(app: FastAPI, path: str, body: bytes) -> None:
    error_of(app, path, content=body, headers=JSON)


@pytest.mark.parametrize("depth", [100, 400, 900])
def test_nesting_harms_nobody_wherever_it_is(app: FastAPI, depth: int) -> None:
    deep: Any = "x"
    for _ in range(depth):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    for fields in ({"metadata": deep}, {"tools": [tool]}, {"tool_choice": deep}):
        answer = ask(app, "POST", CHAT, json=chat("x", **fields))
        assert answer.status_code in (200, 400), answer.text


def test_a_body_must_say_that_it_is_json(app: FastAPI) -> None:
    body = json.dumps(chat("hi"))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        error_of(app, CHAT, 415, content=body, headers={"Content-Type": kind})
    kinds = ("application/json", "Application/JSON; charset=utf-8")
    assert {
        ask(app, "POST", CHAT, content=body, headers={"Content-Type": kind}).status_code
        for kind in kinds
    } == {200}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_speculative_tokens", [0, 3, 200])
def test_a_prompt_beyond_the_context_is_told_with_both_numbers(
    app: FastAPI, stream: bool, num_speculative_tokens: int
) -> None:
    wish = {"speculation": {"num_speculative_tokens": num_speculative_tokens}, "stream": stream}
    for length in (65, 5000):
        error = error_of(app, COMPLETION, json={"prompt": "a" * length, **wish})
        assert error["code"] == "context_length_exceeded"
        assert f"{length} tokens" in error["message"]
        assert "holds 64" in error["message"]
    # the template counts
    error = error_of(app, CHAT, json=chat("a" * 60, **wish))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    # a prompt of exactly the context gets one token
    answer = ask(app, "POST", COMPLETION, json={"prompt": "a" * 64, "max_tokens": 9, **wish})
    assert answer.status_code == 200
    if not stream:
        assert answer.json()["usage"]["completion_tokens"] == 1


def test_what_is_not_there_is_told_in_the_same_form(app: FastAPI) -> None:
    for method, path, status, code in (
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", CHAT, 405, "wrong_method"),
        ("DELETE", "/v1/models", 405, "wrong_method"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", "/v1/models/%2F", 404, "model_not_found"),
    ):
        answer = ask(app, method, path)
        assert answer.status_code == status, path
        assert answer.json()["error"]["code"] == code
    assert ask(app, "GET", CHAT).headers["allow"] == "OPTIONS, POST"


def test_a_model_that_is_not_there_is_named(app: FastAPI) -> None:
    error = error_of(app, CHAT, 404, json=chat("x", model="parrt"))
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "did you mean parrot?" in error["message"]
    error_of(app, COMPLETION, 404, json={"prompt": "a|", "model": "x" * 100_000})
    assert ask(app, "POST", CHAT, json=chat("x", model=MODEL)).status_code == 200


def test_wrong_entries_by_the_million_are_wrong_once(app: FastAPI) -> None:
    many = {f"k{index}": 0 for index in range(50_000)}
    error_of(app, CHAT, json={**chat("hi"), **many})
    error_of(app, CHAT, json=chat("hi", logit_bias=many))
    error_of(app, CHAT, json={"messages": [many]})
    error_of(app, CHAT, json={"messages": [3] * 100_000})
    error_of(app, COMPLETION, json={"prompt": [1, *[None] * 100_000]})


def test_more_choices_than_the_server_ever_takes_are_refused_for_good() -> None:
    with served(max_running=2, max_waiting=1) as small:
        error = error_of(small, CHAT, json=chat("x", n=4))
        assert "4 choices" in error["message"]
        error = error_of(small, COMPLETION, json={"prompt": ["a|", "b|"], "n": 2})
        assert "4 choices" in error["message"]
