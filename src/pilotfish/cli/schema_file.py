"""The JSON Schema a user names or writes with `--json-schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pilotfish.errors import ConfigError

_SIMPLEST = 'for any object: {"type": "object"}'


def read_schema(given: str) -> Any:
    """Return the JSON Schema in a file, or the one that was given itself. Raises ConfigError if it
    cannot be read or used, and MissingExtra."""
    from pilotfish.grammar import check_schema  # not at the top: few replies have one

    is_schema = given.lstrip().startswith(("{", "["))
    option = "--json-schema" if is_schema else f"--json-schema {given}"
    try:
        schema = json.loads(given if is_schema else _read(given))
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


def _read(file: str) -> str:
    return Path(file).read_text(encoding="utf-8-sig")
