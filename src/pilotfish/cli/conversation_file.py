"""Conversations in files: the messages of OpenAI's API as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotfish.errors import ConfigError

Message = dict[str, str]


def save_conversation(name: str, system: str | None, messages: Sequence[Message]) -> None:
    """Write a conversation; ConfigError if that fails or would destroy another file."""
    path = Path(name).expanduser()
    if path.exists() and not _holds_conversation(path):
        raise ConfigError(f"{name} exists and holds no conversation", hint="choose another name")
    whole = ([] if system is None else [{"role": "system", "content": system}]) + list(messages)
    text = json.dumps({"messages": whole}, ensure_ascii=False, indent=2)
    try:
        path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {name}: {_reason(error)}") from error


def read_conversation(name: str) -> tuple[str | None, list[Message]]:
    """Return the system message, if any, and the other messages of a file. It may be what
    `save_conversation` or `chat --json` wrote, or a list. Raises ConfigError."""
    try:
        raw = json.loads(Path(name).expanduser().read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {_reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}") from error
    listed = raw.get("messages") if isinstance(raw, Mapping) else raw
    if not isinstance(listed, list):
        raise ConfigError(f"{name} holds no conversation: there is no list of messages")
    messages = [_checked(name, index, message) for index, message in enumerate(listed)]
    if messages and messages[0]["role"] == "system":
        return messages[0]["content"], messages[1:]
    return None, messages


def _checked(name: str, index: int, message: Any) -> Message:
    role = message.get("role") if isinstance(message, Mapping) else None
    roles = ("system", "user", "assistant") if index == 0 else ("user", "assistant")
    if not isinstance(role, str) or role not in roles:
        wanted = " or ".join(roles)
        raise ConfigError(f"{name}: the role of messages[{index}] must be {wanted}, got {role!r}")
    content = message.get("content")
    if not isinstance(content, str):
        raise ConfigError(f"{name}: the content of messages[{index}] must be text")
    return {"role": role, "content": content}


def _holds_conversation(path: Path) -> bool:
    try:
        read_conversation(str(path))
    except ConfigError:
        return False
    return True


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
