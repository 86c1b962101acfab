"""`pilotfish chat`: a conversation in the terminal, or one turn a line from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pilotfish.cli.arguments import with_options
from pilotfish.cli.console import (
    end_line,
    legend,
    notices_held,
    painting_wanted,
    print_error,
    print_json,
    talk,
    waiting,
    write,
)
from pilotfish.cli.generate import loaded, possible_origins, print_cut, print_stats, show_stream
from pilotfish.cli.options import EngineOptions, OutputOptions, ReplyOptions
from pilotfish.cli.prompt_parts import decoded
from pilotfish.config import RequestOptions
from pilotfish.errors import ConfigError, ContextLengthExceeded, PromptError
from pilotfish.generation import Reply, TextEngine

_HELP = """\
/clear   forget the conversation
/stats   figures of the last reply
/help    this list
/exit    end; so does Ctrl-D
Ctrl-C stops a reply and keeps what there is of it."""


@with_options
def chat(*, engine: EngineOptions, reply: ReplyOptions, output: OutputOptions) -> None:
    """Talk with the model; /help lists the commands of the conversation.

    From a pipe, each line is one turn. With --json, the conversation is printed at its end.
    """
    if reply.raw:
        raise ConfigError("--raw has no meaning in a chat", hint="use pilotfish generate --raw")
    config = engine.engine_config()
    # a turn begins with all turns before it
    config = replace(config, kept_sequences=max(1, config.kept_sequences))
    options = reply.request_options()
    with loaded(config) as text_engine:
        conversation = Conversation(text_engine, options, output)
        if sys.stdin.isatty():
            talk().print("/help lists the commands, Ctrl-D ends.", style="dim")
        if conversation.painting:
            talk().print(legend(possible_origins(config, reply)))
        for line in typed_lines():
            if not conversation.take(line):
                break
        if output.json:
            print_json(conversation.to_dict())


class Conversation:
    """The turns so far. A turn that fails or is stopped before its first word leaves no trace."""

    def __init__(self, engine: TextEngine, options: RequestOptions, output: OutputOptions) -> None:
        self._engine = engine
        self._options = options
        self._output = output
        self.painting = painting_wanted(output.color)
        self.messages: list[dict[str, str]] = []
        self.replies: list[Reply] = []

    def take(self, line: str) -> bool:
        """Act on one line; return False when the conversation is to end."""
        command = line.strip()
        if command == "/exit":
            return False
        if command == "/clear":
            self.messages.clear()
        elif command == "/stats":
            self._print_stats()
        elif command == "/help":
            talk().print(_HELP)
        elif command.startswith("/") and command[1:].isalpha():
            print_error(f"unknown command: {command}", hint="/help lists the commands")
        elif command:
            self._turn(line)
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the conversation as plain JSON values."""
        replies = [reply.to_dict() for reply in self.replies]
        return {"messages": self.messages, "replies": replies}

    def _turn(self, line: str) -> None:
        self.messages.append({"role": "user", "content": line})
        try:
            reply = self._answer()
        except PromptError as error:
            self.messages.pop()
            long = isinstance(error, ContextLengthExceeded)
            print_error(str(error), hint="/clear begins anew" if long else error.hint)
            return
        if reply is None:
            self.messages.pop()
            return
        self.messages.append({"role": "assistant", "content": reply.text})
        self.replies.append(reply)
        if not self._output.json:
            print_cut(reply, self._options)
        if self._output.verbose:
            self._print_stats()

    def _answer(self) -> Reply | None:
        """Return the reply, or as much of it as there was when it was stopped."""
        stream = None
        with notices_held():
            with suppress(KeyboardInterrupt):
                with waiting("reading"):
                    stream = self._engine.stream(self.messages, **self._options)
                if self._output.json:
                    for _ in stream:
                        pass
                else:
                    show_stream(stream, self._engine, painting=self.painting)
            if stream is None:
                return None
            stream.close()
            reply = stream.reply
            if not reply.text and reply.finish_reason == "cancelled":
                return None
            if not self._output.json:
                # every reply has its line, also an empty one, and before what is said about it
                end_line(is_data=True) if reply.text else write("\n")
        return reply

    def _print_stats(self) -> None:
        if not self.replies:
            talk().print("no reply yet")
            return
        print_stats(self.replies[-1], sampled=self._options.get("temperature", 0) > 0)
        total = sum(reply.usage.completion_tokens for reply in self.replies)
        talk().print(f"{len(self.replies)} replies, {total} tokens in all", style="dim")


def typed_lines() -> Iterator[str]:
    """Yield the lines of the user: with a prompt on a terminal, as they are from a pipe."""
    if not sys.stdin.isatty():
        for number, data in enumerate(sys.stdin.buffer, start=1):
            try:
                yield decoded(data, None).rstrip("\r\n")
            except PromptError as error:
                print_error(f"line {number} of {error}", hint=error.hint)
        return
    with suppress(ImportError):
        import readline  # noqa: F401  gives input() editing and history
    while True:
        try:
            yield input("> ")
        except EOFError:
            talk().print()
            return
        except KeyboardInterrupt:
            talk().print()
            talk().print("Ctrl-D or /exit ends the chat", style="dim")
