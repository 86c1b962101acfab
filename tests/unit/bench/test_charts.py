"""Charts: text that stands in a page of any colour beside others, and pictures."""

from __future__ import annotations

import builtins
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pilotfish.bench.charts import (
    cost_curve_chart,
    interval_bars,
    lines_chart,
    require_charts,
    save_cost_curve,
    stacked_bars,
)
from pilotfish.errors import ConfigError, MissingExtra

SVG = "{http://www.w3.org/2000/svg}"
TITLE = "Costs & <gains> of $a and $b"
CURVES: Mapping[str, Mapping[int, float]] = {
    "near": {1: 1.0, 2: 1.1, 8: 2.5},
    "far": {1: 1.0, 2: 1.2, 8: 3.0},
}
CHARTS: dict[str, Callable[[], str]] = {
    "lines": lambda: lines_chart(
        {"suffix": [(1, 0.9), (2, 0.5)], "model": [(1, 0.8), (2, 0.7)]},
        title=TITLE,
        x_label="position",
        y_label="share",
    ),
    "intervals": lambda: interval_bars(
        {
            "chat": {"suffix": (1.2, 1.1, 1.4), "auto": (1.3, 1.2, 1.4)},
            "code": {"auto": (2.0, 1.8, 2.2)},
        },
        title=TITLE,
        y_label="speedup",
        reference=1.0,
    ),
    "shares": lambda: stacked_bars(
        {"plain": {"target": 3.0}, "auto": {"target": 1.5, "draft": 0.5}},
        title=TITLE,
        x_label="seconds",
    ),
    "curves": lambda: cost_curve_chart(CURVES, title=TITLE, floor=0.8),
}
NAMES = {
    "lines": {"suffix", "model", "position", "share"},
    "intervals": {"chat", "code", "suffix", "auto", "speedup"},
    "shares": {"plain", "auto", "target", "draft", "seconds", "75 %", "25 %", "100 %"},
    "curves": {"near", "far", "tokens in one pass", "reading the weights once"},
}


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return {name: chart() for name, chart in CHARTS.items()}


@pytest.mark.parametrize("name", CHARTS)
def test_names_and_figures_are_text_in_the_page(drawn: dict[str, str], name: str) -> None:
    root = ElementTree.fromstring(drawn[name])
    texts = {element.text for element in root.iter() if element.text and element.text.strip()}
    assert texts >= NAMES[name] | {TITLE}
    assert root.get("role") == "img"
    assert root.get("aria-label") == TITLE


@pytest.mark.parametrize("name", CHARTS)
def test_text_has_the_colour_of_the_page_and_the_ground_is_clear(
    drawn: dict[str, str], name: str
) -> None:
    root = ElementTree.fromstring(drawn[name])
    (heading,) = [element for element in root.iter(f"{SVG}text") if element.text == TITLE]
    assert "fill: currentColor" in heading.attrib["style"]
    fills = re.findall(r"<path[^>]*fill: ([^;\"]+)", drawn[name])
    assert "none" in fills
    assert not {"#ffffff", "white", "#000000", "black"} & set(fills)


def test_charts_of_one_page_share_no_names(drawn: dict[str, str]) -> None:
    names = [set(re.findall(r' id="([^"]+)"', svg)) for svg in drawn.values()]
    assert all(names)
    assert sum(map(len, names)) == len(set.union(*names))
    for svg, own in zip(drawn.values(), names, strict=True):
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', svg)
        assert used
        assert set(used) <= own


@pytest.mark.parametrize("name", CHARTS)
def test_the_same_figures_give_the_same_text_and_nothing_is_fetched(
    drawn: dict[str, str], name: str
) -> None:
    assert CHARTS[name]() == drawn[name]
    addresses = set(re.findall(r"https?://[^\"' <]+", drawn[name]))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_an_empty_chart_is_a_chart() -> None:
    for svg in (
        lines_chart({}, title="nothing", x_label="x", y_label="y"),
        interval_bars({}, title="nothing", y_label="y"),
        stacked_bars({}, title="nothing", x_label="x"),
        stacked_bars({"idle": {"target": 0.0}}, title="nothing", x_label="x"),
    ):
        assert svg.startswith("<svg")


def test_intervals_that_miss_their_value_are_drawn_up_to_it() -> None:
    assert "auto" in interval_bars({"chat": {"auto": (1.0, 1.1, 0.9)}}, title="t", y_label="y")


def test_a_picture_is_written_and_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    save_cost_curve(tmp_path / "curve", CURVES, title=TITLE, floor=0.8)
    assert (tmp_path / "curve").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="cannot write"):
        save_cost_curve(tmp_path / "none" / "curve.png", CURVES, title=TITLE)


@pytest.mark.parametrize("name", CHARTS)
def test_without_matplotlib_charts_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="'bench'"):
        CHARTS[name]()


def test_importing_charts_does_not_need_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []
    found = builtins.__import__

    def watched(name: str, *arguments: Any, **options: Any) -> Any:
        wanted.append(name)
        return found(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "pilotfish.bench.charts")
    monkeypatch.setattr(builtins, "__import__", watched)
    import pilotfish.bench.charts  # noqa: F401

    assert not [name for name in wanted if name.startswith("matplotlib")]
    require_charts()
    assert [name for name in wanted if name.startswith("matplotlib")]
