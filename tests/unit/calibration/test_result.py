"""What follows from a curve: break-even, sentences, the JSON document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.calibration import Calibration
from pilotfish.calibration.bandwidth import Reading
from pilotfish.calibration.result import break_even

RATIOS = {1: 1.0, 2: 1.05, 3: 1.1, 4: 2.3, 8: 3.0}


def calibration(
    ratios: dict[int, float] = RATIOS, *, draft: float | None = None, **costs: float
) -> Calibration:
    curve = CostCurve.from_ratios(ratios)
    draft_curve = None if draft is None else CostCurve.flat(draft, widest=8)
    return Calibration(
        costs=PairCosts(target=curve, draft=draft_curve, **costs),
        minima=curve.scaled(0.9),
        draft_minima=draft_curve,
        reading=Reading(bandwidth_bytes_per_second=2e9, step_bytes=10**9),
        measured_at="2026-11-30T12:00:00+00:00",
        rounds=5,
        plan="full",
        machine="a processor, 2 threads",
    )


@pytest.mark.parametrize("width", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("draft", [None, 0.125])
@pytest.mark.parametrize("overhead", [0.0, 0.25])
def test_at_break_even_a_round_takes_as_long_as_plain_rounds_for_its_tokens(
    width: int, draft: float | None, overhead: float
) -> None:
    costs = calibration(
        draft=draft, overhead_seconds=overhead, draft_overhead_seconds=overhead / 8
    ).costs
    chance = break_even(costs, width, by_model=draft is not None)
    assert chance is not None
    tokens = sum(chance**i for i in range(width))
    drafting = (width - 1) * (0.125 + overhead / 8) if draft else 0.0
    round_seconds = costs.target.at(width) + drafting + overhead
    assert tokens * (1 + overhead) == pytest.approx(round_seconds, abs=1e-9)


@pytest.mark.parametrize(
    ("steps", "cost_ratio", "expected"),
    [(1.25, 0.02, 0.24), (1.5, 0.1, 0.47), (1.5, 0.4, 0.74), (1.85, 0.2, 0.68), (1.0, 0.3, 0.51)],
)
def test_break_even_of_three_drafts_is_as_published(
    steps: float, cost_ratio: float, expected: float
) -> None:
    costs = calibration({1: 1.0, 4: steps}, draft=cost_ratio).costs
    assert break_even(costs, 4, by_model=True) == pytest.approx(expected, abs=0.005)


def test_free_passes_pay_at_once_and_dear_ones_never() -> None:
    assert break_even(calibration({1: 1.0, 4: 1.0}).costs, 4) == 0.0
    assert break_even(calibration({1: 1.0, 4: 0.9}).costs, 4) == 0.0
    assert break_even(calibration({1: 1.0, 4: 4.01}).costs, 4) is None
    assert break_even(calibration({1: 1.0, 4: 4.0}).costs, 4) == pytest.approx(1.0)


def test_the_sentence_names_steps_and_the_probability_that_pays() -> None:
    (sentence,) = calibration().sentences()
    assert sentence == (
        "On this machine checking 4 tokens costs 2.3 single steps: a draft token must be accepted "
        "with probability above 0.64 to pay."
    )


@pytest.mark.parametrize(
    ("ratios", "draft", "ends"),
    [
        ({1: 1.0, 4: 1.0}, None, ["1.0 single steps: a draft token pays whenever it is accepted."]),
        (
            {1: 1.0, 4: 5.0},
            1.0,
            [
                "5.0 single steps: a draft token cannot pay, however often it is accepted.",
                "1.00 single steps more: it cannot pay, however often it is accepted.",
            ],
        ),
        (
            {1: 1.0, 2: 1.5},
            0.25,
            [
                "checking 2 tokens costs 1.5 single steps: a draft token must be accepted with "
                "probability above 0.50 to pay.",
                "0.25 single steps more: it must be accepted with probability above 0.75 to pay.",
            ],
        ),
        ({1: 1.0}, None, ["a pass checks one token: nothing can be drafted."]),
    ],
)
def test_sentences_are_plain_in_every_case(
    ratios: dict[int, float], draft: float | None, ends: list[str]
) -> None:
    sentences = calibration(ratios, draft=draft).sentences()
    assert len(sentences) == len(ends)
    for sentence, end in zip(sentences, ends, strict=True):
        assert sentence.endswith(end)


def test_a_pass_is_free_up_to_the_first_width_that_is_not() -> None:
    assert calibration().free_width() == 3
    assert calibration({1: 1.0, 2: 1.2, 4: 1.0}).free_width() == 1


def test_a_step_is_compared_with_the_reading_of_its_weights() -> None:
    found = calibration()
    assert found.reading is not None
    assert found.reading.floor_seconds == 0.5
    assert found.steps_of_floor == 2.0


def test_the_report_has_the_documented_fields() -> None:
    report: dict[str, Any] = json.loads(json.dumps(calibration(draft=0.3).report_dict()))
    assert report["curve_seconds"] == {"1": 1.0, "2": 1.05, "3": 1.1, "4": 2.3, "8": 3.0}
    assert report["ratio"]["4"] == 2.3
    assert report["read_bandwidth_bytes_per_second"] == 2e9
    assert report["floor_seconds"] == 0.5
    assert report["draft_cost_ratio"] == pytest.approx(0.3)
    assert report["draft_curve_seconds"]["1"] == 0.3
    assert report["overhead_seconds"] == 0.0
    assert report["context"] == 0
    assert report["contexts"]["0"]["minimum_seconds"]["2"] == pytest.approx(0.9 * 1.05)
    assert report["break_even"].keys() == {"2", "3", "4", "8"}
    assert report["break_even_draft_model"]["8"] > report["break_even"]["8"]
    assert report["sentence"].startswith("On this machine checking 4 tokens costs 2.3 ")


def test_what_was_not_measured_is_none() -> None:
    curve = CostCurve.from_ratios(RATIOS)
    report = Calibration(costs=PairCosts(target=curve), minima=curve).report_dict()
    for name in ("read_bandwidth_bytes_per_second", "floor_seconds", "draft_cost_ratio"):
        assert report[name] is None


@pytest.mark.parametrize("draft", [None, 0.3])
def test_a_calibration_survives_being_written_down(draft: float | None) -> None:
    found = calibration(draft=draft, overhead_seconds=0.01)
    assert Calibration.from_dict(json.loads(json.dumps(found.to_dict()))) == found
