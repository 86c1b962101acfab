"""The figures of the page on when drafting is free follow from its curves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pilotfish
from pilotfish.accounting.cost_curve import CostCurve
from pilotfish.accounting.cost_model import RoundCosts, break_even_acceptance, speedup

CONCEPTS = Path(pilotfish.__file__).parents[2] / "docs" / "concepts"
PAGE = (CONCEPTS / "when-drafting-is-free.md").read_text(encoding="utf-8")
WIDTHS = (1, 2, 4, 8, 16)
# (steps of a draft token, drafts in a round), as the columns of the second table
COLUMNS = [(draft, length) for draft in (0.0, 0.25) for length in (1, 3, 7)]


def tables(text: str) -> list[dict[str, list[str]]]:
    """Return the tables of a page, each as first cell -> the others."""
    found = re.findall(r"(?m)(?:^\|.*\|\n)+", text)
    return [
        {
            first.strip(): [cell.strip() for cell in cells]
            for first, *cells in (row.strip("|").split("|") for row in table.splitlines())
        }
        for table in found
    ]


def curves() -> dict[str, CostCurve]:
    rows = dict(list(tables(PAGE)[0].items())[2:])
    return {
        engine: CostCurve.from_ratios(dict(zip(WIDTHS, [1.0, *map(float, cells[1:])], strict=True)))
        for engine, cells in rows.items()
    }


def limit_text(curve: CostCurve, draft: float, length: int) -> str:
    limit = break_even_acceptance(length, RoundCosts(curve=curve, draft_seconds=draft))
    return "never" if limit is None else f"{limit:.2f}" if limit else "any"


def test_the_acceptance_that_pays_follows_from_the_curves() -> None:
    written = tables(PAGE)[1]
    assert len(curves()) == 6
    for engine, curve in curves().items():
        assert written[engine] == [limit_text(curve, *column) for column in COLUMNS]


@pytest.mark.parametrize(
    ("engine", "column"),
    [("native", 0), ("native, AVX2 only", 1), ("llama.cpp", 2), ("ik_llama.cpp", 3)],
)
def test_the_curves_are_those_of_the_page_on_rows(engine: str, column: int) -> None:
    measured = tables((CONCEPTS / "free-rows.md").read_text(encoding="utf-8"))[0]
    cells = [measured[str(width)][column].replace("*", "").split(" (")[0] for width in WIDTHS]
    assert tables(PAGE)[0][engine] == cells


def test_the_worked_examples_follow_from_the_rule() -> None:
    of = curves()
    assert limit_text(of["llama.cpp"], 0.0, 3) == "0.77"
    assert f"{RoundCosts(curve=of['llama.cpp'], draft_seconds=0.42).round_seconds(3):.2f}" == "4.10"
    assert limit_text(of["llama.cpp"], 0.42, 3) == "never"
    free, model = (RoundCosts(curve=of["native"], draft_seconds=d) for d in (0.0, 0.25))
    assert f"{speedup(0.8, 3, free):.2f}x and {speedup(0.8, 3, model):.2f}x" in PAGE
    experts = 64 * (1 - (1 - 6 / 64) ** 4) / 6
    assert f"{experts:.1f} times as many" in PAGE
