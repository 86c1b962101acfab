"""A real server and requests as old proxies and plain clients write them, byte by byte."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from support.api import CHAT, LiveServer, chat

# only what hangs takes so long
WATCHDOG_SECONDS = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    server = LiveServer()
    yield server
    server.close()


def connect(server: LiveServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=WATCHDOG_SECONDS)


def until_closed(client: socket.socket) -> bytes:
    """Return what comes until the server hangs up."""
    received = b""
    while part := client.recv(65536):
        received += part
    return received


def until(client: socket.socket, end: bytes) -> bytes:
    """Return what comes up to and with `end`."""
    received = b""
    while end not in received:
        part = client.recv(65536)
        assert part, received
        received += part
    return received


def answer_to(server: LiveServer, request: bytes) -> tuple[bytes, bytes]:
    """Return head and body of the answer to a request after which the server hangs up."""
    with connect(server) as client:
        client.sendall(request)
        head, _, body = until_closed(client).partition(b"\r\n\r\n")
        return head, body


def post(body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {CHAT} HTTP/{version}", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith("transfer-encoding") for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def said(body: bytes) -> str:
    text: str = json.loads(body)["choices"][0]["message"]["content"]
    return text


HI = json.dumps(chat("hi")).encode()


@pytest.mark.parametrize("headers", [(), ("Host: 127.0.0.1",)])
def test_proxies_of_the_old_protocol_are_answered(
    server: LiveServer, headers: tuple[str, ...]
) -> None:
    head, body = answer_to(server, post(HI, *headers, version="1.0"))
    assert head.startswith(b"HTTP/1.1 200")
    assert said(body) == "hi"


def test_a_stream_over_the_old_protocol_ends_with_the_connection(server: LiveServer) -> None:
    body = json.dumps(chat("hi", stream=True)).encode()
    head, events = answer_to(server, post(body, version="1.0"))
    assert b"chunked" not in head.lower()
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


def test_a_body_may_come_in_chunks(server: LiveServer) -> None:
    parts = [HI[:7], HI[7:20], HI[20:]]
    chunks = b"".join(b"%x;note=1\r\n%b\r\n" % (len(part), part) for part in parts)
    end = b"0\r\nX-Trailer: 1\r\n\r\n"
    headers = ("Host: localhost", "Connection: close", "Transfer-Encoding: chunked")
    request = post(b"", *headers) + chunks + end
    head, body = answer_to(server, request)
    assert head.startswith(b"HTTP/1.1 200")
    assert said(body) == "hi"


def test_a_client_that_waits_for_a_go_ahead_gets_it_where_its_body_is_wanted(
    server: LiveServer,
) -> None:
    request = post(HI, "Host: localhost", "Connection: close", "Expect: 100-continue")
    head, body = request[: -len(HI)], request[-len(HI) :]
    with connect(server) as client:
        client.sendall(head)
        assert until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        client.sendall(body)
        assert until_closed(client).startswith(b"HTTP/1.1 200")
    for wrong, status in (
        (head.replace(str(len(HI)).encode(), b"9" * 12), b"413"),
        (head.replace(b"application/json", b"text/plain"), b"415"),
        (head.replace(b"localhost", b"a.example"), b"403"),
        (head.replace(CHAT.encode(), b"/nothing"), b"404"),
    ):
        with connect(server) as client:
            client.sendall(wrong)
            assert until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 " + status)


def test_an_offer_of_another_protocol_is_passed_over(server: LiveServer) -> None:
    offers = (
        ("Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
        ("Connection: Upgrade, close", "Upgrade: websocket", "Sec-WebSocket-Key: AAAA"),
    )
    for offer in offers:
        head, body = answer_to(server, post(HI, "Host: localhost", *offer))
        assert head.startswith(b"HTTP/1.1 200")
        assert said(body) == "hi"


def test_a_client_that_takes_the_server_for_its_proxy_is_answered(server: LiveServer) -> None:
    request = b"GET http://localhost/health?x=1 HTTP/1.1\r\nHost: localhost\r\n"
    head, body = answer_to(server, request + b"Connection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(body)["status"] == "ok"


def test_options_may_ask_about_the_whole_server(server: LiveServer) -> None:
    head, _ = answer_to(
        server, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 204")


def test_head_over_a_connection_that_is_used_again(server: LiveServer) -> None:
    with connect(server) as client:
        for _ in range(2):
            client.sendall(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # nothing of a body came before
        assert until(client, b"}").startswith(b"HTTP/1.1 200")


def test_requests_may_be_sent_before_the_answers_to_others_came(server: LiveServer) -> None:
    with connect(server) as client:
        last = post(HI, "Host: localhost", "Connection: close")
        client.sendall(post(HI, "Host: localhost") * 2 + last)
        assert until_closed(client).count(b"HTTP/1.1 200") == 3


def test_paths_of_any_bytes_are_a_clean_refusal(server: LiveServer) -> None:
    for path in (b"/%ff%fe", b"/%00", b"/%", b"/v1/models/%F0%9F%90%9F", b"/..%2f..%2fetc/passwd"):
        head, body = answer_to(
            server, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 404"), path
        assert json.loads(body)["error"]["message"]
