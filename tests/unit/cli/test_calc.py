"""`pilotfish calc`: published figures, losses first, curves from files, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotfish import calibration
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.machine import default_threads, processor_name
from pilotfish.backends.self_check import file_identity
from pilotfish.calibration.result import Calibration, break_even
from pilotfish.cli.calc_inputs import model_size
from pilotfish.config import cache_folder
from support.tiny_gguf import write_tiny

from .conftest import Run

EXAMPLE = ("--acceptance", "0.8", "--draft-length", "4", "--cost-ratio", "0.05")


def calc(run: Run, *arguments: str) -> dict[str, Any]:
    """Return the JSON document of one run that went well."""
    outcome = run("calc", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    document: dict[str, Any] = json.loads(outcome.out)
    return document


def write_json(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_the_published_example(run: Run) -> None:
    found = calc(run, *EXAMPLE)
    assert found["tokens_per_round"] == pytest.approx(3.3616, abs=5e-5)
    assert found["speedup"] == pytest.approx(2.8013, abs=5e-5)
    assert found["best_length"] == 8
    assert found["best_speedup"] == pytest.approx((1 - 0.8**9) / 0.2 / 1.4)
    # 1 + a + a^2 + a^3 + a^4 = 1.2
    assert sum(found["break_even_acceptance"] ** i for i in range(5)) == pytest.approx(1.2)
    assert found["costs"].keys() == {"latency", "compute", "serving"}
    for cost in found["costs"].values():
        assert cost.keys() == {"plain", "speculative"}
    compute = found["costs"]["compute"]["speculative"]
    assert compute["target_passes_per_token"] == pytest.approx(1 / 3.3616)
    assert compute["verified_rows_per_token"] == pytest.approx(5 / 3.3616)
    assert compute["flops_per_token"] is None
    serving = found["costs"]["serving"]["speculative"]
    assert serving["energy_joules_per_token"] == "not measured"
    assert serving["price_per_million_tokens"] is None


def test_without_a_length_the_best_is_taken(run: Run) -> None:
    found = calc(run, "--acceptance", "0.6", "--cost-ratio", "0.05")
    assert found["draft_length"] == found["best_length"] == 4
    assert found["speedup"] == found["best_speedup"] == pytest.approx(1.92, abs=0.006)
    assert calc(run, "--acceptance", "0.9", "--max-length", "3")["best_length"] == 3


def test_acceptance_by_position(run: Run) -> None:
    found = calc(run, "--acceptance", "0.9,0.5", "--draft-length", "3", "--cost-ratio", "0.1")
    tokens = 1 + 0.9 + 0.45 + 0.225
    assert found["tokens_per_round"] == pytest.approx(tokens)
    assert found["speedup"] == pytest.approx(tokens / 1.3)


def test_what_a_round_costs_besides(run: Run) -> None:
    options = ("--catch-up", "0.2", "--overhead", "0.1", "--curve", "1=1,5=1.4")
    found = calc(run, *EXAMPLE, *options)
    assert found["speedup"] == pytest.approx(3.3616 / (1.4 + 0.2 + 0.2 + 0.1))


def test_the_text_says_it_in_a_sentence_and_fits_80_columns(run: Run) -> None:
    outcome = run("calc", *EXAMPLE)
    text = " ".join(outcome.out.split())
    assert text.startswith(
        "Drafting 4 tokens gives 3.36 tokens a round and 2.80x; below an acceptance of 0.17 it "
        "loses. Best is 8 with 3.09x."
    )
    assert "4 (chosen)" in outcome.out
    assert "8 (best)" in outcome.out
    assert "not measured" in outcome.out
    for option in ("--step-seconds", "--target", "--draft", "--price-per-hour"):
        assert option in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize(
    ("options", "first", "then"),
    [
        ("0.3 --cost-ratio 0.4", "Drafting loses at every length", "above an acceptance of 0.40."),
        ("0.9 --cost-ratio 2", "Drafting loses at every length", "No acceptance would"),
        ("0.3 --cost-ratio 0.2 --draft-length 4", "Drafting 4 tokens loses", "Best is 1 with"),
        ("0.3 --cost-ratio 0.4 --draft-length 1", "Drafting 1 token loses", "leave drafting off"),
        ("0.9 --cost-ratio 2 --draft-length 3", "Drafting 3 tokens loses", "no acceptance makes"),
        ("0.5 --draft-length 0", "Nothing is drafted: plain decoding", "Best is 16"),
        ("0 --draft-length 2", "Drafting 2 tokens gives 1.00", "it cannot lose"),
    ],
)
def test_losses_are_said_first(run: Run, options: str, first: str, then: str) -> None:
    text = " ".join(run("calc", "--acceptance", *options.split()).out.split())
    assert text.startswith(first)
    assert then in text.partition("draft length")[0]


def test_seconds_and_money(run: Run) -> None:
    costs = calc(run, *EXAMPLE, "--step-seconds", "0.03", "--price-per-hour", "0.36")["costs"]
    seconds = 0.03 / (3.3616 / 1.2)
    assert costs["latency"]["speculative"]["seconds_per_token"] == pytest.approx(seconds)
    assert costs["latency"]["plain"]["seconds_per_token"] == pytest.approx(0.03)
    serving = costs["serving"]["speculative"]
    assert serving["tokens_per_second"] == pytest.approx(1 / seconds)
    assert serving["price_per_million_tokens"] == pytest.approx(0.0001 * seconds * 1e6)
    assert "ms a round" in run("calc", *EXAMPLE, "--step-seconds", "0.03").out


def test_every_length_has_its_row_and_its_unit(run: Run) -> None:
    for options, unit, step in (((), "steps", 1.0), (("--step-seconds", "0.5"), "seconds", 0.5)):
        found = calc(run, *EXAMPLE, *options)
        assert found["round_cost_unit"] == unit
        assert [one["draft_length"] for one in found["lengths"]] == list(range(12))
        for one in found["lengths"]:
            assert one["round_cost"] == pytest.approx(step * (1 + 0.05 * one["draft_length"]))
            gain = one["tokens_per_round"] / one["round_cost"] * step
            assert one["speedup"] == pytest.approx(gain)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def test_sizes_come_from_the_header_of_the_file(run: Run, tiny: str) -> None:
    info = json.loads(run("models", "info", tiny, "--json").out)
    found = calc(run, *EXAMPLE, "--target", tiny, "--draft", tiny, "--ctx", "100")["costs"]
    # two layers of width 32 in four heads, each with its own keys and values; the head is a matrix
    # of its own, and the embedding beside it is multiplied with nothing
    flops = 2 * (info["parameters"] - 32 * info["vocabulary"]) + 4 * 2 * 32 * 100
    compute = found["compute"]
    assert compute["plain"]["flops_per_token"] == pytest.approx(flops)
    bytes_read = info["step_bytes"] + 100 * info["cache_bytes_per_token"]
    assert compute["plain"]["bytes_read_per_token"] == pytest.approx(bytes_read)
    assert compute["speculative"]["flops_per_token"] == pytest.approx((5 + 4) * flops / 3.3616)
    row = 4 * info["vocabulary"]
    held = info["weight_bytes"] + 100 * info["cache_bytes_per_token"]
    assert found["serving"]["plain"]["memory_bytes"] == held + row
    draft = info["as_draft"]["weight_bytes"] - info["weight_bytes"]
    assert found["serving"]["speculative"]["memory_bytes"] == 2 * held + draft + 6 * row


def test_a_draft_is_smaller_than_the_same_file_as_target(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotfish.cli.model_info.DEFAULT_DRAFT_HEAD_SIZE", 100)
    target, draft = model_size(tiny), model_size(tiny, as_draft=True)
    assert draft.vocabulary == 100
    assert target.parameters - draft.parameters == 32 * (target.vocabulary - 100)
    assert draft.step_bytes < target.step_bytes


CURVE = CostCurve(
    widths=(1, 2, 4, 8),
    contexts=(256, 2000),
    seconds=((0.030, 0.031, 0.034, 0.045), (0.033, 0.035, 0.040, 0.060)),
)
PAIR = PairCosts(
    target=CURVE,
    draft=CostCurve(widths=(1, 2), contexts=(256, 2000), seconds=((0.008, 0.009),) * 2),
    overhead_seconds=0.001,
    draft_overhead_seconds=0.0005,
)


@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_calibration_breaks_even_as_it_says_itself(run: Run, tmp_path: Path, length: int) -> None:
    document = Calibration(costs=PAIR, minima=CURVE).report_dict()
    file = write_json(tmp_path / "calibration.json", document)
    arguments = ("--acceptance", "0.7", "--curve", file, "--draft-length", str(length))
    at = ("--ctx", "256")
    by_text = calc(run, *arguments, *at, "--cost-ratio", "0")
    assert by_text["break_even_acceptance"] == pytest.approx(break_even(PAIR, length + 1))
    assert by_text["costs"]["latency"]["plain"]["seconds_per_token"] == pytest.approx(0.031)
    # without --cost-ratio a draft token costs what the file says
    by_model = calc(run, *arguments, *at)
    expected = break_even(PAIR, length + 1, by_model=True)
    assert by_model["break_even_acceptance"] == pytest.approx(expected)
    assert by_model["cost_ratio"] == pytest.approx(0.0085 / 0.031)
    longer = calc(run, *arguments, "--ctx", "2000", "--cost-ratio", "0")
    assert longer["costs"]["latency"]["plain"]["seconds_per_token"] == pytest.approx(0.034)


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that keeps a calibration of these files, as a load or calibrate does."""
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))

    def keep(
        target: str, draft: str | None, *, at: str = "2026-11-01", scale: float = 1.0, **other: Any
    ) -> None:
        costs = PAIR if draft is not None else replace(PAIR, draft=None)
        costs = replace(costs, target=CURVE.scaled(scale))
        side = {"backend": "native", "threads": default_threads(), "cache_type": "f16"}
        description = {
            "version": 1,
            "processor": processor_name(),
            "target": {"file": file_identity(Path(target)), "strict": False, **side, **other},
            "draft": draft and {"file": file_identity(Path(draft)), **side},
        }
        found = Calibration(costs=costs, minima=CURVE, measured_at=f"{at}T10:00:00+00:00")
        calibration.save(description, found)

    return keep


def test_what_was_measured_here_is_used_and_said(
    run: Run, tiny: str, tmp_path: Path, keep: Callable[..., None]
) -> None:
    draft = str(write_tiny(tmp_path / "draft.gguf", seed=2))
    keep(tiny, draft)
    pair = ("--acceptance", "0.7", "-m", tiny, "-d", draft, "--draft-length", "3", "--ctx", "256")
    found = calc(run, *pair)
    assert found["break_even_acceptance"] == pytest.approx(break_even(PAIR, 4, by_model=True))
    assert found["costs"]["latency"]["plain"]["seconds_per_token"] == pytest.approx(0.031)
    assert found["measured"] == f"2026-11-01 on native with {default_threads()} threads"
    assert found["assumed"] == []
    outcome = run("calc", *pair)
    assert "Measured here: 2026-11-01 on native" in outcome.out
    assert "cannot lose" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    # what is given wins
    assert calc(run, *pair, "--cost-ratio", "0.5")["cost_ratio"] == pytest.approx(0.5)
    flat = calc(run, *pair, "--curve", "flat")
    assert (flat["measured"], flat["round_cost_unit"]) == (None, "steps")


def test_the_newest_measurement_with_the_usual_settings_counts(
    run: Run, tiny: str, keep: Callable[..., None]
) -> None:
    keep(tiny, None, at="2026-11-01")
    keep(tiny, None, at="2026-11-03", scale=2, num=1)
    keep(tiny, None, at="2026-11-02", scale=3, num=2)
    keep(tiny, None, at="2026-12-01", scale=4, threads=default_threads() + 1)
    keep(tiny, None, at="2026-12-01", scale=5, strict=True)
    found = calc(run, "--acceptance", "0.7", "-m", tiny, "--ctx", "256")
    assert found["measured"].startswith("2026-11-03")
    assert found["costs"]["latency"]["plain"]["seconds_per_token"] == pytest.approx(0.061)
    assert found["assumed"] == [
        "a draft token costs nothing, as drafts from text do (--cost-ratio)"
    ]


def test_what_was_not_measured_is_assumed_and_said(
    run: Run, tiny: str, tmp_path: Path, keep: Callable[..., None]
) -> None:
    draft = str(write_tiny(tmp_path / "draft.gguf", seed=2))
    pair = ("--acceptance", "0.7", "-m", tiny, "-d", draft)
    share = model_size(draft, as_draft=True).step_bytes / model_size(tiny).step_bytes
    assert 0 < share < 1
    drafting = f"a draft token costs {share:.2f} of a step, as it reads so much of the bytes"
    flat = "passes of any width cost a step (--curve)"
    found = calc(run, *pair)
    assert found["cost_ratio"] == pytest.approx(share)
    assert found["assumed"] == [flat, f"{drafting} (--cost-ratio)"]
    assert found["measured"] is None
    text = " ".join(run("calc", *pair).out.split())
    assert f"Assumed: {flat}; {drafting}" in text
    keep(tiny, None)  # the target alone
    found = calc(run, *pair)
    assert found["measured"] is not None
    assert found["assumed"] == [f"{drafting} (--cost-ratio)"]
    assert calc(run, *pair[:4], "-d", "none")["cost_ratio"] == 0
    assert calc(run, *EXAMPLE, "--curve", "flat")["assumed"] == []
    assert calc(run, "--acceptance", "0.5")["assumed"][0] == flat


def test_a_damaged_measurement_is_none(run: Run, tiny: str, keep: Callable[..., None]) -> None:
    keep(tiny, None)
    (file,) = (cache_folder() / "calibration").glob("*.json")
    kept = json.loads(file.read_text())
    for part in ("for", "report"):
        for wrong in ({}, [], 5, None, {**kept[part], "target": 5}):
            file.write_text(json.dumps({**kept, part: wrong}))
            assert calc(run, "--acceptance", "0.5", "-m", tiny)["measured"] is None
    file.write_text("{")
    assert calc(run, "--acceptance", "0.5", "-m", tiny)["measured"] is None


def test_curves_from_files_and_from_words_agree(run: Run, tmp_path: Path) -> None:
    steps = {"1": 1.0, "2": 1.5, "4": 1.75, "8": 3.0}
    files = {
        "ratio": {"ratio": {width: steps[width] for width in ("2", "4", "8")}},
        "seconds": {"curve_seconds": {width: 0.5 * step for width, step in steps.items()}},
        "curve": CostCurve.from_ratios(
            {int(width): step for width, step in steps.items()}, step_seconds=0.25
        ).to_dict(),
    }
    words = ",".join(f"{width}={step}" for width, step in steps.items())
    given = [write_json(tmp_path / f"{name}.json", raw) for name, raw in files.items()]
    found = [calc(run, "--acceptance", "0.8", "--curve", one) for one in (words, *given)]
    for one in found[1:]:
        assert one["speedup"] == pytest.approx(found[0]["speedup"])
        assert one["best_length"] == found[0]["best_length"]
    speeds = [one["costs"]["serving"]["plain"]["tokens_per_second"] for one in found]
    assert speeds == [None, None, 2.0, 4.0]


def test_the_best_length_stays_within_the_curve_unless_told_otherwise(run: Run) -> None:
    curve = ("--acceptance", "0.99", "--curve", "1=1,2=1.01,4=1.02")
    inside = run("calc", *curve)
    assert "3 (best, chosen)" in inside.out
    assert inside.err == ""
    beyond = run("calc", *curve, "--max-length", "10")
    assert "10 (best, chosen)" in beyond.out
    assert "beyond 4 rows the curve goes on with its last slope" in beyond.err


BAD_VALUES = [
    *[("--acceptance", value) for value in ("nan", "-0.1", "1.1", "inf", "x", "", "0.5,", "0.5,2")],
    *[("--draft-length", value) for value in ("-1", "1.5", "many", "257")],
    *[("--cost-ratio", value) for value in ("-1", "nan", "inf", "x", "1" * 400)],
    *[("--catch-up", value) for value in ("-1", "nan")],
    *[("--overhead", value) for value in ("-1", "inf")],
    *[("--max-length", value) for value in ("0", "-1", "1.5", "1000")],
    *[("--ctx", value) for value in ("-1", "big")],
    *[("--step-seconds", value) for value in ("0", "-1", "nan", "1e-300")],
    *[("--price-per-hour", value) for value in ("-1", "nan", "free")],
    *[
        ("--curve", value)
        for value in (
            "2=1.1", "1=2,2=3", "1=1", "1=1,1=1", "1=1,2=0", "1=1,2=nan", "1=1,0=1", "1=1,x=2",
            "1=1,2=", "=", "1.5=1,2=2", "steep", "",
        )
    ],
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), BAD_VALUES)
def test_a_bad_value_is_one_line_that_names_the_option(run: Run, option: str, value: str) -> None:
    needed = () if option == "--acceptance" else ("--acceptance", "0.5")
    run("calc", *needed, option, value).is_one_error(option)


def test_what_is_needed_is_named(run: Run) -> None:
    run("calc").is_one_error("--acceptance")
    run("calc", *EXAMPLE, "--target", "no-such-model").is_one_error("no-such-model")


BAD_FILES = [
    "not json", "[]", "{}", "3", "null", '{"ratio": 5}', '{"ratio": {"2": "x"}}',
    '{"ratio": {"2": NaN}}', '{"ratio": {"2": -1}}', '{"ratio": {"2": 1e300}}',
    '{"curve_seconds": {"2": 1}}', '{"curve_seconds": {}}',
    '{"curve_seconds": {"1": 1}, "contexts": 5}',
    '{"widths": [1, 2], "contexts": [0], "seconds": [[1]]}',
    '{"curve_seconds": {"1": 1, "2": 1}, "draft_cost_ratio": "dear"}',
    '{"curve_seconds": {"1": 1, "2": 1}, "overhead_seconds": -1}', "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_damaged_curve_is_one_line_that_names_the_file(
    run: Run, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "curve.json"
    file.write_text(text)
    run("calc", "--acceptance", "0.5", "--curve", str(file)).is_one_error("--curve", "curve.json")


def test_a_curve_that_cannot_be_read_is_one_line(run: Run, tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "missing.json"):
        run("calc", "--acceptance", "0.5", "--curve", str(file)).is_one_error(str(file))
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    run("calc", "--acceptance", "0.5", "--curve", str(tmp_path / "bytes.json")).is_one_error("JSON")
