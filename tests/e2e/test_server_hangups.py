"""Many clients of a real server, of whom some hang up: the others notice nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from pilotfish.config import Request
from pilotfish.server.app import create_app
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.service import Service
from support.drafters import random_tokens
from support.services import VOCAB, WatchedModel, rambling, serving, serving_engine

NUM_REQUESTS, NUM_CLIENTS, HANG_UP_EVERY = 40, 8, 4
COMPLETIONS = "/v1/completions"
# more than is made before anybody hangs up
ENDLESS = {"max_tokens": 3000, "min_tokens": 3000}
KINDS: list[dict[str, Any]] = [
    {"prompt": [1, 2, 3], "max_tokens": 40, "temperature": 0},
    {"prompt": [4, 5], "max_tokens": 25, "temperature": 0.8, "seed": 3},
    {"prompt": list(range(12)) * 9, "max_tokens": 12, "temperature": 1.0, "seed": 4, "top_p": 0.9},
    {"prompt": [7], "max_tokens": 1, "temperature": 0},
]


def alone(body: Mapping[str, Any]) -> str:
    """Return the reply of an engine that has nothing else to do, and drafts nothing."""
    engine = serving_engine()
    options = {name: value for name, value in body.items() if name != "prompt"}
    running = engine.open(body["prompt"], Request.from_options(options))
    while not engine.engine.read(running.session):
        pass
    engine.engine.run_together([running.session])
    return running.reply.text


@asynccontextmanager
async def listening(service: Service, metrics: ServerMetrics) -> AsyncIterator[str]:
    """Give the address of a real server over the service."""
    app = create_app(service, metrics_of=metrics)
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
    server, bound = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class Clients:
    """Clients who ask in turn, each with a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._chance = random.Random(20)
        self._expected = [alone(kind) for kind in KINDS]
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        """Ask everything; returns when the last one has its reply, or has hung up."""
        waiting = iter(range(NUM_REQUESTS))

        async def one_client() -> None:
            # no encryption here, and what it needs takes long to load
            async with httpx.AsyncClient(base_url=self._url, timeout=60, verify=False) as client:
                for number in waiting:
                    await self._one(client, number)

        await asyncio.gather(*(one_client() for _ in range(NUM_CLIENTS)))

    async def _one(self, client: httpx.AsyncClient, number: int) -> None:
        kind, streams = number % len(KINDS), number % 3 > 0
        if number % HANG_UP_EVERY == 1:
            ask = self._leave_stream if streams else self._leave_whole
            await ask(client, {**KINDS[kind], **ENDLESS})
            self.outcomes["hung up"] += 1
            return
        ask_whole = self._read_stream if streams else self._read_whole
        assert await ask_whole(client, KINDS[kind]) == self._expected[kind]
        self.outcomes["reply"] += 1

    async def _read_whole(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> str:
        response = await client.post(COMPLETIONS, json=body)
        text: str = response.raise_for_status().json()["choices"][0]["text"]
        return text

    async def _read_stream(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> str:
        text, is_done = "", False
        async with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                data = line.removeprefix("data: ")
                is_done = data == "[DONE]"
                if not is_done:
                    text += json.loads(data)["choices"][0]["text"]
                if is_done:
                    break
        assert is_done
        return text

    async def _leave_whole(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(self._chance.uniform(0.0, 0.03)):
                await client.post(COMPLETIONS, json=body)

    async def _leave_stream(self, client: httpx.AsyncClient, body: Mapping[str, Any]) -> None:
        num_lines = self._chance.randrange(12)
        async with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
            async for _ in response.aiter_lines():
                num_lines -= 1
                if num_lines < 0:
                    break


async def ask_health(url: str, statuses: list[int]) -> None:
    """Ask one after the other, until cancelled, and keep the answers."""
    async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as client:
        while True:
            statuses.append((await client.get("/health")).status_code)


def test_hang_ups_at_any_moment_disturb_nobody_and_leave_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = WatchedModel(rambling(), vocab_size=VOCAB)
    engine = serving_engine(target, drafter=random_tokens(VOCAB), kept=4)
    metrics = ServerMetrics()
    health: list[int] = []

    async def run() -> Counter[str]:
        async with (
            serving(engine, watcher=metrics, max_running=4) as service,
            listening(service, metrics) as url,
        ):
            watching = asyncio.create_task(ask_health(url, health))
            clients = Clients(url)
            await clients.run()
            assert not watching.done()
            watching.cancel()
        return clients.outcomes

    with caplog.at_level(logging.WARNING):
        outcomes = asyncio.run(run())
    assert outcomes == {"reply": 30, "hung up": 10}
    assert len(health) > 0
    assert set(health) == {200}
    # who hung up before the server had read the request was never taken
    num_cancelled = metrics.outcomes["cancelled"]
    assert 0 < num_cancelled <= 10
    assert metrics.outcomes["stop"] + metrics.outcomes["length"] == 30
    assert metrics.num_submitted == 30 + num_cancelled
    assert metrics.outcomes["error"] == metrics.outcomes["timeout"] == 0
    assert len(target.threads) == 1
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
