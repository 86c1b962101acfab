"""Write docs/reference/ from the code: help texts, errors, public names.

With --check nothing is written, and the exit code is 1 when a page is not what it would be.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

import pilotfish
from pilotfish import cli, errors
from pilotfish.accounting.metrics import DrafterStats, ReplyStats
from pilotfish.config import RequestOptions
from pilotfish.errors import PilotfishError
from pilotfish.generation import NamedLogprobs, NamedToken, Usage
from pilotfish.grammar import formats, keywords
from pilotfish.server import ignored
from pilotfish.text import Tokenizer
from pilotfish.types import EmittedToken, TokenLogprobs

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
WIDTH = 80
NOTE = "<!-- written by scripts/docs.py: change the code, then run it again -->"
# what a reply is made of, besides the public names
REPLY_TYPES = (
    *(Usage, ReplyStats, DrafterStats, EmittedToken),
    *(NamedLogprobs, NamedToken, TokenLogprobs),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/docs.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args(argv).check
    stale = {
        path: text
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if check and stale:
        names = ", ".join(path.name for path in stale)
        message = f"error: out of date: {names} in docs/reference; run scripts/docs.py"
        print(message, file=sys.stderr)
        return 1
    for path, text in stale.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.name}", file=sys.stderr)
    return 0


def pages() -> dict[Path, str]:
    """Return the text of every generated page."""
    texts = {
        "cli.md": cli_page(),
        "errors.md": errors_page(),
        "fields.md": fields_page(),
        "json-schema.md": json_schema_page(),
        "python.md": python_page(),
    }
    return {REFERENCE / name: text for name, text in texts.items()}


def help_texts() -> dict[tuple[str, ...], str]:
    """Return what `--help` prints for every command, as words after `pilotfish`."""
    return {command: _help_text(command) for command in _commands(typer.main.get_command(cli.app))}


def _commands(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*words, name))


def cli_page() -> str:
    """Return the page of help texts."""
    parts = [f"# Command line\n\n{NOTE}\n\nEvery command with its `--help`, 80 columns wide."]
    for command, text in help_texts().items():
        title = " ".join(["pilotfish", *command])
        parts.append(f"## {title}\n\n```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def errors_page() -> str:
    """Return the page of errors, with their tree and exit codes."""
    tree = (errors.__doc__ or "").split("\n\n")[1]
    parts = [
        f"# Errors\n\n{NOTE}\n",
        "Every error has a one-line message and, where there is something to do about it, a",
        "`hint`. The command line prints both and ends with the exit code.\n",
        f"```text\n{tree}\n```\n",
        "| error | exit code | meaning |",
        "|---|---|---|",
    ]
    for kind in error_classes():
        parts.append(f"| `{kind.__name__}` | {kind.exit_code} | {_first_sentence(kind)} |")
    return "\n".join(parts) + "\n"


def fields_page() -> str:
    """Return the page of fields that are ignored, or refused where they ask for something."""
    parts = [
        f"# Fields that ask for nothing\n\n{NOTE}",
        "The server ignores the fields below and names them in the header\n"
        f"`{ignored.HEADER}` of the answer, and so any field that is `null`.",
        "## Whatever they say",
        _names("In a request", ignored.OF_REQUESTS),
        _names("In a message, its parts and calls, and in a tool", ignored.OF_PARTS),
        "## Where their value asks for nothing",
        'With another value they are refused, since they would change the reply. `null`, `""`,\n'
        "`[]` and `{}` ask for nothing, and the values in the second column.",
    ]
    shared = ignored.OF_OTHERS
    for title, table in (
        ("In any request", shared),
        ("In a chat", ignored.IN_CHATS),
        ("In a completion", ignored.IN_COMPLETIONS),
        ("In a message", ignored.IN_MESSAGES),
        ("In `stream_options`", ignored.IN_STREAM_OPTIONS),
    ):
        lines = ["| field | asks for nothing | in its place |", "|---|---|---|"]
        for name, field in table.items():
            if table is shared or name not in shared:
                neutral = ", ".join(f"`{json.dumps(value)}`" for value in field.neutral)
                lines.append(f"| `{name}` | {neutral} | {field.instead} |")
        parts += [f"### {title}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _names(where: str, names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names)
    return textwrap.fill(f"{where}: {shown}.", width=100, break_on_hyphens=False)


def json_schema_page() -> str:
    """Return the page of what is enforced of a JSON schema."""
    enforced = [
        "| keyword | for | how far |",
        "|---|---|---|",
        *(f"| `{name}` | {one.about} | {one.limit} |" for name, one in keywords.ENFORCED.items()),
    ]
    refused = [
        "| keyword | asks for nothing | in its place |",
        "|---|---|---|",
        *(
            f"| `{name}` | {one.neutral} | {one.instead} |"
            for name, one in keywords.REFUSED.items()
        ),
    ]
    texts = [
        "| format | a text such as |",
        "|---|---|",
        *(f"| `{name}` | {one.meaning} |" for name, one in formats.TEXT_FORMATS.items()),
    ]
    integers = ", ".join(f"`{name}`" for name in formats.INTEGER_FORMATS)
    parts = [
        f"# JSON schemas\n\n{NOTE}",
        "What [a schema](../guides/structured-output.md) may ask of a reply. A keyword that is in\n"
        "no table is refused by its name.",
        "## Keywords that are enforced",
        "\n".join(enforced),
        "## Formats that are enforced",
        "\n".join(texts),
        f"Whole numbers are held to the range of {integers}.",
        _names("Any number or text has these formats", formats.NEUTRAL_FORMATS),
        "## Keywords that are refused",
        "They may stand where they ask for nothing, as any keyword that is `null` does.",
        "\n".join(refused),
        "## Keywords that ask for nothing",
        _names("Left out, like names that begin with `x-`", keywords.REMARKS),
        _names("Read for the sake of `$ref`", keywords.NAMING),
    ]
    return "\n\n".join(parts) + "\n"


def error_classes() -> list[type[PilotfishError]]:
    """Return the error classes in the order of their definition."""
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PilotfishError)
    ]


def python_page() -> str:
    """Return the page of public names, with signatures and docstrings."""
    parts = [
        f"# Python\n\n{NOTE}",
        "Everything that can be imported from `pilotfish`. The parts below it (engines on\n"
        "scripted models, drafters, backends) are shown in the [guide](../guides/python.md).",
    ]
    for name in pilotfish.__all__:
        if not name.startswith("__"):
            parts += _entry(name, getattr(pilotfish, name))
    parts += _request_options()
    parts.append("# What a reply is made of")
    for kind in REPLY_TYPES:
        parts += _entry(kind.__name__, kind)
    parts.append("# What `engine.tokenizer` has")
    parts += _entry("Tokenizer", Tokenizer)
    return "\n\n".join(parts) + "\n"


def _help_text(command: tuple[str, ...]) -> str:
    output = io.StringIO()
    with _plain_terminal(), contextlib.redirect_stdout(output):
        code = cli.main([*command, "--help"])
    assert code == 0, f"--help of {command} ends with {code}"
    # Typer pads every line to the full width
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n")


@contextlib.contextmanager
def _plain_terminal() -> Iterator[None]:
    wanted = {"COLUMNS": str(WIDTH), "TERM": "dumb", "NO_COLOR": "1"}
    before = dict(os.environ)
    os.environ.update(wanted)
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH"):
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _entry(name: str, thing: object) -> list[str]:
    """Return the section of one public name."""
    parts = [f"## {name}"]
    if not isinstance(thing, type):
        return [*parts, f"```python\n{_signature(name, thing)}\n```", _doc(thing)]
    parts += [f"```python\n{_class_signature(name, thing)}\n```", _doc(thing)]
    for member, value in sorted(vars(thing).items()):
        if member.startswith("_") or member in _field_names(thing):
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(function, property):
            parts += [f"### {name}.{member}", _doc(function)]
        elif inspect.isfunction(function):
            shown = _signature(f"{name}.{member}", function)
            parts += [f"### {name}.{member}", f"```python\n{shown}\n```", _doc(function)]
    return parts


def _request_options() -> list[str]:
    hints = typing.get_type_hints(RequestOptions)
    options = "\n".join(f"- `{name}`: `{_type_name(kind)}`" for name, kind in hints.items())
    return [
        "## Options of a request",
        "The keyword options of `generate`, `stream` and `generate_batch`. An unknown one is a\n"
        "`ConfigError` that names it. Those of the sampler are explained at `SamplingSettings`.",
        options,
    ]


def _class_signature(name: str, kind: type) -> str:
    if dataclasses.is_dataclass(kind):
        lines = [f"class {name}:"]
        for field in dataclasses.fields(kind):
            lines.append(f"    {field.name}: {_annotation(field.type)}{_default(field)}")
        return "\n".join(lines)
    if getattr(kind, "_is_protocol", False):
        return f"class {name}"
    return f"class {_signature(name, kind)}"


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        return f" = {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return f" = {made!r}" if isinstance(made, dict | tuple) else f" = {type(made).__name__}()"
    return ""


def _field_names(kind: type) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()


def _signature(name: str, thing: object) -> str:
    """Return a signature; one parameter a line where it is long."""
    signature = inspect.signature(typing.cast("typing.Callable[..., object]", thing))
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    shown = []
    for parameter in parameters:
        first_keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if first_keyword and "*" not in shown:
            shown.append("*")
        annotation = _annotation(parameter.annotation)
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        stars = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}
        shown.append(f"{stars.get(parameter.kind, '')}{parameter.name}: {annotation}{default}")
    result = signature.return_annotation
    returns = "" if result is signature.empty or result == "None" else f" -> {_annotation(result)}"
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){returns}"


def _shown(value: object) -> str:
    return "..." if callable(value) else repr(value)


def _annotation(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "...")


def _type_name(kind: object) -> str:
    text = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    return re.sub(r"\b(?:typing|collections\.abc)\.", "", text)


def _doc(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _first_sentence(kind: type) -> str:
    return " ".join(_doc(kind).split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
