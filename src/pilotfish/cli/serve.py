"""`pilotfish serve`: OpenAI's API and a web page over one pair of models."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pilotfish import models
from pilotfish.cli.arguments import as_number, naming_options, option, with_options
from pilotfish.cli.console import load_progress, print_notices, talk
from pilotfish.cli.options import EngineOptions
from pilotfish.cli.template_options import ABOUT, parse_template_options
from pilotfish.config import EngineConfig
from pilotfish.errors import MissingExtra
from pilotfish.text import check_template_options

if TYPE_CHECKING:
    from pilotfish.server.options import ServerOptions
    from pilotfish.server.service import ServiceLimits

KEY_VARIABLE = "PILOTFISH_API_KEY"
MOST_RUNNING = 8
KEPT_SEQUENCES = 8
_DEFAULTS = {"max_sessions": MOST_RUNNING, "kept_sequences": KEPT_SEQUENCES}

_NO_CHATS = (
    "the model has no chat template: /v1/chat/completions refuses chats, /v1/completions takes text"
)

_SERVER, _QUEUE = "Server", "Requests"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Where the server listens and what it takes on; None is "not given"."""

    host: Annotated[
        str | None,
        option(
            "--host",
            panel=_SERVER,
            metavar="NAME",
            about="Address to listen on.  Default: 127.0.0.1, which only this machine reaches.",
        ),
    ] = None
    port: Annotated[
        str | None,
        option("--port", panel=_SERVER, metavar="N", about="Default: 8000; 0 takes a free one."),
    ] = None
    api_key: Annotated[
        str | None,
        option(
            "--api-key",
            panel=_SERVER,
            metavar="KEY",
            about=f"Clients must send this key.  Default: the variable {KEY_VARIABLE}, else none.",
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        option(
            "--cors-origin",
            panel=_SERVER,
            metavar="ORIGIN",
            about="Pages of this web origin may call the server; * is any part of it.  Repeatable.",
        ),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        option(
            "--allowed-host",
            panel=_SERVER,
            metavar="NAME",
            about="Answer for this host name, too, or for *.NAME; * is any.  Repeatable.  "
            "Default: localhost; with --host ADDRESS any.",
        ),
    ] = None
    max_body_bytes: Annotated[
        str | None,
        option(
            "--max-body-bytes",
            panel=_SERVER,
            metavar="N",
            about="Largest request; all that are read at once: 16 of them.  Default: 4194304.",
        ),
    ] = None
    max_connections: Annotated[
        str | None,
        option(
            "--max-connections",
            panel=_SERVER,
            metavar="N",
            about="Open at once; beyond, whoever sends nothing makes room.  Default: 512.",
        ),
    ] = None
    client_seconds: Annotated[
        str | None,
        option(
            "--client-seconds",
            panel=_SERVER,
            metavar="X",
            about="Longest time for a client to send a request, or without taking in its answer.  "
            "Default: 60.",
        ),
    ] = None
    idle_seconds: Annotated[
        str | None,
        option(
            "--idle-seconds",
            panel=_SERVER,
            metavar="X",
            about="How long a connection may stay open without a request.  Default: 75.",
        ),
    ] = None
    ping_seconds: Annotated[
        str | None,
        option(
            "--ping-seconds",
            panel=_SERVER,
            metavar="X",
            about="A stream with nothing to say sends a comment this often; 0 is never.  "
            "Default: 10.",
        ),
    ] = None
    model_name: Annotated[
        str | None,
        option(
            "--model-name",
            panel=_SERVER,
            metavar="NAME",
            about="What clients call the model.  Default: as --target names it.",
        ),
    ] = None
    template_option: Annotated[
        list[str] | None,
        option("--template-option", panel=_SERVER, metavar="NAME=VALUE", about=ABOUT),
    ] = None
    reasoning_format: Annotated[
        str | None,
        option(
            "--reasoning-format",
            panel=_SERVER,
            metavar="NAME",
            about="auto: what the model thinks is apart, in reasoning_content; none: it is not.",
        ),
    ] = None
    log_prompts: Annotated[
        bool,
        option("--log-prompts", panel=_SERVER, about="Write prompts to the log, too."),
    ] = False
    drain_seconds: Annotated[
        str | None,
        option(
            "--drain-seconds",
            panel=_SERVER,
            metavar="X",
            about="How long running replies may go on at the end.  Default: 30.",
        ),
    ] = None
    max_sessions: Annotated[
        str | None,
        option(
            "--max-sessions",
            panel=_QUEUE,
            metavar="N",
            about=f"Replies made at once.  Default: {MOST_RUNNING}.",
        ),
    ] = None
    max_waiting: Annotated[
        str | None,
        option(
            "--max-waiting",
            panel=_QUEUE,
            metavar="N",
            about="Replies that may wait for a place; more are refused.  Default: 64.",
        ),
    ] = None
    request_seconds: Annotated[
        str | None,
        option(
            "--request-seconds",
            panel=_QUEUE,
            metavar="X",
            about="Longest time from arrival to end; 0 is no limit.  Default: 600.",
        ),
    ] = None
    kept_sequences: Annotated[
        str | None,
        option(
            "--kept-sequences",
            panel=_QUEUE,
            metavar="N",
            about="Texts kept for prompts that begin like them; 0 is none.  "
            f"Default: {KEPT_SEQUENCES}.",
        ),
    ] = None
    kept_tokens: Annotated[
        str | None,
        option(
            "--kept-tokens",
            panel=_QUEUE,
            metavar="N",
            about="Tokens of all of them together, which bounds their memory.  Default: 65536.",
        ),
    ] = None

    def engine_config(self, engine: EngineOptions) -> EngineConfig:
        """Return the configuration of the models, with places for many requests."""
        base = engine.engine_config(_DEFAULTS)
        given = {name: as_number(getattr(self, name)) for name in (*_DEFAULTS, "kept_tokens")}
        with naming_options():
            return replace(base, **{name: one for name, one in given.items() if one is not None})

    def server_options(self, reference: str) -> ServerOptions:
        """Return how the server listens; ConfigError names the wrong option."""
        from pilotfish.server.options import ServerOptions

        given = {
            "host": self.host,
            "port": as_number(self.port),
            "api_key": os.environ.get(KEY_VARIABLE) if self.api_key is None else self.api_key,
            "max_body_bytes": as_number(self.max_body_bytes),
            "max_connections": as_number(self.max_connections),
            "client_seconds": as_number(self.client_seconds),
            "idle_seconds": as_number(self.idle_seconds),
            "ping_seconds": as_number(self.ping_seconds),
            "drain_seconds": as_number(self.drain_seconds),
            "log_prompts": self.log_prompts,
            "reasoning_format": self.reasoning_format,
            "template_options": parse_template_options(self.template_option or ()),
            "cors_origins": tuple(self.cors_origin or ()),
            "allowed_hosts": tuple(self.allowed_host or ()),
            "model_name": model_name(reference) if self.model_name is None else self.model_name,
        }
        with naming_options():
            return ServerOptions(**{name: one for name, one in given.items() if one is not None})

    def limits(self, config: EngineConfig) -> ServiceLimits:
        """Return what is taken on at once; ConfigError names the wrong option."""
        from pilotfish.server.service import ServiceLimits

        given = {
            "max_waiting": as_number(self.max_waiting),
            "request_seconds": as_number(self.request_seconds),
        }
        with naming_options():
            return ServiceLimits(
                max_running=config.max_sessions,
                **{name: one for name, one in given.items() if one is not None},
            )


@with_options
def serve(*, engine: EngineOptions, server: ServeOptions) -> None:
    """Serve OpenAI's API and a web page.

    Many requests are answered at once. Ctrl-C lets running replies end, then stops.
    """
    try:
        from pilotfish.server import running
    except ImportError as error:
        raise MissingExtra("server", needed_for="pilotfish serve") from error
    config = server.engine_config(engine)
    options = server.server_options(config.target.reference)
    limits = server.limits(config)
    running.take_files(options)
    bound = running.take_port(options)  # before the models are loaded, which takes a while
    with bound:
        _warn(options)
        from pilotfish import build

        def check(files: build.CheckedPair) -> None:
            if files.target.is_known_vocabulary:
                check_template_options(options.template_options, files.target.tokenizer)
            if files.lacks_chat_template:
                print_notices([_NO_CHATS])

        with load_progress(config.target.reference) as progress:
            text_engine = build.load_engine(config, progress=progress, check=check)
        with text_engine, _log_on_stderr():
            print_notices(text_engine.facts.notices)
            check_template_options(options.template_options, text_engine.tokenizer)
            running.run(
                text_engine,
                bound,
                options,
                limits=limits,
                ready=lambda: _say_ready(options, running.address_of(bound)),
            )


def model_name(reference: str) -> str:
    """Return what a model is called in the API: a file by its name, others by their reference, an
    address of the hub by the reference it stands for."""
    path = Path(reference)
    is_file = path.suffix.lower() == ".gguf" and path.exists()
    return path.stem if is_file else models.without_address(reference)


def _warn(options: ServerOptions) -> None:
    if not options.is_local and options.api_key is None:
        print_notices(
            [f"all who can reach {options.host} can use this server; set a key with --api-key"]
        )


def _say_ready(options: ServerOptions, address: str) -> None:
    line = f"serving {options.model_name} at {address} (page: /, API: /v1, Ctrl-C ends)"
    talk().print(line, soft_wrap=True)


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Write what the server has to say as lines with their time, inside the block."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    root, own = logging.getLogger(), logging.getLogger("pilotfish")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        own.setLevel(level)
        root.removeHandler(handler)
