"""The JSON Schema a user names with `--json-schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pilotfish.errors import ConfigError

_SIMPLEST = 'for any object: {"type": "object"}'


def read_schema(file: str) -> Any:
    """Return the JSON Schema in a file. Raises ConfigError if it cannot be read or used, and
    MissingExtra."""
    from pilotfish.grammar import check_schema  # not at the top: few replies have one

    option = f"--json-schema {file}"
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {option}: {error.strerror}", hint=_SIMPLEST) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option} is not JSON: {error}", hint=_SIMPLEST) from error
    try:
        check_schema(schema)
    except ConfigError as error:
        reason = str(error).removeprefix("json_schema")
        raise ConfigError(f"{option}{reason}", hint=error.hint or _SIMPLEST) from error
    return schema
