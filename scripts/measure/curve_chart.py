#!/usr/bin/env python
"""Draw the cost curves that `curve.py --json` wrote: one SVG with all engines.

python scripts/measure/curve_chart.py curve.json docs/concepts/cost-curves.svg
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 860, 470
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 70, 60
LABEL_HEIGHT = 17
# colours that stay apart for colour-blind readers
STYLES = {
    "native": ("pilotfish native", "#0072B2", 3.0),
    "native-avx2": ("native, AVX2 only", "#56B4E9", 2.0),
    "ik": ("ik_llama.cpp", "#E69F00", 2.0),
    "llama": ("llama.cpp", "#D55E00", 2.0),
}
FONT = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value, in pixels."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def text(x: float, y: float, words: str, *, anchor: str = "start", extra: str = "") -> str:
    """Return a line of text."""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" {FONT} font-size="13" fill="#222" {extra}>'
        f"{escape(words)}</text>"
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """Return a straight line."""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'


def axes(x: Scale, y: Scale, widths: Sequence[int]) -> list[str]:
    """Return the grid, the ticks and the names of the axes."""
    grid = 'stroke="#e4e4e4"'
    parts = []
    for width in widths:
        parts.append(line(x(width), y.start, x(width), y.end, grid))
        parts.append(text(x(width), y.start + 20, str(width), anchor="middle"))
    for tick in ticks(y.low, y.high):
        parts.append(line(x.start, y(tick), x.end, y(tick), grid))
        parts.append(text(x.start - 10, y(tick) + 4, f"{tick:g}", anchor="end"))
    middle = (x.start + x.end) / 2
    parts.append(text(middle, HEIGHT - 14, "tokens in one pass (logarithmic)", anchor="middle"))
    turned = f'transform="rotate(-90 18 {(y.start + y.end) / 2})"'
    name = "milliseconds per pass (logarithmic)"
    parts.append(text(18, (y.start + y.end) / 2, name, anchor="middle", extra=turned))
    return parts


def ticks(low: float, high: float) -> list[float]:
    """Return round values from `low` to `high`: 1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def curve(
    points: dict[int, dict[str, float]], x: Scale, y: Scale, style: tuple[str, str, float]
) -> str:
    """Return a line through the medians, with a bar from the least to the largest value."""
    _, colour, thickness = style
    places = [(x(width), y(values["median"])) for width, values in points.items()]
    path = " ".join(f"{px},{py}" for px, py in places)
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thickness}"/>'
    ]
    for (px, py), values in zip(places, points.values(), strict=True):
        bar = f'stroke="{colour}" stroke-width="1.2"'
        parts.append(line(px, y(values["min"]), px, y(values["max"]), bar))
        parts.append(f'<circle cx="{px}" cy="{py}" r="3" fill="{colour}"/>')
    return "\n".join(parts)


def spaced(places: Sequence[float]) -> list[float]:
    """Return heights of labels near `places`, far enough apart to be read."""
    result = list(places)
    order = sorted(range(len(places)), key=lambda i: places[i])
    for above, below in itertools.pairwise(order):
        result[below] = max(result[below], result[above] + LABEL_HEIGHT)
    return result


def floor_line(milliseconds: float, x: Scale, y: Scale) -> list[str]:
    """Return the line of the time that reading the weights takes."""
    height = y(milliseconds)
    style = 'stroke="#444" stroke-dasharray="6 4"'
    words = f"reading all weights once: {milliseconds:.1f} ms"
    return [
        line(x.start, height, x.end, height, style),
        text(x.end - 4, height + 17, words, anchor="end"),
    ]


def chart(report: dict[str, Any]) -> str:
    """Return the picture of a report of curve.py."""
    curves = {
        name: {int(width): values for width, values in engine["milliseconds"].items()}
        for name, engine in report["engines"].items()
    }
    values = [v for points in curves.values() for p in points.values() for v in p.values()]
    floor = report["floor"]["milliseconds"]["median"] if report["floor"] else None
    lowest = min(values) if floor is None else min(*values, floor)
    widths = sorted({width for points in curves.values() for width in points})
    x = Scale(widths[0], widths[-1], LEFT, WIDTH - RIGHT)
    y = Scale(lowest / 1.35, max(values) * 1.1, HEIGHT - BOTTOM, TOP)
    parts = axes(x, y, widths)
    if floor is not None:
        parts += floor_line(floor, x, y)
    styles = {name: STYLES.get(name, (name, "#555", 2.0)) for name in curves}
    # the native curve last, on top of the others
    for name in reversed(curves):
        parts.append(curve(curves[name], x, y, styles[name]))
    ends = spaced([y(points[max(points)]["median"]) for points in curves.values()])
    for name, height in zip(curves, ends, strict=True):
        words, colour, _ = styles[name]
        colour_of_text = f'style="fill:{colour}" font-weight="bold"'
        parts.append(text(x.end + 12, height + 4, words, extra=colour_of_text))
    return framed(parts, report)


def framed(parts: Sequence[str], report: dict[str, Any]) -> str:
    """Return a whole SVG document with a heading."""
    heading = "What a pass over several tokens costs"
    processor = report["provenance"]["processor"]
    details = (
        f"{report['file']}, context {report['context']}, {report['threads']} threads, {processor}; "
        f"medians of {report['rounds']} rounds, bars from least to most"
    )
    head = text(LEFT, 28, heading, extra='style="font-size:17px" font-weight="bold"')
    below = text(LEFT, 48, details, extra='style="font-size:12px;fill:#555"')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{heading}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            head,
            below,
            *parts,
            "</svg>\n",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="what curve.py --json wrote")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    args = parser.parse_args()
    report = json.loads(args.report.read_text(encoding="utf-8"))
    args.picture.write_text(chart(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
