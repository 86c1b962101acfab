"""The report of a benchmark: losses first, everything escaped, what is missing left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import pytest

from pilotfish.bench import charts
from pilotfish.bench.figure_table import figure_rows
from pilotfish.bench.findings import (
    BELOW,
    FINE,
    LOSS,
    UNSURE,
    compact,
    findings,
    grade,
    headline,
    speedup_text,
    worst_prompt,
)
from pilotfish.bench.report import html_report
from pilotfish.errors import MissingExtra
from support.bench_summary import interval, make_summary

EMPTY_TAGS = {"meta", "use"}
NASTY = "<b onclick=x>&\"'</title>$\\frac$"


class Page(HTMLParser):
    """A page taken apart; `problems` has every tag that is closed wrongly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.problems += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY_TAGS:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in EMPTY_TAGS:
            return
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    def attributes(self, name: str) -> list[str]:
        """Return the values of one attribute, all over the page."""
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(html_report(make_summary()))


@pytest.mark.parametrize(
    ("speedup", "expected"),
    [
        (interval(0.93, 0.9, 0.99), LOSS),
        (interval(0.99, 0.9, 1.0), BELOW),
        (interval(1.0, 0.969, 1.1), UNSURE),
        (interval(1.0, 0.97, 1.1), FINE),
        ({"geomean": 0.99, "low": None, "high": None}, BELOW),
        ({"geomean": 1.0, "low": None, "high": None}, FINE),
    ],
)
def test_a_loss_is_certain_where_the_whole_interval_is_below_one(
    speedup: Mapping[str, Any], expected: str
) -> None:
    assert grade(speedup) == expected


def test_the_headline_says_losses_first_and_the_worst_of_them_before_the_others() -> None:
    summary = make_summary()
    model = summary["modes"]["model"]
    model["by_category"]["summary"]["speedup"] = interval(0.5, 0.4, 0.6)
    model["by_category"]["extraction"]["speedup"] = interval(0.4, 0.3, 1.2)
    model["same_text"] = [11, 12]
    summary["prompts"][0]["error"] = "too long"
    assert headline(summary) == [
        "model loses on summary: 0.50x (0.40-0.60).",
        "model loses on chat: 0.93x (0.90-0.96).",
        "model is below plain decoding on extraction, perhaps by chance: 0.40x (0.30-1.20).",
        "model on story: a loss is not excluded, 1.02x (0.95-1.09).",
        "auto lost nothing: no category is below plain decoding.",
        "model was slower on 2 of 12 single prompts.",
        "model: 1 of 12 replies have other text than plain decoding.",
        "1 of 12 prompts failed and are not counted.",
        "auto over all prompts: 1.58x (1.43-1.75) against plain decoding.",
        "model over all prompts: 1.28x (1.17-1.40) against plain decoding.",
    ]


def test_an_overall_loss_is_no_gain() -> None:
    summary = make_summary()
    summary["modes"]["model"]["speedup"] = interval(0.8, 0.7, 0.9)
    sentences = headline(summary)
    assert sentences[0] == "model loses over all prompts: 0.80x (0.70-0.90)."
    assert not any(one.startswith("model over all") for one in sentences)


def test_a_gain_that_the_reading_of_prompts_takes_back_is_a_loss() -> None:
    summary = make_summary()
    summary["modes"]["auto"]["total_speedup"] = interval(0.96, 0.92, 0.99)
    sentences = headline(summary)
    assert "auto loses with the reading of prompts: 0.96x (0.92-0.99)." in sentences[:2]
    assert not any("lost nothing" in one for one in sentences)


def test_what_was_not_measured_is_neither_loss_nor_gain() -> None:
    summary = make_summary()
    for mode in summary["modes"].values():
        mode["speedup"] = mode["total_speedup"] = None
        mode["by_category"] = {}
    for prompt in summary["prompts"]:
        prompt["speedup"] = {"auto": None, "model": None}
    assert findings(summary) == []
    assert headline(summary) == []
    assert Page(html_report(summary)).problems == []


def test_a_single_prompt_has_no_interval() -> None:
    assert speedup_text({"geomean": 1.5, "low": None, "high": None}) == "1.50x"
    summary = make_summary()
    summary["modes"]["auto"]["by_category"]["chat"]["speedup"] = {
        "geomean": 1.5,
        "low": None,
        "high": None,
    }
    assert "1.50x" in Page(html_report(summary)).texts


def test_the_page_is_well_formed_and_needs_nothing_from_outside(page: Page) -> None:
    assert page.problems == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    links = page.attributes("href") + page.attributes("src") + page.attributes("xlink:href")
    assert links
    assert all(link.startswith("#") for link in links)
    assert not any("url(" in text and "url(#" not in text for text in page.texts)


def test_every_name_on_the_page_is_used_once_and_every_link_leads_to_one(page: Page) -> None:
    names = Counter(page.attributes("id"))
    assert max(names.values()) == 1
    anchors = {value[1:] for tag, attrs in page.tags if tag == "a" and (value := attrs["href"])}
    assert len(anchors) == sum(tag == "section" for tag, _ in page.tags)
    assert anchors <= names.keys()


def test_the_page_shows_losses_first_and_marks_them(page: Page) -> None:
    items = [attrs.get("class") for tag, attrs in page.tags if tag == "li"]
    assert items[0] == "loss"
    assert page.texts.index("model loses on chat: 0.93x (0.90-0.96).") < page.texts.index("Modes")
    assert "0.93x (0.90-0.96) loses" in page.texts


@pytest.mark.parametrize(
    "figure",
    [
        "1.58x (1.43-1.75)",  # a mode
        "12 of 12",  # same text
        "2.71x (2.40-3.02)",  # a category
        "1.12",  # the cost curve
        "51 %",  # acceptance that pays
        "2000 tokens before",  # another context
        "84 %",  # a position
        "never",  # a draft that cannot pay
        "871 of 1,320",  # a drafter
        "1.29 GB",  # memory
        "3.10 G",  # arithmetic
        "not measured",  # energy
        "pilotfish bench --modes auto,model --limit 12 --output own.json",
        "A processor of 2 cores",
        "25.77 GB",  # of the machine
        "1.54 G",  # parameters
    ],
)
def test_every_part_of_the_summary_has_its_place(page: Page, figure: str) -> None:
    assert figure in page.texts


def test_tables_of_figures_name_their_columns_and_rows(page: Page) -> None:
    scopes = [attrs.get("scope") for tag, attrs in page.tags if tag == "th"]
    assert set(scopes) == {"col", "row"}
    regions = [attrs for _, attrs in page.tags if attrs.get("role") == "region"]
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in regions)
    assert len(regions) == sum(tag == "table" for tag, _ in page.tags)
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(pictures) == 4
    assert all(one["role"] == "img" and one["aria-label"] for one in pictures)


def test_whatever_stands_in_the_summary_is_escaped() -> None:
    summary = make_summary()
    prompt = summary["prompts"][0]
    prompt["id"] = prompt["category"] = prompt["error"] = NASTY
    mode = summary["modes"].pop("auto")
    mode["by_category"] = {NASTY: mode["by_category"]["chat"]}
    mode["by_drafter"] = {NASTY: mode["by_drafter"]["model"]}
    mode["decisions"] = {NASTY: 3}
    mode["drafter_errors"] = [NASTY]
    summary["modes"] = {NASTY: mode}
    summary["workload"]["name"] = NASTY
    summary["models"]["target"]["name"] = NASTY
    summary["calibration"]["sentence"] = NASTY
    summary["provenance"] |= {"command": NASTY, "processor": NASTY, "packages": {NASTY: NASTY}}
    page = Page(html_report(summary))
    assert page.problems == []
    assert "b" not in {tag for tag, _ in page.tags}
    assert page.attributes("onclick") == []
    assert page.texts.count(NASTY) >= 8


def test_what_is_missing_is_left_out() -> None:
    summary = make_summary()
    summary["models"]["draft"] = None
    summary["calibration"] = None
    for run in (summary["plain"], *summary["modes"].values()):
        del run["costs"]
        run["seconds"] = {"target": 1.0, "draft": 0.0, "overhead": 0.1, "prompt": 0.2}
    del summary["memory"]
    for mode in summary["modes"].values():
        mode["acceptance_by_position"] = []
        mode |= {"acceptance_rate": None, "mean_acceptance_length": None, "by_drafter": {}}
        mode |= {"rounds_spread": None, "decisions": {}}
    page = Page(html_report(summary))
    sections = {attrs["id"] for tag, attrs in page.tags if tag == "section"}
    assert sections == {"modes", "categories", "drafts", "time", "prompts", "provenance"}
    assert not any("None" in text for text in page.texts)
    assert any("no draft model" in text for text in page.texts)


def test_without_the_library_of_charts_the_tables_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtra("bench", needed_for="drawing charts")

    monkeypatch.setattr(charts, "require_charts", missing)
    page = Page(html_report(make_summary()))
    assert page.problems == []
    assert "svg" not in {tag for tag, _ in page.tags}
    assert "matplotlib" in page.texts
    assert "2.71x (2.40-3.02)" in page.texts


def test_predictions_stand_beside_what_was_measured() -> None:
    summary = make_summary()
    summary["prediction"] = {"auto": {"expected": 1.738, "low": 1.6, "high": 1.9}, "model": None}
    page = Page(html_report(summary))
    assert "1.74x (1.60-1.90)" in page.texts
    assert "+10 %" in page.texts


def test_other_text_and_failures_stand_beside_their_prompts() -> None:
    summary = make_summary()
    summary["prompts"][2]["parted"]["model"] = 17
    summary["prompts"][3] |= {"error": "the prompt is too long", "speedup": None}
    texts = Page(html_report(summary)).texts
    assert "other text: model at 17" in texts
    assert "the prompt is too long" in texts


def test_repeated_prompts_are_reported_apart() -> None:
    summary = make_summary()
    summary["modes"]["auto"]["repeated"] = {"runs": 12, "speedup": interval(6.0, 5.0, 7.0)}
    texts = " ".join(Page(html_report(summary)).texts)
    assert "6.00x (5.00-7.00)" in texts
    assert "auto lost nothing" in texts


def test_the_worst_prompt_is_that_of_the_least_speedup() -> None:
    summary = make_summary()
    summary["prompts"][0]["speedup"] = None
    summary["prompts"][4]["speedup"]["auto"] = 0.71
    assert worst_prompt(summary, "auto") == ("summary-1", 0.71)
    assert worst_prompt({"prompts": []}, "auto") is None


def test_the_compact_summary_finds_the_same_and_is_smaller() -> None:
    summary = make_summary()
    small = compact(summary)
    assert compact(small) == small
    assert headline(small) == headline(summary)
    assert len(json.dumps(small)) < 0.9 * len(json.dumps(summary))
    assert small["modes"]["model"]["total_speedup"]["geomean"] == 1.152
    assert small["memory"] == summary["memory"]
    assert Page(html_report(small)).problems == []


def test_a_calibration_of_one_context_is_enough() -> None:
    summary = make_summary()
    del summary["calibration"]["contexts"], summary["calibration"]["draft_curve_seconds"]
    texts = Page(html_report(compact(summary))).texts
    assert "256 tokens before" in texts
    assert "2000 tokens before" not in texts


def test_costs_have_their_units_and_unknown_ones_are_left_out() -> None:
    plain = {"seconds_per_token": 0.0312, "memory_bytes": 1290000000, "price": None}
    mode = {"seconds_per_token": 1.5, "draft": {"passes_per_token": 0.25}, "price": None}
    assert figure_rows({"plain": plain, "auto": mode}) == [
        ["seconds per token", "31.2 ms", "1.50 s"],
        ["memory", "1.29 GB", "-"],
        ["draft: passes per token", "-", "0.25"],
    ]
