"""Formats of texts and numbers, and what a reply of each is held to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotfish.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A format of texts: what it is, patterns that hold all at once, and the longest text.

    Without patterns the compiler's own are right. Where a format is wider than what programs read,
    its patterns are narrower: times have capital letters and no leap seconds.
    """

    meaning: str
    patterns: tuple[str, ...] = ()
    longest: int | None = None


_LONG_MONTHS = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_SHORT_MONTHS = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = "02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = f"(?:[0-9]{{4}}-(?:{_LONG_MONTHS}|{_SHORT_MONTHS}|{_FEBRUARY})|{_LEAP_YEAR}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_CLOCK}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:Z|[+-]{_CLOCK})"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = f"{_LABEL}(?:\\.{_LABEL})*"
# two hyphens together stand for letters that are written otherwise
_PLAIN_HOST = "[A-Za-z0-9]+(?:[-.][A-Za-z0-9]+)*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LONGEST_HOST = 253

TEXT_FORMATS: Mapping[str, TextFormat] = {
    "date": TextFormat("`2024-02-29`: a day that there is", (f"^{_DATE}$",)),
    "time": TextFormat("`23:59:59.5Z`, `12:00:00+01:00`: no leap seconds", (f"^{_TIME}$",)),
    "date-time": TextFormat("a date, `T`, a time", (f"^{_DATE}T{_TIME}$",)),
    "duration": TextFormat("`P1DT12H`"),
    "email": TextFormat(
        "`a.b@example.org`: no quotes, no addresses of machines",
        (f"^{_ATOM}(?:\\.{_ATOM})*@{_HOST}$", f"^[^@]{{1,64}}@{_PLAIN_HOST}$"),
        _LONGEST_HOST,
    ),
    "hostname": TextFormat("`example.org`", (f"^{_HOST}$", f"^{_PLAIN_HOST}$"), _LONGEST_HOST),
    "ipv4": TextFormat("`127.0.0.1`"),
    "ipv6": TextFormat("`::1`"),
    "uuid": TextFormat("`123e4567-e89b-12d3-a456-426614174000`"),
    "uri": TextFormat("`https://example.org/a?b#c`"),
}
# format: the smallest and the largest number
INTEGER_FORMATS: Mapping[str, tuple[int, int]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
# how programs keep a number, or show a text: all of them satisfy it
NEUTRAL_FORMATS = ("float", "double", "decimal", "password")
_WHOLE_HINT = 'write "type": "integer"'


def with_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose `format` is said by other keywords, unless the compiler's is right.

    Raises ConfigError for a format that is not enforced.
    """
    result = dict(schema)
    if "format" not in result:
        return result
    name = result.pop("format")
    types = result.get("type", ["string"])
    types = types if isinstance(types, list) else [types]
    if name in NEUTRAL_FORMATS:
        return result
    if name in INTEGER_FORMATS:
        if "integer" not in types or "number" in types:
            raise ConfigError(f"format {name} is enforced for whole numbers only", hint=_WHOLE_HINT)
        return _within(result, *INTEGER_FORMATS[name])
    if not isinstance(name, str) or name not in TEXT_FORMATS:
        known = ", ".join([*TEXT_FORMATS, *INTEGER_FORMATS])
        raise ConfigError(f"format {_shown(name)} is not enforced", hint=f"known: {known}")
    if "string" not in types:
        raise ConfigError(
            f"format {name} is enforced for texts only", hint='write "type": "string"'
        )
    return _matching(result, name)


def _within(schema: dict[str, Any], smallest: int, largest: int) -> dict[str, Any]:
    # the narrower ones of two bounds hold: those given stay as they are
    bounds: dict[str, Any] = {"type": schema["type"], "minimum": smallest, "maximum": largest}
    if "minimum" not in schema and "maximum" not in schema:
        return schema | bounds
    return {**schema, "allOf": [*schema.get("allOf", []), bounds]}


def _matching(schema: dict[str, Any], name: str) -> dict[str, Any]:
    wanted = TEXT_FORMATS[name]
    if not wanted.patterns:
        return {**schema, "format": name}
    parts: list[dict[str, Any]] = [{"pattern": pattern} for pattern in wanted.patterns]
    if wanted.longest is not None:
        parts.append({"maxLength": wanted.longest})
    return {**schema, "allOf": [*schema.get("allOf", []), *parts]}


def _shown(name: object) -> str:
    return json.dumps(name)[:60]
