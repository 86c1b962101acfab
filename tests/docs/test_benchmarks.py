"""BENCHMARKS.md says what the kept files say, losses first."""

from __future__ import annotations

import importlib.util
import json
import types
from pathlib import Path

import pytest

import pilotfish
from support.bench_summary import interval, make_summary

ROOT = Path(pilotfish.__file__).parents[2]
HAND_WRITTEN = "# Benchmarks\n\nBy hand.\n\n{figures}\n\n## Kernels\n\nBy hand, too.\n"
MARKERS = "<!-- begin generated -->\n<!-- end generated -->"


@pytest.fixture
def generator() -> types.ModuleType:
    """Return scripts/benchmarks.py as a module."""
    path = ROOT / "scripts" / "benchmarks.py"
    spec = importlib.util.spec_from_file_location("benchmarks_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(generator: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the generator an empty page, no kept files, and one new summary: native-own.json."""
    monkeypatch.setattr(generator, "PAGE", tmp_path / "BENCHMARKS.md")
    monkeypatch.setattr(generator, "KEPT", tmp_path / "benchmarks")
    (tmp_path / "BENCHMARKS.md").write_text(HAND_WRITTEN.format(figures=MARKERS))
    (tmp_path / "native-own.json").write_text(json.dumps(make_summary()))
    return tmp_path


def test_the_page_is_what_the_kept_files_say(
    generator: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    code = generator.main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_kept_files_are_small_and_compact(generator: types.ModuleType) -> None:
    for name, summary in generator.kept_summaries().items():
        assert generator.compact(summary) == summary, name
        assert (generator.KEPT / f"{name}.json").stat().st_size < 60_000, name


def test_losses_are_said_before_any_table(generator: types.ModuleType) -> None:
    text = generator.generated({"native-own": make_summary()})
    first_line = next(line for line in text.splitlines() if line.startswith("- "))
    assert first_line == "- **loss**, native own: model loses on chat: 0.93x (0.90-0.96)."
    assert text.index("- **loss**") < text.index("|")


def test_doubts_and_prompts_below_one_are_losses_that_are_said(generator: types.ModuleType) -> None:
    summary = make_summary()
    summary["modes"]["auto"]["speedup"] = interval(0.99, 0.95, 1.04)
    lines = list(generator.losses({"llama": summary}))
    assert lines == [
        "- **loss**, llama: model loses on chat: 0.93x (0.90-0.96).",
        "- below 1, llama: auto is below plain decoding over all prompts, perhaps by chance: "
        "0.99x (0.95-1.04).",
        "- not excluded, llama: model on story: a loss is not excluded, 1.02x (0.95-1.09).",
        "- single prompts below 1, llama, of 12: `auto` 0, `model` 2.",
    ]


def test_a_file_without_losses_is_named_too(generator: types.ModuleType) -> None:
    summary = make_summary()
    del summary["modes"]["model"]
    assert list(generator.losses({"native": summary})) == ["- none, native: `auto`."]


def test_figures_come_with_command_machine_and_spread(generator: types.ModuleType) -> None:
    text = generator.generated({"native-own": make_summary()})
    for words in (
        "`pilotfish bench --modes auto,model --limit 12 --output own.json`",
        "Target qwen2.5-coder-1.5b, draft qwen2.5-coder-0.5b, native backend.",
        "A processor of 2 cores, 2 cores, 2 threads; pilotfish 0.1.0 (0123456789ab), 2026-11-30.",
        "Plain decoding: 30.4 tokens/s.",
        "| `auto` | 1.58x (1.43-1.75) | 1.27-1.30 | 1.42x (1.29-1.57) | 1.05x | 2.31 | 66 % "
        "| 12 of 12 |",
        "| chat | 2 | 1.18x (1.10-1.27) | **0.93x (0.90-0.96)** |",
    ):
        assert words in text


def test_a_new_file_is_kept_and_the_hand_written_parts_stay(
    generator: types.ModuleType, place: Path
) -> None:
    assert generator.main(["--add", str(place / "native-own.json")]) == 0
    page = (place / "BENCHMARKS.md").read_text()
    before, _, rest = page.partition("<!-- begin generated -->")
    assert before == "# Benchmarks\n\nBy hand.\n\n"
    assert rest.endswith("<!-- end generated -->\n\n## Kernels\n\nBy hand, too.\n")
    assert "## Native own" in rest
    assert generator.main([]) == 0
    assert (place / "BENCHMARKS.md").read_text() == page
    assert generator.main(["--check"]) == 0


def test_a_page_that_is_out_of_date_is_said_in_one_line(
    generator: types.ModuleType, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generator.main(["--add", str(place / "native-own.json")]) == 0
    changed = (place / "BENCHMARKS.md").read_text().replace("0.93x", "1.93x")
    (place / "BENCHMARKS.md").write_text(changed)
    capsys.readouterr()
    assert generator.main(["--check"]) == 1
    expected = "error: out of date: BENCHMARKS.md; run scripts/benchmarks.py\n"
    assert capsys.readouterr().err == expected
    assert (place / "BENCHMARKS.md").read_text() == changed


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("damaged.json", "{", "error: cannot read damaged.json"),
        ("other.json", '{"modes": {}}', "error: other.json is no summary of pilotfish bench"),
    ],
)
def test_what_is_no_summary_is_refused(
    generator: types.ModuleType,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    name: str,
    text: str,
    message: str,
) -> None:
    (place / name).write_text(text)
    assert generator.main(["--add", str(place / name)]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert not (place / "benchmarks").exists()


def test_a_page_without_a_place_for_figures_is_refused(
    generator: types.ModuleType, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "BENCHMARKS.md").write_text("# Benchmarks\n")
    assert generator.main([]) == 2
    assert "lacks <!-- begin generated -->" in capsys.readouterr().err
