"""Where a prompt comes from: the command line, files, a pipe, or several of them."""

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


def read_prompt(prompt: str | None, files: Sequence[str], *, raw: bool) -> str:
    """Return PROMPT, the files in their order and what is piped in, a blank line between them.

    Piped text counts as the last file unless `-` among the files says where it belongs. The line
    break at the end of a part is not part of it. Raw parts are joined as they are. Raises
    PromptError if a part is no usable text.
    """
    if files.count(_STDIN) > 1:
        raise PromptError("--file - is given twice, but a pipe can be read only once")
    parts = [] if prompt is None else [_checked_argument(prompt)]
    parts += [_file_part(file, raw=raw) for file in files]
    if _STDIN not in files and sys.stdin is not None and not sys.stdin.isatty():
        piped = _trimmed(decoded(_piped_bytes(is_needed=not parts), None), raw=raw)
        parts += [piped] if piped or not parts else []
    elif not parts:
        raise PromptError("PROMPT is missing", hint=_WHERE_FROM)
    text = ("" if raw else "\n\n").join(parts)
    if not text and not raw:
        raise PromptError("the PROMPT is empty", hint=_WHERE_FROM)
    return text


def decoded(data: bytes, file: str | None) -> str:
    """Return bytes as text; PromptError says where they stop being UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        name = "stdin" if file in (None, _STDIN) else f"--file {file}"
        raise PromptError(
            f"{name} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}",
            hint="convert it first, for example with iconv -t UTF-8",
        ) from error


def _file_part(file: str, *, raw: bool) -> str:
    data = _piped_bytes(is_needed=True) if file == _STDIN else _read_bytes(file)
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


def _piped_bytes(*, is_needed: bool) -> bytes:
    """Return what is piped in, to its end. Where it is not needed and nothing comes, a note says
    what is waited for: programs that start others often leave them a pipe that never ends."""
    if sys.stdin is None:
        return b""
    if not is_needed and not _has_come():
        print_notices(["waiting for piped text to end; with < /dev/null there is none"])
    return sys.stdin.buffer.read()


def _has_come() -> bool:
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], _PATIENCE_SECONDS)[0])
    except (OSError, ValueError):  # no descriptor to wait for
        return True


def _read_bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PromptError(f"cannot read --file {file}: {reason}", hint=_WHERE_FROM) from error
