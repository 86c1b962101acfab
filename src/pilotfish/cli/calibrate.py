"""`pilotfish calibrate`: what passes cost on this machine, measured, shown and kept."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pilotfish.cli.arguments import as_number, naming_options, with_options
from pilotfish.cli.console import page, print_json, print_notices, talk, waiting
from pilotfish.cli.options import EngineOptions
from pilotfish.config import EngineConfig
from pilotfish.errors import ConfigError

if TYPE_CHECKING:
    from pilotfish.build import ModelPair
    from pilotfish.calibration import Calibration, MeasurePlan, Progress

_BAR_COLUMNS = 56
_SAMPLE_PROMPT_TOKENS, _SAMPLE_TOKENS = 32, 24
_SAMPLE_DRAFTS = 3
_DISTURBED = (
    "other work disturbed the measurement, so these figures are rough: calibrate again when the "
    "machine is quiet"
)


@with_options
def calibrate(
    *,
    rounds: Annotated[
        str | None,
        typer.Option("--rounds", metavar="N", help="Timed passes of each width.  Default: 5."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", metavar=" ", help="Fewer widths and rounds: seconds instead of minutes."
        ),
    ] = False,
    png: Annotated[
        str | None, typer.Option("--png", metavar="FILE", help="Write the chart as a picture.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", metavar=" ", help="Print one JSON document.")
    ] = False,
    engine: EngineOptions,
) -> None:
    """Measure what passes of the models cost here, and what a draft must bring to pay.

    Later runs of the same models with the same settings on this machine use what was found.
    """
    from pilotfish import calibration  # not at the top: help needs no backend

    config = _with_default_draft(engine).engine_config()
    plan = calibration.QUICK if quick else calibration.FULL
    if rounds is not None:
        with naming_options():
            plan = replace(plan, rounds=as_number(rounds))
    picture = None if png is None else _checked_picture(png)
    with _loaded(config) as pair:
        found = _measure(pair, config, plan)
        if picture is not None:
            _save_picture(picture, found, pair)
        if not found.steady:
            print_notices([_DISTURBED])
        if json:
            print_json({**found.report_dict(), "models": _models(pair), "notices": pair.notices})
        else:
            _print_findings(found)


def _with_default_draft(engine: EngineOptions) -> EngineOptions:
    """Return the options with the draft that goes with the target, unless they speak of drafts."""
    asked = engine.drafter is not None or engine.config is not None
    return engine if asked else replace(engine, drafter="auto")


def _checked_picture(name: str) -> Path:
    """Return the file of the chart, after checking what would fail at the end of the work."""
    from pilotfish.bench.charts import require_charts

    require_charts()
    path = Path(name)
    if not path.parent.is_dir():
        raise ConfigError(f"--png {name}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"--png {name} is a folder", hint="name a file")
    return path


@contextmanager
def _loaded(config: EngineConfig) -> Iterator[ModelPair]:
    from pilotfish import build

    # one place more than a reply needs: contexts are compared in the same rounds
    config = replace(config, max_sessions=max(2, config.max_sessions))
    with waiting(f"loading {config.target.reference}"):
        pair = build.load_pair(config)
    try:
        print_notices(pair.notices)
        yield pair
    finally:
        pair.close()


def _measure(pair: ModelPair, config: EngineConfig, plan: MeasurePlan) -> Calibration:
    from pilotfish import calibration

    with _shown_progress() as progress:
        progress("the engine's own work", 0.0)
        overhead_seconds, draft_overhead_seconds = _overheads(pair)
        found = calibration.measure(
            pair.target,
            pair.draft,
            plan=plan,
            overhead_seconds=overhead_seconds,
            draft_overhead_seconds=draft_overhead_seconds,
            progress=progress,
        )
    calibration.save(calibration.describe_pair(pair.target, pair.draft, config), found)
    return found


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """Give a progress callback: a line that changes on a terminal, elsewhere one at the start."""
    console = talk()
    if not console.is_terminal:
        console.print("measuring ...")
        yield lambda label, share: None
        return
    with console.status("measuring") as status:
        yield lambda label, share: status.update(f"measuring: {label} ({share:.0%})")


def _overheads(pair: ModelPair) -> tuple[float, float]:
    """Return the engine's own seconds in a round and those for a draft token, from short replies:
    one drafted from text, one by the draft model."""
    from pilotfish.calibration import (
        TimedModel,
        measure_draft_overhead,
        measure_overhead,
    )
    from pilotfish.drafters.model import ModelDrafter
    from pilotfish.drafters.suffix import SuffixDrafter

    if pair.draft is None:
        return measure_overhead(_sample_reply(pair, SuffixDrafter())), 0.0
    timed = TimedModel(pair.draft)
    drafter = ModelDrafter(
        timed,
        vocab_size=pair.target.vocab_size,
        min_survival=0.0,
        head=getattr(pair.draft, "head", None),
    )
    return (
        measure_overhead(_sample_reply(pair, SuffixDrafter())),
        measure_draft_overhead(_sample_reply(pair, drafter), timed),
    )


def _sample_reply(pair: ModelPair, drafter: Any) -> Callable[[], list[Any]]:
    """Return a function that generates a short reply and returns the records of its rounds."""
    from pilotfish.backends.self_check import sample_text
    from pilotfish.control.fixed import FixedController
    from pilotfish.engine.engine import Engine

    engine = Engine(target=pair.target, drafter=drafter, controller=FixedController(_SAMPLE_DRAFTS))
    ids = pair.target.tokenizer.encode(sample_text(), parse_special=False)
    room = max(1, pair.target.context_size // 2)
    prompt = ids[: min(_SAMPLE_PROMPT_TOKENS, room)]

    def reply() -> list[Any]:
        session = engine.start(prompt, max_tokens=min(_SAMPLE_TOKENS, room))
        for _ in engine.run(session):
            pass
        return session.records

    return reply


def _models(pair: ModelPair) -> dict[str, Any]:
    draft = None if pair.draft is None else pair.draft.facts.to_dict()
    return {"target": pair.target.facts.to_dict(), "draft": draft}


def _save_picture(path: Path, found: Calibration, pair: ModelPair) -> None:
    from pilotfish.bench.charts import save_cost_curve

    target, draft = found.costs.target, found.costs.draft
    curves: dict[str, Mapping[int, float]] = {
        f"target after {context:,} tokens": target.ratios(context) for context in target.contexts
    }
    step = target.at(1, found.context)
    if draft is not None:
        curves[f"draft model after {found.context:,} tokens"] = {
            width: draft.at(width, found.context) / step for width in draft.widths
        }
    save_cost_curve(
        path,
        curves,
        title=f"What a pass costs: {pair.target.facts.path.name}",
        floor=None if found.reading is None else found.reading.floor_seconds / step,
    )


def _print_findings(found: Calibration) -> None:
    report, console = found.report_dict(), page()
    _print_wrapped(found.sentences())
    console.print()
    console.print(_table(found, report))
    console.print()
    console.print(*_chart(found), sep="\n")
    console.print()
    _print_wrapped(_closing_sentences(found))


def _print_wrapped(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        page().print("\n".join(textwrap.wrap(sentence, 79)))


def _table(found: Calibration, report: Mapping[str, Any]) -> Table:
    """Return milliseconds and single steps by width and context, and the acceptance that pays."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    contexts, has_draft = found.costs.target.contexts, found.costs.draft is not None
    table.add_column("tokens\nin a pass", justify="right")
    for context in contexts:
        table.add_column(f"after {context:,}\nms", justify="right")
        table.add_column("\nsteps", justify="right")
    if has_draft:
        table.add_column("draft\nms", justify="right")
    table.add_column("pays from\ntext", justify="right")
    if has_draft:
        table.add_column("\nmodel", justify="right")
    for width in report["ratio"]:
        cells = [width]
        for context in contexts:
            at_context = report["contexts"][str(context)]
            cells.append(f"{1000 * at_context['curve_seconds'][width]:.1f}")
            cells.append(f"{at_context['ratio'][width]:.2f}")
        if has_draft:
            cells.append(f"{1000 * report['draft_curve_seconds'][width]:.1f}")
        cells.append(_chance(report["break_even"], width))
        if has_draft:
            cells.append(_chance(report["break_even_draft_model"], width))
        table.add_row(*cells)
    return table


def _chance(by_width: Mapping[str, float | None], width: str) -> str:
    if width not in by_width:
        return ""
    chance = by_width[width]
    return "never" if chance is None else f"{chance:.2f}"


def _chart(found: Calibration) -> list[str]:
    """Return one bar a width: the nearest context in #, what the farthest adds in +."""
    target = found.costs.target
    near, far = target.contexts[0], target.contexts[-1]
    longest = max(target.at(width, context) for width in target.widths for context in (near, far))
    marks = f"#: milliseconds after {near:,} tokens"
    if far > near:
        marks += f"; +: what {far:,} tokens add"
    lines = [marks]
    for width in target.widths:
        ends = [round(_BAR_COLUMNS * target.at(width, c) / longest) for c in (near, far)]
        bar = "#" * ends[0] + "+" * max(0, ends[1] - ends[0])
        lines.append(
            f"{width:3d} {bar} {1000 * max(target.at(width, near), target.at(width, far)):.1f}"
        )
    return lines


def _closing_sentences(found: Calibration) -> list[str]:
    """Return how wide passes may be, how far a step is from the speed of memory, and what the
    engine takes."""
    contexts, reading = found.costs.target.contexts, found.reading
    free = [f"{found.free_width(context)} after {context:,} tokens" for context in contexts]
    result = [f"A pass costs at most 1.1 steps up to width {', '.join(free)}."]
    if reading is not None:
        result.append(
            f"Memory is read at {reading.bandwidth_bytes_per_second / 1e9:.1f} GB/s: the "
            f"{reading.step_bytes / 1e6:,.0f} MB of a step take {1000 * reading.floor_seconds:.1f} "
            f"ms, and a step takes {found.steps_of_floor:.2f} times that."
        )
    engine = f"The engine takes {1000 * found.costs.overhead_seconds:.2f} ms a round"
    if found.costs.draft is not None:
        engine += f" and {1000 * found.costs.draft_overhead_seconds:.2f} ms a draft token"
    return [*result, f"{engine}."]
