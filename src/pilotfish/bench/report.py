"""The report of a benchmark as one HTML file that needs nothing else.

It is made from the summary that `pilotfish bench --json` prints; what that lacks is left out. The
template lays out the sections and escapes what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from pilotfish.bench.findings import described, findings, headline, model_name
from pilotfish.bench.page import MARKS, Cell
from pilotfish.bench.report_sections import SECTIONS


def html_report(summary: Mapping[str, Any]) -> str:
    """Return the report of a summary as the text of one HTML file."""
    made = [make(summary) for make in SECTIONS]
    sections = [section for section in made if section is not None]
    template = resources.files("pilotfish.bench").joinpath("report.html")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        title=f"Benchmark of {model_name(summary, 'target') or 'a model'}",
        what=described(summary),
        findings=_marked_headline(summary),
        sections=sections,
        without_charts=any(section.chart == "" for section in sections),
    )


def _marked_headline(summary: Mapping[str, Any]) -> list[Cell]:
    """Return the sentences of the headline, losses and doubts marked."""
    marks = {one.sentence(): MARKS[one.grade] for one in findings(summary)}
    return [Cell(sentence, marks.get(sentence, "")) for sentence in headline(summary)]
