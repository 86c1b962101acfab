"""What prompts and messages must be, checked before any template sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pilotfish.errors import PromptError

_FORM = "a chat is a list of messages: [{'role': 'user', 'content': 'text'}]"


def as_messages(prompt: object) -> list[Mapping[str, Any]]:
    """Return a prompt, which is text or a list of messages, as messages. Raises PromptError."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, bytes | bytearray):
        raise PromptError("the prompt must be text, got bytes", hint="decode it first")
    if isinstance(prompt, Mapping) or not isinstance(prompt, Iterable):
        kind = type(prompt).__name__
        raise PromptError(f"the prompt must be text or a list of messages, got {kind}", hint=_FORM)
    return list(prompt)


def as_prompts(prompts: object) -> list[Any]:
    """Return the prompts of a batch as a list; PromptError where they are a single one."""
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise PromptError(
            f"the prompts must be a list of prompts, got {type(prompts).__name__}",
            hint="generate and stream take a single prompt",
        )
    return list(prompts)


def check_message(message: object, index: int) -> None:
    """Raise PromptError, naming the message, for what templates would stumble over or print as it
    looks in Python. Roles and parts of a content are for `chat_prompt` to check."""
    place = f"messages[{index}]"
    if not isinstance(message, Mapping):
        kind = type(message).__name__
        raise PromptError(f"{place} needs a role such as 'user', got {kind}", hint=_FORM)
    for key, value in message.items():
        if not isinstance(key, str):
            raise PromptError(f"{place} must have names of text, got {key!r:.50}", hint=_FORM)
        if key != "content":
            _check_value(value, f"{place}: {key}")
    role = message.get("role")
    if message.get("content") is None and role is not None and role != "assistant":
        raise PromptError(f"{place} has no content", hint="its content is text, '' for none")
    _check_calls(message.get("tool_calls"), f"{place}: tool_calls")


def _check_value(value: object, place: str) -> None:
    if isinstance(value, Mapping):
        for key, one in value.items():
            _check_value(key, place)
            _check_value(one, place)
    elif isinstance(value, list | tuple):
        for one in value:
            _check_value(one, place)
    elif value is not None and not isinstance(value, str | int | float):
        raise PromptError(f"{place} must be JSON values, got {type(value).__name__}")


def _check_calls(calls: object, place: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list | tuple):
        raise PromptError(f"{place} must be a list of calls, got {calls!r:.50}")
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise PromptError(
                f"{place} must be calls of functions, got {call!r:.50}",
                hint="{'type': 'function', 'function': {'name': 'f', 'arguments': {}}}",
            )
