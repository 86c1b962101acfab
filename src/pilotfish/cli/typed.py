"""What is typed into a chat: lines, blocks of several lines, and commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pilotfish.cli.console import print_error, talk
from pilotfish.cli.prompt_parts import decoded
from pilotfish.errors import PromptError

FENCE = '"""'
# one word: a path like /etc/hosts begins a message
_COMMAND = re.compile(r"/(?:[A-Za-z][A-Za-z0-9_-]*|\?)")

ReadLine = Callable[[str], "str | None"]


@dataclass(frozen=True, slots=True)
class Typed:
    """A message, or a command such as "/save" and what follows it."""

    command: str
    text: str


def typed() -> Iterator[Typed]:
    """Yield what the user types or pipes in, to its end; what cannot be read is told."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    read_line = _terminal() if is_terminal else _pipe()
    while True:
        try:
            line = read_line("> ")
            if line is None:
                return
            yield _whole(line, read_line)
        except PromptError as error:
            print_error(str(error), hint=error.hint)
        except KeyboardInterrupt:
            talk().print()
            talk().print("Ctrl-D or /exit ends the chat", style="dim")


def _whole(line: str, read_line: ReadLine) -> Typed:
    """Return what a line says, with the further lines of a block that it begins."""
    word, *rest = line.split(maxsplit=1) if line.startswith("/") else ("",)
    command = word.lower() if _COMMAND.fullmatch(word) else ""
    text = "".join(rest).strip() if command else line
    if text.lstrip().startswith(FENCE):
        text = _block(text.lstrip().removeprefix(FENCE), read_line)
    return Typed(command, text)


def _block(first: str, read_line: ReadLine) -> str:
    """Return the text up to the closing quotes; PromptError if a part of it is missing."""
    lines = [first]
    failure: PromptError | None = None
    while not lines[-1].rstrip().endswith(FENCE):
        try:
            line = read_line("... ")
        except PromptError as error:  # the rest of the block is no turn of its own
            failure = error
            continue
        if line is None:
            raise PromptError(f"a block of {FENCE} has no end, so it is not sent")
        lines.append(line)
    if failure is not None:
        raise failure
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    # the quotes may have lines of their own
    inner = lines[:1] if len(lines) == 1 else lines[not lines[0] : len(lines) - (not lines[-1])]
    return "\n".join(inner)


def _pipe() -> ReadLine:
    """Return a reader of the lines of a pipe, as they are."""
    num_lines = 0

    def read_line(_: str) -> str | None:
        nonlocal num_lines
        data = b"" if sys.stdin is None else sys.stdin.buffer.readline()
        if not data:
            return None
        num_lines += 1
        try:
            return decoded(data, None).rstrip("\r\n")
        except PromptError as error:
            raise PromptError(f"line {num_lines} of {error}", hint=error.hint) from error

    return read_line


def _terminal() -> ReadLine:
    """Return a reader of lines with editing and history, where Python has them."""
    with suppress(ImportError):
        import readline  # noqa: F401

    def read_line(prompt: str) -> str | None:
        if not sys.stdout.isatty():  # replies go to a file or a pipe, the prompt does not
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        try:
            return input(prompt)
        except EOFError:
            talk().print()
            return None
        except UnicodeDecodeError as error:
            raise PromptError(f"the line is not valid text: {error.reason}") from error

    return read_line
