"""What a benchmark found, in plain words, losses first; and what of it is worth keeping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# an interval that reaches below this leaves room for a loss that would be felt
FELT_LOSS = 0.97

LOSS, BELOW, UNSURE, FINE = "loses", "below 1, perhaps by chance", "a loss is not excluded", ""
# a place of findings: the whole workload, reading included
WITH_PROMPTS = "with the reading of prompts"
_ORDER = (LOSS, BELOW, UNSURE)
# of the calibration what the report shows
_KEPT_OF_CALIBRATION = (
    "curve_seconds",
    "ratio",
    "draft_curve_seconds",
    "floor_seconds",
    "context",
    "break_even",
    "break_even_draft_model",
    "sentence",
)


Speedup = Mapping[str, Any]
"""{"geomean", "low", "high"}; low and high are None for a single prompt."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mode that was slower than plain decoding, or may have been, and where.

    where    a category, "" for the whole workload, or WITH_PROMPTS
    grade    LOSS, BELOW or UNSURE
    """

    mode: str
    where: str
    speedup: Speedup
    grade: str

    def sentence(self) -> str:
        """Return the finding as a sentence."""
        where = {"": "over all prompts", WITH_PROMPTS: WITH_PROMPTS}.get(
            self.where, f"on {words(self.where)}"
        )
        figure = speedup_text(self.speedup)
        if self.grade == LOSS:
            return f"{self.mode} loses {where}: {figure}."
        if self.grade == BELOW:
            return f"{self.mode} is below plain decoding {where}, perhaps by chance: {figure}."
        return f"{self.mode} {where}: a loss is not excluded, {figure}."


def findings(summary: Mapping[str, Any]) -> list[Finding]:
    """Return every loss and possible loss, certain ones first, each kind from the worst on."""
    found = [one for one in _graded(summary) if one.grade != FINE]
    return sorted(found, key=lambda one: (_ORDER.index(one.grade), one.speedup["geomean"]))


def _graded(summary: Mapping[str, Any]) -> Iterator[Finding]:
    for name, mode in summary["modes"].items():
        places = {"": mode, **mode["by_category"]}
        for where, figures in places.items():
            if figures["speedup"] is not None:
                yield Finding(name, where, figures["speedup"], grade(figures["speedup"]))
        total = mode["total_speedup"]
        # reading takes its time with and without drafts, so a doubt here says nothing new
        if total is not None and grade(total) in (LOSS, BELOW):
            yield Finding(name, WITH_PROMPTS, total, grade(total))


def grade(speedup: Speedup) -> str:
    """Return LOSS where the whole interval is below 1, BELOW where the value is, UNSURE where the
    interval allows a loss that would be felt, else FINE. A single prompt has no interval."""
    low, high = speedup["low"], speedup["high"]
    if high is not None and high < 1:
        return LOSS
    if speedup["geomean"] < 1:
        return BELOW
    return UNSURE if low is not None and low < FELT_LOSS else FINE


def headline(summary: Mapping[str, Any]) -> list[str]:
    """Return what was found in sentences: losses, slower prompts, other text, failures, gains."""
    found = findings(summary)
    sentences = [one.sentence() for one in found]
    lossy = {one.mode for one in found}
    spared = [
        name
        for name, mode in summary["modes"].items()
        if name not in lossy and mode["speedup"] is not None
    ]
    sentences += [f"{name} lost nothing: no category is below plain decoding." for name in spared]
    return [
        *sentences,
        *_slower_prompts(summary),
        *_other_text(summary),
        *_failures(summary),
        *_gains(summary),
    ]


def _slower_prompts(summary: Mapping[str, Any]) -> Iterator[str]:
    for name in summary["modes"]:
        count = prompts_below(summary, name)
        if count:
            yield f"{name} was slower on {count} of {len(summary['prompts'])} single prompts."


def prompts_below(summary: Mapping[str, Any], mode: str) -> int:
    """Return how many prompts took longer than with plain decoding."""
    speedups = [(prompt.get("speedup") or {}).get(mode) for prompt in summary["prompts"]]
    return sum(one is not None and one < 1 for one in speedups)


def _other_text(summary: Mapping[str, Any]) -> Iterator[str]:
    for name, mode in summary["modes"].items():
        same, of = mode["same_text"]
        if same < of:
            yield f"{name}: {of - same} of {of} replies have other text than plain decoding."


def _failures(summary: Mapping[str, Any]) -> Iterator[str]:
    failed = sum(prompt.get("error") is not None for prompt in summary["prompts"])
    if failed:
        yield f"{failed} of {len(summary['prompts'])} prompts failed and are not counted."


def _gains(summary: Mapping[str, Any]) -> Iterator[str]:
    for name, mode in summary["modes"].items():
        if mode["speedup"] is not None and mode["speedup"]["geomean"] >= 1:
            figure = speedup_text(mode["speedup"])
            yield f"{name} over all prompts: {figure} against plain decoding."


def worst_prompt(summary: Mapping[str, Any], mode: str) -> tuple[str, float] | None:
    """Return the prompt that gained least, or lost most, with its speedup."""
    speedups = {
        prompt["id"]: prompt["speedup"][mode]
        for prompt in summary["prompts"]
        if (prompt.get("speedup") or {}).get(mode) is not None
    }
    return min(speedups.items(), key=lambda item: item[1]) if speedups else None


def speedup_text(speedup: Speedup | None) -> str:
    """Return "0.93x (0.90-0.96)", or a dash where nothing was measured."""
    if speedup is None:
        return "-"
    interval = "" if speedup["low"] is None else " ({low:.2f}-{high:.2f})".format(**speedup)
    return f"{speedup['geomean']:.2f}x{interval}"


def described(summary: Mapping[str, Any]) -> str:
    """Return which models were measured on what, in two sentences."""
    workload, draft = summary["workload"], model_name(summary, "draft")
    temperature = workload["temperature"]
    backend = (summary["models"].get("target") or {}).get("backend")
    backend = f", {backend} backend" if backend else ""
    return (
        f"Target {model_name(summary, 'target') or 'unnamed'}, "
        f"{f'draft {draft}' if draft else 'no draft model'}{backend}. "
        f"Workload {workload['name']}: {workload['prompts']} prompts, {workload['rounds']} rounds, "
        f"at most {workload['max_tokens']} tokens, "
        f"{f'temperature {temperature:g}' if temperature else 'greedy'}."
    )


def model_name(summary: Mapping[str, Any], which: str) -> str:
    """Return the name of the target or the draft model, or ""."""
    facts = summary["models"].get(which) or {}
    return str(facts.get("name") or facts.get("path") or "")


def words(name: str) -> str:
    """Return a name of the summary as words: code_edit is "code edit"."""
    return name.replace("_", " ")


def compact(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary to keep: figures of four digits, of each prompt its speedups and failure,
    of the calibration the curves."""
    small: dict[str, Any] = _rounded(summary)
    small["prompts"] = [
        {key: prompt.get(key) for key in ("id", "category", "speedup", "error")}
        for prompt in small["prompts"]
    ]
    if small.get("calibration"):
        calibration = small["calibration"]
        kept = {key: calibration[key] for key in _KEPT_OF_CALIBRATION if key in calibration}
        contexts = calibration.get("contexts") or {}
        kept["contexts"] = {length: {"ratio": one["ratio"]} for length, one in contexts.items()}
        small["calibration"] = kept
    return small


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
