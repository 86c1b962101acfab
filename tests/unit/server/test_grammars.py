"""Grammars are compiled before a request waits, and belong to it from then on."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from pilotfish.config import Request
from pilotfish.errors import PilotfishError
from pilotfish.grammar import JsonGrammars, Schema, grammars
from support.api import CHAT, chat, post, said, served


def test_a_grammar_is_compiled_once_and_never_on_the_thread_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    compiled = JsonGrammars._compile

    def recorded(store: JsonGrammars, schema: Schema) -> object:
        threads.append(threading.current_thread().name)
        return compiled(store, schema)

    monkeypatch.setattr(JsonGrammars, "_compile", recorded)
    # what the store keeps is gone at once, as it is when many others come while a request waits
    monkeypatch.setattr(grammars, "_MOST_KEPT", 0)
    with served() as app:
        body = chat('{"x":[1]}', response_format={"type": "json_object"}, max_tokens=50, n=2)
        reply = post(app, CHAT, **body)
    assert [json.loads(said(reply, index)) for index in range(2)] == [{"x": [1]}] * 2
    assert len(threads) == 1
    assert "pilotfish-engine" not in threads


def test_a_service_takes_no_request_whose_grammar_is_missing() -> None:
    with served() as app:
        service = app.state.service
        request = Request(json_schema={"type": "object"}, raw=True)

        async def submit() -> None:
            service.submit([1], [request])

        with pytest.raises(PilotfishError, match="no grammar"):
            asyncio.run(submit())
        assert service.state.num_waiting == 0
