"""What browsers, proxies and plain HTTP clients make of a request, besides the official client."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pilotfish.errors import ConfigError
from pilotfish.server.access import host_name, is_allowed_host
from pilotfish.server.canonical import canonical_path
from pilotfish.server.options import ServerOptions
from pilotfish.server.origins import matches
from support.api import CHAT, MODEL, ask, chat, said, served

JSON = {"Content-Type": "application/json"}
# what OpenAI's client for browsers sends, in the order in which browsers ask for it
STAINLESS = (
    "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
    "x-stainless-runtime-version,x-stainless-timeout"
)
READABLE = ["/", "/health", "/metrics", "/openapi.json", "/pilotfish/info", "/v1/models",
            f"/v1/models/{MODEL}"]  # fmt: skip


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    with served() as app:
        yield app


def options(**changes: Any) -> ServerOptions:
    return ServerOptions(model_name=MODEL, **changes)


def preflight(app: FastAPI, origin: str, **headers: str) -> httpx.Response:
    question = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": STAINLESS,
        **headers,
    }
    return ask(app, "OPTIONS", CHAT, headers=question)


@pytest.mark.parametrize("allowed", ["*", "https://a.example"])
def test_the_official_client_in_a_page_may_send_its_headers(allowed: str) -> None:
    with served(options=options(cors_origins=(allowed,), api_key="k")) as app:
        answer = preflight(app, "https://a.example")
        assert answer.is_success
        assert answer.headers["access-control-allow-origin"] == allowed
        named = answer.headers["access-control-allow-headers"].lower().split(",")
        assert {name.strip() for name in named} >= set(STAINLESS.split(","))
        assert "POST" in answer.headers["access-control-allow-methods"]
        refused = ask(app, "GET", "/v1/models", headers={"Origin": "https://a.example"})
        assert (refused.status_code, refused.headers["access-control-expose-headers"]) == (401, "*")


def test_browsers_that_ask_about_private_networks_are_answered() -> None:
    asked = {"Access-Control-Request-Private-Network": "true"}
    with served(options=options(cors_origins=("*",))) as app:
        answer = preflight(app, "https://a.example", **asked)
        assert answer.is_success
        assert answer.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    ("pattern", "origin", "is_allowed"),
    [
        ("app://obsidian.md", "app://obsidian.md", True),
        ("tauri://localhost", "tauri://localhost", True),
        ("capacitor://localhost", "capacitor://localhost", True),
        ("vscode-webview://*", "vscode-webview://1a2b3c", True),
        ("vscode-webview://*", "vscode-file://1a2b3c", False),
        ("null", "null", True),
        ("file://", "file://", True),
        ("http://localhost:*", "http://localhost:5173", True),
        ("http://localhost:*", "http://localhost.evil.example", False),
        ("http://localhost:*", "http://localhost", False),
        ("https://*.a.example", "https://b.a.example", True),
        ("https://*.a.example", "https://evil.example/.a.example", False),
        ("https://*.a.example", "https://a.example", False),
        ("HTTPS://A.example", "https://a.example", True),
        ("https://a.example", "https://a.example.evil.example", False),
        ("https://a*a", "https://a", False),
        ("*", "null", True),
        ("https://a.example", "null", False),
    ],
)
def test_origins_of_any_scheme_can_be_named(pattern: str, origin: str, is_allowed: bool) -> None:
    assert matches(origin, pattern) is is_allowed
    with served(options=options(cors_origins=(pattern,))) as app:
        assert preflight(app, origin).is_success is is_allowed
        headers = ask(app, "GET", "/health", headers={"Origin": origin}).headers
        assert ("access-control-allow-origin" in headers) is is_allowed


@pytest.mark.parametrize(
    "origin",
    ["a.example", "https://a.example/", "https://a.example/app", "https://", "http://*.*", "", "://a"],
)  # fmt: skip
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"^cors_origins must be"):
        options(cors_origins=(origin,))


def test_a_page_that_may_not_call_is_told_which_option_lets_it(app: FastAPI) -> None:
    answer = preflight(app, "https://a.example")
    assert answer.status_code == 403
    assert "--cors-origin https://a.example" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", READABLE)
def test_what_can_be_read_has_a_head(app: FastAPI, path: str) -> None:
    whole, head = ask(app, "GET", path), ask(app, "HEAD", path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    # figures differ from one moment to the next
    assert (head.headers.get("content-length") is None) == (
        whole.headers.get("content-length") is None
    )


def test_head_is_guarded_as_get_is() -> None:
    with served(options=options(api_key="k")) as app:
        assert ask(app, "HEAD", "/v1/models").status_code == 401
        assert ask(app, "HEAD", "/health").status_code == 200
        assert ask(app, "HEAD", "/health", headers={"Host": "a.example"}).status_code == 403


def test_options_says_which_methods_a_path_has(app: FastAPI) -> None:
    for path, methods in ((CHAT, "OPTIONS, POST"), ("/v1/models", "GET, HEAD, OPTIONS")):
        answer = ask(app, "OPTIONS", path)
        assert (answer.status_code, answer.headers["allow"]) == (204, methods)
        refused = ask(app, "PUT", path)
        assert (refused.status_code, refused.headers["allow"]) == (405, methods)
    assert ask(app, "OPTIONS", "/nothing").status_code == 404


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("/v1/models/", "/v1/models"), ("//v1//models", "/v1/models"), ("/", "/"), ("//", "/"),
        ("*", "/"), ("http://localhost:8000/health", "/health"), ("HTTPS://a.example", "/"),
        ("/v1/models/http://a", "/v1/models/http:/a"), ("/health", "/health"),
    ],
)  # fmt: skip
def test_a_path_is_the_same_however_it_is_written(path: str, canonical: str) -> None:
    assert canonical_path(path) == canonical


def test_slashes_too_many_are_no_redirect(app: FastAPI) -> None:
    for path in (f"{CHAT}/", CHAT.replace("/v1", "/v1/"), f"{CHAT}?api-version=2026-01-01"):
        answer = ask(app, "POST", path, json=chat("hi"))
        assert answer.status_code == 200
        assert said(answer.json()) == "hi"
    assert ask(app, "GET", "/v1/models/").status_code == 200


def test_names_of_models_may_be_percent_encoded() -> None:
    with served(options=ServerOptions(model_name="org/a model:q4")) as app:
        for path in ("org%2Fa%20model%3Aq4", "org/a%20model:q4"):
            answer = ask(app, "GET", f"/v1/models/{path}")
            assert (answer.status_code, answer.json()["id"]) == (200, "org/a model:q4")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT), ("/v1/v1/chat/completions", CHAT), ("/models", "/v1/models"),
        ("/llm/v1/chat/completions", CHAT), ("/healthz", "/health"),
    ],
)  # fmt: skip
def test_a_path_that_is_nearly_right_names_the_right_one(
    app: FastAPI, path: str, meant: str
) -> None:
    answer = ask(app, "POST", path, json=chat("hi"))
    assert answer.status_code == 404
    assert f"(did you mean {meant}?)" in answer.json()["error"]["message"]


def test_a_path_that_is_far_from_all_gets_no_hint(app: FastAPI) -> None:
    for path in ("/api/generate", "/x" * 30_000):
        message = ask(app, "GET", path).json()["error"]["message"]
        assert "did you mean" not in message


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity"])
def test_compressed_bodies_are_refused_in_words(app: FastAPI, encoding: str) -> None:
    body = gzip.compress(json.dumps(chat("hi")).encode())
    answer = ask(app, "POST", CHAT, content=body, headers={**JSON, "Content-Encoding": encoding})
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert answer.json()["error"]["code"] == "unsupported_encoding"
    assert "without Content-Encoding" in answer.json()["error"]["message"]


def test_a_body_that_says_it_is_not_compressed_is_read(app: FastAPI) -> None:
    headers = {"Content-Encoding": "Identity"}
    assert ask(app, "POST", CHAT, json=chat("hi"), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=utf8"]
)  # fmt: skip
def test_json_may_say_its_charset(app: FastAPI, kind: str) -> None:
    body = json.dumps(chat("hi")).encode()
    assert ask(app, "POST", CHAT, content=body, headers={"Content-Type": kind}).status_code == 200


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream", "application/xml", "", "text/html"])
def test_whatever_a_client_would_like_to_read_it_gets_json(app: FastAPI, accept: str) -> None:
    answer = ask(app, "POST", CHAT, json=chat("hi"), headers={"Accept": accept})
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("allowed", "name", "is_allowed"),
    [
        ("gpu.example", "gpu.example", True), ("gpu.example", "GPU.example", True),
        ("gpu.example", "a.gpu.example", False), ("*.example", "gpu.example", True),
        ("*.example", "example", False), ("*.example", ".example", False),
        ("*.example", "gpuexample", False), ("192.168.0.7", "192.168.0.7", True),
        ("fd00::7", "fd00::7", True),
    ],
)  # fmt: skip
def test_a_server_answers_for_the_names_it_was_given(
    allowed: str, name: str, is_allowed: bool
) -> None:
    assert is_allowed_host(name, (allowed,)) is is_allowed
    host = f"[{name}]:8000" if ":" in name else f"{name}:8000"
    for own in ({}, {"host": "0.0.0.0"}):
        with served(options=options(allowed_hosts=(allowed,), **own)) as app:
            answer = ask(app, "GET", "/health", headers={"Host": host})
            assert answer.status_code == (200 if is_allowed else 403)
            if not is_allowed:
                assert "--allowed-host" in answer.json()["error"]["message"]
            # health checks from inside a container
            assert ask(app, "GET", "/health").status_code == 200


def test_a_server_may_answer_for_every_name() -> None:
    with served(options=options(allowed_hosts=("*",))) as app:
        assert ask(app, "GET", "/health", headers={"Host": "a.example"}).status_code == 200


def test_names_of_this_machine_may_be_full_or_of_an_own_zone() -> None:
    with served() as app:
        for host in ("localhost.", "LOCALHOST.:80", "pilotfish.localhost:8000"):
            assert ask(app, "GET", "/health", headers={"Host": host}).status_code == 200
    assert host_name("a.example.:80") == "a.example"


@pytest.mark.parametrize(
    "name", ["", "https://a.example", "a.example:80", "abc.de:80", "a/b", "a b", "a*", "**"]
)
def test_what_is_no_host_name_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^allowed_hosts must be"):
        options(allowed_hosts=(name,))


def test_proxies_must_not_change_or_hold_back_a_stream(app: FastAPI) -> None:
    headers = ask(app, "POST", CHAT, json=chat("hi", stream=True)).headers
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"


def test_who_a_request_says_it_came_from_changes_nothing(app: FastAPI) -> None:
    forged = {
        "X-Forwarded-Host": "a.example",
        "X-Forwarded-Proto": "https",
        "Forwarded": "for=1.2.3.4",
    }
    assert ask(app, "GET", "/health", headers=forged).status_code == 200
    forged["Host"] = "a.example"
    forged["X-Forwarded-Host"] = "localhost"
    assert ask(app, "GET", "/health", headers=forged).status_code == 403
