"""`pilotfish bench`: plain and speculative decoding side by side, on prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pilotfish.bench.findings import headline
from pilotfish.bench.runner import (
    PLAIN,
    WARM_UP_PROMPT,
    BenchSettings,
    Mode,
    mode_engines,
    parse_modes,
    run_benchmark,
)
from pilotfish.bench.summary import ModelSizes, summarize
from pilotfish.bench.workload import OWN, OWN_CATEGORIES, load_workload
from pilotfish.cli.arguments import as_number, naming_options, option, with_options
from pilotfish.cli.asking import HOW, OUTPUT, WHAT, AskingOptions, check_writable
from pilotfish.cli.console import load_progress, page, print_json, print_notices, talk, waiting
from pilotfish.cli.options import EngineOptions
from pilotfish.cli.origin import origin
from pilotfish.cli.replays import (
    predicted_line,
    predicted_speedups,
    recorded_replies,
    shown_progress,
)
from pilotfish.config import EngineConfig, Request
from pilotfish.errors import ConfigError

if TYPE_CHECKING:
    from pilotfish.build import CheckedPair


@dataclass(frozen=True, kw_only=True)
class ModeOptions:
    """What is asked, and in which modes."""

    modes: Annotated[
        str | None,
        option(
            "--modes",
            panel=HOW,
            about="Comma-separated: auto, suffix, ngram, model; suffix:7 drafts 7 tokens in every "
            "round. "
            "Plain decoding is always measured.  Default: auto,suffix, and model with a draft.",
            metavar="LIST",
        ),
    ] = None
    workload: Annotated[
        str,
        option(
            "--workload",
            panel=WHAT,
            about=f"A JSONL file of prompts, Spec-Bench's too.  Default: {OWN}, the "
            f"{len(OWN_CATEGORIES)} categories that come with pilotfish.",
            metavar="FILE",
        ),
    ] = OWN


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How it is measured."""

    rounds: Annotated[
        str,
        option(
            "--rounds", panel=HOW, about="Answer each prompt N times.  Default: 2.", metavar="N"
        ),
    ] = "2"
    keep_store: Annotated[
        bool,
        option(
            "--keep-store",
            panel=HOW,
            about="Let drafters remember replies; repeated prompts are then reported apart.",
        ),
    ] = False
    predict: Annotated[
        bool,
        option(
            "--predict",
            panel=HOW,
            about="Record each prompt first, and predict the speedups by replay.",
        ),
    ] = False

    def settings(self, request: Request) -> BenchSettings:
        """Return how replies are measured; ConfigError names the wrong option."""
        with naming_options():
            return BenchSettings(
                rounds=as_number(self.rounds), keep_store=self.keep_store, request=request
            )


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Where the figures go."""

    output: Annotated[
        str | None,
        option("--output", panel=OUTPUT, about="Write the figures as JSON.", metavar="FILE"),
    ] = None
    html: Annotated[
        str | None,
        option("--html", panel=OUTPUT, about="Write a report with charts.", metavar="FILE"),
    ] = None
    json: Annotated[bool, option("--json", panel=OUTPUT, about="Print one JSON document.")] = False

    def check(self) -> None:
        """Raise, before anything is measured, if a file could not be written."""
        check_writable("--output", self.output)
        check_writable("--html", self.html)
        if self.html is not None:
            from pilotfish.bench.charts import require_charts

            require_charts()

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write the files that were asked for."""
        if self.output is not None:
            text = json.dumps(summary, ensure_ascii=False, allow_nan=False, indent=1)
            Path(self.output).write_text(text + "\n", encoding="utf-8")
        if self.html is not None:
            from pilotfish.bench.report import html_report

            Path(self.html).write_text(html_report(summary), encoding="utf-8")


@with_options
def bench(
    context: typer.Context,
    *,
    engine: EngineOptions,
    source: ModeOptions,
    asking: AskingOptions,
    options: BenchOptions,
    report: ReportOptions,
) -> None:
    """Measure what speculation brings: each mode against plain decoding, prompt by prompt.

    Reading the prompt is timed apart. A speedup is the geometric mean over prompts.
    """
    from pilotfish import build  # not at the top: help needs no backend

    settings = options.settings(asking.request())
    workload = asking.limited(load_workload(source.workload))
    modes, config = modes_and_config(engine, source.modes)
    report.check()

    def check(files: CheckedPair) -> None:
        files.check_prompt(WARM_UP_PROMPT, settings.request)

    with waiting(f"loading {config.target.reference}"):
        pair = build.load_pair(config, check=check)
    try:
        with load_progress(config.target.reference) as measured:
            engines = mode_engines(pair, modes, config.speculation, progress=measured)
        print_notices(pair.notices)
        prediction = {}
        with shown_progress() as progress:
            if options.predict:
                recorded = recorded_replies(
                    pair, engines[PLAIN], workload.prompts, settings.request, progress=progress
                )
                prediction = {"prediction": predicted_speedups(pair, recorded, modes)}
            result = run_benchmark(engines, workload.prompts, settings, progress=progress)
        facts = engines[PLAIN].facts
        sizes = ModelSizes(facts.target_size, facts.draft_size)
        summary = summarize(result, workload=workload.name, sizes=sizes) | prediction
        summary |= origin(context, config, pair, facts.models)
    finally:
        pair.close()
    report.write(summary)
    if report.json:
        print_json(summary)
    else:
        print_summary(summary)


def modes_and_config(options: EngineOptions, wanted: str | None) -> tuple[list[Mode], EngineConfig]:
    """Return the modes, by default all that can run, and what has to be loaded for them."""
    for value, flag in (
        (options.drafter, "--drafter"),
        (options.num_speculative_tokens, "--num-speculative-tokens"),
    ):
        if value is not None:
            raise ConfigError(
                f"{flag} has no meaning in bench", hint="use --modes, as in --modes suffix:7"
            )
    modes = parse_modes("auto,suffix,model" if wanted is None else wanted)
    # `auto` brings in the default draft of the default target, and takes every other
    may_use_draft = any(mode.drafter in ("auto", "model") for mode in modes)
    may_draft = "suffix" if modes else "none"
    config = replace(options, drafter="auto" if may_use_draft else may_draft).engine_config()
    if config.draft is None:
        missing = [mode.name for mode in modes if mode.drafter == "model"]
        if missing and wanted is not None:
            raise ConfigError(
                f"mode {missing[0]} needs a draft model", hint="name one with --draft"
            )
        modes = [mode for mode in modes if mode.name not in missing]
    return modes, config


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the findings, losses first, and the figures by mode and by category."""
    console = page()
    for sentence in headline(summary):
        console.print(sentence)
    workload = summary["workload"]
    sampling = f"temperature {workload['temperature']:g}" if workload["temperature"] else "greedy"
    console.print(
        f"\n{_counted(workload['prompts'], 'prompt')}, {_counted(workload['rounds'], 'round')}, "
        f"{sampling}, {workload['max_tokens']} tokens at most.\n"
        "Speedup of decoding, with the 95 % interval over prompts.\n"
    )
    console.print(summary_table(summary))
    for name, predicted in summary.get("prediction", {}).items():
        console.print(predicted_line(name, predicted, summary["modes"][name]["speedup"]))
    for name, mode in summary["modes"].items():
        if (repeated := mode["repeated"]) and repeated["runs"]:
            console.print(
                f"{name} on repeated prompts: {speedup_cell(repeated['speedup'])} in "
                f"{repeated['runs']} runs, not counted above"
            )
    for prompt in summary["prompts"]:
        if prompt["error"] is not None:
            talk().print(f"skipped {prompt['id']}: {prompt['error']}", soft_wrap=True)
    for name, mode in summary["modes"].items():
        print_notices(f"{name}: the drafter failed: {error}" for error in mode["drafter_errors"])


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return one table: all prompts first, then each category; a row is a mode."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    for title in ("speedup", "tokens/s", "per round", "accepted", "same text"):
        table.add_column(title, justify="right", no_wrap=True)
    modes: Mapping[str, Any] = summary["modes"]
    table.add_row("all prompts")
    plain = summary["plain"]["tokens_per_second"]
    table.add_row("  plain", "1", _number(plain, 1), "1.00", "-", "-")
    for name, mode in modes.items():
        same, of = mode["same_text"]
        table.add_row(f"  {name}", *figure_cells(mode), f"{same} of {of}")
    for category in dict.fromkeys(one for mode in modes.values() for one in mode["by_category"]):
        figures = {name: mode["by_category"][category] for name, mode in modes.items()}
        num_prompts = next(iter(figures.values()))["prompts"]
        table.add_row(f"{category} ({num_prompts})")
        for name, own in figures.items():
            table.add_row(f"  {name}", *figure_cells(own))
    return table


def figure_cells(figures: Mapping[str, Any]) -> list[str]:
    """Return the cells that a mode has in common with its categories."""
    rate = figures["acceptance_rate"]
    return [
        speedup_cell(figures["speedup"]),
        _number(figures["tokens_per_second"], 1),
        _number(figures["tokens_per_round"], 2),
        "-" if rate is None else f"{rate:.0%}",
    ]


def speedup_cell(speedup: Mapping[str, float | None] | None) -> str:
    """Return a speedup with its interval where there is one."""
    if not speedup:
        return "-"
    low, high = speedup["low"], speedup["high"]
    interval = "" if low is None or high is None else f" ({low:.2f}-{high:.2f})"
    return f"{speedup['geomean']:.2f}x{interval}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
