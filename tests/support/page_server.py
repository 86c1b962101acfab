"""A real server with the page over a scripted model that a test can hold up, change and slow."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from pilotfish.accounting.costs import ModelSize
from pilotfish.bench.runner import Mode
from pilotfish.generation import Facts, TextEngine
from pilotfish.server.app import create_app
from pilotfish.server.options import ServerOptions
from pilotfish.server.service import Service, ServiceLimits
from pilotfish.server.watcher import NoWatcher
from pilotfish.types import FloatArray
from support.scripted_pair import VOCAB, ScriptedPair, target_logits

# the app answers below this path, too, as it would behind a proxy
PREFIX = "/behind/a/proxy"
SIZES = {
    "target": ModelSize(
        parameters=1_500_000,
        weight_bytes=1_100_000,
        step_bytes=900_000,
        cache_bytes_per_token=28_672,
        vocabulary=VOCAB,
        attention_flops_per_token=172_032.0,
    ),
    "draft": ModelSize(
        parameters=500_000,
        weight_bytes=400_000,
        step_bytes=300_000,
        cache_bytes_per_token=12_288,
        vocabulary=VOCAB,
        attention_flops_per_token=86_016.0,
    ),
}


class HeldModel:
    """The logits of a scripted target, which a test may hold up after so many rows.

    text           what the target writes over and over; "" for that of the scripted pair
    extra_seconds  what each row takes longer on the engine's clock
    """

    def __init__(self) -> None:
        self.pair = ScriptedPair(logits=self)
        self.text = ""
        self.extra_seconds = 0.0
        self._num_rows_left = math.inf
        self._changed = threading.Condition()

    def __call__(self, prefix: tuple[int, ...]) -> FloatArray:
        with self._changed:
            self._changed.wait_for(lambda: self._num_rows_left > 0)
            self._num_rows_left -= 1
        self.pair.clock.advance(self.extra_seconds)
        row = target_logits(prefix)
        if self.text:
            row[:] = 0.0
            row[self.text.encode()[len(prefix) % len(self.text.encode())]] = 20.0
        return row

    def let(self, num_rows: float = math.inf) -> None:
        """Let so many rows pass from now on, by default all."""
        with self._changed:
            self._num_rows_left = num_rows
            self._changed.notify_all()


class Outcomes(NoWatcher):
    """Keeps how generations ended, and calls `then` after each."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.then: Callable[[], None] = lambda: None

    def ended(self, outcome: str, **figures: object) -> None:
        """Keep the outcome."""
        self.all.append(outcome)
        self.then()


class PageServer:
    """A server on a port of this machine; `close` ends it, and cuts what still runs."""

    def __init__(
        self,
        *,
        port: int = 0,
        limits: ServiceLimits | None = None,
        api_key: str | None = None,
        cors_origins: tuple[str, ...] = (),
    ) -> None:
        self.model = HeldModel()
        self.outcomes = Outcomes()
        options = ServerOptions(model_name="scripted", api_key=api_key, cors_origins=cors_origins)
        self.engine = self._engine()
        self.service = Service(self.engine, limits, watcher=self.outcomes)
        app = create_app(self.service, options)
        both = Starlette(routes=[Mount(PREFIX, app), Mount("/", app)])
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(both, log_config=None, ws="none", lifespan="off")
        self._server = uvicorn.Server(config)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self.service.start()
        # the socket listens already: whoever connects before the loop runs waits
        self._thread.start()

    def _engine(self) -> TextEngine:
        engine = self.model.pair.engine(Mode("auto"))
        engine.facts = Facts(
            models={"target": {"path": "models/big.gguf"}, "draft": {"path": "models/small.gguf"}},
            target_size=SIZES["target"],
            draft_size=SIZES["draft"],
            speculation_on=True,
            speculation_reason="by measured cost: up to 31 tokens a round",
            drafters=("suffix", "model"),
        )
        return engine

    def _run(self) -> None:
        self.loop.run_until_complete(self._server.serve(sockets=[self._socket]))
        self.loop.run_until_complete(self.service.drain(0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def drain(self) -> Future[None]:
        """Refuse what is new, and let what runs end."""
        return asyncio.run_coroutine_threadsafe(self.service.drain(30), self.loop)

    def close(self) -> None:
        """Cut all connections and end the server; safe to repeat."""
        self.model.let()
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._cut)
            self._thread.join()

    def _cut(self) -> None:
        self._server.should_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
