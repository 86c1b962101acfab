"""`pilotfish chat`: a conversation in the terminal, or one turn a line from a pipe."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from pilotfish.cli.arguments import with_options
from pilotfish.cli.console import legend, print_json, talk
from pilotfish.cli.conversation import Conversation
from pilotfish.cli.generate import loaded, possible_origins
from pilotfish.cli.options import EngineOptions, OutputOptions, ReplyOptions
from pilotfish.cli.typed import typed
from pilotfish.config import Request
from pilotfish.errors import ConfigError

if TYPE_CHECKING:
    from pilotfish.build import CheckedPair


@with_options
def chat(*, engine: EngineOptions, reply: ReplyOptions, output: OutputOptions) -> None:
    """Talk with the model; /help lists the commands of the conversation.

    Text between two \"\"\" is one turn of several lines; from a pipe, each other line is
    a turn. With --json, the conversation is printed at its end.
    """
    if reply.raw:
        raise ConfigError("--raw has no meaning in a chat", hint="use pilotfish generate --raw")
    config = engine.engine_config()
    # a turn begins with all turns before it
    config = replace(config, kept_sequences=max(1, config.kept_sequences))
    options = reply.request_options()
    first = Request.from_options(options)

    def check(files: CheckedPair) -> None:
        # what any first turn would be refused with: no template, or none that takes a system
        files.check_prompt("Hello", first)

    with loaded(config, check) as text_engine:
        conversation = Conversation(text_engine, options, output)
        if sys.stdin is not None and sys.stdin.isatty():
            talk().print("/help lists the commands, Ctrl-D ends.", style="dim")
        if conversation.painting:
            talk().print(legend(possible_origins(config, reply, text_engine.facts)))
        for one in typed():
            if not conversation.take(one):
                break
        if output.json:
            print_json(conversation.to_dict())
