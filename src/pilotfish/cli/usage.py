"""What is said of a command line that cannot be understood: one line, and a hint that is true."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pilotfish.errors import near_name

# what other programs call our options; said only where the command has the option
_CALLED_ELSEWHERE = {
    "--target": "model model-path model-id target-model m",
    "--draft": "model-draft draft-model assistant-model speculative-model md",
    "--max-tokens": "n-predict predict num-predict max-new-tokens max-length n",
    "--ctx": "ctx-size context context-size context-length num-ctx n-ctx max-model-len c",
    "--temperature": "temp t",
    "--repetition-penalty": "repeat-penalty",
    "--num-speculative-tokens": "draft-max draft-n num-draft-tokens spec-draft-n-max k",
    "--system": "system-prompt sys",
    "--file": "prompt-file input in",
    "--json-schema": "json-schema-file schema response-format",
    "--raw": "no-chat-template no-cnv no-conversation",
    "--host": "listen bind address",
    "--model-name": "alias served-model-name",
}
_OPTION_FOR = {
    name: option for option, names in _CALLED_ELSEWHERE.items() for name in names.split()
}
_PROMPT_NAMES = ("prompt", "p")
_COMMAND_FOR = {
    "run": "generate",
    "complete": "generate",
    "server": "serve",
    "list": "models list",
    "ls": "models list",
    "pull": "models pull",
    "download": "models pull",
    "rm": "models rm",
    "show": "models info",
    "info": "models info",
    "benchmark": "bench",
}


def usage_message(error: Exception) -> tuple[str, str]:
    """Return Click's message in our form, and a hint where something near or known by another
    name is there. Typer brings its own copy of Click or uses the installed one."""
    name = getattr(error, "option_name", None)
    if name is not None and hasattr(error, "possibilities"):
        return f"unknown option: {name}", _option_hint(name, getattr(error, "ctx", None))
    message, *_ = str(error.format_message()).partition(" Did you mean ")  # type: ignore[attr-defined]
    message = message.strip().removesuffix(".")
    if "unexpected extra argument" in message:
        return _lowered(message), "put a prompt of several words in quotes"
    if found := re.match(r"No such command '(.*)'$", message):
        return _lowered(message), _command_hint(found[1], getattr(error, "ctx", None))
    return _lowered(message), ""


def _option_hint(name: str, context: Any) -> str:
    """Return what was meant by an unknown option of a command, "" if that cannot be told."""
    parameters = [] if context is None else context.command.params
    options = {name: one.opts for one in parameters for name in one.opts if name.startswith("-")}
    word = name.lstrip("-").casefold().replace("_", "-")
    if word in _PROMPT_NAMES and any(one.name == "prompt" for one in parameters):
        return "the prompt has no option: write it in quotes, or name a file with -f"
    meant = _OPTION_FOR.get(word, "")
    if meant not in options:
        meant = near_name(name, [option for option in options if option.startswith("--")])
    return f"did you mean {_all_names(options[meant])}?" if meant else ""


def _command_hint(name: str, context: Any) -> str:
    names: Sequence[str] = [] if context is None else list(context.command.commands)
    meant = near_name(name, names)
    if not meant and "models" in names:
        meant = _COMMAND_FOR.get(name.casefold(), "")
    return f"did you mean {meant}?" if meant else ""


def _all_names(names: Sequence[str]) -> str:
    return "/".join(sorted(names, key=len))


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
