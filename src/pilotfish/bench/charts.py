"""Charts as SVG text or PNG files; the only module that knows matplotlib.

An SVG is made to stand inside a page: transparent, its text in the page's own font and colour, its
identifiers its own. A PNG has a white ground.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotfish.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours: apart for colour-blind readers, and visible on white and on black
_COLOURS = ("#1478BE", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A8A8A")
# what is written on bars of these colours
_ON_COLOURS = ("white", "black", "white", "white", "black", "black", "black")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# a colour nobody draws with: stands for that of the page's text until the SVG is written
_TEXT_COLOUR = "#010203"
_GRID_COLOUR = "#8A8A8A"
_PAGE_FONT = "system-ui, 'Helvetica Neue', Helvetica, Arial, sans-serif"
_INCHES = (8.0, 4.2)
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "pilotfish",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "text.parse_math": False,  # names are names, also with a dollar sign
    "text.color": _TEXT_COLOUR,
    "axes.edgecolor": _TEXT_COLOUR,
    "axes.labelcolor": _TEXT_COLOUR,
    "xtick.color": _TEXT_COLOUR,
    "ytick.color": _TEXT_COLOUR,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Interval = tuple[float, float, float]
_Draw = Callable[["Figure"], None]


def lines_chart(
    series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str, y_label: str
) -> str:
    """Return the SVG of one line for each series of (x, y) points.

    Raises MissingExtra without matplotlib, as every chart does.
    """

    def draw(figure: Figure) -> None:
        axes = _axes(figure, title=title, x_label=x_label, y_label=y_label)
        _draw_lines(axes, series)
        if all(float(x).is_integer() for points in series.values() for x, _ in points):
            axes.locator_params(axis="x", integer=True)
        _legend(figure, len(series))

    return _svg(draw, title)


def interval_bars(
    groups: Mapping[str, Mapping[str, Interval]],
    *,
    title: str,
    y_label: str,
    reference: float | None = None,
) -> str:
    """Return the SVG of grouped bars with intervals.

    groups     group -> series -> (value, low, high); a group may lack a series
    reference  a value to compare with, drawn as a dashed line
    """

    def draw(figure: Figure) -> None:
        axes = _axes(figure, title=title, x_label="", y_label=y_label)
        names = list(dict.fromkeys(name for group in groups.values() for name in group))
        width = 0.8 / max(1, len(names))
        for index, name in enumerate(names):
            present = [(place, g[name]) for place, g in enumerate(groups.values()) if name in g]
            places = [place + (index - (len(names) - 1) / 2) * width for place, _ in present]
            values = [value for _, (value, _, _) in present]
            below = [max(0.0, value - low) for _, (value, low, _) in present]
            above = [max(0.0, high - value) for _, (value, _, high) in present]
            axes.bar(places, values, 0.92 * width, color=_colour(index), label=name)
            axes.errorbar(
                *(places, values, [below, above]),
                fmt="none",
                ecolor=_TEXT_COLOUR,
                elinewidth=1,
                capsize=2,
            )
        if reference is not None:
            axes.axhline(reference, color=_TEXT_COLOUR, linestyle="--", linewidth=1)
        axes.set_xticks(range(len(groups)), list(groups))
        _legend(figure, len(names))

    return _svg(draw, title)


def stacked_bars(bars: Mapping[str, Mapping[str, float]], *, title: str, x_label: str) -> str:
    """Return the SVG of one horizontal bar each, made of its parts (bar -> part -> size).

    Sizes are drawn as they are; what is written on a part is its share of the bar.
    """

    def draw(figure: Figure) -> None:
        axes = _axes(figure, title=title, x_label=x_label, y_label="", grid="x")
        figure.set_figheight(1.6 + 0.45 * len(bars))
        parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
        longest = max((sum(bar.values()) for bar in bars.values()), default=0.0)
        starts = [0.0] * len(bars)
        for index, part in enumerate(parts):
            sizes = [bar.get(part, 0.0) for bar in bars.values()]
            on_colour = _ON_COLOURS[index % len(_ON_COLOURS)]
            axes.barh(list(bars), sizes, 0.7, left=starts, color=_colour(index), label=part)
            for place, (bar, size) in enumerate(zip(bars.values(), sizes, strict=True)):
                if size > 0.06 * longest:
                    share = f"{100 * size / sum(bar.values()):.0f} %"
                    middle = starts[place] + size / 2
                    axes.text(middle, place, share, ha="center", va="center", color=on_colour)
                starts[place] += size
        axes.invert_yaxis()  # the first on top
        _legend(figure, len(parts))

    return _svg(draw, title)


def cost_curve_chart(
    curves: Mapping[str, Mapping[int, float]], *, title: str, floor: float | None = None
) -> str:
    """Return the SVG of cost curves: name -> width -> cost in single steps.

    floor  what reading the weights once takes, in single steps
    """
    return _svg(_cost_curves(curves, title=title, floor=floor), title)


def save_cost_curve(
    path: Path,
    curves: Mapping[str, Mapping[int, float]],
    *,
    title: str,
    floor: float | None = None,
) -> None:
    """Write the picture of `cost_curve_chart` as a PNG file; ConfigError if it cannot be."""
    with _styled() as figure:
        _cost_curves(curves, title=title, floor=floor)(figure)
        try:
            figure.savefig(path, format="png", dpi=150, facecolor="white")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def require_charts() -> None:
    """Raise MissingExtra unless charts can be drawn: before the long work, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("bench", needed_for="drawing charts") from error


def _cost_curves(
    curves: Mapping[str, Mapping[int, float]], *, title: str, floor: float | None
) -> _Draw:
    def draw(figure: Figure) -> None:
        axes = _axes(
            figure, title=title, x_label="tokens in one pass", y_label="cost in single steps"
        )
        widths = sorted({width for curve in curves.values() for width in curve})
        highest = max(cost for curve in curves.values() for cost in curve.values())
        # beyond this line a pass over several tokens costs more than one pass for each
        axes.plot([0, widths[-1]], [0, widths[-1]], color=_GRID_COLOUR, linestyle=":", linewidth=1)
        steepest = min(widths[-1], 1.05 * highest)
        axes.annotate(
            "as many single steps",
            (steepest, steepest),
            xytext=(6, -2),
            textcoords="offset points",
            va="top",
        )
        _draw_lines(axes, {name: sorted(curve.items()) for name, curve in curves.items()})
        if floor is not None:
            axes.axhline(
                floor,
                color=_TEXT_COLOUR,
                linestyle="--",
                linewidth=1,
                label="reading the weights once",
            )
        axes.set_xticks([width for width in widths if width in (1, 2, 3) or width % 4 == 0])
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.1 * highest)
        _legend(figure, len(curves) + (floor is not None), most_columns=2)

    return draw


def _draw_lines(axes: Axes, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for index, (name, points) in enumerate(series.items()):
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=_colour(index),
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4,
            label=name,
        )
    points_of_all = [point for points in series.values() for point in points]
    if all(y >= 0 for _, y in points_of_all):
        axes.set_ylim(bottom=0)
    # half a draft position is none
    axes.locator_params(axis="x", integer=all(x == int(x) for x, _ in points_of_all))


def _axes(figure: Figure, *, title: str, x_label: str, y_label: str, grid: str = "y") -> Axes:
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="x" if grid == "x" else "y", color=_GRID_COLOUR, alpha=0.35, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def _legend(figure: Figure, num_entries: int, *, most_columns: int = 5) -> None:
    if num_entries:
        columns = min(num_entries, most_columns)
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


@contextmanager
def _styled() -> Iterator[Figure]:
    """Give an empty figure of our style, apart from what else the process draws."""
    require_charts()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        yield Figure(figsize=_INCHES, layout="constrained")


def _svg(draw: _Draw, title: str) -> str:
    with _styled() as figure:
        draw(figure)
        written = io.StringIO()
        # without its date the same figures give the same text
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    return _for_pages(written.getvalue(), title)


def _for_pages(svg: str, title: str) -> str:
    """Return matplotlib's SVG as a part of a page: no header, own names, the page's text."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = body.replace(_TEXT_COLOUR, "currentColor").replace("'DejaVu Sans'", _PAGE_FONT)
    own = "c" + hashlib.sha256(body.encode()).hexdigest()[:10] + "-"
    for name in ('id="', 'href="#', "url(#"):
        body = body.replace(name, name + own)
    opening, _, rest = body.partition(">")
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    label = escape(title)
    return f'{opening} role="img" aria-label="{label}"><title>{label}</title>{rest}'
