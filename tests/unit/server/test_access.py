"""Who gets in: keys, host names, origins, sizes of bodies; and what is written of it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pilotfish.errors import ConfigError
from pilotfish.server.access import host_name
from pilotfish.server.options import ServerOptions, is_loopback
from pilotfish.types import FloatArray
from support.api import CHAT, MODEL, ask, chat, parrot, served, tokenizer
from support.text_engines import text_engine

KEY = "a-key"
BEARER = {"Authorization": f"Bearer {KEY}"}
GUARDED = [
    ("POST", CHAT), ("POST", "/v1/completions"), ("GET", "/v1/models"),
    ("GET", f"/v1/models/{MODEL}"), ("GET", "/metrics"), ("GET", "/pilotfish/info"),
    ("GET", "/openapi.json"), ("GET", "/nothing"), ("POST", "/"), ("GET", "/assetsx"),
]  # fmt: skip


def options(**changes: Any) -> ServerOptions:
    return ServerOptions(model_name=MODEL, **changes)


def test_everything_that_holds_data_asks_for_the_key() -> None:
    with served(options=options(api_key=KEY)) as app:
        for method, path in GUARDED:
            for headers in (
                {}, {"Authorization": KEY}, {"Authorization": "Bearer"},
                {"Authorization": f"Bearer {KEY}x"}, {"Authorization": "Bearer \u00fc"},
                {"Authorization": f"Basic {KEY}"},
            ):  # fmt: skip
                raw = {name: value.encode("latin-1") for name, value in headers.items()}
                answer = ask(app, method, path, headers=raw)
                assert answer.status_code == 401, (method, path, headers)
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
            assert ask(app, method, path, headers=BEARER).status_code != 401
        assert ask(app, "POST", CHAT, headers=BEARER, json=chat("hi")).status_code == 200
        other = {"Authorization": f"bearer  {KEY} "}
        assert ask(app, "GET", "/v1/models", headers=other).status_code == 200


def test_health_and_the_page_are_open_and_hold_no_data() -> None:
    with served(options=options(api_key=KEY)) as app:
        health = ask(app, "GET", "/health")
        assert health.status_code == 200
        assert "target" not in health.json()
        assert ask(app, "GET", "/").status_code == 200
        assert ask(app, "GET", "/assets/nothing").status_code == 404
        described = ask(app, "GET", "/openapi.json", headers=BEARER).json()
        assert described["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
        assert described["paths"]["/health"]["get"]["security"] == []


def test_without_a_key_everything_is_open_and_health_says_what_is_loaded() -> None:
    with served() as app:
        assert ask(app, "GET", "/v1/models", headers={"Authorization": "Bearer x"}).is_success
        assert {"target", "draft", "speculation"} <= ask(app, "GET", "/health").json().keys()


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost", True), ("LOCALHOST:8000", True), ("127.0.0.1", True), ("127.0.0.1:9", True),
        ("127.1.2.3", True), ("[::1]", True), ("[::1]:8000", True), ("evil.example", False),
        ("localhost.evil.example", False), ("127.0.0.1.nip.io:8000", False), ("", False),
        ("192.168.0.1", False), ("[::2]:80", False), ("0.0.0.0:8000", False), ("a b", False),
    ],
)  # fmt: skip
def test_a_local_server_answers_for_its_own_names_only(host: str, is_own: bool) -> None:
    assert is_loopback(host_name(host)) == is_own
    with served() as app:
        answer = ask(app, "GET", "/health", headers={"Host": host})
        assert answer.status_code == (200 if is_own else 403)
        if not is_own:
            assert answer.json()["error"]["code"] == "wrong_host"


def test_a_server_for_others_answers_for_any_name() -> None:
    with served(options=options(host="0.0.0.0", api_key=KEY)) as app:
        assert ask(app, "GET", "/health", headers={"Host": "gpu.example"}).status_code == 200


def preflight(app: FastAPI, origin: str) -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return ask(app, "OPTIONS", CHAT, headers=headers)


def test_pages_of_other_origins_are_let_in_by_name_only() -> None:
    allowed = "access-control-allow-origin"
    with served() as app:
        assert allowed not in preflight(app, "https://a.example").headers
        origin = {"Origin": "https://a.example"}
        assert allowed not in ask(app, "GET", "/v1/models", headers=origin).headers
    named = options(cors_origins=("https://a.example",), api_key=KEY)
    with served(options=named) as app:
        answer = preflight(app, "https://a.example")  # browsers send no key with these
        assert answer.status_code == 204
        assert answer.headers[allowed] == "https://a.example"
        assert preflight(app, "https://b.example").status_code == 403
        # what went wrong can be read, too
        refused = ask(app, "GET", "/v1/models", headers={"Origin": "https://a.example"})
        assert (refused.status_code, refused.headers[allowed]) == (401, "https://a.example")


def test_large_bodies_are_refused_whatever_they_say_of_themselves() -> None:
    body = json.dumps(chat("x" * 900)).encode()

    async def in_parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    json_type = {"Content-Type": "application/json"}
    for limit, status in ((len(body), 200), (len(body) - 1, 413)):
        with served(options=options(max_body_bytes=limit)) as app:
            for content in (body, in_parts()):
                answer = ask(app, "POST", CHAT, content=content, headers=json_type)
                assert answer.status_code == status
            for length in ("12", "abc", "-1", "9" * 30):
                lying = {**json_type, "Content-Length": length}
                answer = ask(app, "POST", CHAT, content=body, headers=lying)
                assert answer.status_code in (status, 413)
            if status == 413:
                assert answer.json()["error"]["code"] == "body_too_large"
                assert f"more than {limit} bytes" in answer.json()["error"]["message"]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name.startswith("pilotfish.server")]


def test_each_request_has_one_line_and_no_word_of_its_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with served() as app:
        ask(app, "POST", CHAT, json=chat("secret words"))
        ask(app, "POST", CHAT, json=chat("secret words", stream=True))
        ask(app, "POST", CHAT, json=chat("secret words", seed="secret"))
        ask(app, "GET", "/v1/models?secret=1", headers={"Authorization": "secret"})
    found = lines(caplog)
    assert len(found) == 4
    assert "secret" not in "".join(found)
    assert found[0].startswith(f"POST {CHAT} 200 ")
    assert found[0].endswith("completion_tokens=13")
    assert found[1].endswith("completion_tokens=13")
    assert f"POST {CHAT} 400 " in found[2]


def test_paths_cannot_write_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with served() as app:
        ask(app, "GET", "/a%0Ab%1B[31m")
    (line,) = lines(caplog)
    assert line.isprintable()


def test_prompts_are_written_where_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with served(options=options(log_prompts=True)) as app:
        ask(app, "POST", CHAT, json=chat("open\nwords"))
    asked, _ = lines(caplog)
    assert '"open\\nwords"' in asked


def test_a_client_that_leaves_ends_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """Send the request, then hang up, without a port: streamed after three parts, whole while the
    model is at its first row."""
    caplog.set_level(logging.INFO)
    goes_on = threading.Event()

    def held(prefix: tuple[int, ...]) -> FloatArray:
        assert goes_on.wait(30)
        return parrot(prefix)

    async def leave(app: FastAPI, body: bytes) -> int:
        sent = 0
        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})

        async def send(message: dict[str, Any]) -> None:
            nonlocal sent
            sent += message["type"] == "http.response.body"
            if sent == 3:
                inbox.put_nowait({"type": "http.disconnect"})

        asking = asyncio.ensure_future(
            app(
                {
                    "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
                    "http_version": "1.1", "method": "POST", "path": CHAT, "raw_path": b"",
                    "root_path": "", "scheme": "http", "query_string": b"", "client": None,
                    "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
                },
                inbox.get,
                send,
            )
        )  # fmt: skip
        if not goes_on.is_set():
            while app.state.service.state.num_running == 0:
                await asyncio.sleep(0.001)
            inbox.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(asking, 30)
        goes_on.set()
        while app.state.service.state.num_running:
            await asyncio.sleep(0.001)
        return sent

    with served(text_engine(held, words=tokenizer())) as app:
        for fields in ({"stream": True}, {}):
            if fields:
                goes_on.set()
            else:
                goes_on.clear()
            body = json.dumps(chat("?", max_tokens=4000, **fields)).encode()
            assert asyncio.run(leave(app, body)) < 100
    streamed, whole = lines(caplog)
    assert f"{CHAT} 200 " in streamed
    assert streamed.endswith("error=client_gone")
    assert f"{CHAT} 499 " in whole


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", ""), ("port", -1), ("port", 65536), ("port", 1.5), ("api_key", ""),
        ("api_key", "  "), ("api_key", "ü"), ("cors_origins", ("a.example",)),
        ("cors_origins", ("https://a.example/",)), ("max_body_bytes", 0),
        ("max_body_bytes", "many"), ("max_connections", 0), ("client_seconds", 0),
        ("idle_seconds", 0), ("idle_seconds", -1), ("drain_seconds", -1),
        ("drain_seconds", float("inf")),
        ("drain_seconds", float("nan")), ("model_name", ""),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be"):
        ServerOptions(**{name: value})  # type: ignore[arg-type]
