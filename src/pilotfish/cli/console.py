"""What the terminal shows: colours by origin, figures of a reply, two texts side by side.

Data is written to stdout as it is; everything said about it goes to stderr.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from pilotfish.errors import BackendError
from pilotfish.generation import Piece, Reply
from pilotfish.text import Detokenizer
from pilotfish.types import StopReason

# who proposed a token -> how it looks; the target's own tokens keep the terminal's colour
ORIGIN_STYLES: Mapping[str, str] = {
    "target": "",
    "suffix": "green",
    "ngram": "cyan",
    "model": "magenta",
    "prediction": "bright_green",
    "forced": "blue",
}
_OTHER_ORIGIN = "yellow"

Span = tuple[str, str]
"""Text and the origin of the token that completed it."""


class _Talk(Console):
    """Begins on a line of its own where text on stdout has not ended its last one."""

    def print(self, *objects: Any, **options: Any) -> None:
        if _line.is_open and _seen_together():
            sys.stderr.write("\n")
        _line.is_open = False
        super().print(*objects, **options)


def talk() -> Console:
    """Return the console for what is not data: stderr."""
    return _Talk(stderr=True, highlight=False, markup=False, emoji=False)


def _seen_together() -> bool:
    """Return whether stdout and stderr end up under one reader's eyes, as far as can be told."""
    try:
        if not sys.stderr.isatty():
            return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
        # a pipe may lead to the same terminal
        return not stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def page() -> Console:
    """Return the console for tables on stdout."""
    return Console(highlight=False, markup=False, emoji=False)


def print_error(message: str, *, hint: str = "") -> None:
    """Print one line of error, and one of advice if there is any."""
    console = talk()
    for label, style, text in (("error: ", "bold red", message), ("hint: ", "bold", hint)):
        if text:
            line = Text.assemble((label, style), one_line(text))
            console.print(line, soft_wrap=True)


def print_notices(notices: Iterable[str]) -> None:
    """Print what the user should know about the loaded models."""
    for notice in notices:
        talk().print(f"note: {one_line(notice)}", soft_wrap=True)


@contextmanager
def notices_held() -> Iterator[None]:
    """Keep warnings of the package out of a text that is being written; print them after it."""
    held: list[str] = []
    handler = _Holder(held)
    log = logging.getLogger("pilotfish")
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
        print_notices(held)


class _Holder(logging.Handler):
    def __init__(self, held: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._held = held

    def emit(self, record: logging.LogRecord) -> None:
        self._held.append(record.getMessage())


def one_line(text: str) -> str:
    """Return text without line breaks and control characters."""
    joined = " ".join(text.split())
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in joined)


def waiting(what: str) -> AbstractContextManager[object]:
    """Show on a terminal that something takes a while; nothing elsewhere."""
    console = talk()
    return console.status(f"{what} ...") if console.is_terminal else nullcontext()


@contextmanager
def load_progress(reference: str) -> Iterator[Callable[[str, float], None]]:
    """Show that a model is loaded, and give what is to be told of measuring it, which may take a
    minute: a line that changes on a terminal, elsewhere one line when it begins."""
    console = talk()
    what = "measuring what passes cost, once for these models"
    if console.is_terminal:
        with console.status(f"loading {reference} ...") as status:
            yield lambda label, share: status.update(f"{what}: {label} ({share:.0%})")
        return
    lines = iter([f"{what} ..."])

    def progress(label: str, share: float) -> None:
        for line in lines:
            console.print(line, soft_wrap=True)

    yield progress


@dataclass
class _Line:
    """Whether the last line on stdout has no end yet."""

    is_open: bool = False


_line = _Line()


def write(text: str, *, painted_as: str | None = None) -> None:
    """Write data to stdout at once, exactly as it is or in its colours."""
    sys.stdout.write(text if painted_as is None else painted_as)
    sys.stdout.flush()
    if text:
        _line.is_open = not text.endswith("\n")


def end_line(*, is_data: bool = False) -> None:
    """Go to a new line where the last one has text: on a terminal, as a file gets the text alone,
    or wherever the line break is part of the data."""
    if _line.is_open and (is_data or sys.stdout.isatty()):
        write("\n")


def forget_line() -> None:
    """Take stdout as unwritten: the program begins or ends."""
    _line.is_open = False


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document; BackendError if it holds a number that is none."""
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
    except ValueError as error:
        raise BackendError(
            f"the reply has no JSON form: {error}", hint="leave --logprobs out"
        ) from error
    write(text + "\n")


def painting_wanted(color: bool) -> bool:
    """Return whether `--color` is to be followed: NO_COLOR and a dumb terminal forbid it."""
    return color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def origin_style(origin: str) -> str:
    """Return the Rich style of an origin."""
    return ORIGIN_STYLES.get(origin, _OTHER_ORIGIN)


def painted(spans: Sequence[Span]) -> str:
    """Return the text with escape sequences; without these it is the text exactly."""
    return "".join(
        Style.parse(origin_style(origin)).render(text, color_system=ColorSystem.STANDARD)
        for text, origin in spans
    )


def legend(origins: Iterable[str] = ORIGIN_STYLES) -> Text:
    """Return one line that names the colours."""
    names = [(origin, origin_style(origin)) for origin in origins]
    return Text.assemble("tokens by: ", *[part for name in names for part in (name, "  ")][:-1])


class OriginSpans:
    """Tells which token each character of a stream came from.

    The text of a piece can lag behind its tokens, and several tokens can share one character,
    which then counts for the last of them.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer()
        self._origins: deque[str] = deque()  # one for each character not shown yet

    def split(self, piece: Piece) -> list[Span]:
        """Return the text of the piece in parts of one origin; joined they are the text."""
        for token in piece.tokens:
            text = self._detokenizer.feed(self._token_bytes(token.token_id))
            self._origins.extend([token.origin] * len(text))
        spans: list[Span] = []
        for char in piece.text:
            origin = self._origins.popleft() if self._origins else "target"
            if spans and spans[-1][1] == origin:
                spans[-1] = (spans[-1][0] + char, origin)
            else:
                spans.append((char, origin))
        return spans


def stats_lines(reply: Reply, *, sampled: bool) -> list[str]:
    """Return the figures of a reply in two short lines."""
    stats = reply.stats
    first = [f"{stats.emitted} tokens in {stats.decode_seconds:.1f} s"]
    if stats.tokens_per_second is not None:
        first.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.tokens_per_round is not None:
        first.append(f"{stats.tokens_per_round:.2f} tokens per round")
    second = [f"drafts accepted: {drafts_by_source(reply)}"]
    if cached := reply.usage.cached_tokens:
        second.append(f"{cached} of {reply.usage.prompt_tokens} prompt tokens were read before")
    if sampled:
        second.append(f"seed {reply.seed}")
    if level := reply.exactness.get("level"):
        second.append(f"exactness: {level}")
    return [", ".join(first), "; ".join(second)]


def cut_notice(reply: Reply, limit: int | None, *, is_json: bool = False) -> str:
    """Return what to say of a reply that a limit has cut, "" for one that ended by itself."""
    if reply.finish_reason != StopReason.LENGTH:
        return ""
    num_tokens = reply.usage.completion_tokens
    by = f"--max-tokens {limit}"
    if limit is None or num_tokens < limit:
        by = f"a full context after {num_tokens} tokens (--ctx)"
    return f"the reply is not complete: cut by {by}" + (", so it is not whole JSON" * is_json)


def drafts_by_source(reply: Reply) -> str:
    """Return accepted and drafted tokens by drafter, as in "suffix 55 of 88"."""
    by_drafter = reply.stats.by_drafter.items()
    parts = [f"{name} {one.accepted} of {one.drafted}" for name, one in by_drafter]
    return ", ".join(parts) or "none made"


class SideBySide:
    """Two texts in two columns, each with a title, painted by origin."""

    def __init__(self, left: str, right: str) -> None:
        self._titles = (left, right)
        self._texts = (Text(), Text())

    def add(self, column: int, spans: Sequence[Span]) -> None:
        """Append spans to column 0 or 1."""
        for text, origin in spans:
            self._texts[column].append(text, style=origin_style(origin))

    def table(self, console: Console, *, num_lines: int | None = None) -> RenderableType:
        """Return both columns in full, or the last `num_lines` lines of each."""
        width = (console.width - 3) // 2
        grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        for title in self._titles:
            grid.add_column(title, width=width, no_wrap=True)
        columns: list[list[Text]] = []
        for text in self._texts:
            lines = list(text.wrap(console, width, tab_size=4)) if text.plain else []
            columns.append(lines[-num_lines:] if num_lines else lines)
        for row in range(max(map(len, columns))):
            grid.add_row(*[lines[row] if row < len(lines) else Text() for lines in columns])
        return grid


def figures_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a small table whose first column names what the others count."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("")
    for title in columns:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
