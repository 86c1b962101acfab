#!/usr/bin/env python
"""Send a server thousands of made-up requests: from its own description, and broken ones.

A third has the described shape, a third breaks it, a third are bodies with bytes lost, changed or
doubled. Requests of the right shape are cut to `--longest` tokens and two choices, or they would
take all day. Meanwhile /health is asked every 100 ms. What must hold, or the exit code is 1: no
status of 500 or above, every answer of the described form, no wrong request accepted, /health
within a second, and a normal request works in the end.

    python scripts/measure/fuzz_api.py --requests 2000 -- --backend native
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import finish, server_at, split_options

PATHS = ("/v1/chat/completions", "/v1/completions")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
HEALTH_EVERY_SECONDS = 0.1
HEALTH_WITHIN_SECONDS = 1.0
REQUEST_SECONDS = 300.0
GOOD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "héllo"}],
    "temperature": 0.5,
    "stop": ["a", "b"],
    "n": 2,
    "max_tokens": 2,
    "logit_bias": {"5": 1.5},
    "prediction": {"type": "content", "content": "héllo"},
    "stream": False,
}


@dataclass
class Course:
    """What happened so far."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    health_seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, status: int, fault: str | None) -> None:
        """Count an answer."""
        with self.lock:
            self.statuses[f"{kind} {status}"] += 1
            if fault is not None:
                self.faults.append(f"{kind}: {fault}")


def made_up(api: Any, path: str, mode: GenerationMode, number: int, seed: int) -> list[Any]:
    """Return so many requests of one kind."""
    cases: list[Any] = []

    @seeded(seed)
    @settings(
        max_examples=number,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        database=None,
    )
    @given(case=api[path]["POST"].as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        cases.append(case)

    collect()
    return cases[:number]


def shortened(body: Any, longest: int) -> Any:
    """Return a body of the right shape whose reply is short."""
    if not isinstance(body, dict):
        return body
    short = {**body, "max_tokens": longest}
    short.pop("max_completion_tokens", None)
    short.pop("min_tokens", None)
    if (body.get("n") or 1) > 2:
        short["n"] = 2
    if isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], int):
        short["prompt"] = body["prompt"][:4]
    return short


def broken(generator: random.Random) -> bytes:
    """Return a good body in which some bytes were lost, changed or doubled."""
    data = bytearray(json.dumps(GOOD, ensure_ascii=generator.random() < 0.5).encode())
    for _ in range(generator.randint(1, 5)):
        if not data:
            break
        position = generator.randrange(len(data))
        kind = generator.randrange(4)
        if kind == 0:
            del data[position:]
        elif kind == 1:
            data[position] = generator.randrange(256)
        elif kind == 2:
            del data[position : position + generator.randint(1, 9)]
        else:
            data[position:position] = data[generator.randrange(position + 1) : position]
    return bytes(data)


def send_case(url: str, case: Any, mode: GenerationMode, course: Course) -> None:
    """Send a request made from the description, and check its answer."""
    fault = None
    response = case.call(base_url=url, timeout=REQUEST_SECONDS)
    try:
        case.validate_response(response, checks=CHECKS)
    except FailureGroup as failures:
        reason = " ".join(str(failures.exceptions[0]).split())
        fault = f"{reason}: {response.status_code} {response.text[:200]}"[:400]
    # null asks for nothing, whatever the field is called
    has_null = isinstance(case.body, dict) and None in case.body.values()
    if mode is GenerationMode.NEGATIVE and response.status_code == 200 and not has_null:
        fault = f"accepted {str(case.body)[:300]}"
    course.note(mode.value, response.status_code, fault)


def send_body(client: httpx.Client, path: str, body: bytes, course: Course) -> None:
    """Send a broken body, and check the form of its answer."""
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    fault = None
    if answer.status_code >= 500:
        fault = f"{answer.status_code} for {body!r}"[:300]
    elif answer.status_code != 200 and set(answer.json()["error"]) != {
        "message", "type", "param", "code",
    }:  # fmt: skip
        fault = f"{answer.text[:300]}"
    course.note("broken", answer.status_code, fault)


def watch_health(url: str, course: Course, over: threading.Event) -> None:
    """Ask how the server is until it is over."""
    with httpx.Client(timeout=10.0) as client:
        while not over.wait(HEALTH_EVERY_SECONDS):
            start = time.perf_counter()
            client.get(f"{url}/health")
            course.health_seconds.append(time.perf_counter() - start)


def jobs(url: str, args: argparse.Namespace, course: Course) -> Iterator[tuple[Any, ...]]:
    """Yield what to send, as a function and its arguments, of all kinds in one order."""
    api = schemathesis.openapi.from_dict(httpx.get(f"{url}/openapi.json").json())
    generator = random.Random(args.seed)
    client = httpx.Client(base_url=url, timeout=REQUEST_SECONDS)
    all_jobs: list[tuple[Any, ...]] = []
    number = args.requests // (3 * len(PATHS)) + 1
    for path in PATHS:
        for mode in GenerationMode:
            for case in made_up(api, path, mode, number, args.seed):
                if mode is GenerationMode.POSITIVE:
                    case.body = shortened(case.body, args.longest)
                all_jobs.append((send_case, url, case, mode, course))
        all_jobs += [(send_body, client, path, broken(generator), course) for _ in range(number)]
    generator.shuffle(all_jobs)
    yield from all_jobs


def run(url: str, args: argparse.Namespace) -> Course:
    """Return what happened."""
    course, over = Course(), threading.Event()
    todo = list(jobs(url, args, course))
    watcher = threading.Thread(target=watch_health, args=(url, course, over))
    watcher.start()
    try:
        with ThreadPoolExecutor(args.clients) as pool:
            for sent in [pool.submit(*job) for job in todo]:
                sent.result()
    finally:
        over.set()
        watcher.join()
    answer = httpx.post(url + PATHS[0], json=GOOD, timeout=REQUEST_SECONDS)
    if answer.status_code != 200:
        course.faults.append(f"a normal request ended in {answer.status_code}")
    slowest = max(course.health_seconds, default=float("inf"))
    if slowest > HEALTH_WITHIN_SECONDS:
        course.faults.append(f"/health took {slowest:.2f} s")
    return course


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print what happened, and return the exit code."""
    own, options = split_options(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--longest", type=int, default=2, help="tokens of a reply")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a running server")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    args = parser.parse_args(own)
    with server_at(args.url, options) as (url, _):
        start = time.perf_counter()
        course = run(url, args)
        seconds = time.perf_counter() - start
    report = {
        "requests": sum(course.statuses.values()),
        "seconds": seconds,
        "by_kind_and_status": dict(sorted(course.statuses.items())),
        "slowest_health_seconds": max(course.health_seconds, default=None),
        "faults": course.faults[:20],
        "num_faults": len(course.faults),
    }
    finish(report, args.json)
    return int(bool(course.faults))


if __name__ == "__main__":
    sys.exit(main())
