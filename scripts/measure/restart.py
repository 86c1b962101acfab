#!/usr/bin/env python
"""End a server in all ways it may end, and start it again on the same port.

Killed (SIGKILL) in mid-stream it must start again and give the same reply to the same seed. Told to
stop (SIGTERM) in mid-stream it must let the stream end as it would have, refuse what is new with
503, and exit with 0; what takes longer than --drain-seconds must end with an error event. Prints
one line a check with its seconds; the exit code is 1 if one failed.

    python scripts/measure/restart.py -- --backend native
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from serving import LONGEST_REPLY, Answer, ServerProcess, ask, finish, free_port, split_options

PROMPT = "Tell the story of a pilot fish that counts the waves."
# after so many chunks a reply is in the middle
MIDDLE = 4


class Checks:
    """Notes what was checked, and prints it."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self._since = time.perf_counter()

    def note(self, name: str, passed: bool, detail: object = "") -> None:
        """Note one check."""
        seconds = time.perf_counter() - self._since
        self._since = time.perf_counter()
        self.results.append({"check": name, "passed": passed, "seconds": seconds})
        words = "ok" if passed else f"FAILED {detail}"
        print(f"{seconds:6.1f} s  {name}: {words}", file=sys.stderr)


def body(max_tokens: int) -> dict[str, Any]:
    """Return a sampled request with a seed."""
    return {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": max_tokens,
        "temperature": 0.8,
        "seed": 11,
        "speculation": {"report": True},
    }


async def in_the_middle(url: str, max_tokens: int) -> tuple[asyncio.Task[Answer], Answer]:
    """Return a running request that has brought some chunks, and its growing answer."""
    growing = Answer()

    async def run() -> Answer:
        async with httpx.AsyncClient(base_url=url, timeout=LONGEST_REPLY) as client:
            return await ask(client, body(max_tokens), answer=growing)

    task = asyncio.create_task(run())
    while len(growing.marks) < MIDDLE and not task.done():
        await asyncio.sleep(0.005)
    return task, growing


async def answered(url: str, max_tokens: int) -> Answer:
    """Return the answer to the request, alone."""
    async with httpx.AsyncClient(base_url=url, timeout=LONGEST_REPLY) as client:
        return await ask(client, body(max_tokens))


async def killed(options: Sequence[str], max_tokens: int, checks: Checks) -> Answer:
    """Kill a server in mid-stream and start it again; return the reply, which must be the same."""
    port = free_port()
    with ServerProcess(options, port=port) as server:
        checks.note("starts", True)
        first = await answered(server.url, max_tokens)
        checks.note("answers", first.error is None, first.error)
        task, _ = await in_the_middle(server.url, max_tokens)
        server.kill()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        is_cut = isinstance(outcome, httpx.HTTPError | ValueError)
        checks.note("killed in mid-stream, the client sees the stream break", is_cut, outcome)
    with ServerProcess(options, port=port) as server:
        checks.note("starts again on the same port", True)
        second = await answered(server.url, max_tokens)
        checks.note("gives the same reply to the same seed", first.what == second.what)
    return first


async def drained(options: Sequence[str], expected: Answer, checks: Checks) -> None:
    """Stop a server in mid-stream: the stream ends as it would have, nothing new is taken."""
    max_tokens = expected.num_completion_tokens
    with ServerProcess(options) as server:
        task, growing = await in_the_middle(server.url, max_tokens)
        async with httpx.AsyncClient(base_url=server.url, timeout=LONGEST_REPLY) as client:
            server.terminate()
            refused = await refusal(client, task)
        checks.note("told to stop in mid-stream, refuses what is new with 503", refused == 503)
        answer = await task
        is_whole = answer.what == expected.what
        checks.note("lets the stream end as it would have", is_whole, growing.error)
        code = await asyncio.to_thread(server.wait)
        checks.note("exits with 0", code == 0, f"{code}: {server.log[-300:]}")


async def refusal(client: httpx.AsyncClient, running: asyncio.Task[Answer]) -> int | None:
    """Return the status of the first request that is not taken; None if all are to the end."""
    while not running.done():
        response = await client.post("/v1/chat/completions", json=body(1))
        if response.status_code != 200:
            return response.status_code
    return None


async def cut_off(options: Sequence[str], max_tokens: int, checks: Checks) -> None:
    """Stop a server that gives running replies no time: they end with an error event."""
    with ServerProcess([*options, "--drain-seconds", "0"]) as server:
        task, _ = await in_the_middle(server.url, max_tokens)
        server.terminate()
        answer = await task
        checks.note("out of time, the stream ends with an error event", answer.error is not None)
        code = await asyncio.to_thread(server.wait)
        checks.note("exits with 0 then, too", code == 0, f"{code}: {server.log[-300:]}")


async def run(options: Sequence[str], max_tokens: int, checks: Checks) -> None:
    """Make all checks."""
    expected = await killed(options, max_tokens, checks)
    await drained(options, expected, checks)
    await cut_off(options, max_tokens, checks)


def main() -> int:
    own, options = split_options(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-tokens", type=int, default=200, help="of the stream that is ended")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    args = parser.parse_args(own)
    checks = Checks()
    asyncio.run(run(options, args.max_tokens, checks))
    finish({"server_options": options, "checks": checks.results}, args.json)
    return int(not all(check["passed"] for check in checks.results))


if __name__ == "__main__":
    sys.exit(main())
