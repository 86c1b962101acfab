"""Requests made up from the API's own description, and broken ones: none is too much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.api import CHAT, COMPLETION, LiveServer, chat, parrot_engine, said

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# whether a request has the right shape is known; whether its model and tokens exist is not
ANSWERS = {GenerationMode.POSITIVE: {200, 400, 404}, GenerationMode.NEGATIVE: {400, 415}}
OPERATIONS = [(CHAT, "POST"), (COMPLETION, "POST"), ("/v1/models/{model_id}", "GET")]
CASES = [
    (*operation, mode)
    for mode in ANSWERS
    for operation in OPERATIONS
    if mode is GenerationMode.POSITIVE or operation[1] == "POST"
]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    # a small context keeps replies short, whatever is asked
    server = LiveServer(parrot_engine(context_size=200))
    yield server
    server.close()


@pytest.fixture(scope="module")
def api(server: LiveServer) -> Any:
    return schemathesis.openapi.from_dict(httpx.get(f"{server.url}/openapi.json").json())


def works(server: LiveServer) -> bool:
    answer = httpx.post(server.url + CHAT, json=chat("fine"))
    return said(answer.json()) == "fine"


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_no_request_made_from_the_description_is_too_much(
    server: LiveServer, api: Any, path: str, method: str, mode: GenerationMode
) -> None:
    generated = api[path][method].as_strategy(generation_mode=mode)
    seen = set()

    @settings(max_examples=36, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=generated)
    def send(case: Any) -> None:
        response = case.call(base_url=server.url)
        case.validate_response(response, checks=CHECKS)
        seen.add(response.status_code)

    send()
    assert seen <= ANSWERS[mode] | ({404} if method == "GET" else set())
    assert works(server)


@st.composite
def broken_bodies(draw: st.DrawFn) -> bytes:
    """Return a good body in which some bytes were lost, changed or doubled."""
    data = bytearray(json.dumps(chat("héllo", stop=["a"], n=2, logit_bias={"5": 1.5})).encode())
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                del data[position:]
            case 1:
                data[position] = draw(st.integers(0, 255))
            case 2:
                del data[position : position + draw(st.integers(1, 9))]
            case _:
                data[position:position] = data[draw(st.integers(0, position)) : position]
        if not data:
            break
    return bytes(data)


def test_no_broken_body_is_too_much(server: LiveServer) -> None:
    with httpx.Client(headers={"Content-Type": "application/json"}) as client:

        @settings(max_examples=40, phases=[Phase.generate])
        @given(body=st.one_of(broken_bodies(), st.binary(max_size=40)))
        def send(body: bytes) -> None:
            answer = client.post(server.url + CHAT, content=body)
            assert answer.status_code in (200, 400, 404)
            assert isinstance(answer.json(), dict)

        send()
    assert works(server)
