"""`pilotfish generate`: one completion, streamed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pilotfish.cli.arguments import with_options
from pilotfish.cli.console import (
    OriginSpans,
    end_line,
    legend,
    notices_held,
    painted,
    painting_wanted,
    print_json,
    print_notices,
    stats_lines,
    talk,
    waiting,
    write,
)
from pilotfish.cli.options import EngineOptions, OutputOptions, ReplyOptions
from pilotfish.config import EngineConfig
from pilotfish.errors import PromptError
from pilotfish.generation import Reply, ReplyStream, TextEngine

_WHERE_FROM = "write it after the command, name a file with -f, or pipe it in"


@with_options
def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt, in quotes.")
    ] = None,
    *,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read the prompt here; - is stdin."),
    ] = None,
    engine: EngineOptions,
    reply: ReplyOptions,
    output: OutputOptions,
) -> None:
    """Complete one prompt; the text streams to stdout."""
    config = engine.engine_config()
    options = reply.request_options()
    text = read_prompt(prompt, file, raw=reply.raw)
    with loaded(config) as text_engine, notices_held():
        if output.json:
            print_json(text_engine.generate(text, **options).to_dict())
            return
        painting = painting_wanted(output.color)
        if painting:
            talk().print(legend(possible_origins(config, reply)))
        with waiting("reading the prompt"):
            stream = text_engine.stream(text, **options)
        show_stream(stream, text_engine, painting=painting)
        sampled = options.get("temperature", 0) > 0
        if output.verbose or talk().is_terminal:
            print_stats(stream.reply, sampled=sampled)


@contextmanager
def loaded(config: EngineConfig) -> Iterator[TextEngine]:
    """Load the engine, say so on a terminal, and free it at the end."""
    from pilotfish import build  # not at the top: help needs no backend

    with waiting(f"loading {config.target.reference}"):
        engine = build.load_engine(config)
    with engine:
        print_notices(engine.facts.notices)
        yield engine


def show_stream(stream: ReplyStream, engine: TextEngine, *, painting: bool) -> None:
    """Write the reply to stdout as it comes; an interrupt ends it and keeps what is there."""
    spans = OriginSpans(engine.tokenizer.token_bytes)
    last = ""
    try:
        for piece in stream:
            write(painted(spans.split(piece)) if painting else piece.text)
            last = piece.text or last
    finally:
        stream.close()
        end_line(last)


def print_stats(reply: Reply, *, sampled: bool) -> None:
    """Print the figures of a reply on stderr."""
    for line in stats_lines(reply, sampled=sampled):
        talk().print(line, style="dim", soft_wrap=True)


def possible_origins(config: EngineConfig, reply: ReplyOptions) -> list[str]:
    """Return who can propose tokens under a configuration."""
    drafter = config.speculation.drafter
    if drafter == "none" or config.speculation.num_speculative_tokens == 0:
        return ["target"]
    forced = [] if reply.json_schema is None else ["forced"]
    if drafter == "auto":
        model = [] if config.draft is None else ["model"]
        return ["target", "suffix", *model, *forced]
    return ["target", drafter, *forced]


def read_prompt(prompt: str | None, file: str | None, *, raw: bool) -> str:
    """Return the prompt from where it was given. Raises PromptError if it is no usable text.

    The line break at the end of a file is not part of the prompt, unless it is raw.
    """
    if prompt is not None and file is not None:
        raise PromptError("PROMPT and --file exclude each other", hint=_WHERE_FROM)
    if prompt is not None:
        text = _checked_argument(prompt)
    elif file is None and sys.stdin.isatty():
        raise PromptError("PROMPT is missing", hint=_WHERE_FROM)
    else:
        text = decoded(_read_bytes(file), file)
        text = text if raw else text.removesuffix("\n").removesuffix("\r")
    if not text and not raw:
        raise PromptError("the PROMPT is empty", hint=_WHERE_FROM)
    return text


def decoded(data: bytes, file: str | None) -> str:
    """Return bytes as text; PromptError says where they stop being UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        name = "stdin" if file in (None, "-") else f"--file {file}"
        raise PromptError(
            f"{name} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}",
            hint="convert it first, for example with iconv -t UTF-8",
        ) from error


def _checked_argument(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"PROMPT is not valid text at character {error.start}") from error
    return prompt


def _read_bytes(file: str | None) -> bytes:
    if file is None or file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PromptError(f"cannot read --file {file}: {reason}", hint=_WHERE_FROM) from error
