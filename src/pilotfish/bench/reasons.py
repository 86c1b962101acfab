"""Why the advice is what it is, in plain sentences: losses first."""

from __future__ import annotations

from collections.abc import Iterator

from pilotfish.accounting.cost_curve import CostCurve
from pilotfish.bench.advice import Advice, DraftModelAdvice
from pilotfish.bench.findings import speedup_text, words

# below so many replies an interval over them says little
_FEW_REPLIES = 6
# sessions that share a pass, to show what becomes of a cheap row
_MANY = 8
# a share of the time of a request that is worth a word
_MUCH_READING = 0.2


def headline(advice: Advice) -> str:
    """Return the advice in one sentence."""
    if advice.chosen is None:
        return "Use --drafter none: nothing that could be drafted is expected to save time here."
    decoding = speedup_text(advice.chosen.speedup().to_dict())
    whole = advice.chosen.total_speedup().geomean
    return (
        f"Use --drafter {advice.drafter} --num-speculative-tokens {advice.number}: decoding is "
        f"expected to be {decoding} as fast as without, whole requests {whole:.2f}x."
    )


def reasons(advice: Advice, *, temperature: float = 0.0) -> list[str]:
    """Return the sentences behind the advice; `temperature` is that of the recorded replies."""
    return [
        *_losses(advice),
        *_unsure(advice),
        *_draft_model(advice.draft_model),
        *_reading(advice),
        *_conditions(advice, temperature),
    ]


def _losses(advice: Advice) -> Iterator[str]:
    for name, prediction in advice.predictions.items():
        found = prediction.speedup()
        if found.geomean < 1:
            yield f"{name} would lose time: {speedup_text(found.to_dict())}."
        elif prediction.total_speedup().geomean < 1:
            whole = speedup_text(prediction.total_speedup().to_dict())
            yield f"{name} would lose time over whole requests, prompts read: {whole}."


def _unsure(advice: Advice) -> Iterator[str]:
    chosen = advice.chosen
    if chosen is None:
        return
    for category in chosen.categories:
        found = chosen.speedup(category)
        name, figure = words(category).capitalize(), speedup_text(found.to_dict())
        if found.geomean < 1:
            yield (
                f"{name} is expected to lose, {figure}: leave speculation off there "
                "(--drafter none)."
            )
        elif found.low is not None and found.low < 1:
            yield (
                f"{name}: a loss is not excluded, {figure}; little is lost by leaving speculation "
                "off there."
            )
    if len(chosen.replies) < _FEW_REPLIES:
        yield f"Only {len(chosen.replies)} replies were looked at: give more prompts to be sure."


def _draft_model(found: DraftModelAdvice | None) -> Iterator[str]:
    if found is None:
        return
    facts = (
        f"one of its tokens takes {found.cost_ratio:.2f} of a step, and it is right in "
        f"{found.acceptance:.0%} of places"
    )
    dearest = found.would_pay_at_cost_ratio
    if found.pays:
        yield (
            f"The draft model pays: with it whole requests are {found.gain:.2f}x as fast as with "
            f"drafts from the text alone; {facts}. It would pay up to a price of {dearest:.2f}."
        )
        return
    yield (
        f"The draft model does not pay beside drafts from the text: {facts}. --draft none leaves "
        "it out."
    )
    if dearest is None and found.would_pay_at_acceptance is None:
        yield "It would not pay if it cost next to nothing, or were always right."
        return
    ways = []
    if dearest is not None:
        ways.append(f"a token cost less than {dearest:.2f} of a step (now {found.cost_ratio:.2f})")
    if found.would_pay_at_acceptance is not None:
        ways.append(
            f"it were right in {found.would_pay_at_acceptance:.0%} of places (now "
            f"{found.acceptance:.0%})"
        )
    yield f"It would pay if {', or if '.join(ways)}."
    if found.pays_from_tokens is not None:
        yield (
            "Decoding alone is faster with it, and its reading of the prompt is made up for in "
            f"replies of about {found.pays_from_tokens} tokens."
        )


def _reading(advice: Advice) -> Iterator[str]:
    shown = advice.chosen
    if shown is None:
        return
    share = sum(reply.prompt_seconds for reply in shown.replies) / sum(
        reply.total_seconds for reply in shown.replies
    )
    if share > _MUCH_READING:
        yield (
            f"Reading the prompts is {share:.0%} of the time of these requests, and no draft makes "
            f"it shorter: whole requests gain {shown.total_speedup().geomean:.2f}x."
        )


def _conditions(advice: Advice, temperature: float) -> Iterator[str]:
    if temperature > 0:
        yield f"This holds for temperature {temperature:g}; other ones accept other drafts."
    else:
        yield (
            "This holds for temperature 0: sampled replies repeat less and accept less, so ask "
            "again with --temperature."
        )
    sentence = many_sessions(advice.costs.target)
    if sentence:
        yield sentence
    yield (
        f"Drafts that were always right would give {advice.oracle:.2f}x on these costs: more "
        "cannot be had from better drafts."
    )


def many_sessions(curve: CostCurve) -> str:
    """Return what a draft token must bring when many sessions share a pass, or "" where that was
    not measured."""
    if curve.widths[-1] < 2 * _MANY:
        return ""

    def needed(num_sessions: int) -> float:
        context = curve.contexts[0]
        alone = curve.at(num_sessions, context)
        return curve.at(2 * num_sessions, context) / alone - 1

    return (
        f"With {_MANY} requests at once a draft token must be accepted with probability above "
        f"{min(1.0, max(0.0, needed(_MANY))):.2f} to pay, alone above "
        f"{min(1.0, max(0.0, needed(1))):.2f}: a busy server gains less, or nothing."
    )
