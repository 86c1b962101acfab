"""`pilotfish serve` as a process: killed, started again, told to stop in the middle of a reply."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.tiny_gguf import write_tiny

# long enough for a reply to be in its middle when the server learns that it is to stop
NUM_TOKENS = 1000
CHAT = "/v1/chat/completions"
# nothing here takes nearly as long: only what hangs does
WATCHDOG_SECONDS = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", context=2048)


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


@contextlib.contextmanager
def server(model: Path, port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program until the block ends."""
    command = [sys.executable, "-m", "pilotfish", "serve", "--target", str(model)]
    command += ["--port", str(port), "--drafter", "none", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        said = iter(process.stderr.readline, b"")
        assert any(f"127.0.0.1:{port}".encode() in line for line in said), "it never was ready"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WATCHDOG_SECONDS)


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What does the pilot fish see?"}]
    return {"messages": messages, "temperature": 0.9, "seed": 5, **fields}


def long_body(**fields: Any) -> dict[str, Any]:
    return body(max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS, **fields)


class Stream:
    """A streamed reply, read as far as a test wants."""

    def __init__(self, client: httpx.Client) -> None:
        request = client.build_request("POST", CHAT, json=long_body(stream=True))
        self._lines = client.send(request, stream=True).iter_lines()
        self.text = ""
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.finish_reason: str | None = None

    def read(self, num_characters: int | None = None) -> None:
        """Read until so many characters are there, by default to the end."""
        for line in self._lines:
            if line.startswith("data: "):
                self._take(line.removeprefix("data: "))
            if num_characters is not None and len(self.text) >= num_characters:
                return

    def _take(self, data: str) -> None:
        if data == "[DONE]":
            self.is_done = True
            return
        event = json.loads(data)
        self.error = event.get("error")
        for choice in event.get("choices", ()):
            self.text += choice["delta"].get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason


def client_of(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WATCHDOG_SECONDS)


def first_refusal(client: httpx.Client) -> httpx.Response:
    """Return the first answer that is no reply."""
    deadline = time.monotonic() + WATCHDOG_SECONDS
    while time.monotonic() < deadline:
        response = client.post(CHAT, json=body(max_tokens=1))
        if response.status_code != 200:
            return response
    raise AssertionError("the server goes on taking requests")


def test_killed_it_starts_again_and_told_to_stop_it_ends_what_it_began(
    model: Path, port: int
) -> None:
    with server(model, port) as process, client_of(port) as client:
        answer = client.post(CHAT, json=long_body()).json()
        first = answer["choices"][0]["message"]["content"]
        stream = Stream(client)
        stream.read(5)
        process.send_signal(signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            stream.read()
        assert not stream.is_done

    # the same port, at once; the same seed, so the same text
    with server(model, port) as process, client_of(port) as client:
        stream = Stream(client)
        stream.read(5)
        assert stream.text == first[: len(stream.text)]
        process.send_signal(signal.SIGTERM)
        refusal = first_refusal(client)
        assert refusal.status_code == 503
        assert refusal.json()["error"]["message"]
        stream.read()
        assert (stream.text, stream.finish_reason) == (first, "length")
        assert stream.is_done
        assert stream.error is None
        assert process.wait(WATCHDOG_SECONDS) == 0


def test_a_reply_that_outlasts_the_time_to_end_is_told_so(model: Path, port: int) -> None:
    with server(model, port, "--drain-seconds", "0") as process, client_of(port) as client:
        stream = Stream(client)
        stream.read(5)
        process.send_signal(signal.SIGTERM)
        stream.read()
        assert stream.error is not None
        assert stream.error["message"]
        assert not stream.is_done
        assert process.wait(WATCHDOG_SECONDS) == 0
