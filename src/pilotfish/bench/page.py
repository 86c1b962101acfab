"""What a page of figures is made of: sections, tables, cells, and figures as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotfish.bench.findings import (
    BELOW,
    FINE,
    LOSS,
    UNSURE,
    Speedup,
    grade,
    speedup_text,
)

DASH = "-"  # for what was not measured
MARKS = {LOSS: "loss", BELOW: "doubt", UNSURE: "doubt", FINE: ""}


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of one cell; a mark puts it in colour, and its meaning is in the text, too."""

    text: str
    mark: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under titles of columns; the first cell of a row is its heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it; `chart` is SVG text, or "" without matplotlib."""

    anchor: str
    title: str
    paragraphs: Sequence[str] = ()
    chart: str | None = None
    tables: Sequence[Table] = ()
    command: str = ""


def speedup_cell(speedup: Speedup | None) -> Cell:
    """Return a speedup with its interval, and in words when it is or may be a loss."""
    if speedup is None:
        return Cell(DASH)
    found = grade(speedup)
    return Cell(f"{speedup_text(speedup)} {found}".rstrip(), MARKS[found])


def prompt_cell(speedup: float | None) -> Cell:
    """Return the speedup of one prompt."""
    if speedup is None:
        return Cell(DASH)
    return Cell(f"{speedup:.2f}x", "doubt" if speedup < 1 else "")


def number(value: float | None, digits: int) -> str:
    """Return a number with so many digits after the point."""
    return DASH if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """Return a share in percent."""
    return DASH if share is None else f"{100 * share:.0f} %"
