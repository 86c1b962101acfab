"""Where a prompt and a prediction come from: the command line, files, a pipe, several of them."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from pathlib import Path

from pilotfish.cli.console import print_notices
from pilotfish.errors import PromptError

_STDIN = "-"
_WHERE_FROM = "write it after the command, name a file with -f, or pipe it in"
_PATIENCE_SECONDS = 3.0
_PREDICTION = "--prediction"


class Pipe:
    """What is piped in, read once, whoever asks first."""

    def __init__(self) -> None:
        self._data: bytes | None = None

    @property
    def is_there(self) -> bool:
        """Return whether something can be piped in: a terminal is none."""
        return sys.stdin is not None and not sys.stdin.isatty()

    def read(self, *, is_needed: bool) -> bytes:
        """Return all of it. Where it is not needed and nothing comes, a note says what is waited
        for: programs that start others often leave them a pipe that never ends."""
        if self._data is None:
            if sys.stdin is None:
                return b""
            if not is_needed and not _has_come():
                print_notices(["waiting for piped text to end; with < /dev/null there is none"])
            self._data = sys.stdin.buffer.read()
        return self._data


def read_prompt(
    prompt: str | None, files: Sequence[str], *, raw: bool, pipe: Pipe | None = None
) -> str:
    """Return PROMPT, the files in their order and what is piped in, a blank line between them.

    Piped text counts as the last file unless `-` among the files says where it belongs. The line
    break at the end of a part is not part of it. Raw parts are joined as they are. Raises
    PromptError if a part is no usable text.
    """
    pipe = pipe or Pipe()
    if files.count(_STDIN) > 1:
        raise PromptError("--file - is given twice, but a pipe can be read only once")
    parts = [] if prompt is None else [_checked_argument(prompt)]
    parts += [_file_part(file, pipe, raw=raw) for file in files]
    if _STDIN not in files and pipe.is_there:
        piped = _trimmed(decoded(pipe.read(is_needed=not parts), None), raw=raw)
        parts += [piped] if piped or not parts else []
    elif not parts:
        raise PromptError("PROMPT is missing", hint=_WHERE_FROM)
    text = ("" if raw else "\n\n").join(parts)
    if not text and not raw:
        raise PromptError("the PROMPT is empty", hint=_WHERE_FROM)
    return text


def read_prediction(files: Sequence[str], pipe: Pipe) -> str | None:
    """Return what the reply is expected to be: the files to the letter, one after the other, or
    None without any. `-` is the piped text, which is a part of the prompt as well."""
    if not files:
        return None
    parts = []
    for file in files:
        if file == _STDIN and not pipe.is_there:
            raise PromptError("--prediction - and nothing is piped in", hint="name a file")
        data = pipe.read(is_needed=True) if file == _STDIN else _read_bytes(file, _PREDICTION)
        parts.append(decoded(data, file, _PREDICTION))
        if not parts[-1]:
            print_notices([f"{_PREDICTION} {file} is empty: it predicts nothing"])
    return "".join(parts)


def decoded(data: bytes, file: str | None, option: str = "--file") -> str:
    """Return bytes as text; PromptError says where they stop being UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        name = "stdin" if file in (None, _STDIN) else f"{option} {file}"
        raise PromptError(
            f"{name} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}",
            hint="convert it first, for example with iconv -t UTF-8",
        ) from error


def _file_part(file: str, pipe: Pipe, *, raw: bool) -> str:
    data = pipe.read(is_needed=True) if file == _STDIN else _read_bytes(file)
    text = _trimmed(decoded(data, file), raw=raw)
    if not text and not raw:
        # left out in silence, a file that was written too late would look like one that was read
        raise PromptError(f"--file {file} is empty", hint=_WHERE_FROM)
    return text


def _trimmed(text: str, *, raw: bool) -> str:
    return text if raw else text.removesuffix("\n").removesuffix("\r")


def _checked_argument(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"PROMPT is not valid text at character {error.start}") from error
    return prompt


def _has_come() -> bool:
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], _PATIENCE_SECONDS)[0])
    except (OSError, ValueError):  # no descriptor to wait for
        return True


def _read_bytes(file: str, option: str = "--file") -> bytes:
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = _WHERE_FROM if option == "--file" else "name a file of text"
        raise PromptError(f"cannot read {option} {file}: {reason}", hint=hint) from error
