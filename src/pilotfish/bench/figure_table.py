"""Figures of several runs or models as rows of one table, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NOT_KNOWN = "-"
_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def figure_rows(columns: Mapping[str, Mapping[str, Any] | None]) -> list[list[str]]:
    """Return a row for each figure, with a cell for each column (title -> name -> figure).

    A figure that no column has is left out; one that a column lacks is a dash there.
    """
    flat = {title: dict(_figures(one or {})) for title, one in columns.items()}
    names = dict.fromkeys(name for figures in flat.values() for name in figures)
    rows = [[name, *(figures.get(name, NOT_KNOWN) for figures in flat.values())] for name in names]
    return [row for row in rows if any(cell != NOT_KNOWN for cell in row[1:])]


def _figures(column: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in column.items():
        # the unit stands with the figure
        name = prefix + key.removesuffix("_seconds").removesuffix("_bytes").replace("_", " ")
        if isinstance(value, Mapping):
            yield from _figures(value, f"{name}: ")
        else:
            yield name, figure_text(key, value)


def figure_text(key: str, value: Any) -> str:
    """Return a figure with the unit that its name tells."""
    if value is None:
        return NOT_KNOWN
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    words = key.split("_")
    if "seconds" in words and "per" not in words[: words.index("seconds")]:
        return f"{1000 * value:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"
    if "bytes" in words:
        return f"{_large(value)}B"
    if abs(value) >= 1e6:
        return _large(value).strip()
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _large(value: float) -> str:
    for size, letter in _LARGE:
        if abs(value) >= size:
            return f"{value / size:.2f} {letter}"
    return f"{value:.0f} "
