"""JSON between fixed texts, as grammars: what the calls of functions are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pilotfish.grammar.schema import schema_text
from pilotfish.types import StructuralTags

# as chat templates write such values when they come back: what was generated need not be read again
_BLANKS = {"item_separator": ", ", "key_separator": ": "}


def tags_text(tags: StructuralTags, options: Mapping[str, Any]) -> str:
    """Return the grammar of such a reply in the language of llguidance.

    Raises ConfigError for schemas that cannot be enforced. Equal for equal tags.
    """
    kinds, rules = [], []
    for number, tag in enumerate(tags.tags):
        kinds.append(f"{_quoted(tag.begin)} value_{number} {_quoted(tag.end)}")
        rules.append(f"value_{number}: {_json(tag.schema, {**options, **_BLANKS})}")
    more = "" if tags.separator is None else f" ({_quoted(tags.separator)} tag)*"
    start = [f"tag{more}"]
    if tags.otherwise is not None:
        start.append("otherwise")
        rules.append(f"otherwise: {_json(tags.otherwise, options)}")
    return "\n".join([f"start: {' | '.join(start)}", f"tag: {' | '.join(kinds)}", *rules])


def _json(schema: Mapping[str, Any] | bool, options: Mapping[str, Any]) -> str:
    read = json.loads(schema_text(schema))
    return f"%json {json.dumps({**read, 'x-guidance': dict(options)}, separators=(',', ':'))}"


def _quoted(text: str) -> str:
    # the language reads its texts as JSON does
    return json.dumps(text)
