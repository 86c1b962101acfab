"""The sections of a report, each a function of the summary; None where it has nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pilotfish.bench import charts
from pilotfish.bench.figure_table import figure_rows, figure_text
from pilotfish.bench.findings import Speedup, speedup_text, words
from pilotfish.bench.page import (
    DASH,
    Cell,
    Section,
    Table,
    number,
    percent,
    prompt_cell,
    speedup_cell,
)
from pilotfish.errors import MissingExtra

PLAIN = "plain"
_PARTS = {
    "target": "target",
    "draft": "drafting",
    "overhead": "engine",
    "prompt": "prompt",
    "draft_prompt": "prompt, draft model",
}


def _modes_section(summary: Mapping[str, Any]) -> Section:
    plain = summary["plain"]
    rows: list[list[str | Cell]] = [
        [PLAIN, "1x", "1x", number(plain["tokens_per_second"], 1), "1", DASH, DASH, DASH]
    ]
    for name, mode in summary["modes"].items():
        spread = mode["rounds_spread"]
        rows.append(
            [
                name,
                speedup_cell(mode["speedup"]),
                speedup_cell(mode["total_speedup"]),
                number(mode["tokens_per_second"], 1),
                number(mode["tokens_per_round"], 2),
                percent(mode["acceptance_rate"]),
                "{} of {}".format(*mode["same_text"]),
                f"{number(spread['min'], 2)}-{number(spread['max'], 2)}" if spread else DASH,
            ]
        )
    columns = ("mode", "speedup", "with the prompt", "tokens/s", "tokens per round")
    table = Table(
        "Modes against plain decoding",
        (*columns, "accepted", "same text", "speedup by round"),
        rows,
    )
    note = (
        "Speedup is the time of plain decoding over that of the mode: a geometric mean over "
        "prompts, and in brackets its 95 % bootstrap interval. Below 1 is a loss. Modes ran in "
        "turns, prompt by prompt. The second figure counts the reading of the prompt by both "
        "models, the others do not."
    )
    return Section("modes", "Modes", [note, *_repeated(summary)], tables=[table])


def _repeated(summary: Mapping[str, Any]) -> Iterator[str]:
    for name, mode in summary["modes"].items():
        speedup = (mode.get("repeated") or {}).get("speedup")
        if speedup:
            yield (
                f"{name}, a prompt that was answered before: {speedup_text(speedup)}; "
                "figures elsewhere are of first runs."
            )


def _categories_section(summary: Mapping[str, Any]) -> Section:
    modes = summary["modes"]
    names = list(dict.fromkeys(name for mode in modes.values() for name in mode["by_category"]))
    groups = {
        words(category): {
            name: _with_whiskers(speedup)
            for name, mode in modes.items()
            if (speedup := _of_category(mode, category).get("speedup")) is not None
        }
        for category in names
    }
    rows: list[list[str | Cell]] = [
        [
            words(category),
            str(max(_of_category(mode, category).get("prompts", 0) for mode in modes.values())),
            *(speedup_cell(_of_category(mode, category).get("speedup")) for mode in modes.values()),
        ]
        for category in names
    ]
    chart = _drawn(
        lambda: charts.interval_bars(
            groups, title="Speedup by category", y_label="speedup", reference=1.0
        )
    )
    note = (
        "Bars reach to the geometric mean, whiskers show the interval; the dashed line is plain "
        "decoding. An interval over a handful of prompts says how much those prompts differ, and "
        "little about others."
    )
    table = Table("Speedup by category", ("category", "prompts", *modes), rows)
    return Section("categories", "Speedup by category", [note], chart, [table])


def _with_whiskers(speedup: Speedup) -> tuple[float, float, float]:
    """Return value, low and high; a single prompt has no whiskers."""
    value, low, high = speedup["geomean"], speedup["low"], speedup["high"]
    return (value, value, value) if low is None else (value, low, high)


def _of_category(mode: Mapping[str, Any], category: str) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = mode["by_category"].get(category, {})
    return figures


def _curve_section(summary: Mapping[str, Any]) -> Section | None:
    calibration = summary.get("calibration")
    if not calibration:
        return None
    step, floor = calibration["curve_seconds"]["1"], calibration.get("floor_seconds")
    contexts = calibration.get("contexts") or {str(calibration["context"]): calibration}
    curves = {
        f"{length} tokens before": _by_width(one["ratio"]) for length, one in contexts.items()
    }
    if draft := calibration.get("draft_curve_seconds"):
        curves["draft model"] = {w: seconds / step for w, seconds in _by_width(draft).items()}
    chart = _drawn(
        lambda: charts.cost_curve_chart(
            curves,
            title="What a pass over several tokens costs",
            floor=floor and floor / step,
        )
    )
    paragraphs = [
        calibration.get("sentence") or "",
        f"One step takes {1000 * step:.1f} ms after {calibration['context']} tokens.",
        f"Reading the weights once takes {1000 * floor:.1f} ms." if floor else "",
    ]
    limits = {
        "acceptance that pays": calibration.get("break_even"),
        "with the draft model": calibration.get("break_even_draft_model"),
    }
    known = {title: _by_width(one) for title, one in limits.items() if one}
    rows = [
        [str(width), *(number(curve.get(width), 2) for curve in curves.values())]
        + [_limit(one[width]) if width in one else DASH for one in known.values()]
        for width in sorted(set().union(*curves.values()))
    ]
    table = Table("Cost of a pass in steps", ("tokens in the pass", *curves, *known), rows)
    return Section("curve", "Cost of a pass", list(filter(None, paragraphs)), chart, [table])


def _by_width(figures: Mapping[str, float | None]) -> dict[int, Any]:
    return {int(width): figure for width, figure in figures.items()}


def _limit(acceptance: float | None) -> str:
    return "never" if acceptance is None else percent(acceptance)


def _positions_section(summary: Mapping[str, Any]) -> Section | None:
    modes = {n: m["acceptance_by_position"] for n, m in summary["modes"].items()}
    drafted = {name: shares for name, shares in modes.items() if shares}
    if not drafted:
        return None
    chart = _drawn(
        lambda: charts.lines_chart(
            {
                name: [(i, 100 * share) for i, share in enumerate(shares, 1) if share is not None]
                for name, shares in drafted.items()
            },
            title="Accepted drafts by position",
            x_label="position of the draft token",
            y_label="accepted, % of proposals that long",
        )
    )
    longest = max(map(len, drafted.values()))
    rows = [
        [str(i + 1), *(percent(s[i] if i < len(s) else None) for s in drafted.values())]
        for i in range(longest)
    ]
    table = Table("Accepted drafts by position", ("position", *drafted), rows)
    note = "Of the proposals that were at least so long: in how many the token at a position stood."
    return Section("positions", "Acceptance by position", [note], chart, [table])


def _drafts_section(summary: Mapping[str, Any]) -> Section:
    """Return counts of passes and drafts, and why so much was drafted or nothing."""
    modes = summary["modes"]
    figures = [
        [
            name,
            number(mode["passes"], 0),
            number(mode["emitted"], 0),
            number(mode["drafted"], 0),
            number(mode["accepted"], 0),
            number(mode["mean_acceptance_length"], 2),
            percent(mode["draft_time_share"]),
        ]
        for name, mode in modes.items()
    ]
    columns = (
        "mode",
        "passes",
        "tokens",
        "drafted",
        "accepted",
        "tokens per drafted round",
        "time drafting",
    )
    tables = [Table("Passes and drafts", columns, figures)]
    for caption, title, rows in (
        ("Drafts by drafter: accepted of drafted", "mode, drafter", _by_drafter(modes)),
        ("Why: rounds by decision", "mode, decision", _decisions(modes)),
    ):
        if rows:
            tables.append(Table(caption, (title, ""), rows))
    errors = [
        f"{n}: the drafter failed: {error}"
        for n, m in modes.items()
        for error in m.get("drafter_errors") or ()
    ]
    return Section("drafts", "Drafts", errors, tables=tables)


def _by_drafter(modes: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f"{name}, {drafter}", f"{one['accepted']:,} of {one['drafted']:,}"]
        for name, mode in modes.items()
        for drafter, one in (mode.get("by_drafter") or {}).items()
    ]


def _decisions(modes: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f"{name}, {reason}", f"{rounds:,}"]
        for name, mode in modes.items()
        for reason, rounds in (mode.get("decisions") or {}).items()
    ]


def _time_section(summary: Mapping[str, Any]) -> Section:
    runs = {PLAIN: summary["plain"], **summary["modes"]}
    used = [part for part in _PARTS if any(run["seconds"].get(part) for run in runs.values())]
    bars = {
        name: {_PARTS[part]: run["seconds"].get(part) or 0.0 for part in used}
        for name, run in runs.items()
    }
    chart = _drawn(
        lambda: charts.stacked_bars(bars, title="Where the time went", x_label="seconds, all runs")
    )
    rows = [
        [name, *(number(run["seconds"].get(part), 2) for part in used)]
        for name, run in runs.items()
    ]
    columns = ("mode", *(_PARTS[part] for part in used))
    table = Table("Where the time went, seconds", columns, rows)
    return Section("time", "Where the time went", (), chart, [table])


def _costs_section(summary: Mapping[str, Any]) -> Section | None:
    runs = {PLAIN: summary["plain"], **summary["modes"]}
    costs = {name: run["costs"] for name, run in runs.items() if run.get("costs")}
    tables = [
        Table(words(kind).capitalize(), ("", *costs), rows)
        for kind in dict.fromkeys(kind for one in costs.values() for kind in one)
        if (rows := figure_rows({name: one.get(kind) for name, one in costs.items()}))
    ]
    if not tables:
        return None
    note = (
        "Three costs that are not the same: the time a reader waits, the work that is done, and "
        "what serving takes. Drafting can save the first and add to the other two."
    )
    return Section("costs", "Three costs", [note], None, tables)


def _memory_section(summary: Mapping[str, Any]) -> Section | None:
    memory = {k: v for k, v in (summary.get("memory") or {}).items() if v is not None}
    if not memory:
        return None
    names = {"target": "target model", "draft": "draft model", "peak_process": "process, peak"}
    rows = [[names.get(key, words(key)), f"{v / 1e9:.2f} GB"] for key, v in memory.items()]
    return Section("memory", "Memory", tables=[Table("Memory", ("", "bytes"), rows)])


def _prediction_section(summary: Mapping[str, Any]) -> Section | None:
    predicted = {n: p for n, p in (summary.get("prediction") or {}).items() if p}
    rows = []
    for name, one in predicted.items():
        measured: Speedup | None = summary["modes"].get(name, {}).get("speedup")
        if measured is None:
            continue
        expected = {"geomean": one["expected"], "low": one["low"], "high": one["high"]}
        off = f"{100 * (one['expected'] / measured['geomean'] - 1):+.0f} %"
        rows.append([name, speedup_text(expected), speedup_text(measured), off])
    if not rows:
        return None
    columns = ("mode", "predicted", "measured", "prediction off by")
    table = Table("Predicted and measured speedup", columns, rows)
    return Section("prediction", "Predicted and measured", tables=[table])


def _prompts_section(summary: Mapping[str, Any]) -> Section:
    modes = list(summary["modes"])
    rows: list[list[str | Cell]] = []
    for prompt in summary["prompts"]:
        speedups = prompt.get("speedup") or {}
        parted = [f"{m} at {i}" for m, i in (prompt.get("parted") or {}).items() if i is not None]
        remark = prompt.get("error") or ("other text: " + ", ".join(parted) if parted else "")
        counts = [number(prompt.get(key), 0) for key in ("prompt_tokens", "reply_tokens")]
        cells = [prompt_cell(speedups.get(mode)) for mode in modes]
        category = words(prompt["category"])
        rows.append([prompt["id"], category, *counts, *cells, Cell(remark, "remark")])
    columns = ("prompt", "category", "prompt tokens", "reply tokens", *modes, "remark")
    note = "Speedup of each prompt. Text that differs from plain decoding is named with its place."
    return Section("prompts", "Prompts", [note], tables=[Table("Prompts", columns, rows)])


def _provenance_section(summary: Mapping[str, Any]) -> Section:
    models = {which: facts for which, facts in summary["models"].items() if facts}
    facts = {k: v for k, v in summary["provenance"].items() if k not in ("command", "packages")}
    facts |= (summary["provenance"].get("packages") or {}).items()
    rows = [[words(name), figure_text(name, v)] for name, v in facts.items() if v is not None]
    tables = [
        Table("Models", ("", *models), figure_rows(models)),
        Table("Machine and versions", ("", "value"), rows),
    ]
    command = summary["provenance"]["command"]
    return Section("provenance", "How to measure this again", tables=tables, command=command)


SECTIONS: Sequence[Callable[[Mapping[str, Any]], Section | None]] = (
    _modes_section,
    _categories_section,
    _curve_section,
    _positions_section,
    _drafts_section,
    _time_section,
    _costs_section,
    _memory_section,
    _prediction_section,
    _prompts_section,
    _provenance_section,
)


def _drawn(draw: Callable[[], str]) -> str:
    """Return a chart, or "" without the library that draws: tables hold the same figures."""
    try:
        return draw()
    except MissingExtra:
        return ""
