"""What `pilotfish calc` is given: numbers, acceptances, cost curves and sizes of models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilotfish.accounting.cost_curve import CostCurve
from pilotfish.accounting.cost_model import Acceptance, with_overhead
from pilotfish.accounting.costs import ModelSize, multiplied_parameters
from pilotfish.cli.arguments import as_number
from pilotfish.errors import ConfigError

FLAT = "flat"
# larger than any real ratio, price or duration; products of such numbers are finite
_MOST = 1e9
_CURVE_FORMS = "flat, ratios like 1=1,4=1.1,8=1.4, or a file of calibrate --json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCurve:
    """A cost curve as given.

    in_seconds        whether it is in seconds; in steps otherwise
    widest            the widest pass that was measured; None for the flat one
    draft_cost_ratio  where a calibration knows it
    measured          when and how it was measured here; "" where it was given or assumed
    """

    curve: CostCurve
    in_seconds: bool = False
    widest: int | None = None
    draft_cost_ratio: float | None = None
    measured: str = ""


def number(option: str, text: str, *, most: float = _MOST) -> float:
    """Return a number from 0 to `most`; ConfigError naming the option otherwise."""
    value = as_number(text)
    # a NaN is in no range
    if isinstance(value, int | float) and 0 <= value <= most:
        return float(value)
    raise ConfigError(f"{option} must be a number from 0 to {most:g}, got {text!r}")


def positive(option: str, text: str) -> float:
    """Return a number above 0; ConfigError naming the option otherwise."""
    if (value := number(option, text)) >= 1 / _MOST:
        return value
    raise ConfigError(f"{option} must be above {1 / _MOST:g}, got {text!r}")


def whole_number(option: str, text: str, *, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`; ConfigError naming the option otherwise."""
    value = as_number(text)
    if isinstance(value, int) and least <= value <= most:
        return value
    raise ConfigError(f"{option} must be a whole number from {least} to {most}, got {text!r}")


def parse_acceptance(text: str) -> Acceptance:
    """Return one probability for all positions, or one for each."""
    values = [number("--acceptance", part, most=1.0) for part in text.split(",")]
    return values[0] if len(values) == 1 else values


def parse_curve(text: str) -> GivenCurve:
    """Return the curve that --curve names; ConfigError says what is wrong with it."""
    if text == FLAT:
        return GivenCurve(curve=CostCurve.flat(1.0))
    if "=" in text and not text.endswith(".json"):
        return _curve_of_ratios(_parse_ratios(text), text)
    return _read_curve(text)


def kept_curve(target: str, draft: str | None) -> GivenCurve | None:
    """Return what passes of the models were found to cost on this machine, if that is kept; a draft
    model that was not measured with the target leaves its own cost open."""
    from pilotfish import calibration, models  # not at the top: the formulas need neither

    files = [models.resolve(one) for one in (target, draft) if one is not None]
    pair = calibration.find(*files)
    kept = pair or calibration.find(files[0])
    if kept is None:
        return None
    given, used = _curve_from_json(kept.calibration.report_dict()), kept.description["target"]
    is_measured = draft is not None and pair is not None
    return replace(
        given,
        draft_cost_ratio=given.draft_cost_ratio if is_measured else None,
        measured=f"{kept.calibration.measured_at[:10]} on {used['backend']} with "
        f"{used['threads']} threads",
    )


def _parse_ratios(text: str) -> dict[int, float]:
    ratios: dict[int, float] = {}
    for part in text.split(","):
        width, _, ratio = (word.strip() for word in part.partition("="))
        rows = as_number(width)
        if not isinstance(rows, int) or rows < 1 or rows in ratios:
            raise _curve_error(f"{width!r} in {text!r} is not a further number of rows")
        ratios[rows] = positive("--curve", ratio)
    return ratios


def _curve_of_ratios(ratios: Mapping[int, float], what: str) -> GivenCurve:
    if len(ratios) < 2 or ratios.get(1) != 1:
        raise _curve_error(f"{what!r} must begin with 1=1 and go on")
    return GivenCurve(curve=CostCurve.from_ratios(ratios), widest=max(ratios))


def _read_curve(name: str) -> GivenCurve:
    """Return the curve of a file that `calibrate --json` or `CostCurve.to_dict` wrote."""
    try:
        raw = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise _curve_error(f"{name}: {reason.lower()}") from error
    except (ValueError, RecursionError) as error:
        raise _curve_error(f"{name} is not JSON") from error
    try:
        return _curve_from_json(raw)
    except (ValueError, OverflowError, ConfigError) as error:
        raise _curve_error(f"{name} holds no cost curve: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _curve_error(f"{name} holds no cost curve: fields are missing") from error


def _curve_from_json(raw: Mapping[str, Any]) -> GivenCurve:
    if "widths" in raw:
        curve = _checked(CostCurve.from_dict(raw))
        return GivenCurve(curve=curve, in_seconds=True, widest=curve.widths[-1])
    ratio = raw.get("draft_cost_ratio")
    draft_cost_ratio = None if ratio is None else number("draft_cost_ratio", str(ratio))
    if "curve_seconds" not in raw:
        ratios = {1: 1.0, **_by_width(raw["ratio"])}
        curve = _checked(CostCurve.from_ratios(ratios))
        return GivenCurve(curve=curve, widest=max(ratios), draft_cost_ratio=draft_cost_ratio)
    by_context = {
        int(context): _by_width(one["curve_seconds"])
        for context, one in raw.get("contexts", {}).items()
    } or {int(raw.get("context", 0)): _by_width(raw["curve_seconds"])}
    contexts = tuple(sorted(by_context))
    widths = tuple(sorted(by_context[contexts[0]]))
    curve = CostCurve(
        widths=widths,
        contexts=contexts,
        seconds=tuple(tuple(by_context[c][width] for width in widths) for c in contexts),
    )
    step = _checked(curve).at(1, contexts[0])
    # the engine's own work belongs to every round, plain ones too: what a step costs includes it
    overhead_seconds = number("overhead_seconds", str(raw.get("overhead_seconds", 0.0)))
    share = step / (step + overhead_seconds)
    return GivenCurve(
        curve=with_overhead(curve, overhead_seconds),
        in_seconds=True,
        widest=widths[-1],
        draft_cost_ratio=None if draft_cost_ratio is None else share * draft_cost_ratio,
    )


def _checked(curve: CostCurve) -> CostCurve:
    """Return the curve; ValueError if it can not have been measured."""
    if not all(1 / _MOST <= value <= _MOST for row in curve.seconds for value in row):
        raise ValueError(f"costs must be from {1 / _MOST:g} to {_MOST:g}")
    return curve


def _by_width(raw: Mapping[str, Any]) -> dict[int, float]:
    return {int(width): float(value) for width, value in raw.items()}


def _curve_error(message: str) -> ConfigError:
    return ConfigError(f"--curve: {message}", hint=f"give {_CURVE_FORMS}")


def model_size(reference: str, *, as_draft: bool = False) -> ModelSize:
    """Return the sizes of a model from the header of its file; no weights are loaded.

    `as_draft` gives those of the smaller form in which the native backend loads a draft.
    """
    from pilotfish.cli.model_info import model_info  # not at the top: needs backends

    info = model_info(reference)
    small = (as_draft and info["as_draft"]) or {}
    vocabulary = small.get("head_size", info["vocabulary"])
    # a cache of two-byte numbers: keys and values of the heads for keys and values
    queries = (info["heads"] or 0) / (info["kv_heads"] or 1)
    return ModelSize(
        parameters=multiplied_parameters(
            info["parameters"],
            vocabulary=info["vocabulary"],
            head_rows=vocabulary,
            width=info["width"] or 0,
            is_tied=info["weight_bytes"] == info["step_bytes"],
        ),
        weight_bytes=small.get("weight_bytes", info["weight_bytes"]),
        step_bytes=small.get("step_bytes", info["step_bytes"]),
        cache_bytes_per_token=info["cache_bytes_per_token"],
        vocabulary=vocabulary,
        attention_flops_per_token=info["cache_bytes_per_token"] * queries,
    )


def share_of_bytes(target: ModelSize | None, draft: ModelSize | None) -> float | None:
    """Return what a draft model reads for a token, of what the target reads: on machines where
    reading the weights is what takes time, this is what a draft token costs."""
    return None if target is None or draft is None else draft.step_bytes / target.step_bytes


def assumptions(
    given: GivenCurve, *, has_curve: bool, has_ratio: bool, share: float | None
) -> list[str]:
    """Return what is taken for granted, with the options that say better."""
    found = []
    if not has_curve and not given.measured:
        found.append("passes of any width cost a step (--curve)")
    if not has_ratio and given.draft_cost_ratio is None:
        cost = "nothing, as drafts from text do"
        if share is not None:
            cost = f"{share:.2f} of a step, as it reads so much of the bytes"
        found.append(f"a draft token costs {cost} (--cost-ratio)")
    return found
