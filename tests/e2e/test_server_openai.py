"""The official client, unchanged, and curl against a real server."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.lib.streaming.chat import ContentDoneEvent

from pilotfish.drafters.prediction import PredictionDrafter
from support.api import CHAT, MODEL, LiveServer, parrot_engine

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "strict": True}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


class Answer(pydantic.BaseModel):
    """What a reply is parsed into."""

    number: int
    word: str


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    server = LiveServer()
    yield server
    server.close()


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def predicting() -> Iterator[openai.OpenAI]:
    """Return a client of a server that drafts from predictions alone."""
    server = LiveServer(parrot_engine(drafter=PredictionDrafter()))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client
    server.close()


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=user("hello"),
        temperature=0,
        n=2,
        logprobs=True,
        top_logprobs=3,
        max_completion_tokens=50,
        extra_body={"speculation": {"report": True}},
    )
    assert [choice.message.content for choice in reply.choices] == ["hello", "hello"]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 12
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    logprobs = reply.choices[1].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(one for entry in logprobs.content for one in entry.bytes or []) == b"hello"
    assert reply.model_extra is not None
    assert reply.model_extra["speculation"]["emitted"] == 12


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=user("né 日本語"),
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "né 日本語"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.completion_tokens == len("né 日本語".encode()) + 1


def test_a_predicted_reply_is_the_same_and_counted(predicting: openai.OpenAI) -> None:
    text = "def total(total): return total"
    options: Any = {"model": MODEL, "messages": user(text), "temperature": 0}
    plain = predicting.chat.completions.create(**options)
    for content in (text, [{"type": "text", "text": text[:7]}, {"type": "text", "text": text[7:]}]):
        reply = predicting.chat.completions.create(
            **options, prediction={"type": "content", "content": content}
        )
        assert reply.choices[0].message.content == text == plain.choices[0].message.content
        assert reply.usage is not None
        assert reply.usage.completion_tokens == len(text) + 1
        assert reply.usage.completion_tokens_details is not None
        accepted = reply.usage.completion_tokens_details.accepted_prediction_tokens
        assert accepted is not None
        assert len(text) / 2 < accepted < len(text)
        assert reply.usage.completion_tokens_details.rejected_prediction_tokens == 0
    *_, last = predicting.chat.completions.create(
        **options,
        prediction={"type": "content", "content": text.replace("total", "x")},
        stream=True,
        stream_options={"include_usage": True},
    )
    assert last.usage is not None
    assert last.usage.completion_tokens_details is not None
    assert last.usage.completion_tokens_details.accepted_prediction_tokens
    assert last.usage.completion_tokens_details.rejected_prediction_tokens
    completion = predicting.completions.create(
        model=MODEL,
        prompt="abcdefgh|",
        temperature=0,
        extra_body={"prediction": {"type": "content", "content": "abcdefgh"}},
    )
    assert completion.choices[0].text == "abcdefgh"
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.accepted_prediction_tokens


def test_the_streaming_helper_puts_tool_calls_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=user(f"So. {CALL}"), temperature=0, tools=[WEATHER]
    ) as stream:
        done = [event for event in stream if isinstance(event, ContentDoneEvent)]
        reply = stream.get_final_completion()
    assert [event.content for event in done] == ["So."]
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == {"city": "Rome"}
    assert reply.choices[0].finish_reason == "tool_calls"


def test_a_conversation_with_a_tool(client: openai.OpenAI) -> None:
    messages = user(CALL)
    reply = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, tools=[WEATHER], tool_choice="auto"
    )
    message = reply.choices[0].message
    assert message.content is None
    (call,) = message.tool_calls or []
    # the message goes back as it came
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    reply = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, tools=[WEATHER]
    )
    assert reply.choices[0].message.content == "rain"


def test_a_reply_is_parsed_into_a_model(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model=MODEL, messages=user("?"), temperature=0, response_format=Answer, max_tokens=300
    )
    assert isinstance(reply.choices[0].message.parsed, Answer)


def test_a_tool_call_is_parsed(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model=MODEL, messages=user(CALL), temperature=0, tools=[WEATHER]
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == {"city": "Rome"}


NAMED: Any = {"type": "function", "function": {"name": "weather"}}
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [NAMED]},
}


@pytest.mark.parametrize(
    ("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop"), (ALLOWED, "tool_calls")]
)
def test_a_call_that_is_demanded_is_made_whole_and_streamed(
    client: openai.OpenAI, choice: Any, reason: str
) -> None:
    completions = client.chat.completions
    common: Any = {
        "model": MODEL, "messages": user("?"), "tools": [WEATHER, CLOCK], "tool_choice": choice,
        "temperature": 1, "seed": 3, "max_tokens": 900, "parallel_tool_calls": False,
    }  # fmt: skip
    (first,) = completions.create(**common).choices
    (call,) = first.message.tool_calls or []
    assert (first.finish_reason, first.message.content) == (reason, None)
    assert call.id.startswith("call_")
    arguments = call.function.arguments
    assert json.loads(arguments).keys() == ({"city"} if call.function.name == "weather" else set())
    parsed = completions.parse(**common).choices[0].message.tool_calls or []
    assert parsed[0].function.parsed_arguments == json.loads(arguments)
    with completions.stream(**common) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0]
    (again,) = streamed.message.tool_calls or []
    assert (again.function.name, again.function.arguments) == (call.function.name, arguments)
    assert (streamed.finish_reason, streamed.message.content) == (reason, None)
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    assert "content.delta" not in kinds
    # and goes back as it came
    answer = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*common["messages"], first.message, answer]
    reply = completions.create(model=MODEL, messages=messages, tools=[WEATHER], temperature=0)
    assert reply.choices[0].message.content == "rain"


def test_tools_and_a_reply_that_is_parsed_go_together(client: openai.OpenAI) -> None:
    common: Any = {"model": MODEL, "temperature": 0, "tools": [WEATHER], "response_format": Answer}
    parse = client.chat.completions.parse
    answer = parse(messages=user('{"number":7,"word":"x"}'), **common).choices[0].message
    assert answer.parsed == Answer(number=7, word="x")
    assert not answer.tool_calls
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    called = parse(messages=user(call), **common).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.parsed is None
    (found,) = called.message.tool_calls or []
    assert found.function.parsed_arguments == {"city": "Rome"}


def test_completions(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=MODEL, prompt=["ab|", "c|"], temperature=0, logprobs=1, n=2, seed=1
    )
    assert [choice.text for choice in reply.choices] == ["ab", "ab", "c", "c"]
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.tokens == ["a", "b", "<|end|>"]
    stream = client.completions.create(
        model=MODEL, prompt="abc|", temperature=0, stream=True, stop=["c"]
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == "ab"


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL) == model


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model=MODEL, messages=user("x"), temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="gpt-9", messages=user("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        create(model=MODEL, messages=user("x" * 5000))
    assert long.value.code == "context_length_exceeded"


def test_many_at_once_by_the_asynchronous_client(server: LiveServer) -> None:
    async def ask(client: openai.AsyncOpenAI, text: str, stream: bool) -> str:
        create = client.chat.completions.create
        if not stream:
            reply = await create(model=MODEL, messages=user(text), temperature=0)
            return reply.choices[0].message.content or ""
        parts = await create(model=MODEL, messages=user(text), temperature=0, stream=True)
        return "".join([part.choices[0].delta.content or "" async for part in parts])

    async def crowd() -> list[str]:
        base_url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="any") as client:
            texts = (ask(client, f"I am {number}", number % 2 == 0) for number in range(20))
            return await asyncio.gather(*texts)

    assert asyncio.run(crowd()) == [f"I am {number}" for number in range(20)]
    assert server.service.state.num_running == 0


def curl(*arguments: str) -> str:
    program = shutil.which("curl")
    assert program is not None, "curl is needed here: install it"
    command = [program, "--silent", "--show-error", "--no-buffer", "--max-time", "30", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_curl(server: LiveServer) -> None:
    body = json.dumps({"messages": user("hi"), "temperature": 0, "stream": True})
    as_json = ("-H", "Content-Type: application/json")
    out = curl("-i", *as_json, "-d", body, server.url + CHAT)
    assert "200 OK" in out
    assert "text/event-stream" in out
    assert '"delta":{"content":"h"}' in out
    assert out.endswith("data: [DONE]\n\n")
    # what curl says the body is unless told
    refused = json.loads(curl("-d", body, server.url + CHAT))
    assert "Content-Type: application/json" in refused["error"]["message"]
    assert json.loads(curl(f"{server.url}/health"))["status"] == "ok"
    chunked = ("-H", "Transfer-Encoding: chunked")
    whole = body.replace('"stream": true', '"stream": false')
    reply = json.loads(curl(*as_json, *chunked, "-d", whole, server.url + CHAT))
    assert reply["choices"][0]["message"]["content"] == "hi"


@pytest.mark.models
def test_the_real_pair_serves_the_official_client() -> None:
    command = [sys.executable, "-m", "pilotfish", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        found = next(m for m in (re.search(r"http://[\d.:]+", line) for line in lines) if m)
        with openai.OpenAI(base_url=f"{found[0]}/v1", api_key="any") as client:
            (model,) = client.models.list().data
            common: Any = {"model": model.id, "temperature": 0, "max_tokens": 40}
            messages = user("Name three fish. Answer with the names alone.")
            create = client.chat.completions.create
            text = create(messages=messages, **common).choices[0].message.content
            parts = create(messages=messages, stream=True, **common)
            assert "".join(part.choices[0].delta.content or "" for part in parts) == text
            plain = {"speculation": {"drafter": "none"}}
            again = create(messages=messages, extra_body=plain, **common)
            assert again.choices[0].message.content == text
            asked = user("What is the weather in Rome? Use the tool.")
            reply = create(messages=asked, tools=[WEATHER], **common)
            (call,) = reply.choices[0].message.tool_calls or []
            assert json.loads(call.function.arguments)["city"].startswith("Rome")
            forced = create(messages=asked, tools=[WEATHER], tool_choice=NAMED, **common)
            (call,) = forced.choices[0].message.tool_calls or []
            assert json.loads(call.function.arguments)["city"].startswith("Rome")
            parsed = client.chat.completions.parse(
                messages=user("A number and a word?"), response_format=Answer, **common
            )
            assert isinstance(parsed.choices[0].message.parsed, Answer)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
