"""What the measuring programs of the server share: a `pilotfish serve` to ask, and requests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pilotfish import __version__
from pilotfish.accounting.provenance import provenance, total_memory_bytes
from pilotfish.backends.machine import default_threads, processor_name

# a pair that was never measured on this machine is measured before the server is ready
READY_SECONDS = 300.0
# nothing that works takes longer
LONGEST_REPLY = httpx.Timeout(300.0, connect=10.0)
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """A `pilotfish serve` with the given options, ready when the object is made."""

    def __init__(self, options: Sequence[str], *, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # kept as long as the process, not for a block
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "pilotfish", "serve", "--port", str(self.port), *options]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> str:
        """Return what the server has printed."""
        # the process writes where the file stands, so that is left alone
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def memory_bytes(self, name: str = "VmRSS") -> int:
        """Return the server's resident memory; `VmHWM` is the most it ever was."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        kilobytes = re.search(rf"^{name}:\s+(\d+) kB", status, flags=re.MULTILINE)
        assert kilobytes is not None
        return 1024 * int(kilobytes[1])

    def processor_seconds(self) -> float:
        """Return the seconds of all cores the server has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS

    def terminate(self) -> None:
        """Ask it to end, as an operator does."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 60.0) -> int:
        """Return the exit code."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise SystemExit(f"error: the server ended: {self.log.strip()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=2.0).status_code == 200:
                    return
            time.sleep(0.1)
        raise SystemExit(f"error: the server was not ready in {READY_SECONDS:.0f} s")


@dataclass(slots=True)
class Answer:
    """What one request brought, and when; seconds count from its beginning.

    token_ids  as the stream reported them
    stats      of the reply, as `speculation.report` gives them
    marks      the time of each chunk with text or tokens
    error      the message of a reply that failed
    """

    status: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    num_completion_tokens: int = 0
    stats: dict[str, Any] = field(default_factory=dict)
    marks: list[float] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None
    retry_after: str | None = None

    @property
    def what(self) -> tuple[Any, ...]:
        """Return what must be the same however the reply was made."""
        return self.text, self.token_ids, self.finish_reason, self.num_completion_tokens

    @property
    def gaps(self) -> list[float]:
        """Return the seconds between one chunk and the next."""
        return [after - before for before, after in zip(self.marks, self.marks[1:], strict=False)]


async def ask(
    client: httpx.AsyncClient, body: Mapping[str, Any], *, answer: Answer | None = None
) -> Answer:
    """Return the answer to a streamed chat request; one that is given grows as it is made."""
    answer, start = answer or Answer(), time.perf_counter()
    whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json=whole) as response:
        answer.status = response.status_code
        answer.retry_after = response.headers.get("retry-after")
        if response.status_code == 200:
            async for event in events(response):
                _take(answer, event, time.perf_counter() - start)
        else:
            answer.error = (await response.aread()).decode(errors="replace")[:300]
    answer.seconds = time.perf_counter() - start
    return answer


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream up to `[DONE]`; ValueError for one that ends before."""
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue  # the end of an event, or a comment: the server waits, too
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        event: dict[str, Any] = json.loads(data)
        yield event
        if "error" in event:
            return
    raise ValueError("the stream ended without [DONE]")


def _take(answer: Answer, event: Mapping[str, Any], seconds: float) -> None:
    if "error" in event:
        answer.error = str(event["error"]["message"])
        return
    if event.get("usage"):
        answer.num_completion_tokens = event["usage"]["completion_tokens"]
    for choice in event["choices"]:
        text = choice["delta"].get("content") or ""
        report = choice.get("speculation") or {}
        tokens = [token["id"] for token in report.get("tokens", ())]
        answer.text += text
        answer.token_ids += tokens
        if text or tokens:
            answer.marks.append(seconds)
        if choice.get("finish_reason"):
            answer.finish_reason = choice["finish_reason"]
            answer.stats = event.get("speculation") or {}


def samples(url: str) -> dict[str, float]:
    """Return what `/metrics` says, by name and labels."""
    lines = httpx.get(f"{url}/metrics", timeout=10.0).text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def origin() -> dict[str, Any]:
    """Return the provenance of a result."""
    threads = default_threads()
    return provenance(
        ["python", *sys.argv],
        version=__version__,
        processor=processor_name(),
        cores=threads,
        memory_bytes=total_memory_bytes(),
        threads=threads,
    )


def finish(report: Mapping[str, Any], path: Path | None) -> None:
    """Print a report as JSON with its provenance, and write it to `path` if given."""
    text = json.dumps({**report, "provenance": origin()}, indent=1)
    print(text)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the program's own options, and those behind `--`, which are the server's."""
    own = list(argv)
    if "--" not in own:
        return own, []
    place = own.index("--")
    return own[:place], own[place + 1 :]


@contextlib.contextmanager
def server_at(
    url: str | None, options: Sequence[str]
) -> Iterator[tuple[str, ServerProcess | None]]:
    """Give the address of a server: the one at `url`, or one of our own for the block."""
    if url is not None:
        yield url, None
        return
    with ServerProcess(options) as server:
        yield server.url, server
