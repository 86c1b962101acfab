"""What a chat template is told besides the messages, as options of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pilotfish.errors import ConfigError

ABOUT = "Tell the chat template, such as enable_thinking=false; repeatable."


def parse_template_options(entries: Sequence[str]) -> dict[str, Any]:
    """Return the values by name: JSON where it is some, else text; a later entry of a name wins."""
    options: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                f"--template-option must be NAME=VALUE, got {entry!r}",
                hint="such as --template-option enable_thinking=false",
            )
        try:
            options[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            options[name.strip()] = value
    return options
