"""The turns of `pilotfish chat`, and the commands that change them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from pilotfish.cli.console import (
    end_line,
    notices_held,
    one_line,
    painting_wanted,
    print_error,
    print_notices,
    talk,
    waiting,
    write,
)
from pilotfish.cli.conversation_file import Message, read_conversation, save_conversation
from pilotfish.cli.generate import print_cut, print_stats, show_stream
from pilotfish.cli.options import OutputOptions
from pilotfish.cli.typed import FENCE, Typed
from pilotfish.config import RequestOptions
from pilotfish.errors import ConfigError, ContextLengthExceeded, PromptError, near_name
from pilotfish.generation import Reply, TextEngine

# what ends a conversation is for whoever reads its lines
EXITS = ("/exit", "/bye", "/quit")
# name, what it takes, what it does
_COMMANDS = (
    ("/system", "[TEXT]", "show or set the system message; none takes it away"),
    ("/retry", "", "answer the last message again"),
    ("/undo", "", "take back the last message and its reply"),
    ("/clear", "", "forget the conversation"),
    ("/save", "FILE", "write the conversation as JSON"),
    ("/load", "FILE", "go on with a conversation from a file"),
    ("/stats", "", "figures of the last reply"),
    ("/help", "", "this list; also /?"),
    ("/exit", "", "end; so do /bye, /quit and Ctrl-D"),
)
_KEYS = f"""\
{FENCE}           begins and ends a text of several lines
Ctrl-C        stops a reply and keeps what there is of it
A blank before the slash makes a message of what looks like a command."""


def help_text() -> str:
    """Return the commands, a line each."""
    lines = [f"{f'{name} {takes}':<14} {about}" for name, takes, about in _COMMANDS]
    return "\n".join([*lines, _KEYS])


class Conversation:
    """The turns so far. A turn that fails or is stopped before its first word leaves no trace.

    messages  what the model is sent, besides the system message
    replies   all that were made, also those taken back
    """

    def __init__(self, engine: TextEngine, options: RequestOptions, output: OutputOptions) -> None:
        self._engine = engine
        self._options = cast(RequestOptions, dict(options))
        self._output = output
        self.painting = painting_wanted(output.color)
        self.messages: list[Message] = []
        self.replies: list[Reply] = []

    def take(self, typed: Typed) -> bool:
        """Act on a message or command; return False when the conversation is to end."""
        if typed.command in EXITS:
            return False
        if typed.command:
            try:
                self._run(typed.command, typed.text)
            except ConfigError as error:
                print_error(str(error), hint=error.hint)
        elif typed.text.strip():
            self._turn([*self.messages, {"role": "user", "content": typed.text}])
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the conversation as plain JSON values."""
        replies = [reply.to_dict() for reply in self.replies]
        return {"messages": self.messages, "replies": replies}

    def _run(self, command: str, text: str) -> None:
        name = {"/?": "/help"}.get(command, command)
        takes = next((takes for one, takes, _ in _COMMANDS if one == name), None)
        if takes is None:
            known = [one for one, _, _ in _COMMANDS]
            near = near_name(name, [*known, *EXITS])
            advice = "/help lists the commands; a blank before the slash sends it as a message"
            hint = f"did you mean {near}?" if near else advice
            raise ConfigError(f"unknown command: {command}", hint=hint)
        if text and not takes:
            raise ConfigError(f"{name} takes nothing, got {text!r:.50}")
        if takes == "FILE" and not text:
            raise ConfigError(f"{name} needs the name of a file", hint=f"{name} FILE")
        action: Callable[..., None] = getattr(self, f"_{name[1:]}")
        action(*[text] if takes else [])

    def _help(self) -> None:
        talk().print(help_text())

    def _system(self, text: str) -> None:
        if text.lower() == "none":
            self._options["system"] = None
        elif text:
            self._options["system"] = text
        system = self._options.get("system")
        talk().print("no system message" if system is None else f"system: {system}", style="dim")

    def _clear(self) -> None:
        self.messages.clear()

    def _undo(self) -> None:
        questions = [i for i, one in enumerate(self.messages) if one["role"] == "user"]
        if not questions:
            raise ConfigError("there is no message to take back")
        question = one_line(self.messages[questions[-1]]["content"])
        del self.messages[questions[-1] :]
        talk().print(f"taken back: {question:.60}", style="dim")

    def _retry(self) -> None:
        asked = list(self.messages)
        old = asked.pop()["content"] if asked and asked[-1]["role"] == "assistant" else None
        if not asked:
            raise ConfigError("there is no message to answer again")
        seed = self._options.get("seed")
        if old is not None and seed is not None:
            self._options["seed"] = seed + 1
        reply = self._turn(asked)
        if reply is not None and reply.text == old and not self._is_sampled:
            print_notices(["the same reply: it can only change with --temperature above 0"])

    def _save(self, file: str) -> None:
        if not self.messages:
            raise ConfigError("there is nothing to save yet")
        save_conversation(file, self._options.get("system"), self.messages)
        talk().print(f"saved {len(self.messages)} messages in {file}", style="dim", soft_wrap=True)

    def _load(self, file: str) -> None:
        self._options["system"], self.messages = read_conversation(file)
        system = "no" if self._options["system"] is None else "a"
        told = f"loaded {len(self.messages)} messages and {system} system message from {file}"
        talk().print(told, style="dim", soft_wrap=True)

    def _stats(self) -> None:
        if not self.replies:
            talk().print("no reply yet")
            return
        print_stats(self.replies[-1], sampled=self._is_sampled)
        total = sum(reply.usage.completion_tokens for reply in self.replies)
        talk().print(f"{len(self.replies)} replies, {total} tokens in all", style="dim")

    @property
    def _is_sampled(self) -> bool:
        return self._options.get("temperature", 0) > 0

    def _turn(self, asked: list[Message]) -> Reply | None:
        """Have messages answered; they and the reply are the conversation from then on."""
        try:
            reply = self._answer(asked)
        except PromptError as error:
            long = isinstance(error, ContextLengthExceeded)
            print_error(str(error), hint="/clear begins anew" if long else error.hint)
            return None
        if reply is None:
            return None
        self.messages = [*asked, {"role": "assistant", "content": reply.text}]
        self.replies.append(reply)
        if not self._output.json:
            print_cut(reply, self._options)
        if self._output.verbose:
            self._stats()
        return reply

    def _answer(self, asked: list[Message]) -> Reply | None:
        """Return the reply, or as much of it as there was when it was stopped."""
        stream = None
        with notices_held():
            with suppress(KeyboardInterrupt):
                with waiting("reading"):
                    stream = self._engine.stream(asked, **self._options)
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
