"""Closed forms: what a draft length brings and what it costs, before anything runs.

Letters of the formulas: a(i) is the probability that draft token i is accepted, given that those
before it were; S(i) = a(1) ... a(i); k the number of draft tokens in a round; T(w) what a target
pass of w rows takes; D what a draft token takes; R tokens a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import TypeAlias

from pilotfish.accounting.cost_curve import CostCurve, PairCosts

# one probability for every position, or one a position: the last then holds for all further ones
Acceptance: TypeAlias = float | Sequence[float]

# halves the interval to less than what a double can tell apart
_BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """What the parts of a round take, in seconds; with a curve of ratios, in steps of the target.

    curve             target passes by width
    draft_seconds     one draft token: D
    catch_up_seconds  the drafter's work in a round before its first token
    overhead_seconds  what a round with a draft takes beyond its passes, more than a plain one
    context           tokens in the cache
    """

    curve: CostCurve
    draft_seconds: float = 0.0
    catch_up_seconds: float = 0.0
    overhead_seconds: float = 0.0
    context: int = 0

    @classmethod
    def of_pair(cls, costs: PairCosts, *, by_model: bool, context: int = 0) -> RoundCosts:
        """Return what rounds of a calibrated pair take, drafts from its model or from text.

        The engine's own work, which plain rounds have too, goes with every pass.
        """
        draft_seconds = 0.0
        if by_model and costs.draft is not None:
            draft_seconds = costs.draft.at(1, context) + costs.draft_overhead_seconds
        curve = with_overhead(costs.target, costs.overhead_seconds)
        return cls(curve=curve, draft_seconds=draft_seconds, context=context)

    @property
    def step_seconds(self) -> float:
        """Return T(1), what plain decoding takes for a token."""
        return self.curve.at(1, self.context)

    def round_seconds(self, num_draft_tokens: int) -> float:
        """Return T(k + 1) + k D + catch-up + overhead; T(1) without a draft."""
        if num_draft_tokens == 0:
            return self.step_seconds
        drafting = self.catch_up_seconds + num_draft_tokens * self.draft_seconds
        target = self.curve.at(num_draft_tokens + 1, self.context)
        return target + drafting + self.overhead_seconds


def with_overhead(curve: CostCurve, seconds: float) -> CostCurve:
    """Return the curve of passes that each take `seconds` longer."""
    rows = tuple(tuple(value + seconds for value in row) for row in curve.seconds)
    return replace(curve, seconds=rows)


def survival(acceptance: Acceptance, num_draft_tokens: int) -> list[float]:
    """Return S(1) ... S(k), how likely each draft position is reached and accepted.

    Raises ValueError if a probability is outside 0 to 1, or there is none.
    """
    given = [acceptance] if isinstance(acceptance, int | float) else list(acceptance)
    if not given or not all(0 <= probability <= 1 for probability in given):
        raise ValueError(f"acceptance must be probabilities, got {acceptance}")
    by_position = (given[min(i, len(given) - 1)] for i in range(num_draft_tokens))
    return list(accumulate(by_position, mul))


def expected_tokens_per_round(acceptance: Acceptance, num_draft_tokens: int) -> float:
    """Return E = 1 + S(1) + ... + S(k), the target's own token included.

    With one a for all positions (1 - a**(k + 1)) / (1 - a): Leviathan et al. 2023, equation 1.
    """
    return 1.0 + sum(survival(acceptance, num_draft_tokens))


def rate(acceptance: Acceptance, num_draft_tokens: int, costs: RoundCosts) -> float:
    """Return R, the tokens of a round over its seconds."""
    tokens = expected_tokens_per_round(acceptance, num_draft_tokens)
    return tokens / costs.round_seconds(num_draft_tokens)


def speedup(acceptance: Acceptance, num_draft_tokens: int, costs: RoundCosts) -> float:
    """Return the time of plain decoding over the time with drafts, for the same tokens.

    Where every pass costs T(1) this is E / (k D / T(1) + 1): Leviathan et al. 2023, theorem 3.8.
    """
    return rate(acceptance, num_draft_tokens, costs) * costs.step_seconds


def best_length(acceptance: Acceptance, costs: RoundCosts, *, max_length: int = 16) -> int:
    """Return the number of draft tokens with the highest rate, the smallest among equals; 0 where
    drafting does not pay."""
    return max(range(max_length + 1), key=lambda length: rate(acceptance, length, costs))


def break_even_acceptance(num_draft_tokens: int, costs: RoundCosts) -> float | None:
    """Return the acceptance, equal at all positions, at which drafts neither save nor cost time.

    0 where a round costs no more than a step, None where not even certain drafts pay or nothing is
    drafted. One draft token breaks even at round_seconds / T(1) - 1.
    """
    needed_tokens = costs.round_seconds(num_draft_tokens) / costs.step_seconds
    if num_draft_tokens == 0 or needed_tokens > num_draft_tokens + 1:
        return None
    if needed_tokens <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if expected_tokens_per_round(middle, num_draft_tokens) < needed_tokens:
            low = middle
        else:
            high = middle
    return high


def worthwhile_further_tokens(
    acceptance: Acceptance,
    num_drafted: int,
    costs: RoundCosts,
    *,
    rate: float,
    reached: float = 1.0,
    max_further: int = 16,
) -> int:
    """Return how many more tokens to draft after `num_drafted` in this round; 0 to stop.

    acceptance  of the further positions, given that those before them are accepted
    rate        tokens a second that the time could bring otherwise: R of the best length
    reached     how likely all tokens drafted so far are accepted

    m further tokens gain reached (S(1) + ... + S(m)) - R (round_seconds(i + m) - round_seconds(i)),
    and the m that gains most is returned. All m are looked at, since a curve is a staircase: one
    more token may not pay for the next step while three do.
    """
    drafted_seconds = costs.round_seconds(num_drafted)
    most_gain, best, tokens = 0.0, 0, 0.0
    for further, chance in enumerate(survival(acceptance, max_further), start=1):
        tokens += reached * chance
        seconds = costs.round_seconds(num_drafted + further) - drafted_seconds
        gain = tokens - rate * seconds
        if gain > most_gain:
            most_gain, best = gain, further
    return best


def undominated_widths(curve: CostCurve, *, widest: int, context: int = 0) -> list[int]:
    """Return the widths up to `widest` that no wider pass matches in price, ascending.

    The others waste rows: the wider pass holds more drafts for the same time or less.
    """
    kept: list[int] = []
    least_seconds = float("inf")
    for width in range(widest, 0, -1):
        if (seconds := curve.at(width, context)) < least_seconds:
            least_seconds = seconds
            kept.append(width)
    return kept[::-1]


def expected_experts(num_experts: int, num_chosen: int, num_tokens: int) -> float:
    """Return how many experts of a layer a pass reads: N (1 - (1 - k / N)**m).

    For m tokens that each choose k of N experts evenly and independently; real tokens agree more,
    so this is an upper bound.
    """
    return float(num_experts * (1.0 - (1.0 - num_chosen / num_experts) ** num_tokens))
