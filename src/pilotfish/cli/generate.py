"""`pilotfish generate`: one completion, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from pilotfish.cli.arguments import with_options
from pilotfish.cli.console import (
    OriginSpans,
    cut_notice,
    end_line,
    legend,
    load_progress,
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
from pilotfish.cli.prompt_parts import Pipe, read_prediction, read_prompt
from pilotfish.config import EngineConfig, Request, RequestOptions
from pilotfish.generation import Facts, Reply, ReplyStream, TextEngine

if TYPE_CHECKING:
    from pilotfish.build import Check, CheckedPair


@with_options
def generate(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The prompt, in quotes.")
    ] = None,
    *,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="A part of the prompt, after PROMPT; - is stdin; repeatable.",
            show_default=False,
        ),
    ] = None,
    prediction: Annotated[
        list[str] | None,
        typer.Option(
            "--prediction",
            metavar="FILE",
            help="What the reply will be like, to have it sooner; - is piped text; repeatable.",
            show_default=False,
        ),
    ] = None,
    engine: EngineOptions,
    reply: ReplyOptions,
    output: OutputOptions,
) -> None:
    """Complete one prompt; the text streams to stdout.

    The prompt is PROMPT, then each --file, then piped text, with blank lines between.
    So: cat sum.py | pilotfish generate "Rename x to total" --prediction -
    """
    config = engine.engine_config()
    options = reply.request_options()
    pipe = Pipe()
    text = read_prompt(prompt, file or (), raw=reply.raw, pipe=pipe)
    if (predicted := read_prediction(prediction or (), pipe)) is not None:
        options["prediction"] = predicted
    request = Request.from_options(options)

    def check(files: CheckedPair) -> None:
        files.check_prompt(text, request)

    with loaded(config, check) as text_engine, notices_held():
        if output.json:
            print_json(text_engine.generate(text, **options).to_dict())
            return
        painting = painting_wanted(output.color)
        if painting:
            origins = possible_origins(
                config, reply, text_engine.facts, is_predicted=bool(predicted)
            )
            talk().print(legend(origins))
        with waiting("reading the prompt"):
            stream = text_engine.stream(text, **options)
        show_stream(stream, text_engine, painting=painting)
        print_cut(stream.reply, options)
        sampled = options.get("temperature", 0) > 0
        if output.verbose or talk().is_terminal:
            print_stats(stream.reply, sampled=sampled)


@contextmanager
def loaded(config: EngineConfig, check: Check) -> Iterator[TextEngine]:
    """Load the engine, say so on a terminal, and free it at the end; `check` comes before weights
    are read."""
    from pilotfish import build  # not at the top: help needs no backend

    with load_progress(config.target.reference) as progress:
        engine = build.load_engine(config, progress=progress, check=check)
    with engine:
        print_notices(engine.facts.notices)
        yield engine


def show_stream(stream: ReplyStream, engine: TextEngine, *, painting: bool) -> None:
    """Write the reply to stdout as it comes; an interrupt ends it and keeps what is there."""
    spans = OriginSpans(engine.tokenizer.token_bytes)
    try:
        for piece in stream:
            write(piece.text, painted_as=painted(spans.split(piece)) if painting else None)
    finally:
        stream.close()
        end_line()


def print_cut(reply: Reply, options: RequestOptions) -> None:
    """Say on stderr that a limit has cut the reply, if one has."""
    is_json = options.get("json_schema") is not None
    if notice := cut_notice(reply, options.get("max_tokens"), is_json=is_json):
        print_notices([notice])


def print_stats(reply: Reply, *, sampled: bool) -> None:
    """Print the figures of a reply on stderr."""
    for line in stats_lines(reply, sampled=sampled):
        talk().print(line, style="dim", soft_wrap=True)


def possible_origins(
    config: EngineConfig, reply: ReplyOptions, facts: Facts, *, is_predicted: bool = False
) -> list[str]:
    """Return who can propose tokens under a configuration and with what was loaded for it."""
    drafter = config.speculation.drafter
    if drafter == "none" or config.speculation.num_speculative_tokens == 0:
        return ["target"]
    forced = [] if reply.json_schema is None else ["forced"]
    if drafter == "auto":
        is_there = config.draft is not None and "model" in (facts.drafters or ("model",))
        model = ["model"] if is_there else []
        prediction = ["prediction"] if is_predicted else []
        return ["target", *prediction, "suffix", *model, *forced]
    return ["target", drafter, *forced]
