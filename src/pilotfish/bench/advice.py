"""From predictions to advice: who should draft, how much, and what it is worth."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.accounting.cost_model import RoundCosts, best_length, break_even_acceptance, speedup
from pilotfish.bench.flags import Draftable, engine_flags
from pilotfish.bench.prediction import (
    Prediction,
    Predictor,
    prediction_dict,
)
from pilotfish.bench.recording import Recording
from pilotfish.bench.runner import Mode
from pilotfish.bench.statistics import geometric_mean
from pilotfish.bench.statistics import speedup as mean_speedup

CEILINGS = (1, 2, 3, 4, 5, 7, 9, 11, 15, 23, 31)
FIXED_LENGTHS = (1, 2, 3, 4, 5, 7, 9, 11, 15)
# less than this is not worth a choice, a process of its own, or a longer draft
_LEAST_GAIN = 0.01
# costs of the draft model, against those of today, among which the one is sought at which it pays
_CHEAPEST, _DEAREST = 0.02, 8.0
_BISECTIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelAdvice:
    """Whether a draft model is worth having beside drafts from the text.

    cost_ratio               of one of its tokens to a step of the target
    acceptance               share of the replies' tokens that it would have said
    gain                     time of whole requests without it over that with it
    would_pay_at_cost_ratio  the dearest at which it still saves 1 %; None: at none
    would_pay_at_acceptance  the least, at today's cost, where it does not pay now; None: at none
    pays_from_tokens         length of a reply whose gain makes up for the second reading of the
                             prompt; None: decoding itself does not gain
    """

    cost_ratio: float
    acceptance: float
    gain: float
    would_pay_at_cost_ratio: float | None
    would_pay_at_acceptance: float | None
    pays_from_tokens: int | None

    @property
    def pays(self) -> bool:
        """Return whether it saves more than it costs."""
        return self.gain >= 1 + _LEAST_GAIN

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        return {"pays": self.pays, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do, and what it is expected to bring.

    drafter, number  as the options take them; none and 0 where nothing pays
    chosen           the prediction for just that; None where nothing pays
    predictions      of every mode looked at
    best_fixed       what an engine without a controller would best draft in every round
    oracle           the speedup of drafts that are always right, at the best length
    """

    drafter: str
    number: int
    chosen: Prediction | None
    predictions: dict[str, Prediction]
    draft_model: DraftModelAdvice | None
    best_fixed: Draftable
    oracle: float
    costs: PairCosts

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as plain JSON values, but for its reasons."""
        nothing = {"expected": 1.0, "low": 1.0, "high": 1.0}
        found = None if self.chosen is None else self.chosen.to_dict()
        flags = engine_flags(self.best_fixed)
        return {
            "drafter": self.drafter,
            "num_speculative_tokens": self.number,
            "speedup": nothing if found is None else found["speedup"],
            "total_speedup": nothing if found is None else found["total_speedup"],
            "by_category": {} if found is None else found["by_category"],
            "modes": {name: one.to_dict() for name, one in self.predictions.items()},
            "prediction": prediction_dict(self.predictions),
            "oracle_speedup": self.oracle,
            "draft_model": None if self.draft_model is None else self.draft_model.to_dict(),
            "flags": {name: one.flags for name, one in flags.items()},
            "flag_notes": {name: one.note for name, one in flags.items()},
        }


def advise(
    predictor: Predictor,
    *,
    has_draft: bool,
    draft_name: str = "",
    tell: Callable[[str], None] = lambda what: None,
) -> Advice:
    """Return the advice for the predictor's recordings on its costs.

    has_draft   whether a draft model was recorded and measured
    draft_name  what other engines are to load for it
    tell        is told what is being looked at
    """
    tell("drafters")
    names = ("auto", "suffix", "model") if has_draft else ("auto", "suffix")
    predictions = {name: predictor.predict(Mode(name)) for name in names}
    drafter = best_drafter(predictions)
    chosen, number = None, 0
    if drafter != "none":
        tell("draft lengths")
        by_ceiling = {n: predictor.predict(Mode(drafter), ceiling=n) for n in CEILINGS}
        number = smallest_good({n: _total(one) for n, one in by_ceiling.items()})
        chosen = by_ceiling[number]
    fixed = {name: _fixed(predictor, name) for name in names if name != "auto"}
    predictions |= {one.mode: one for one in fixed.values()}
    draft_model = None
    if has_draft:
        tell("the draft model's price")
        draft_model = draft_model_advice(predictor, without=predictions["suffix"])
    return Advice(
        drafter=drafter,
        number=number,
        chosen=chosen,
        predictions=predictions,
        draft_model=draft_model,
        best_fixed=_draftable(fixed, predictor.costs, draft_name),
        oracle=oracle_speedup(predictor.recordings, predictor.costs),
        costs=predictor.costs,
    )


def best_drafter(predictions: dict[str, Prediction]) -> str:
    """Return who should draft: `auto`, another one where whole requests are clearly faster with
    it, or `none` where nothing is expected to save anything."""
    auto = predictions["auto"]
    best = max(predictions, key=lambda name: _total(predictions[name]))
    if _total(predictions[best]) < 1 + _LEAST_GAIN:
        return "none"
    saved = mean_speedup(
        [
            ours.total_seconds / theirs.total_seconds
            for ours, theirs in zip(auto.replies, predictions[best].replies, strict=True)
        ]
    )
    assert saved is not None, "a prediction is of one reply at least"
    clearly = saved.geomean > 1 + _LEAST_GAIN and saved.low is not None and saved.low > 1
    return best if clearly else "auto"


def smallest_good(values: dict[int, float]) -> int:
    """Return the smallest number whose value is within 1 % of the best."""
    enough = max(values.values()) / (1 + _LEAST_GAIN)
    return min(number for number, value in values.items() if value >= enough)


def draft_model_advice(predictor: Predictor, *, without: Prediction) -> DraftModelAdvice:
    """Return what a draft model brings beside drafts from the text, `without` being those alone,
    and what would have to change for another answer."""
    auto = Mode("auto")

    def gain(prediction: Prediction) -> float:
        return geometric_mean(
            [
                text.total_seconds / both.total_seconds
                for text, both in zip(without.replies, prediction.replies, strict=True)
            ]
        )

    def pays_at(factor: float) -> bool:
        return gain(predictor.predict(auto, draft_factor=factor)) >= 1 + _LEAST_GAIN

    def pays_with(share: float) -> bool:
        better = better_drafts(predictor.recordings, share)
        return gain(predictor.predict(auto, recordings=better)) >= 1 + _LEAST_GAIN

    both = predictor.predict(auto)
    now = gain(both)
    pays, ratio = now >= 1 + _LEAST_GAIN, predictor.costs.draft_cost_ratio
    assert ratio is not None, "no draft model was measured"
    low, high = (1.0, _DEAREST) if pays else (_CHEAPEST, 1.0)
    factor = last_that_holds(pays_at, low, high)
    accepted = acceptance(predictor.recordings)
    share = None if pays else last_that_holds(lambda share: not pays_with(share), 0.0, 1.0)
    needs = None if share is None or share == 1.0 else accepted + share * (1 - accepted)
    return DraftModelAdvice(
        cost_ratio=ratio,
        acceptance=accepted,
        gain=now,
        would_pay_at_cost_ratio=None if factor is None else factor * ratio,
        would_pay_at_acceptance=needs,
        pays_from_tokens=_pays_from(without, both),
    )


def _pays_from(without: Prediction, both: Prediction) -> int | None:
    """Return from which reply on the decoding that the draft model saves makes up for its reading
    of a prompt, as far as both grow with the reply."""
    pairs = list(zip(without.replies, both.replies, strict=True))
    saved = sum(text.seconds - one.seconds for text, one in pairs)
    reading = sum(one.prompt_seconds - text.prompt_seconds for text, one in pairs)
    if saved <= 0:
        return None
    num_tokens = sum(reply.num_tokens for reply in both.replies) / len(pairs)
    return math.ceil(max(0.0, reading) / saved * num_tokens)


def last_that_holds(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """Return, by bisection, up to where a condition holds that ends once; None if it does not hold
    at `low`, `high` where it does not end before."""
    if not holds(low):
        return None
    if holds(high):
        return high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def acceptance(recordings: Iterable[Recording]) -> float:
    """Return the share of the replies' tokens that the draft model would have said."""
    pairs = [pair for r in recordings for pair in zip(r.draft, r.reply, strict=True)]
    return sum(said == token for said, token in pairs) / len(pairs)


def better_drafts(recordings: Sequence[Recording], share: float) -> list[Recording]:
    """Return the recordings with a share of the draft model's wrong tokens put right, the same ones
    at every call; it is then as sure of them as it is, on average, of right ones."""
    sure = [
        probability
        for r in recordings
        for said, token, probability in zip(r.draft, r.reply, r.draft_probabilities, strict=True)
        if said == token
    ]
    confidence = sum(sure) / len(sure) if sure else 0.9
    return [_better(recording, share, confidence) for recording in recordings]


def _better(recording: Recording, share: float, confidence: float) -> Recording:
    said, probabilities = list(recording.draft), list(recording.draft_probabilities)
    for place, token in enumerate(recording.reply):
        drawn = zlib.crc32(f"{recording.id} {place}".encode()) / 2**32
        if said[place] != token and drawn < share:
            said[place], probabilities[place] = token, confidence
    return replace(recording, draft=tuple(said), draft_probabilities=tuple(probabilities))


def oracle_speedup(recordings: Iterable[Recording], costs: PairCosts) -> float:
    """Return the speedup of drafts that cost nothing and always stand, at the best length: what
    nobody can exceed on these costs."""
    ratios = []
    for recording in recordings:
        context = len(recording.prompt) - 1 + len(recording.reply) // 2
        rounds = RoundCosts.of_pair(costs, by_model=False, context=context)
        most = min(CEILINGS[-1], len(recording.reply) - 1)
        ratios.append(speedup(1.0, best_length(1.0, rounds, max_length=most), rounds))
    return geometric_mean(ratios)


def _fixed(predictor: Predictor, name: str) -> Prediction:
    """Return the prediction for the best number that one drafter drafts in every round."""
    found = {n: predictor.predict(Mode(name, n)) for n in FIXED_LENGTHS}
    return found[smallest_good({n: _total(one) for n, one in found.items()})]


def _draftable(fixed: dict[str, Prediction], costs: PairCosts, draft_name: str) -> Draftable:
    lengths = {
        name: int(one.mode.partition(":")[2]) if _total(one) >= 1 + _LEAST_GAIN else 0
        for name, one in fixed.items()
    }
    text, model = lengths["suffix"], lengths.get("model", 0)
    chance = None
    if model:
        rounds = RoundCosts.of_pair(costs, by_model=True, context=costs.target.contexts[0])
        chance = break_even_acceptance(model, rounds)
    return Draftable(
        text=text,
        model=model,
        draft_name=draft_name,
        prefers_text=not model or _total(fixed["suffix"]) >= _total(fixed["model"]),
        least_chance=0.0 if chance is None else chance,
    )


def _total(prediction: Prediction) -> float:
    return prediction.total_speedup().geomean
