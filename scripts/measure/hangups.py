#!/usr/bin/env python
"""Let many clients talk to a server, and a part of them hang up, at any moment.

Requests are streamed and whole, of mixed kinds and lengths. Meanwhile /health is asked every 100 ms
and the server's memory is read. What must hold, or the exit code is 1: each request ends in a
reply, in our hanging up, or in a clean 429 or 503; /health always answers within a second; in the
end nothing runs or waits, and each request that was taken has ended once by the metrics. Memory is
compared between the end of a warm-up, the first quarter of the requests, and the end.

    python scripts/measure/hangups.py --requests 200 --clients 16 -- --backend native
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from load import requests_of
from serving import (
    LONGEST_REPLY,
    ServerProcess,
    ask,
    finish,
    samples,
    server_at,
    split_options,
)

HEALTH_EVERY_SECONDS = 0.1
HEALTH_WITHIN_SECONDS = 1.0
QUIET_WITHIN_SECONDS = 10.0
STREAMED_SHARE = 0.7
# what a reply takes, until some have ended
FIRST_REPLY_SECONDS = 1.0


@dataclass(slots=True)
class Course:
    """What happened so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reply_seconds: list[float] = field(default_factory=list)
    health_seconds: list[float] = field(default_factory=list)
    health_failures: list[str] = field(default_factory=list)
    memory_bytes: list[tuple[int, int]] = field(default_factory=list)  # requests ended, bytes

    @property
    def num_ended(self) -> int:
        """Return how many requests have ended."""
        return self.outcomes.total()

    def typical_seconds(self) -> float:
        """Return what a reply takes."""
        newest = sorted(self.reply_seconds[-20:])
        return newest[len(newest) // 2] if newest else FIRST_REPLY_SECONDS


async def one_request(
    client: httpx.AsyncClient, body: Mapping[str, Any], *, streams: bool, course: Course
) -> str:
    """Return how a request that is waited for ends."""
    start = time.perf_counter()
    if streams:
        answer = await ask(client, body)
        status, error, retry_after = answer.status, answer.error, answer.retry_after
    else:
        response = await client.post("/v1/chat/completions", json=body)
        status, retry_after = response.status_code, response.headers.get("retry-after")
        error = response.json()["error"]["message"] if status != 200 else None
    if status == 200 and error is None:
        course.reply_seconds.append(time.perf_counter() - start)
        return "reply"
    if status == 503 or (status == 429 and retry_after is not None):
        return str(status)
    return f"{status}: {error}"


async def patient_or_not(
    client: httpx.AsyncClient,
    body: Mapping[str, Any],
    *,
    hangs_up: bool,
    chance: random.Random,
    course: Course,
) -> None:
    """Ask one request and note how it ends."""
    seconds = chance.uniform(0.0, course.typical_seconds()) if hangs_up else None
    try:
        async with asyncio.timeout(seconds):
            streams = chance.random() < STREAMED_SHARE
            outcome = await one_request(client, body, streams=streams, course=course)
    except TimeoutError:
        outcome = "hung up"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        outcome = f"{type(error).__name__}: {error}"
    course.outcomes[outcome] += 1


async def watch_health(url: str, course: Course) -> None:
    """Ask /health at a steady pace, for as long as the task lives."""
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        while True:
            start = time.perf_counter()
            response = await client.get("/health")
            course.health_seconds.append(time.perf_counter() - start)
            if response.status_code != 200:
                course.health_failures.append(f"{response.status_code}: {response.text[:200]}")
            await asyncio.sleep(HEALTH_EVERY_SECONDS)


async def watch_memory(server: ServerProcess, course: Course) -> None:
    """Read the server's resident memory at a steady pace, for as long as the task lives."""
    while True:
        course.memory_bytes.append((course.num_ended, server.memory_bytes()))
        await asyncio.sleep(HEALTH_EVERY_SECONDS)


async def run_clients(
    url: str, bodies: Sequence[Mapping[str, Any]], args: argparse.Namespace, course: Course
) -> None:
    """Ask everything, by so many clients; one that hangs up closes its connection."""
    chance = random.Random(args.seed)
    hangs_up = [chance.random() < args.share for _ in bodies]
    waiting = iter(zip(bodies, hangs_up, strict=True))

    async def work() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=LONGEST_REPLY, verify=False) as client:
            for body, impatient in waiting:
                await patient_or_not(client, body, hangs_up=impatient, chance=chance, course=course)
                if course.num_ended % 20 == 0:
                    print(f"{course.num_ended} of {len(bodies)}", file=sys.stderr)

    await asyncio.gather(*(work() for _ in range(args.clients)))


async def run(
    url: str,
    server: ServerProcess | None,
    bodies: Sequence[Mapping[str, Any]],
    args: argparse.Namespace,
) -> Course:
    """Return what happened, watched from beginning to end."""
    course = Course()
    watchers = [asyncio.create_task(watch_health(url, course))]
    if server is not None:
        watchers.append(asyncio.create_task(watch_memory(server, course)))
    try:
        await run_clients(url, bodies, args, course)
        for watcher in watchers:
            if watcher.done():
                watcher.result()  # it should not have ended: raises why
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    return course


def quiet(url: str) -> dict[str, float]:
    """Return the metrics once nothing runs or waits, or as they are after a while."""
    deadline = time.monotonic() + QUIET_WITHIN_SECONDS
    while True:
        now = samples(url)
        busy = now["pilotfish_running_requests"] + now["pilotfish_waiting_requests"]
        if not busy or time.monotonic() > deadline:
            return now
        time.sleep(HEALTH_EVERY_SECONDS)


def memory_drift(course: Course) -> dict[str, Any] | None:
    """Return the memory after the warm-up and at the end; None where it was not read."""
    after = [size for ended, size in course.memory_bytes if 4 * ended >= course.num_ended]
    if not after:
        return None
    return {
        "after_warm_up_bytes": after[0],
        "end_bytes": after[-1],
        "most_bytes": max(after),
        "drift_percent": 100 * (after[-1] / after[0] - 1),
    }


def faults(course: Course, metrics: Mapping[str, float]) -> list[str]:
    """Return what should not have happened."""
    found = [
        f"{number} requests ended in {outcome!r}"
        for outcome, number in course.outcomes.items()
        if outcome not in ("reply", "hung up", "429", "503")
    ]
    slowest = max(course.health_seconds, default=float("inf"))
    if slowest > HEALTH_WITHIN_SECONDS:
        found.append(f"/health took {slowest:.2f} s")
    found += course.health_failures[:3]
    for name in ("running", "waiting"):
        if metrics[f"pilotfish_{name}_requests"]:
            found.append(f"{metrics[f'pilotfish_{name}_requests']:.0f} requests are still {name}")
    ended = sum(n for name, n in metrics.items() if name.startswith("pilotfish_requests_total"))
    if ended != metrics["pilotfish_submitted_requests_total"]:
        found.append(
            f"{metrics['pilotfish_submitted_requests_total']:.0f} taken, {ended:.0f} ended"
        )
    return found


def main() -> int:
    own, options = split_options(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.2, help="of the requests that hang up")
    parser.add_argument("--max-tokens", default="8,16,32,48", help="lengths, taken in turns")
    parser.add_argument("--workload", default="own", help="a JSONL file, as for pilotfish bench")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a running server; its memory is then not read")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    args = parser.parse_args(own)
    lengths = [int(length) for length in args.max_tokens.split(",")]
    bodies = requests_of(args.workload, args.requests, lengths)
    with server_at(args.url, options) as (url, server):
        start = time.perf_counter()
        course = asyncio.run(run(url, server, bodies, args))
        seconds = time.perf_counter() - start
        metrics = quiet(url)
    found = faults(course, metrics)
    report = {
        "requests": args.requests,
        "clients": args.clients,
        "seconds": seconds,
        "outcomes": dict(course.outcomes),
        "by_the_server": {
            name: number for name, number in metrics.items() if "requests_total" in name
        },
        "health": {
            "asked": len(course.health_seconds),
            "slowest_seconds": max(course.health_seconds),
        },
        "memory": memory_drift(course),
        "server_options": options,
        "faults": found,
    }
    finish(report, args.json)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
