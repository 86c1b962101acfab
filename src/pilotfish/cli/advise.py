"""`pilotfish advise`: a short measurement, and what follows from it for drafting."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pilotfish.bench.findings import speedup_text
from pilotfish.bench.recording import Recorded, load_recordings, save_recordings
from pilotfish.bench.runner import (
    PLAIN,
    WARM_UP_PROMPT,
    BenchSettings,
    Mode,
    mode_engines,
    run_benchmark,
)
from pilotfish.bench.summary import summarize
from pilotfish.bench.workload import OWN, Prompt, in_turns, load_workload
from pilotfish.cli.arguments import as_number, naming_options, option, with_options
from pilotfish.cli.asking import HOW, OUTPUT, WHAT, AskingOptions, check_writable
from pilotfish.cli.console import (
    figures_table,
    load_progress,
    page,
    print_json,
    print_notices,
    talk,
    waiting,
)
from pilotfish.cli.options import EngineOptions
from pilotfish.cli.origin import origin
from pilotfish.cli.replays import (
    predicted_line,
    predictor_of,
    recorded_replies,
    shown_progress,
)
from pilotfish.config import EngineConfig, Request
from pilotfish.errors import ConfigError
from pilotfish.types import require, require_number

if TYPE_CHECKING:
    from pilotfish.bench.advice import Advice
    from pilotfish.bench.prediction import Prediction
    from pilotfish.build import CheckedPair, ModelPair
    from pilotfish.generation import TextEngine

_WIDTH = 79
_MEASURED_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class ShortAskingOptions(AskingOptions):
    """What is asked, with shorter replies: a measurement of two minutes."""

    max_tokens: Annotated[
        str, option("--max-tokens", panel=WHAT, about="Longest reply.  Default: 96.", metavar="N")
    ] = "96"


@dataclass(frozen=True, kw_only=True)
class AdviseOptions:
    """For how long is recorded, and what becomes of it."""

    budget: Annotated[
        str,
        option(
            "--budget",
            panel=HOW,
            about="Stop recording after that long.  Default: 120.",
            metavar="SECONDS",
        ),
    ] = "120"
    record: Annotated[
        str | None,
        option("--record", panel=HOW, about="Keep the recorded replies.", metavar="FILE"),
    ] = None
    replay: Annotated[
        str | None,
        option(
            "--replay",
            panel=HOW,
            about="Take replies recorded before instead of asking.",
            metavar="FILE",
        ),
    ] = None
    measure: Annotated[
        bool,
        option("--measure", panel=HOW, about="Measure auto on the same prompts, too, and compare."),
    ] = False
    flags: Annotated[
        bool,
        option(
            "--flags",
            panel=OUTPUT,
            about="Print options for llama-server, vLLM and SGLang as well.",
        ),
    ] = False
    json: Annotated[bool, option("--json", panel=OUTPUT, about="Print one JSON document.")] = False

    def seconds(self) -> float:
        """Return how long replies may be recorded; ConfigError if that is no time."""
        with naming_options():
            value = as_number(self.budget)
            require_number("budget", value, wanted := "a number of seconds above 0")
            require(value > 0, "budget", value, wanted)
        return float(value)

    def check_files(self, source: str | None) -> None:
        """Raise, before anything is measured, for what could not be read or written."""
        if self.replay is not None and (source is not None or self.record is not None):
            what = "prompts" if source is not None else "--record"
            raise ConfigError(f"--replay and {what} exclude each other: nothing is recorded")
        if self.replay is not None and self.measure:
            raise ConfigError("--measure needs prompts, and --replay has none")
        check_writable("--record", self.record)


@with_options
def advise(
    context: typer.Context,
    prompts: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPTS.jsonl]",
            help="A JSONL file of prompts as bench takes it.  Default: our own.",
            show_default=False,
        ),
    ] = None,
    *,
    engine: EngineOptions,
    asking: ShortAskingOptions,
    options: AdviseOptions,
) -> None:
    """Say who should draft on this machine and how much, and what that will bring.

    Plain replies are recorded for two minutes at most, and then replayed with every drafter.
    """
    from pilotfish import build  # not at the top: help needs no backend

    options.check_files(prompts)
    request, seconds = asking.request(), options.seconds()
    asked = [] if options.replay is not None else chosen_prompts(prompts, asking)
    kept = None if options.replay is None else load_recordings(Path(options.replay))
    config = _config(engine)

    def check(files: CheckedPair) -> None:
        if kept is None:
            files.check_prompt(WARM_UP_PROMPT, request)

    with waiting(f"loading {config.target.reference}"):
        pair = build.load_pair(config, check=check)
    try:
        with load_progress(config.target.reference) as measured:
            engines = mode_engines(pair, [Mode("auto")], config.speculation, progress=measured)
        print_notices(pair.notices)
        if kept is None:
            recorded = _recorded(pair, engines[PLAIN], asked, request, seconds)
        else:
            recorded = _of_this_pair(kept, pair)
        if options.record is not None:
            save_recordings(Path(options.record), recorded)
        document, advice = _document(pair, recorded)
        if options.measure:
            document["measured"] = _measured(engines, asked, recorded, request)
        document |= origin(context, config, pair, engines[PLAIN].facts.models)
    finally:
        pair.close()
    if options.json:
        print_json(document)
    else:
        _print_advice(document, advice, with_flags=options.flags)


def chosen_prompts(source: str | None, asking: AskingOptions) -> list[Prompt]:
    """Return the prompts, the categories in turns, as not all may be reached."""
    workload = load_workload(OWN if source is None else source)
    return in_turns(asking.limited(workload).prompts)


def _config(options: EngineOptions) -> EngineConfig:
    for value, flag in (
        (options.drafter, "--drafter"),
        (options.num_speculative_tokens, "--num-speculative-tokens"),
    ):
        if value is not None:
            raise ConfigError(
                f"{flag} has no meaning in advise",
                hint="leave it out: it is what advise finds out; --draft none leaves a model out",
            )
    # `auto` brings in the default draft of the default target, and takes every other
    return replace(options, drafter="auto").engine_config()


def _recorded(
    pair: ModelPair,
    plain: TextEngine,
    prompts: Sequence[Prompt],
    request: Request,
    seconds: float,
) -> Recorded:
    """Return recorded replies, and what gave them."""
    with shown_progress() as progress:
        recorded = recorded_replies(
            pair, plain, prompts, request, seconds=seconds, progress=progress
        )
    about = {
        "target": pair.target.facts.path.name,
        "draft": None if pair.draft is None else pair.draft.facts.path.name,
        "temperature": request.settings.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    }
    return replace(recorded, about=about)


def _of_this_pair(recorded: Recorded, pair: ModelPair) -> Recorded:
    """Return recordings after checking that they are of the loaded target."""
    name, loaded = recorded.about.get("target"), pair.target.facts.path.name
    if name != loaded:
        raise ConfigError(
            f"the recordings are replies of {name}, and the target is {loaded}",
            hint="name the model that gave them with --target",
        )
    return recorded


def _document(pair: ModelPair, recorded: Recorded) -> tuple[dict[str, Any], Advice]:
    """Return what `pilotfish advise --json` says, but for where it comes from."""
    from pilotfish.bench.advice import advise as advice_of
    from pilotfish.bench.reasons import headline, reasons

    has_draft = pair.draft is not None and recorded.has_drafts
    with waiting("replaying"):
        advice = advice_of(
            predictor_of(pair, recorded),
            has_draft=has_draft,
            draft_name="" if pair.draft is None else pair.draft.facts.path.name,
        )
    given = recorded.about.get("temperature")
    temperature = float(given) if isinstance(given, int | float) else 0.0
    document = {
        **advice.to_dict(),
        "headline": headline(advice),
        "reasons": reasons(advice, temperature=temperature),
        "recorded": {
            "prompts": len(recorded.recordings),
            "tokens": sum(len(recording.reply) for recording in recorded.recordings),
            "left": recorded.num_left,
            "skipped": dict(recorded.errors),
            **recorded.about,
        },
    }
    return document, advice


def _measured(
    engines: Mapping[str, TextEngine],
    prompts: Sequence[Prompt],
    recorded: Recorded,
    request: Request,
) -> dict[str, Any]:
    """Return the speedup of `auto` as a benchmark of the recorded prompts measures it."""
    ids = {recording.id for recording in recorded.recordings}
    settings = BenchSettings(rounds=_MEASURED_ROUNDS, request=request)
    with shown_progress() as progress:
        result = run_benchmark(
            engines, [one for one in prompts if one.id in ids], settings, progress=progress
        )
    summary = summarize(result, workload="")["modes"]["auto"]
    return {name: summary[name] for name in ("speedup", "total_speedup", "same_text")}


def _print_advice(document: Mapping[str, Any], advice: Advice, *, with_flags: bool) -> None:
    recorded = document["recorded"]
    _print_wrapped([document["headline"]])
    console = page()
    console.print(
        f"\nReplayed {_counted(recorded['prompts'], 'reply', 'replies')} of "
        f"{recorded['tokens']:,} tokens. Speedup over plain decoding, with the 95 %\n"
        "interval over prompts; total is with the reading of the prompt.\n"
    )
    console.print(_mode_table(advice))
    if advice.chosen is not None:
        console.print()
        console.print(_category_table(advice.chosen))
    console.print()
    _print_wrapped(document["reasons"], mark="- ")
    if "measured" in document:
        predicted, measured = document["prediction"]["auto"], document["measured"]["speedup"]
        console.print(f"\n{predicted_line('auto', predicted, measured)}.")
    if with_flags:
        _print_flags(document)
    for name, error in recorded["skipped"].items():
        talk().print(f"skipped {name}: {error}", soft_wrap=True)
    if recorded["left"]:
        left = _counted(recorded["left"], "prompt", "prompts")
        talk().print(f"the time was spent: {left} left out; --budget gives more", soft_wrap=True)


def _mode_table(advice: Advice) -> Table:
    rows = []
    for one in sorted(advice.predictions.values(), key=lambda one: -one.speedup().geomean):
        figures = one.to_dict()
        rate = figures["acceptance_rate"]
        rows.append(
            [
                one.mode,
                speedup_text(one.speedup().to_dict()),
                f"{one.total_speedup().geomean:.2f}x",
                f"{figures['tokens_per_round']:.2f}",
                "-" if rate is None else f"{rate:.0%}",
            ]
        )
    return figures_table(("speedup", "total", "per round", "accepted"), rows)


def _category_table(chosen: Prediction) -> Table:
    rows = [
        [name, speedup_text(chosen.speedup(name).to_dict()), str(figures["prompts"])]
        for name, figures in chosen.to_dict()["by_category"].items()
    ]
    return figures_table(("speedup", "prompts"), rows)


def _print_flags(document: Mapping[str, Any]) -> None:
    # options are for copying: they are never broken into lines
    for name, flags in document["flags"].items():
        page().print(f"\n{name}: {flags or '(none)'}", soft_wrap=True)
        _print_wrapped([f"does not carry over: {document['flag_notes'][name]}"])


def _print_wrapped(sentences: Sequence[str], *, mark: str = "") -> None:
    for sentence in sentences:
        lines = textwrap.wrap(
            sentence,
            _WIDTH,
            initial_indent=mark,
            subsequent_indent=" " * len(mark),
            break_on_hyphens=False,
        )
        page().print("\n".join(lines))


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
