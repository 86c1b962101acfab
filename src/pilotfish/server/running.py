"""Runs the server: takes the port, serves until told to stop, and lets running replies end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from pilotfish.errors import ConfigError
from pilotfish.generation import TextEngine
from pilotfish.server.app import create_app
from pilotfish.server.connections import Connections
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.options import ServerOptions
from pilotfish.server.service import Service, ServiceLimits

# for last bytes to reach clients once every reply has ended
_FLUSH_SECONDS = 5
# besides connections: models, libraries, pipes
_OWN_FILES = 128
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def take_files(options: ServerOptions) -> None:
    """Let this process open as many files as connections need. Raises ConfigError if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.max_connections + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(
            f"--max-connections {options.max_connections} are too many: this process may open "
            f"{hard} files",
            hint=f"allow more with ulimit -n, or take {max(1, hard - _OWN_FILES)}",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def take_port(options: ServerOptions) -> socket.socket:
    """Return a socket that is bound to the address and does not listen yet, so that nobody waits
    while models load. Raises ConfigError in one line if that cannot be."""
    host, port = options.host.strip("[]"), options.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {options.host} is no address of this machine", hint="use 127.0.0.1"
        ) from error
    # "localhost" may stand for two addresses; most clients try the older kind first
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    # the protocol by name, or asyncio does not recognise TCP, and answers on connections that are
    # used again wait 40 ms for an acknowledgement
    bound = socket.socket(family, kind, protocol)
    try:
        # a port is free again at once after its last server, whose connections may linger
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _refused(options, error) from error
    return bound


def _refused(options: ServerOptions, error: OSError) -> ConfigError:
    where = f"{options.host}:{options.port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"the port is in use: {where}", hint="stop what uses it, or name another with --port"
        )
    if error.errno == errno.EACCES:
        return ConfigError(f"the port may not be used: {where}", hint="take one above 1023")
    reason = error.strerror or str(error)
    return ConfigError(f"cannot listen on {where}: {reason}", hint="try --host 127.0.0.1")


def address_of(bound: socket.socket) -> str:
    """Return the address of a bound socket as a client writes it."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(
    engine: TextEngine,
    bound: socket.socket,
    options: ServerOptions,
    *,
    limits: ServiceLimits | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM, and return when every reply has ended or time is up.

    `ready` is called once connections are taken. Raises ConfigError if the port was lost.
    """
    asyncio.run(_serve(engine, bound, options, limits, ready))


async def _serve(
    engine: TextEngine,
    bound: socket.socket,
    options: ServerOptions,
    limits: ServiceLimits | None,
    ready: Callable[[], None],
) -> None:
    metrics = ServerMetrics()
    service = Service(engine, limits, watcher=metrics)
    server = Server(create_app(service, options, metrics_of=metrics), options)
    try:
        bound.listen()
    except OSError as error:
        raise _refused(options, error) from error
    service.start()
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    stopping: list[asyncio.Task[None]] = []

    async def stop(seconds: float) -> None:
        # the port stays open until then: who comes is told, and the page can say why
        await service.drain(seconds)
        server.should_exit = True

    def on_signal() -> None:
        stopping.append(asyncio.create_task(stop(0 if stopping else options.drain_seconds)))

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        ready()
        await serving
    finally:
        await service.drain(0)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class Server(uvicorn.Server):
    """uvicorn with our limits of connections, and without handlers of signals, which would end it
    before running replies have."""

    def __init__(self, app: FastAPI, options: ServerOptions) -> None:
        self.connections = Connections(options)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, self.connections.protocol),
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=cast(int, options.idle_seconds),
                timeout_graceful_shutdown=_FLUSH_SECONDS,
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is told to exit."""
        watching = asyncio.create_task(self.connections.watch())
        try:
            await super().serve(sockets)
        finally:
            watching.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield
