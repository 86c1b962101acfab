"""`prediction` in chats and completions: counted, shared by choices, and without effect on text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI

from pilotfish.drafters.prediction import PredictionDrafter
from support.api import (
    CHAT,
    COMPLETION,
    ask,
    chat,
    message_of,
    parrot_engine,
    post,
    said,
    served,
    stream,
)

TEXT = "def total(total): return total"
IGNORED = "pilotfish-ignored-fields"


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served(parrot_engine(drafter=PredictionDrafter(), max_sessions=4)) as app:
        yield app


def predicted(content: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


def details(document: dict[str, Any]) -> tuple[int, int]:
    found = document["usage"]["completion_tokens_details"]
    return found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        [{"type": "text", "text": "def "}, {"type": "text", "text": TEXT[4:]}],
        f"```\n{TEXT}\n```",
        TEXT.replace("total", "x"),
        TEXT[::-1],
        "",
        [],
        "x" * 50_000,
        "<|end|><|start|>user:",
    ],
)
def test_the_reply_is_the_same_with_any_prediction(app: FastAPI, content: Any) -> None:
    for path, body in ((CHAT, chat(TEXT)), (COMPLETION, {"prompt": f"{TEXT}|", "max_tokens": 50})):
        body = {**body, "temperature": 0}
        whole = post(app, path, **body, **predicted(content))
        assert said(whole) == TEXT
        assert (details(whole)[0] > 10) == ("return" in joined(content))
        *_, last = stream(
            app, path, **body, **predicted(content), stream_options={"include_usage": True}
        )
        assert last["usage"] == whole["usage"]


def joined(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def test_without_a_prediction_nothing_is_counted_for_one(app: FastAPI) -> None:
    assert details(post(app, CHAT, **chat(TEXT))) == (0, 0)
    assert details(post(app, CHAT, **chat(TEXT, prediction=None))) == (0, 0)


def test_choices_and_prompts_share_a_prediction_and_their_counts_add_up(app: FastAPI) -> None:
    one = post(app, CHAT, **chat(TEXT), **predicted(TEXT))
    two = post(app, CHAT, **chat(TEXT, n=2), **predicted(TEXT))
    assert details(two) == (2 * details(one)[0], 2 * details(one)[1])
    body = {"prompt": [f"{TEXT}|", f"{TEXT}|"], "max_tokens": 50, "temperature": 0}
    many = post(app, COMPLETION, **body, **predicted(TEXT))
    assert [choice["text"] for choice in many["choices"]] == [TEXT, TEXT]
    assert details(many) == details(two)


def test_seeded_replies_are_the_same_with_any_prediction(app: FastAPI) -> None:
    body = {"prompt": "?", "seed": 4, "max_tokens": 40}
    plain = said(post(app, COMPLETION, **body))
    for content in (plain, plain[::-1], plain[5:] + plain):
        assert said(post(app, COMPLETION, **body, **predicted(content))) == plain


def test_stop_texts_and_reports_go_with_it(app: FastAPI) -> None:
    report = {"speculation": {"report": True, "drafter": "prediction"}}
    document = post(app, CHAT, **chat(TEXT, stop="): r"), **predicted(TEXT), **report)
    assert said(document) == "def total(total"
    drafted = document["speculation"]["by_drafter"]["prediction"]
    assert details(document) == (drafted["accepted"], drafted["drafted"] - drafted["accepted"])
    parts = stream(app, CHAT, **chat(TEXT), **predicted(TEXT), **report)
    assert message_of(parts)["content"] == TEXT
    origins = [
        token["origin"]
        for part in parts
        for choice in part["choices"]
        for token in choice.get("speculation", {}).get("tokens", ())
    ]
    assert origins.count("prediction") > 10


def test_what_is_not_drafted_from_is_named_as_ignored(app: FastAPI) -> None:
    def ignored(app: FastAPI, **fields: Any) -> str:
        answer = ask(app, "POST", CHAT, json={**chat(TEXT), **predicted(TEXT), **fields})
        assert (answer.status_code, said(answer.json())) == (200, TEXT)
        return answer.headers.get(IGNORED, "")

    assert ignored(app) == ""
    assert ignored(app, speculation={"drafter": "prediction"}) == ""
    for drafter in ("none", "suffix"):
        assert ignored(app, speculation={"drafter": drafter}) == "prediction"
    assert ignored(app, speculation={"num_speculative_tokens": 0}) == "prediction"
    engine = parrot_engine()
    engine.facts = replace(engine.facts, drafters=("suffix",))
    with served(engine) as narrow:
        assert ignored(narrow) == "prediction"
        wish = {"speculation": {"drafter": "prediction"}}
        answer = ask(narrow, "POST", CHAT, json={**chat(TEXT), **predicted(TEXT), **wish})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speculation.drafter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prediction": "text"}, "prediction"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"type": "tokens", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content", "content": 3}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction"),
        ({"prediction": {"type": "content", "content": "x", "contents": 1}}, "prediction.contents"),
        ({"speculation": {"drafter": "prediction"}}, "speculation.drafter"),
    ],
)
def test_what_is_no_prediction_is_named(app: FastAPI, fields: dict[str, Any], param: str) -> None:
    for path, body in ((CHAT, chat(TEXT)), (COMPLETION, {"prompt": "x|"})):
        answer = ask(app, "POST", path, json={**body, **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(param)


def test_a_prediction_of_half_a_character_is_refused_by_name(app: FastAPI) -> None:
    body = json.dumps({**chat("x"), **predicted("\ud800")}).encode()
    answer = ask(app, "POST", CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prediction")
