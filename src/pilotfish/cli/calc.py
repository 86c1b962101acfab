"""`pilotfish calc`: what drafting brings and costs, worked out before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from pilotfish.accounting.cost_model import (
    Acceptance,
    RoundCosts,
    best_length,
    break_even_acceptance,
    expected_tokens_per_round,
    speedup,
)
from pilotfish.accounting.costs import predicted_costs, side_by_side
from pilotfish.cli.arguments import option, with_options
from pilotfish.cli.calc_inputs import (
    FLAT,
    GivenCurve,
    assumptions,
    kept_curve,
    model_size,
    number,
    parse_acceptance,
    parse_curve,
    positive,
    share_of_bytes,
    whole_number,
)
from pilotfish.cli.console import figures_table, page, print_json, talk

_LONGEST = 256
_DEFAULT_LONGEST = 16
_LABELS = {
    "seconds_per_token": "ms per token",
    "flops_per_token": "GFLOPs",
    "bytes_read_per_token": "GB read",
    "memory_bytes": "GB of memory",
    "energy_joules_per_token": "energy",
}
# lengths shown beyond the best one
_MORE_LENGTHS = 3
_ROUND, _SERVING = "A round", "Models and money"


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """What a round costs, and how long its draft is."""

    draft_length: Annotated[
        str | None,
        option(
            "--draft-length",
            panel=_ROUND,
            metavar="N",
            about="Draft tokens in a round.  Default: the best.",
        ),
    ] = None
    cost_ratio: Annotated[
        str | None,
        option(
            "--cost-ratio",
            panel=_ROUND,
            metavar="C",
            about="What a draft token costs, as a share of a step of the target.  Default: what "
            "the curve's file or a measurement says, else the share of bytes that --draft reads, "
            "else 0, as of drafts from text.",
        ),
    ] = None
    curve: Annotated[
        str | None,
        option(
            "--curve",
            panel=_ROUND,
            metavar="CURVE",
            about="What a pass costs by its rows: flat, ratios to a step as in 1=1,4=1.1,8=1.4, or "
            "a file that calibrate --json wrote.  Default: what was measured here of --target "
            "and --draft, else flat.",
        ),
    ] = None
    catch_up: Annotated[
        str,
        option(
            "--catch-up",
            panel=_ROUND,
            metavar="C",
            about="The drafter's work before its first token, as a share of a step.",
        ),
    ] = "0"
    overhead: Annotated[
        str,
        option(
            "--overhead",
            panel=_ROUND,
            metavar="C",
            about="Other work of a round with a draft, as a share of a step.",
        ),
    ] = "0"
    max_length: Annotated[
        str | None,
        option(
            "--max-length",
            panel=_ROUND,
            metavar="N",
            about=f"Look no further for the best length.  Default: {_DEFAULT_LONGEST}, at most "
            "what the widest pass of the curve holds.",
        ),
    ] = None
    ctx: Annotated[
        str, option("--ctx", panel=_ROUND, metavar="N", about="Tokens of context.  Default: 1024.")
    ] = "1024"
    step_seconds: Annotated[
        str | None,
        option(
            "--step-seconds",
            panel=_ROUND,
            metavar="S",
            about="What a step of the target takes, in seconds.",
        ),
    ] = None

    def given_curve(self, target: str | None, draft: str | None) -> GivenCurve:
        """Return the curve, in seconds where --step-seconds, its file or a measurement says what a
        step takes."""
        kept = kept_curve(target, draft) if self.curve is None and target is not None else None
        given = kept or parse_curve(FLAT if self.curve is None else self.curve)
        if self.step_seconds is None:
            return given
        step = positive("--step-seconds", self.step_seconds)
        curve = given.curve.scaled(step / given.curve.at(1, self.context()))
        return replace(given, curve=curve, in_seconds=True)

    def context(self) -> int:
        """Return the tokens of context."""
        return whole_number("--ctx", self.ctx, least=0, most=1 << 30)

    def costs(self, given: GivenCurve, share_of_bytes: float | None) -> RoundCosts:
        """Return what the parts of a round take, in the unit of the curve; `share_of_bytes` is what
        a draft model reads for a token, of what the target reads."""
        context = self.context()
        step = given.curve.at(1, context)
        known = given.draft_cost_ratio if given.draft_cost_ratio is not None else share_of_bytes
        ratio = known or 0.0
        if self.cost_ratio is not None:
            ratio = number("--cost-ratio", self.cost_ratio)
        return RoundCosts(
            curve=given.curve,
            draft_seconds=step * ratio,
            catch_up_seconds=step * number("--catch-up", self.catch_up),
            overhead_seconds=step * number("--overhead", self.overhead),
            context=context,
        )

    def longest(self, given: GivenCurve) -> int:
        """Return the longest draft that is looked at for the best one."""
        if self.max_length is not None:
            return whole_number("--max-length", self.max_length, least=1, most=_LONGEST)
        measured = _DEFAULT_LONGEST if given.widest is None else given.widest - 1
        return min(_DEFAULT_LONGEST, measured)


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """What the other costs are worked out from."""

    target: Annotated[
        str | None,
        option(
            "--target",
            "-m",
            panel=_SERVING,
            metavar="REF",
            about="The model, for FLOPs, bytes and memory; not loaded.",
        ),
    ] = None
    draft: Annotated[
        str | None,
        option(
            "--draft", "-d", panel=_SERVING, metavar="REF", about="The draft model, for the same."
        ),
    ] = None
    price_per_hour: Annotated[
        str | None,
        option(
            "--price-per-hour",
            panel=_SERVING,
            metavar="X",
            about="Of the machine, for money per token.",
        ),
    ] = None

    @property
    def draft_model(self) -> str | None:
        """Return the draft model; as elsewhere, `none` is none."""
        is_none = self.draft is not None and self.draft.casefold() == "none"
        return None if is_none else self.draft

    def values(self) -> dict[str, Any]:
        """Return the options of `predicted_costs`."""
        price, draft = self.price_per_hour, self.draft_model
        return {
            "target": None if self.target is None else model_size(self.target),
            "draft": None if draft is None else model_size(draft, as_draft=True),
            "price_per_hour": None if price is None else number("--price-per-hour", price),
        }

    def hints(self, *, in_seconds: bool, by_model: bool) -> list[str]:
        """Return which options would fill the gaps of the costs, and with what."""
        wanted = {
            "--step-seconds (times)": in_seconds,
            "--target (FLOPs, bytes, memory)": self.target is not None,
            "--draft (its share of these)": self.draft is not None or not by_model,
            "--price-per-hour (money)": self.price_per_hour is not None,
        }
        return [hint for hint, is_there in wanted.items() if not is_there]


@with_options
def calc(
    *,
    acceptance: Annotated[
        str,
        typer.Option(
            "--acceptance",
            metavar="A[,A...]",
            help="How likely a draft token is accepted once those before it are: one number, or "
            "one for each position, of which the last goes on.",
            show_default=False,
        ),
    ],
    round_options: RoundOptions,
    serving: ServingOptions,
    json: Annotated[
        bool, typer.Option("--json", metavar=" ", help="Print one JSON document.")
    ] = False,
) -> None:
    """Work out what drafting brings and costs, from formulas and what is kept.

    Nothing is loaded or measured; the formulas are in docs/concepts/accounting.md. What was
    measured here of --target and --draft before is used, and what is assumed is said.
    """
    chances = parse_acceptance(acceptance)
    sizes = serving.values()
    share = share_of_bytes(sizes["target"], sizes["draft"])
    given = round_options.given_curve(serving.target, serving.draft_model)
    costs = round_options.costs(given, share)
    longest = round_options.longest(given)
    best = best_length(chances, costs, max_length=longest)
    length = best
    if round_options.draft_length is not None:
        length = whole_number("--draft-length", round_options.draft_length, least=0, most=_LONGEST)
    options = {**sizes, "in_seconds": given.in_seconds}
    document = {
        **_findings(chances, costs, length=length, best=best, longest=longest),
        "measured": given.measured or None,
        "assumed": assumptions(
            given,
            has_curve=round_options.curve is not None,
            has_ratio=round_options.cost_ratio is not None,
            share=share,
        ),
        "round_cost_unit": "seconds" if given.in_seconds else "steps",
        "costs": side_by_side(
            plain=predicted_costs(chances, 0, costs, **options),
            speculative=predicted_costs(chances, length, costs, **options),
        ),
    }
    if given.widest is not None and max(length, longest) >= given.widest:
        talk().print(f"note: beyond {given.widest} rows the curve goes on with its last slope")
    if json:
        print_json(document)
        return
    _print_findings(document, in_seconds=given.in_seconds)
    by_model = costs.draft_seconds > 0 and length > 0
    if hints := serving.hints(in_seconds=given.in_seconds, by_model=by_model):
        page().print(f"\nnot known without {', '.join(hints)}")


def _findings(
    acceptance: Acceptance, costs: RoundCosts, *, length: int, best: int, longest: int
) -> dict[str, Any]:
    """Return the figures of drafting `length` tokens, and of all lengths around it."""
    gain = speedup(acceptance, length, costs)
    break_even = break_even_acceptance(length, costs)
    if length == 0:
        # what the easiest length would need
        needed = [break_even_acceptance(one, costs) for one in range(1, longest + 1)]
        break_even = min((one for one in needed if one is not None), default=None)
    found = {
        "acceptance": acceptance,
        "draft_length": length,
        "tokens_per_round": expected_tokens_per_round(acceptance, length),
        "speedup": gain,
        "best_length": best,
        "best_speedup": speedup(acceptance, best, costs),
        "break_even_acceptance": break_even,
        "max_length": longest,
        "cost_ratio": costs.draft_seconds / costs.step_seconds,
        "lengths": [
            {
                "draft_length": one,
                "tokens_per_round": expected_tokens_per_round(acceptance, one),
                "round_cost": costs.round_seconds(one),
                "speedup": speedup(acceptance, one, costs),
            }
            for one in sorted({*range(min(best + _MORE_LENGTHS, longest) + 1), length})
        ],
    }
    return {"summary": _summary(found), **found}


def _summary(found: Mapping[str, Any]) -> str:
    """Return what the figures mean in a sentence or two, losses first."""
    length, break_even = found["draft_length"], found["break_even_acceptance"]
    least = None if break_even is None else f"an acceptance of {break_even:.2f}"
    if length == 0:
        if found["best_length"]:
            return f"Nothing is drafted: plain decoding. {_best(found)}"
        pays = f"It would pay above {least}." if least else "No acceptance would make it pay."
        return f"Drafting loses at every length up to {found['max_length']}: leave it off. {pays}"
    tokens = f"{length} token{'s' if length > 1 else ''}"
    figures = f"{found['tokens_per_round']:.2f} tokens a round and {found['speedup']:.2f}x"
    if found["speedup"] < 1:
        need = f"it needs more than {least}" if least else "no acceptance makes it pay"
        return f"Drafting {tokens} loses: {figures}; {need}. {_best(found)}"
    limit = f"below {least} it loses" if break_even else "it cannot lose"
    better = "" if length == found["best_length"] else f" {_best(found)}"
    return f"Drafting {tokens} gives {figures}; {limit}.{better}"


def _best(found: Mapping[str, Any]) -> str:
    best = found["best_length"]
    if best == 0:
        return f"No length up to {found['max_length']} gains: leave drafting off."
    return f"Best is {best} with {found['best_speedup']:.2f}x."


def _print_findings(document: Mapping[str, Any], *, in_seconds: bool) -> None:
    console = page()
    console.print(document["summary"])
    if document["measured"]:
        console.print(f"Measured here: {document['measured']}.")
    if document["assumed"]:
        console.print(f"Assumed: {'; '.join(document['assumed'])}.")
    console.print()
    unit, scale, digits = ("ms", 1000, 1) if in_seconds else ("steps", 1, 2)
    rows = [
        [
            f"{one['draft_length']}{_marks(one['draft_length'], document)}",
            f"{one['tokens_per_round']:.2f}",
            f"{scale * one['round_cost']:.{digits}f}",
            f"{one['speedup']:.2f}x",
        ]
        for one in document["lengths"]
    ]
    table = figures_table(["tokens a round", f"{unit} a round", "speedup"], rows)
    table.columns[0].header = "draft length"
    console.print(table)
    console.print()
    console.print(figures_table(["plain", "speculative"], _cost_lines(document["costs"])))


def _cost_lines(costs: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a line for each cost and each of its figures that is known."""
    for name, ways in costs.items():
        yield [f"{name}, per emitted token" if name == "compute" else name, "", ""]
        for key in ways["plain"]:
            values = [ways[way][key] for way in ("plain", "speculative")]
            if values != [None, None]:
                yield [f"  {_LABELS.get(key) or _words(key)}", *(_figure(key, v) for v in values)]


def _words(key: str) -> str:
    return key.removesuffix("_per_token").replace("_", " ")


def _figure(key: str, value: float | str | None) -> str:
    """Return a figure as it is shown, in the unit that its label names."""
    if value is None or isinstance(value, str):
        return value or "-"
    if "seconds_per" in key:
        return f"{1000 * value:.1f}"
    if key in ("memory_bytes", "bytes_read_per_token", "flops_per_token"):
        return f"{value / 1e9:.3g}"
    return f"{value:.2f}x" if key == "speedup" else f"{value:.2f}"


def _marks(length: int, document: Mapping[str, Any]) -> str:
    marks = [
        mark
        for mark, marked in (("best", "best_length"), ("chosen", "draft_length"))
        if document[marked] == length
    ]
    return f" ({', '.join(marks)})" if marks else ""
