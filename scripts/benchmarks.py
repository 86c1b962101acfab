"""Write the figures of BENCHMARKS.md from the files in benchmarks/, losses first.

Each file is a summary as `pilotfish bench --output` writes it. With --add FILE the part of such a
summary that is worth keeping is put there first. With --check nothing is written, and the exit code
is 1 when the page is not what it would be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotfish.bench.findings import (
    BELOW,
    LOSS,
    Speedup,
    compact,
    described,
    findings,
    grade,
    prompts_below,
    speedup_text,
    words,
    worst_prompt,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "BENCHMARKS.md"
KEPT = ROOT / "benchmarks"
BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"
NOTE = "<!-- by scripts/benchmarks.py from benchmarks/: change the files, then run it again -->"

Summary = Mapping[str, Any]


class NotUsable(Exception):
    """A file cannot be read, or the page has no place for figures."""


def main(argv: Sequence[str] | None = None) -> int:
    """Keep new files, write or check the page, and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/benchmarks.py", description=__doc__)
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    args = parser.parse_args(argv)
    try:
        if not args.check:
            for path in args.add:
                keep(path)
        before = PAGE.read_text(encoding="utf-8")
        after = with_figures(before, generated(kept_summaries()))
    except NotUsable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.check and before != after:
        message = f"error: out of date: {PAGE.name}; run scripts/benchmarks.py"
        print(message, file=sys.stderr)
        return 1
    if before != after:
        PAGE.write_text(after, encoding="utf-8")
        print(f"wrote {PAGE.name}", file=sys.stderr)
    return 0


def keep(path: Path) -> None:
    """Put the compact form of a summary into benchmarks/, under its own name."""
    small = compact(read_summary(path))
    KEPT.mkdir(exist_ok=True)
    text = json.dumps(small, indent=1, ensure_ascii=False)
    (KEPT / f"{path.stem}.json").write_text(text + "\n", encoding="utf-8")


def kept_summaries() -> dict[str, Summary]:
    """Return the kept summaries by the names of their files."""
    return {path.stem: read_summary(path) for path in sorted(KEPT.glob("*.json"))}


def read_summary(path: Path) -> Summary:
    """Return a summary; NotUsable if the file has none."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotUsable(f"cannot read {path.name}: {error}") from error
    needed = {"modes", "plain", "prompts", "workload", "models", "provenance"}
    if not isinstance(summary, dict) or not needed <= summary.keys():
        raise NotUsable(f"{path.name} is no summary of pilotfish bench")
    return summary


def with_figures(page: str, figures: str) -> str:
    """Return the page with other text between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NotUsable(f"{PAGE.name} lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n{figures}{END}{after}"


def generated(summaries: Mapping[str, Summary]) -> str:
    """Return the text between the markers; without summaries none."""
    if not summaries:
        return ""
    parts = [NOTE, "## Where drafting loses", "\n".join(losses(summaries))]
    parts += ["\n\n".join(section(name, one)) for name, one in summaries.items()]
    return "\n" + "\n\n".join(parts) + "\n\n"


def losses(summaries: Mapping[str, Summary]) -> Iterator[str]:
    """Yield a line for each loss, certain or not, of all files, and one for each file without."""
    for name, summary in summaries.items():
        found = findings(summary)
        for one in found:
            mark = {LOSS: "**loss**", BELOW: "below 1"}.get(one.grade, "not excluded")
            yield f"- {mark}, {title(name)}: {one.sentence()}"
        spared = [f"`{m}`" for m in summary["modes"] if m not in {one.mode for one in found}]
        if spared:
            yield f"- none, {title(name)}: {', '.join(spared)}."
        below = {mode: prompts_below(summary, mode) for mode in summary["modes"]}
        if any(below.values()):
            counts = ", ".join(f"`{mode}` {count}" for mode, count in below.items())
            of = len(summary["prompts"])
            yield f"- single prompts below 1, {title(name)}, of {of}: {counts}."


def section(name: str, summary: Summary) -> Iterator[str]:
    """Yield the parts of one file's section: who and where, modes, categories."""
    yield f"## {title(name)[:1].upper()}{title(name)[1:]}"
    yield f"`{summary['provenance']['command']}`"
    plain = summary["plain"]["tokens_per_second"]
    speed = f" Plain decoding: {plain:.1f} tokens/s." if plain else ""
    yield f"{described(summary)} {machine_text(summary)}.{speed}"
    yield "\n".join(modes_table(summary))
    yield "\n".join(categories_table(summary))


def title(name: str) -> str:
    """Return the name of a file as words."""
    return words(name.replace("-", " "))


def machine_text(summary: Summary) -> str:
    """Return machine, version and date."""
    facts = summary["provenance"]
    # a commit may end in "-dirty"
    commit, dash, state = (facts.get("commit") or "").partition("-")
    source = f" ({commit[:12]}{dash}{state})" if commit else ""
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads; pilotfish "
        f"{facts['version']}{source}, {facts['date'][:10]}"
    )


def modes_table(summary: Summary) -> Iterator[str]:
    """Yield a table of modes: speedup with interval and spread, worst prompt, acceptance, text."""
    yield (
        "| mode | speedup (95 % interval) | by round | with the prompt | worst prompt "
        "| tokens per round | accepted | same text |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, mode in summary["modes"].items():
        spread = mode["rounds_spread"] or {}
        rounds = f"{spread['min']:.2f}-{spread['max']:.2f}" if spread else "-"
        worst = worst_prompt(summary, name)
        accepted = mode["acceptance_rate"]
        cells = [
            f"`{name}`",
            emphasised(mode["speedup"]),
            rounds,
            speedup_text(mode["total_speedup"]),
            f"{worst[1]:.2f}x" if worst else "-",
            f"{mode['tokens_per_round']:.2f}",
            "-" if accepted is None else f"{100 * accepted:.0f} %",
            "{} of {}".format(*mode["same_text"]),
        ]
        yield f"| {' | '.join(cells)} |"


def categories_table(summary: Summary) -> Iterator[str]:
    """Yield a table of categories, a column for each mode."""
    modes = summary["modes"]
    yield f"| category | prompts | {' | '.join(f'`{name}`' for name in modes)} |"
    yield "|---|---" + "|---" * len(modes) + "|"
    for category in dict.fromkeys(c for mode in modes.values() for c in mode["by_category"]):
        figures = [mode["by_category"].get(category, {}) for mode in modes.values()]
        prompts = max(one.get("prompts", 0) for one in figures)
        cells = [emphasised(one.get("speedup")) for one in figures]
        yield f"| {words(category)} | {prompts} | {' | '.join(cells)} |"


def emphasised(speedup: Speedup | None) -> str:
    """Return a speedup; a certain loss in bold."""
    text = speedup_text(speedup)
    return f"**{text}**" if speedup is not None and grade(speedup) == LOSS else text


if __name__ == "__main__":
    sys.exit(main())
