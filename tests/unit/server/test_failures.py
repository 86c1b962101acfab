"""A request that fails says so in one form, and the next one works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pilotfish.backends.scripted import ScriptedModel
from pilotfish.errors import BackendError
from pilotfish.server.answers import HealthAnswer
from pilotfish.types import FloatArray, Segment
from support.api import (
    CHAT,
    VOCAB,
    ask,
    chat,
    events,
    message_of,
    parrot,
    parrot_engine,
    post,
    said,
    served,
    stream_data,
)


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served() as app:
        yield app


def test_health_says_whether_requests_are_taken() -> None:
    with served() as app:
        answer = ask(app, "GET", "/health")
        HealthAnswer.model_validate(answer.json())
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")


class Failing(ScriptedModel):
    """A model whose passes fail when the text has come so far."""

    def __init__(self, after: int) -> None:
        super().__init__(parrot, vocab_size=VOCAB)
        self.after = after

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        if any(len(segment.cache) >= self.after for segment in segments):
            raise BackendError("the pass failed", hint="try again")
        return super().forward(segments)


def failing_engine(after: int) -> Any:
    engine = parrot_engine()
    model = Failing(after)
    engine.engine.target = model
    engine.engine.prefixes._model = model
    return engine


def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    with served(failing_engine(60)) as app:
        body = chat("hello", stream=True)
        assert message_of(events(ask(app, "POST", CHAT, json=body)))["content"] == "hello"
        answer = ask(app, "POST", CHAT, json=chat("x" * 40, stream=True))
        assert answer.status_code == 200
        *parts, last = [json.loads(text) for text in stream_data(answer.text)]
        assert message_of(parts)["content"]
        assert last["error"]["code"] == "backend_failed"
        assert "try again" in last["error"]["message"]
        whole = ask(app, "POST", CHAT, json=chat("x" * 40))
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "backend_failed")
        assert message_of(events(ask(app, "POST", CHAT, json=body)))["content"] == "hello"


def test_a_stream_that_cannot_begin_is_no_stream(app: FastAPI) -> None:
    answer = ask(app, "POST", CHAT, json=chat("x", n=0, stream=True))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"


def test_a_broken_drafter_costs_drafts_only() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("broken")

    with served(parrot_engine(drafter=Broken())) as app:
        document = post(app, CHAT, **chat("hello", speculation={"report": True}))
        assert said(document) == "hello"
        assert document["speculation"]["speculation"]["on"] is False


def test_a_full_queue_says_when_to_come_back() -> None:
    async def crowd(app: FastAPI) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(
                *(client.post(CHAT, json=chat("?", max_tokens=40)) for _ in range(12))
            )

    with served(max_running=2, max_waiting=2) as app:
        answers = asyncio.run(crowd(app))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_a_server_that_shuts_down_says_so() -> None:
    with served() as app:
        pass
    for answer in (ask(app, "POST", CHAT, json=chat("x")), ask(app, "GET", "/health")):
        assert answer.status_code == 503
    assert ask(app, "POST", CHAT, json=chat("x")).json()["error"]["code"] == "shutting_down"


def test_a_fault_of_ours_tells_the_client_nothing(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("pilotfish.server.routes.chat_asked", fail)
    answer = ask(app, "POST", CHAT, json=chat("x"))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
