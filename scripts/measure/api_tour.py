#!/usr/bin/env python
"""Go through every field of the API by the official client and by curl, and say what works.

Each line is one field or feature; the exit code is 1 if any fails. It needs a model that answers
chats and calls tools, and takes about a minute on a small one.

    python scripts/measure/api_tour.py -- --backend native
    python scripts/measure/api_tour.py --url http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
from serving import finish, server_at, split_options

QUESTION: Any = [{"role": "user", "content": "Write one sentence about the sea."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "fish": {"type": "string", "maxLength": 20},
        "legs": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "required": ["fish", "legs"],
    "additionalProperties": False,
}
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
Check = Callable[["Tour"], object]
CHECKS: list[tuple[str, Check]] = []


class Fish(pydantic.BaseModel):
    """What a reply is parsed into."""

    fish: str = pydantic.Field(max_length=20)
    legs: int = pydantic.Field(ge=0, le=100)


def checks(name: str) -> Callable[[Check], Check]:
    """Add a check to the tour, under a name."""

    def add(check: Check) -> Check:
        CHECKS.append((name, check))
        return check

    return add


@dataclass
class Tour:
    """A server and what is asked of it."""

    url: str
    client: openai.OpenAI
    model: str = ""
    results: dict[str, str] = field(default_factory=dict)

    def chat(self, messages: Any = None, **fields: Any) -> Any:
        """Return the reply to a chat; greedy and short unless said otherwise."""
        common = {"model": self.model, "temperature": 0, "max_tokens": 24, "extra_body": {}}
        return self.client.chat.completions.create(
            messages=messages or QUESTION, **{**common, **fields}
        )

    def text(self, messages: Any = None, **fields: Any) -> str:
        """Return the text of a chat's first choice."""
        return str(self.chat(messages, **fields).choices[0].message.content)

    def completion(self, prompt: Any = "Once upon a time", **fields: Any) -> Any:
        """Return a completion; greedy and short unless said otherwise."""
        common = {"model": self.model, "temperature": 0, "max_tokens": 12}
        return self.client.completions.create(prompt=prompt, **{**common, **fields})

    def curl(self, path: str, *arguments: str, body: Any = None) -> str:
        """Return what curl prints for a request."""
        command = ["curl", "-sS", "-N", "--max-time", "120", *arguments, self.url + path]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def error(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """Return the error of a request that must be refused."""
        answer = httpx.post(self.url + path, json=body, timeout=60)
        assert answer.status_code == status, answer.text[:200]
        error: dict[str, Any] = answer.json()["error"]
        return error


@checks("GET /v1/models, /v1/models/{id}")
def models(tour: Tour) -> None:
    (model,) = tour.client.models.list().data
    tour.model = model.id
    assert tour.client.models.retrieve(model.id) == model
    assert json.loads(tour.curl("/v1/models"))["data"][0]["id"] == model.id


@checks("GET /health")
def health(tour: Tour) -> None:
    assert json.loads(tour.curl("/health"))["status"] == "ok"


@checks("GET /metrics")
def metrics(tour: Tour) -> None:
    assert "# TYPE pilotfish_requests_total counter" in tour.curl("/metrics")


@checks("GET /")
def page(tour: Tour) -> None:
    assert "<title>" in tour.curl("/")


@checks("messages: roles and parts")
def messages(tour: Tour) -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    talk = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "Hi", "name": "ann"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": parts},
    ]
    assert "hello" in tour.text(talk).lower()
    talk[0]["role"] = "developer"
    assert tour.text(talk)


@checks("stream, stream_options.include_usage")
def stream(tour: Tour) -> None:
    *chunks, last = list(tour.chat(stream=True, stream_options={"include_usage": True}))
    whole = tour.chat()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert (last.choices, last.usage.completion_tokens) == ([], whole.usage.completion_tokens)


@checks("stream by curl")
def stream_by_curl(tour: Tour) -> None:
    body = {"messages": QUESTION, "max_tokens": 8, "stream": True}
    assert tour.curl(CHAT, body=body).endswith("data: [DONE]\n\n")
    body = {"prompt": "Once", "max_tokens": 8, "stream": True}
    assert tour.curl(COMPLETION, body=body).endswith("data: [DONE]\n\n")


@checks(".stream() helper")
def stream_helper(tour: Tour) -> None:
    with tour.client.chat.completions.stream(
        model=tour.model, messages=QUESTION, temperature=0, max_tokens=24
    ) as events:
        for _ in events:
            pass
        reply = events.get_final_completion()
    assert reply.choices[0].message.content == tour.text()


@checks("async client, several at once")
def asynchronous(tour: Tour) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{tour.url}/v1", api_key="any") as client:
            create = client.chat.completions.create
            common: Any = {"model": tour.model, "temperature": 0, "max_tokens": 24}
            replies = await asyncio.gather(*(create(messages=QUESTION, **common) for _ in range(4)))
            return [reply.choices[0].message.content or "" for reply in replies]

    assert set(asyncio.run(ask_all())) == {tour.text()}


@checks("max_tokens, max_completion_tokens, finish_reason")
def longest(tour: Tour) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        fields: dict[str, Any] = {"max_tokens": openai.omit, name: 3}
        reply = tour.chat(**fields)
        assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 3)
    reply = tour.chat([{"role": "user", "content": "Say yes."}], max_tokens=200)
    assert reply.choices[0].finish_reason == "stop"


@checks("usage")
def usage(tour: Tour) -> None:
    figures = tour.chat().usage
    assert figures.total_tokens == figures.prompt_tokens + figures.completion_tokens
    assert figures.prompt_tokens_details.cached_tokens <= figures.prompt_tokens


@checks("temperature, seed")
def seed(tour: Tour) -> None:
    drawn = [tour.text(temperature=1.2, seed=number) for number in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@checks("n")
def choices(tour: Tour) -> None:
    reply = tour.chat(n=3, temperature=1, seed=5)
    texts = [choice.message.content for choice in reply.choices]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    again = tour.chat(n=3, temperature=1, seed=5)
    assert texts == [choice.message.content for choice in again.choices]
    assert texts[0] == tour.text(temperature=1, seed=5)
    assert len({choice.message.content for choice in tour.chat(n=2).choices}) == 1


@checks("top_p")
def top_p(tour: Tour) -> None:
    assert tour.text(temperature=1, top_p=1e-6, seed=1) == tour.text()


@checks("top_k (ours)")
def top_k(tour: Tour) -> None:
    assert tour.text(temperature=1, seed=1, extra_body={"top_k": 1}) == tour.text()


@checks("min_p (ours)")
def min_p(tour: Tour) -> None:
    assert tour.text(temperature=1, seed=1, extra_body={"min_p": 1}) == tour.text()


@checks("presence_penalty, frequency_penalty")
def penalties(tour: Tour) -> None:
    asked: Any = [{"role": "user", "content": "Write the word fish twenty times."}]
    plain = tour.text(asked, max_tokens=40)
    assert tour.text(asked, max_tokens=40, presence_penalty=2) != plain
    assert tour.text(asked, max_tokens=40, frequency_penalty=2) != plain


@checks("repetition_penalty (ours)")
def repetition(tour: Tour) -> None:
    assert tour.text(extra_body={"repetition_penalty": 2.0}) != tour.text()


@checks("min_tokens (ours)")
def min_tokens(tour: Tour) -> None:
    reply = tour.chat(
        [{"role": "user", "content": "Say yes."}], max_tokens=40, extra_body={"min_tokens": 20}
    )
    assert reply.usage.completion_tokens >= 20


@checks("logit_bias")
def logit_bias(tour: Tour) -> None:
    reply = tour.completion(logit_bias={"100": 100}, max_tokens=4, logprobs=0)
    assert len(set(reply.choices[0].logprobs.tokens)) == 1


@checks("stop")
def stop(tour: Tour) -> None:
    text = tour.text()
    word = text.split()[3]
    assert tour.text(stop=word) == text[: text.index(word)]
    assert tour.text(stop=["\u2603", word]) == text[: text.index(word)]


@checks("logprobs, top_logprobs")
def logprobs(tour: Tour) -> None:
    reply = tour.chat(logprobs=True, top_logprobs=3)
    entries = reply.choices[0].logprobs.content
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text == reply.choices[0].message.content
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert all(entry.top_logprobs[0].logprob == entry.logprob <= 0 for entry in entries)


@checks("response_format: text")
def as_text(tour: Tour) -> None:
    assert tour.text(response_format={"type": "text"}) == tour.text()


@checks("response_format: json_object")
def as_object(tour: Tour) -> None:
    text = tour.text(response_format={"type": "json_object"}, max_tokens=200)
    assert isinstance(json.loads(text), dict)


@checks("response_format: json_schema")
def as_schema(tour: Tour) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "fish", "schema": SCHEMA}}
    for temperature in (0, 1):
        text = tour.text(response_format=wanted, max_tokens=60, temperature=temperature)
        assert json.loads(text).keys() == {"fish", "legs"}


@checks(".parse() helper")
def parse_helper(tour: Tour) -> None:
    reply = tour.client.chat.completions.parse(
        model=tour.model, messages=QUESTION, response_format=Fish, max_tokens=60, temperature=0
    )
    assert isinstance(reply.choices[0].message.parsed, Fish)


def _called(tour: Tour) -> tuple[Any, Any]:
    asked: Any = [{"role": "user", "content": "What is the weather in Rome? Use the tool."}]
    reply = tour.chat(asked, tools=[WEATHER], tool_choice="auto", max_tokens=80)
    message = reply.choices[0].message
    assert message.tool_calls, f"no call in {message.content!r}"
    assert reply.choices[0].finish_reason == "tool_calls"
    return asked, message


@checks("tools, tool_choice: auto, tool_calls")
def tools(tour: Tour) -> None:
    _, message = _called(tour)
    assert message.tool_calls[0].function.name == "weather"
    assert "Rome" in json.loads(message.tool_calls[0].function.arguments)["city"]


@checks("tools streamed")
def tools_streamed(tour: Tour) -> None:
    asked, message = _called(tour)
    parts = tour.chat(asked, tools=[WEATHER], max_tokens=80, stream=True)
    calls = [call for part in parts for call in part.choices[0].delta.tool_calls or []]
    assert [call.function.arguments for call in calls] == [
        call.function.arguments for call in message.tool_calls
    ]


@checks("tool role: answers of tools")
def tool_answers(tour: Tour) -> None:
    asked, message = _called(tour)
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny, 31 C"}
    # small models would rather call again, so that the tools are left out
    assert "31" in tour.text([*asked, message, answer], max_tokens=60)


@checks("tool_choice: none")
def tool_choice_none(tour: Tour) -> None:
    reply = tour.chat(tools=[WEATHER], tool_choice="none")
    assert reply.choices[0].message.tool_calls is None


NAMED: Any = {"type": "function", "function": {"name": "weather"}}
ALLOWED: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "description": "Tells the time"}}


def _forced(tour: Tour, choice: Any, reason: str) -> None:
    """Demand a call where none is near, whole, streamed and without drafts: all are the same."""
    common: dict[str, Any] = {"tools": [CLOCK, WEATHER], "tool_choice": choice, "max_tokens": 120}
    common["parallel_tool_calls"] = False
    (first,) = tour.chat(**common).choices
    (call,) = first.message.tool_calls
    assert (first.finish_reason, first.message.content) == (reason, None)
    wanted = {"city"} if call.function.name == "weather" else set()
    assert json.loads(call.function.arguments).keys() == wanted
    parts = tour.chat(stream=True, **common)
    deltas = [one.function for part in parts for one in part.choices[0].delta.tool_calls or []]
    assert [one.name for one in deltas if one.name] == [call.function.name]
    assert "".join(one.arguments for one in deltas) == call.function.arguments
    (plain,) = tour.chat(**common, extra_body={"speculation": {"drafter": "none"}}).choices
    assert plain.message.tool_calls[0].function == call.function


@checks("tool_choice: required")
def tool_choice_required(tour: Tour) -> None:
    _forced(tour, "required", "tool_calls")


@checks("tool_choice: a function")
def tool_choice_named(tour: Tour) -> None:
    _forced(tour, NAMED, "stop")


@checks("tool_choice: allowed_tools")
def tool_choice_allowed(tour: Tour) -> None:
    _forced(tour, ALLOWED, "tool_calls")


@checks("tool_choice: required, drafted for nothing")
def forced_drafts(tour: Tour) -> None:
    wish = {"speculation": {"report": True}}
    reply = tour.chat(tools=[WEATHER], tool_choice=NAMED, max_tokens=120, extra_body=wish)
    forced = reply.model_extra["speculation"]["by_drafter"]["forced"]
    assert forced["accepted"] > 0


@checks("tools with response_format")
def tools_with_format(tour: Tour) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "fish", "schema": SCHEMA}}
    (choice,) = tour.chat(tools=[WEATHER], response_format=wanted, max_tokens=120).choices
    calls = choice.message.tool_calls or []
    assert all(json.loads(call.function.arguments).keys() == {"city"} for call in calls)
    assert calls or json.loads(choice.message.content).keys() == {"fish", "legs"}


@checks("parallel_tool_calls: false")
def one_tool(tour: Tour) -> None:
    asked: Any = [{"role": "user", "content": "The weather in Rome and in Paris?"}]
    reply = tour.chat(asked, tools=[WEATHER], parallel_tool_calls=False, max_tokens=80)
    assert len(reply.choices[0].message.tool_calls or []) <= 1


@checks("user, store, metadata, service_tier, ... are accepted")
def ignored(tour: Tour) -> None:
    fields = {"prompt_cache_key": "k"}
    text = tour.text(
        user="u", store=False, metadata={"a": "b"}, service_tier="auto",
        safety_identifier="s", modalities=["text"], extra_body=fields,
    )  # fmt: skip
    assert text == tour.text()


@checks("prediction")
def prediction(tour: Tour) -> None:
    plain = tour.text(max_tokens=40)
    parts: Any = [{"type": "text", "text": part} for part in (plain[:9], plain[9:])]
    for content in (plain, parts, "", "quite another text"):
        predicted: Any = {"type": "content", "content": content}
        reply = tour.chat(prediction=predicted, max_tokens=40)
        details = reply.usage.completion_tokens_details
        assert reply.choices[0].message.content == plain
        assert details.accepted_prediction_tokens <= reply.usage.completion_tokens
        assert details.rejected_prediction_tokens >= 0
        only: Any = {"speculation": {"drafter": "prediction"}}
        if content in (plain, parts):
            reply = tour.chat(prediction=predicted, max_tokens=40, extra_body=only)
            assert reply.usage.completion_tokens_details.accepted_prediction_tokens > 0
    stream = tour.chat(
        prediction={"type": "content", "content": plain}, max_tokens=40, extra_body=only,
        stream=True, stream_options={"include_usage": True},
    )  # fmt: skip
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == plain
    assert last.usage.completion_tokens_details.accepted_prediction_tokens > 0


@checks("speculation: drafter, num_speculative_tokens, report")
def speculation(tour: Tour) -> None:
    plain = tour.text()
    (model,) = json.loads(tour.curl("/v1/models"))["data"]
    named = {"suffix", "ngram", "model"}
    loaded = named.intersection(model["speculation"]["drafters"] or named)
    for drafter in ("auto", "none", *sorted(loaded)):
        wish = {"drafter": drafter, "num_speculative_tokens": 4, "report": True}
        reply = tour.chat(extra_body={"speculation": wish})
        assert reply.choices[0].message.content == plain
        stats = reply.model_extra["speculation"]
        assert stats["emitted"] == reply.usage.completion_tokens
        assert drafter != "none" or stats["drafted"] == 0


@checks("speculation.report in a stream")
def reported_stream(tour: Tour) -> None:
    parts = list(tour.chat(stream=True, extra_body={"speculation": {"report": True}}))
    tokens = [
        token
        for part in parts
        for token in (part.choices[0].model_extra or {}).get("speculation", {}).get("tokens", [])
    ]
    assert "".join(token["text"] for token in tokens) == tour.text()
    assert parts[-1].model_extra["speculation"]["emitted"] == len(tokens)


@checks("completions: prompt of every form")
def prompts(tour: Tour) -> None:
    one = tour.completion().choices[0].text
    both = tour.completion(["Once upon a time", "The sea"])
    assert both.choices[0].text == one
    assert len(both.choices) == 2
    ids = [100, 200, 300]
    assert tour.completion(ids).choices[0].text == tour.completion([ids]).choices[0].text


@checks("completions: stream, n, seed, stop")
def completion_fields(tour: Tour) -> None:
    text = tour.completion().choices[0].text
    parts = tour.completion(stream=True)
    assert "".join(part.choices[0].text for part in parts) == text
    assert tour.completion(stop=text[5]).choices[0].text == text[: text.index(text[5])]
    many = [choice.text for choice in tour.completion(n=2, temperature=1, seed=3).choices]
    assert many == [choice.text for choice in tour.completion(n=2, temperature=1, seed=3).choices]


@checks("completions: logprobs")
def completion_logprobs(tour: Tour) -> None:
    choice = tour.completion(logprobs=2).choices[0]
    figures = choice.logprobs
    assert figures.text_offset[0] == 0
    assert len(figures.tokens) == len(figures.token_logprobs) == len(figures.top_logprobs)


@checks("completions: max_tokens is 16 unless given")
def sixteen(tour: Tour) -> None:
    assert tour.completion(max_tokens=openai.omit).usage.completion_tokens <= 16


@checks("errors: a wrong value names its field")
def wrong_values(tour: Tour) -> None:
    for name, value in (("temperature", 3), ("n", 0), ("top_p", 2), ("stop", [""])):
        body = {"messages": QUESTION, name: value}
        assert tour.error(CHAT, body)["param"].startswith(name)


@checks("errors: an unknown field, a close one named")
def unknown_field(tour: Tour) -> None:
    error = tour.error(CHAT, {"messages": QUESTION, "temprature": 1})
    assert "did you mean temperature?" in error["message"]


@checks("errors: what is not supported says so")
def unsupported(tour: Tour) -> None:
    for name, value in (("num_beams", 4), ("best_of", 5)):
        assert tour.error(COMPLETION, {"prompt": "a", name: value})["param"] == name
    body = {"messages": QUESTION, "tool_choice": "required"}
    assert tour.error(CHAT, body)["param"] == "tool_choice"


@checks("errors: model_not_found")
def no_such_model(tour: Tour) -> None:
    body = {"messages": QUESTION, "model": "no-such-model"}
    assert tour.error(CHAT, body, 404)["code"] == "model_not_found"


@checks("errors: context_length_exceeded, with both numbers")
def too_long(tour: Tour) -> None:
    size = json.loads(tour.curl("/v1/models"))["data"][0]["context_size"]
    error = tour.error(COMPLETION, {"prompt": [100] * (size + 1)})
    assert error["code"] == "context_length_exceeded"
    assert str(size) in error["message"]
    assert str(size + 1) in error["message"]


@checks("errors: no JSON, no such path, another method, another type")
def no_request(tour: Tour) -> None:
    as_json = ("-H", "Content-Type: application/json")
    for arguments, path, status in (
        ((*as_json, "-d", "{"), CHAT, 400),
        ((*as_json, "-d", '{"temperature": NaN}'), CHAT, 400),
        (("-d", "{}"), CHAT, 415),
        ((), "/v1/nothing", 404),
        ((), CHAT, 405),
    ):
        code = tour.curl(path, "-o", "/dev/null", "-w", "%{http_code}", *arguments)
        assert code == str(status), (path, code)


def main(argv: Sequence[str] | None = None) -> int:
    """Take the tour, print what happened, and return the exit code."""
    own, options = split_options(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="a running server")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    args = parser.parse_args(own)
    with server_at(args.url, options) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        tour = Tour(url, client)
        for name, check in CHECKS:
            start = time.perf_counter()
            try:
                check(tour)
                outcome = "ok"
            except Exception as error:  # whatever it is, it is what the tour is for
                reason = " ".join(str(error).split()) or "not as it should be"
                outcome = f"FAILED: {type(error).__name__}: {reason}"[:200]
            tour.results[name] = outcome
            print(f"{name:58} {outcome} ({time.perf_counter() - start:.1f} s)", file=sys.stderr)
    failed = [name for name, outcome in tour.results.items() if outcome != "ok"]
    print(f"{len(CHECKS) - len(failed)} of {len(CHECKS)} ok", file=sys.stderr)
    finish({"model": tour.model, "checks": tour.results}, args.json)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
