"""From the runs of a benchmark to one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from pilotfish.accounting.costs import ModelSize, costs_from_records
from pilotfish.accounting.metrics import accepted_per_position, reply_stats
from pilotfish.bench.runner import PLAIN, BenchResult, Run
from pilotfish.bench.statistics import (
    Speedup,
    Spread,
    geometric_mean,
    paired_ratio,
    speedup,
    spread,
)
from pilotfish.types import RoundRecord

Cost = Callable[[Run], float]

_RATES = ("tokens_per_second", "tokens_per_round", "acceptance_rate")


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of the loaded models, for what decoding costs; None is unknown or not there."""

    target: ModelSize | None = None
    draft: ModelSize | None = None


def summarize(
    result: BenchResult, *, workload: str, sizes: ModelSizes | None = None
) -> dict[str, Any]:
    """Return what `pilotfish bench --json` says about the runs; `workload` is its name.

    Figures of a mode are over all its runs, or, where replies of the past were kept, over the
    first of each prompt; `repeated` then has the others. Seconds are sums: `prompt` and
    `draft_prompt` are the reading of the prompt by the target and by the drafter, `overhead` what
    decoding took beside both models. A mode's `rounds_spread` is of its speedup, that of plain
    decoding of tokens per second.
    """
    settings, sizes = result.settings, sizes or ModelSizes()
    first = [run for run in result.runs if not run.repeated]
    repeated = [run for run in result.runs if run.repeated]
    return {
        "modes": {
            mode: mode_summary(result, mode, first)
            | {
                "costs": costs(result, of_mode(first, mode), sizes_for(mode, sizes)),
                "repeated": repeated_summary(mode, repeated) if settings.keep_store else None,
            }
            for mode in result.modes
        },
        "plain": plain_summary(first)
        | {"costs": costs(result, of_mode(first, PLAIN), sizes_for(PLAIN, sizes))},
        "prompts": [prompt_summary(result, index, first) for index in range(len(result.prompts))],
        "workload": {
            "name": workload,
            "prompts": len(result.prompts),
            "categories": dict(Counter(prompt.category for prompt in result.prompts)),
            "max_tokens": settings.request.max_tokens,
            "temperature": settings.request.settings.temperature,
            "seed": settings.request.seed,
            "rounds": settings.rounds,
            "keep_store": settings.keep_store,
        },
    }


def mode_summary(result: BenchResult, mode: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of one mode, from `runs` of all modes."""
    own, plain = of_mode(runs, mode), of_mode(runs, PLAIN)
    categories = dict.fromkeys(result.prompts[run.prompt_index].category for run in own)
    by_round = [
        geometric_mean([*ratios_by_prompt(of_round(own, r), of_round(plain, r)).values()])
        for r in sorted({run.round_index for run in own})
    ]
    parted = parted_prompts(own, plain)
    num_prompts = len({run.prompt_index for run in own})
    decoding = figures(own)
    return {
        "speedup": speedup_of(own, plain),
        "total_speedup": speedup_of(own, plain, lambda run: run.total_seconds_per_token),
        "rounds_spread": _dict_or_none(spread(by_round)),
        "by_category": {
            category: category_summary(
                [run for run in own if result.prompts[run.prompt_index].category == category], plain
            )
            for category in categories
        },
        "same_text": [num_prompts - len(parted), num_prompts],
        **decoding,
        "seconds": seconds(own),
        "draft_time_share": draft_time_share(own),
        "by_drafter": by_drafter(own),
        "decisions": dict(Counter(r.reason for r in records(own) if r.reason).most_common()),
        "drafter_errors": drafter_errors(own),
    }


def drafter_errors(own: Sequence[Run]) -> list[str]:
    """Return what drafters failed of: in a round, or while they read a prompt."""
    errors = {record.failure for record in records(own)} | {run.drafting_error for run in own}
    return sorted(errors - {""})


def category_summary(own: Sequence[Run], plain: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of one mode's runs in one category."""
    decoding = figures(own)
    return {
        "speedup": speedup_of(own, plain),
        "prompts": len({run.prompt_index for run in own}),
        **{name: decoding[name] for name in _RATES},
    }


def repeated_summary(mode: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of a mode's runs of prompts that it had answered before."""
    own = of_mode(runs, mode)
    decoding = figures(own)
    return {
        "runs": len(own),
        "speedup": speedup_of(own, of_mode(runs, PLAIN)),
        **{name: decoding[name] for name in _RATES},
    }


def plain_summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of plain decoding, from `runs` of all modes."""
    plain = of_mode(runs, PLAIN)
    decoding = figures(plain)
    by_round = [
        figures(of_round(plain, r))["tokens_per_second"]
        for r in sorted({run.round_index for run in plain})
    ]
    return {
        **{name: decoding[name] for name in ("tokens_per_second", "passes", "emitted")},
        "seconds": seconds(plain),
        "rounds_spread": _dict_or_none(spread(by_round)),
    }


def prompt_summary(result: BenchResult, index: int, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what is known of one prompt: its speedup by mode, and where texts part from plain."""
    mine = [run for run in runs if run.prompt_index == index]
    plain = of_mode(mine, PLAIN)
    ratios: dict[str, float | None] = {}
    parted: dict[str, int | None] = {}
    for mode in result.modes:
        own = of_mode(mine, mode)
        ratios[mode] = ratios_by_prompt(own, plain).get(index)
        parted[mode] = parted_prompts(own, plain).get(index)
    prompt = result.prompts[index]
    return {
        "id": prompt.id,
        "category": prompt.category,
        "prompt_tokens": result.num_prompt_tokens.get(index),
        "reply_tokens": len(plain[0].output_ids) if plain else None,
        "speedup": ratios,
        "parted": parted,
        "error": result.errors.get(index),
    }


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return counts and rates of decoding over runs; None where there is nothing to measure."""
    rounds = records(runs)
    stats = reply_stats(rounds, prefill_seconds=0.0, speculation={})
    decode_seconds = sum(run.decode_seconds for run in runs)
    proposed = [r.num_drafted for r in rounds if r.num_drafted]
    accepted = accepted_per_position(rounds)
    return {
        "tokens_per_second": stats.emitted / decode_seconds if decode_seconds > 0 else None,
        "tokens_per_round": stats.tokens_per_round,
        "mean_acceptance_length": 1 + stats.accepted / len(proposed) if proposed else None,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_by_position": [
            count / sum(length > position for length in proposed)
            for position, count in enumerate(accepted)
        ],
        "passes": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "emitted": stats.emitted,
    }


def seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Return where the time of runs went."""
    rounds = records(runs)
    target = sum(r.target_seconds for r in rounds)
    draft = sum(r.draft_seconds for r in rounds)
    return {
        "target": target,
        "draft": draft,
        "overhead": sum(run.decode_seconds for run in runs) - target - draft,
        "prompt": sum(run.prompt_seconds for run in runs),
        "draft_prompt": sum(run.draft_prompt_seconds for run in runs),
    }


def draft_time_share(runs: Sequence[Run]) -> float | None:
    """Return the drafter's share of the time of decoding."""
    decode_seconds = sum(run.decode_seconds for run in runs)
    draft_seconds = sum(r.draft_seconds for r in records(runs))
    return draft_seconds / decode_seconds if decode_seconds > 0 else None


def sizes_for(mode: str, sizes: ModelSizes) -> ModelSizes:
    """Return the sizes of the models that a mode needs."""
    drafter = mode.partition(":")[0]
    return sizes if drafter in ("auto", "model") else replace(sizes, draft=None)


def costs(result: BenchResult, runs: Sequence[Run], sizes: ModelSizes) -> dict[str, Any]:
    """Return the three costs of the runs of one mode. Their latency has no speedup: ours is a
    mean over prompts, not the ratio of two sums."""
    prompt_tokens = {
        run.records[0].request_id: result.num_prompt_tokens[run.prompt_index] for run in runs
    }
    found = costs_from_records(
        records(runs), target=sizes.target, draft=sizes.draft, prompt_tokens=prompt_tokens
    )
    return found.to_dict()


def by_drafter(runs: Sequence[Run]) -> dict[str, Any]:
    """Return rounds, drafted and accepted tokens of each drafter."""
    stats = reply_stats(records(runs), prefill_seconds=0.0, speculation={})
    return {name: asdict(one) for name, one in stats.by_drafter.items()}


def speedup_of(
    own: Sequence[Run],
    plain: Sequence[Run],
    cost: Cost = lambda run: run.seconds_per_token,
) -> dict[str, Any] | None:
    """Return the speedup over prompts with its interval, by default of decoding."""
    return _dict_or_none(speedup([*ratios_by_prompt(own, plain, cost).values()]))


def ratios_by_prompt(
    own: Iterable[Run],
    plain: Iterable[Run],
    cost: Cost = lambda run: run.seconds_per_token,
) -> dict[int, float]:
    """Return plain cost over own cost of each prompt: the median of its rounds' ratios."""
    plain_costs = {place(run): cost(run) for run in plain}
    pairs: dict[int, tuple[list[float], list[float]]] = {}
    for run in own:
        plain_rounds, own_rounds = pairs.setdefault(run.prompt_index, ([], []))
        plain_rounds.append(plain_costs[place(run)])
        own_rounds.append(cost(run))
    return {index: paired_ratio(*both) for index, both in pairs.items()}


def parted_prompts(own: Iterable[Run], plain: Iterable[Run]) -> dict[int, int]:
    """Return by prompt where the ids first differ from plain decoding's, in any round."""
    plain_ids = {place(run): run.output_ids for run in plain}
    parted: dict[int, int] = {}
    for run in own:
        difference = first_difference(plain_ids[place(run)], run.output_ids)
        if difference is not None:
            parted[run.prompt_index] = min(difference, parted.get(run.prompt_index, difference))
    return parted


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Return the first index where two texts differ, or None; one may be the other's beginning."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def place(run: Run) -> tuple[int, int]:
    """Return what a run shares with plain decoding's run of the same prompt and round."""
    return run.prompt_index, run.round_index


def of_mode(runs: Iterable[Run], mode: str) -> list[Run]:
    """Return the runs of one mode."""
    return [run for run in runs if run.mode == mode]


def of_round(runs: Iterable[Run], round_index: int) -> list[Run]:
    """Return the runs of one round."""
    return [run for run in runs if run.round_index == round_index]


def records(runs: Iterable[Run]) -> list[RoundRecord]:
    """Return the rounds of all runs."""
    return list(chain.from_iterable(run.records for run in runs))


def _dict_or_none(figure: Speedup | Spread | None) -> dict[str, Any] | None:
    return None if figure is None else figure.to_dict()
