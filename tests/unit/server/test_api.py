"""Every field of the API does what OpenAI says it does, streamed and not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.server.answers import ModelsAnswer
from pilotfish.server.asked import choice_seed
from support.api import (
    CHAT,
    COMPLETION,
    MODEL,
    ask,
    chat,
    choices_of,
    events,
    knowing,
    message_of,
    parrot_engine,
    post,
    said,
    served,
    stream,
    tokenizer,
)


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served() as app:
        yield app


def test_a_chat_is_answered_in_openais_form(app: FastAPI) -> None:
    document = post(app, CHAT, **chat("Hi there", model=MODEL))
    (choice,) = document["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hi there", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert document["model"] == MODEL
    assert document["id"].startswith("chatcmpl-")
    usage = document["usage"]
    # the end token was generated, too
    assert usage["completion_tokens"] == len("Hi there") + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert document["system_fingerprint"] == post(app, CHAT, **chat("x"))["system_fingerprint"]


def test_a_stream_says_what_the_whole_reply_says(app: FastAPI) -> None:
    text = "né 日本語 👩‍👩‍👧 fin"
    body = chat(text, stream_options={"include_usage": True})
    documents = stream(app, CHAT, **body)
    assert {one["object"] for one in documents} == {"chat.completion.chunk"}
    assert len({(one["id"], one["created"], one["system_fingerprint"]) for one in documents}) == 1
    *parts, last = documents
    assert last["choices"] == []
    assert all(part["usage"] is None for part in parts)
    whole = post(app, CHAT, **chat(text))
    assert last["usage"] == whole["usage"]
    message = message_of(parts)
    assert message["content"] == said(whole) == text
    assert message["role"] == "assistant"
    reasons = [choice["finish_reason"] for choice in choices_of(parts)]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert "�" not in json.dumps(documents)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_stream_counts_tokens_and_not_the_pieces_they_come_in(path: str) -> None:
    text = "one two one two one two"
    body = chat(text) if path == CHAT else {"prompt": f"{text}|", "temperature": 0}
    body |= {"max_tokens": 100, "stream_options": {"include_usage": True}}
    with served(parrot_engine(drafter=knowing([*text.encode(), 257]), num_drafts=4)) as app:
        *parts, last = stream(app, path, **body)
        with_text = [one for one in choices_of(parts) if (one.get("text") or said_by(one))]
        # five tokens a round come as one piece
        assert len(with_text) <= 1 + len(text) // 5
        assert last["usage"]["completion_tokens"] == len(text) + 1
        assert last["usage"] == post(app, path, **body | {"stream_options": None})["usage"]


def said_by(choice: dict[str, Any]) -> str:
    return (choice.get("delta") or {}).get("content") or ""


def test_a_stream_without_usage_has_none(app: FastAPI) -> None:
    assert all("usage" not in one for one in stream(app, CHAT, **chat("hi")))
    off = chat("hi", stream_options={"include_usage": False})
    assert all("usage" not in one for one in stream(app, CHAT, **off))


def test_messages_may_have_parts_and_any_role(app: FastAPI) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": parts, "name": "ops"},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "refusal": None, "annotations": []},
        {"role": "user", "content": parts, "name": "ann"},
    ]
    assert said(post(app, CHAT, messages=messages, temperature=0)) == "one two"


def test_a_developer_is_the_system_by_its_newer_name(app: FastAPI) -> None:
    template = "<|start|>x:{{ messages[0].role }}<|end|><|start|>assistant:"
    with served(parrot_engine(words=tokenizer(template))) as other:
        messages = [{"role": "developer", "content": "hi"}]
        assert said(post(other, CHAT, messages=messages, temperature=0)) == "system"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_longest_reply_is_kept_to(app: FastAPI, field: str) -> None:
    for number in (1, 3, 9):
        document = post(app, CHAT, **chat("hello world", **{field: number}))
        assert document["choices"][0]["finish_reason"] == "length"
        assert document["usage"]["completion_tokens"] == number
    both = chat("hello", max_tokens=2, max_completion_tokens=2)
    assert said(post(app, CHAT, **both)) == "he"


def test_without_a_limit_a_chat_may_fill_the_context_and_a_completion_has_16() -> None:
    with served(parrot_engine(context_size=100)) as small:
        document = post(small, CHAT, **chat("?"))
        # the last token is never read
        assert document["usage"]["total_tokens"] == 101
        assert post(small, COMPLETION, prompt="?")["usage"]["completion_tokens"] == 16
        assert post(small, COMPLETION, prompt="?", max_tokens=10**9)["usage"]["total_tokens"] == 101


@pytest.mark.parametrize("stop", ["wor", ["wor"], ["xyz", "wor", "ld"], ["w" * 90, "wor"]])
def test_a_stop_string_ends_the_reply_before_it(app: FastAPI, stop: object) -> None:
    body = chat("hello world", stop=stop)
    whole = post(app, CHAT, **body)
    assert said(whole) == "hello "
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert message_of(stream(app, CHAT, **body))["content"] == "hello "


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_control_token_is_a_stop_by_its_name(app: FastAPI, path: str) -> None:
    """Without the stop the reply would be made of control tokens, which have no text."""
    body = {**chat("?"), "prompt": "?"}
    del body["prompt" if path == CHAT else "messages"]
    body |= {"logit_bias": {"256": 100}, "max_tokens": 9, "stop": ["<|start|>"]}
    document = post(app, path, **body)
    assert said(document) == ""
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["usage"]["completion_tokens"] == 1
    body["stop"] = "no such text"
    document = post(app, path, **body)
    assert (said(document), document["usage"]["completion_tokens"]) == ("", 9)


def test_half_a_stop_string_is_never_sent(app: FastAPI) -> None:
    sent = ""
    for part in choices_of(stream(app, CHAT, **chat("The quick brown fox", stop=["own fox"]))):
        sent += part["delta"].get("content", "")
        assert "The quick br".startswith(sent)
    assert sent == "The quick br"


def test_choices_of_one_request_are_numbered_and_counted_together(app: FastAPI) -> None:
    document = post(app, CHAT, **chat("hello", n=3))
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert [said(document, index) for index in range(3)] == ["hello"] * 3
    alone = post(app, CHAT, **chat("hello"))["usage"]
    usage = document["usage"]
    assert usage["prompt_tokens"] == alone["prompt_tokens"]
    assert usage["completion_tokens"] == 3 * alone["completion_tokens"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_choices_differ_and_repeat_with_a_seed(app: FastAPI, path: str) -> None:
    body: dict[str, Any] = {"n": 4, "seed": 11, "max_tokens": 12}
    body |= {"prompt": "?"} if path == COMPLETION else {**chat("?"), "temperature": 1}
    first = [said(post(app, path, **body), index) for index in range(4)]
    assert len(set(first)) == 4
    assert first == [said(post(app, path, **body), index) for index in range(4)]
    assert said(post(app, path, **{**body, "n": 1})) == first[0]
    without = {name: value for name, value in body.items() if name != "seed"}
    assert said(post(app, path, **without)) != said(post(app, path, **without))
    parts = stream(app, path, **body)
    texts = [
        "".join(one["text"] if path == COMPLETION else one["delta"].get("content", "") for one in c)
        for c in (choices_of(parts, index) for index in range(4))
    ]
    assert texts == first


def test_seeds_of_choices_are_far_from_each_other() -> None:
    seeds = [choice_seed(seed, index) for seed in (0, 1, 2, -1) for index in range(16)]
    assert len(set(seeds)) == len(seeds)
    assert choice_seed(7, 0) == 7
    assert choice_seed(None, 5) is None


def test_a_temperature_that_is_not_given_is_one(app: FastAPI) -> None:
    body = {"prompt": "?", "seed": 4}
    texts = {said(post(app, COMPLETION, **body, temperature=one)) for one in (0, 1)}
    assert len(texts) == 2
    assert said(post(app, COMPLETION, **body)) == said(post(app, COMPLETION, **body, temperature=1))


@pytest.mark.parametrize(
    "setting",
    [
        {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}, {"logit_bias": {"65": 100}},
        {"presence_penalty": 2}, {"frequency_penalty": -2}, {"repetition_penalty": 9},
    ],
)  # fmt: skip
def test_settings_of_the_sampler_reach_it(app: FastAPI, setting: dict[str, Any]) -> None:
    body = {"prompt": "?" * 5, "seed": 3, "max_tokens": 16, "temperature": 1.2}
    plain = said(post(app, COMPLETION, **body))
    changed = said(post(app, COMPLETION, **body, **setting))
    if setting in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}):
        assert changed == said(post(app, COMPLETION, **{**body, "temperature": 0}))
    elif "logit_bias" in setting:
        assert changed == "A" * 16
    else:
        assert changed != plain


def test_top_k_of_minus_one_is_off_as_elsewhere(app: FastAPI) -> None:
    body = {"prompt": "?", "seed": 3}
    assert said(post(app, COMPLETION, **body, top_k=-1)) == said(post(app, COMPLETION, **body))


def test_min_tokens_holds_the_end_back(app: FastAPI) -> None:
    document = post(app, CHAT, **chat("hi", min_tokens=6, max_tokens=20))
    assert document["usage"]["completion_tokens"] >= 6


def test_fields_that_change_nothing_are_accepted(app: FastAPI) -> None:
    ignored = {
        "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto",
        "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "modalities": ["text"],
        "parallel_tool_calls": True, "tool_choice": "none", "response_format": {"type": "text"},
    }  # fmt: skip
    nulls = dict.fromkeys(
        [
            *("temperature", "top_p", "n", "stop", "stream", "stream_options", "max_tokens"),
            *("seed", "presence_penalty", "frequency_penalty", "logit_bias", "top_k", "min_p"),
            *("repetition_penalty", "min_tokens", "speculation", "max_completion_tokens"),
            *("logprobs", "top_logprobs", "tools"),
        ]
    )
    assert said(post(app, CHAT, **{**chat("hi"), **ignored})) == "hi"
    assert said(post(app, CHAT, **{**chat("hi"), **nulls})) == "hi"


def test_logprobs_of_a_chat_cover_every_token(app: FastAPI) -> None:
    body = chat("né", logprobs=True, top_logprobs=2)
    choice = post(app, CHAT, **body)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[byte] for byte in "né".encode()] + [[]]
    assert entries[0]["token"] == "n"
    assert entries[-1]["token"] == "<|end|>"
    for entry in entries:
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0
        assert math.isfinite(entry["top_logprobs"][1]["logprob"])
    parts = choices_of(stream(app, CHAT, **body))
    streamed = [one for part in parts if part["logprobs"] for one in part["logprobs"]["content"]]
    assert streamed == entries


def test_logprobs_without_alternatives_have_none(app: FastAPI) -> None:
    choice = post(app, CHAT, **chat("hi", logprobs=True))["choices"][0]
    assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[], [], []]
    assert post(app, CHAT, **chat("hi", logprobs=False))["choices"][0]["logprobs"] is None


def test_logprobs_end_with_the_token_that_completes_a_stop(app: FastAPI) -> None:
    document = post(app, CHAT, **chat("hello world", stop="wor", logprobs=True))
    assert len(document["choices"][0]["logprobs"]["content"]) == len("hello wor")
    assert document["usage"]["completion_tokens"] == len("hello wor")


def test_logprobs_of_a_completion_have_their_older_form(app: FastAPI) -> None:
    body = {"prompt": "aé|", "logprobs": 2, "temperature": 0}
    figures = post(app, COMPLETION, **body)["choices"][0]["logprobs"]
    assert figures["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "<|end|>"]
    assert figures["text_offset"] == [0, 1, 1, 2]
    assert len(figures["token_logprobs"]) == 4
    for token, logprob, top in zip(
        figures["tokens"], figures["token_logprobs"], figures["top_logprobs"], strict=True
    ):
        assert len(top) == 2
        assert top[token] == logprob
    parts = [one["logprobs"] for one in choices_of(stream(app, COMPLETION, **body))]
    streamed = {name: [value for part in parts if part for value in part[name]] for name in figures}
    assert streamed == figures


def test_a_completion_takes_prompts_of_every_form(app: FastAPI) -> None:
    ids = list(b"ab|")
    for prompt, texts in (
        ("ab|", ["ab"]),
        (["ab|", "c|"], ["ab", "c"]),
        (ids, ["ab"]),
        ([ids, list(b"c|")], ["ab", "c"]),
    ):
        document = post(app, COMPLETION, prompt=prompt, temperature=0)
        assert [said(document, index) for index in range(len(texts))] == texts
        assert len(document["choices"]) == len(texts)
    document = post(app, COMPLETION, prompt=["ab|", "c|"], n=2, temperature=0)
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    assert [said(document, index) for index in range(4)] == ["ab", "ab", "c", "c"]
    assert document["usage"]["prompt_tokens"] == 5
    assert document["usage"]["completion_tokens"] == 2 * (3 + 2)


def test_defaults_that_we_can_serve_are_accepted(app: FastAPI) -> None:
    body = {"prompt": "ab|", "temperature": 0, "echo": False, "suffix": None, "best_of": 1}
    assert said(post(app, COMPLETION, **body)) == "ab"
    assert len(post(app, COMPLETION, **{**body, "best_of": 2, "n": 2})["choices"]) == 2


@pytest.mark.parametrize("drafter", ["auto", "none", "suffix", "ngram", "model"])
def test_the_wish_for_drafts_changes_no_text_and_is_reported(drafter: str) -> None:
    text = "one two one two one two"
    reply = [*text.encode(), 257]
    with served(parrot_engine(drafter=knowing(reply, 3), num_drafts=4)) as app:
        wish = {"drafter": drafter, "num_speculative_tokens": 3, "report": True}
        document = post(app, CHAT, **chat(text, speculation=wish))
        assert said(document) == text
        stats = document["speculation"]
        assert stats["emitted"] == document["usage"]["completion_tokens"]
        assert {"rounds", "drafted", "accepted", "by_drafter", "speculation"} <= stats.keys()
        if drafter == "none":
            assert stats["drafted"] == 0
        assert "speculation" not in post(app, CHAT, **chat(text, speculation={"drafter": drafter}))


def test_figures_of_several_choices_are_those_of_all() -> None:
    reply = [*b"hello", 257]
    with served(parrot_engine(drafter=knowing(reply, 0), num_drafts=2)) as app:
        body = chat("hello", speculation={"report": True})
        one = post(app, CHAT, **body)["speculation"]
        three = post(app, CHAT, **body, n=3)["speculation"]
        for name in ("rounds", "drafted", "accepted", "emitted"):
            assert three[name] == 3 * one[name]
        assert three["acceptance_rate"] == one["acceptance_rate"]
        assert three["tokens_per_round"] == one["tokens_per_round"]
        parts = stream(app, CHAT, **body, n=3)
        ends = [part for part in parts if part["choices"][0]["finish_reason"]]
        assert [part["speculation"]["rounds"] for part in ends] == [one["rounds"]] * 3


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_reported_stream_tells_the_origin_of_each_token(path: str) -> None:
    reply = [*"né fin".encode(), 257]
    with served(parrot_engine(drafter=knowing(reply, 4), num_drafts=3)) as app:
        body = chat("né fin") if path == CHAT else {"prompt": "né fin|", "temperature": 0}
        parts = stream(app, path, **body, speculation={"report": True})
        tokens = [
            token
            for choice in choices_of(parts)
            for token in choice.get("speculation", {}).get("tokens", [])
        ]
        assert [token["id"] for token in tokens] == reply
        assert "".join(token["text"] for token in tokens) == "né fin"
        assert {token["origin"] for token in tokens} == {"target", "model"}


def test_the_models_are_listed_with_what_is_loaded(app: FastAPI) -> None:
    document = ask(app, "GET", "/v1/models").json()
    ModelsAnswer.model_validate(document)
    (model,) = document["data"]
    assert model["id"] == MODEL
    assert ask(app, "GET", f"/v1/models/{MODEL}").json() == model


@settings(max_examples=30)
@given(st.text(max_size=20), st.integers(1, 3))
def test_any_text_makes_valid_events(app: FastAPI, text: str, number: int) -> None:
    body = chat("x" + text, stream=True, n=number, max_tokens=99, logprobs=True, top_logprobs=1)
    answer = ask(app, "POST", CHAT, json=body)
    assert answer.status_code == 200
    assert answer.content.isascii()
    parts = events(answer)
    assert {message_of(parts, index)["content"] for index in range(number)} == {"x" + text}
