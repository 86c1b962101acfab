"""When a draft model is worth asking: for whom its passes pay, and when to try it again."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.control.choice import Prices
from pilotfish.control.live_costs import LiveCosts
from pilotfish.control.reasons import (
    MODEL_DOES_NOT_PAY,
    MODEL_PAYS,
    NOTHING_OFFERED,
    NOTHING_PAYS,
    PAUSED,
    PROBING,
    TEXT_PAYS,
)
from pilotfish.control.request_state import (
    FIRST_BACKOFF,
    MOST_BACKOFF,
    Experience,
    Plan,
    RequestState,
    offer_class,
)
from pilotfish.protocols import GuidedDrafter
from pilotfish.types import SessionView

# what is believed of a draft model before the first draft
_FIRST_CHANCE = 0.8
# a draft model that would not pay even so sure of itself is not worth a try
_BEST_CHANCE = 0.97
_PROBE_ROUNDS = 2
# the draft model's reading of tokens it missed serves this many rounds
_CATCH_UP_ROUNDS = 4
_FIRST_REPLY_TOKENS = 128.0
# tokens in the time of a plain round, before anything is known
_FIRST_RATE = 1.3
# among more sessions, the draft model is taken to cost what it costs these
_MOST_SHARING = 16
# a draft model that did not pay reads the prompt of one request in so many all the same
_REQUESTS_BETWEEN_TRIES = 8


def draft_can_pay(costs: PairCosts, num_speculative_tokens: int) -> bool:
    """Return whether a draft model pays when it is nearly always right."""
    if costs.draft is None:
        return False
    seconds = costs.target.row(num_speculative_tokens + 1, costs.target.contexts[0])
    prices = Prices(seconds, 1, 1 / seconds[1])
    token_seconds = costs.draft.at(1, costs.target.contexts[0]) + costs.draft_overhead_seconds
    gain, extra = prices.expected_round(_BEST_CHANCE, num_speculative_tokens, token_seconds)
    return gain > prices.rate * extra


class ModelChoice:
    """Decides for which requests a draft model is asked, and whether it reads their prompts.

    costs  what passes cost now
    most   draft tokens of a round at most
    """

    def __init__(self, drafter: GuidedDrafter, *, costs: LiveCosts, most: int) -> None:
        self.drafter = drafter
        self._costs = costs
        self._most = most
        self._context = 0

    def choose(self, plans: Sequence[Plan], prices: Prices, context: int) -> list[Plan]:
        """Return the requests for which the draft model is asked.

        They share its passes, and the fewer they are, the more each pass costs them: those are
        left for whom it pays when just they share. Now and then one is asked all the same, as a
        probe.
        """
        self._context = context
        asking = [plan for plan in plans if plan.may_ask_model and self._can_ask(plan, prices)]
        while asking:
            left = [plan for plan in asking if self._model_pays(plan, prices, len(asking))]
            if len(left) == len(asking):
                break
            asking = left
        for plan in asking:
            plan.reason, plan.state.backoff = MODEL_PAYS, FIRST_BACKOFF
        for plan in plans:
            if plan.may_ask_model and plan.reason != MODEL_PAYS:
                self._consider_probe(plan, prices, len(asking) + 1)
        return [plan for plan in plans if plan.reason in (MODEL_PAYS, PROBING)]

    def _can_ask(self, plan: Plan, prices: Prices) -> bool:
        """Return whether the draft model has room, and the request the time for its next pass."""
        num_unread = self.drafter.num_unread(plan.view)
        if num_unread is None:
            plan.may_ask_model = False
            return False
        plan.first_pass_seconds = self._costs.reading(num_unread, self._context)
        if plan.first_pass_seconds > plan.allowance * prices.step:
            plan.may_ask_model = False
            plan.reason = TEXT_PAYS if plan.reason == TEXT_PAYS else PAUSED
        return plan.may_ask_model

    def _model_pays(self, plan: Plan, prices: Prices, num_askers: int) -> bool:
        """Return whether a round of the draft model is worth more than the text's offer, when so
        many share its passes and the rows."""
        prices = prices.shared(num_askers)
        token_seconds = self._costs.draft(num_askers, self._context) / num_askers
        catch_up = (plan.first_pass_seconds / num_askers - token_seconds) / _CATCH_UP_ROUNDS
        gain, extra = self._expected_of_model(plan, prices, token_seconds)
        return gain - prices.rate * (extra + catch_up) > plan.text_worth

    def _consider_probe(self, plan: Plan, prices: Prices, num_askers: int) -> None:
        """Ask a draft model that is not expected to pay, now and then, to know it better."""
        token_seconds = self._costs.draft(num_askers, self._context) / num_askers
        if self._probe_is_due(plan, prices.shared(num_askers), token_seconds):
            plan.reason = PROBING
        elif plan.reason in (NOTHING_PAYS, NOTHING_OFFERED):
            plan.reason = MODEL_DOES_NOT_PAY

    def _probe_is_due(self, plan: Plan, prices: Prices, token_seconds: float) -> bool:
        """Return whether to ask a draft model that is not expected to pay, to know it better."""
        state = plan.state
        state.rounds_without_model += 1
        if not state.probes_left and state.rounds_without_model >= state.backoff:
            state.rounds_without_model = 0
            gain, extra = prices.expected_round(_BEST_CHANCE, plan.budget, token_seconds)
            if gain > prices.rate * extra:
                state.probes_left = _PROBE_ROUNDS
                state.backoff = min(2 * state.backoff, MOST_BACKOFF)
        if not state.probes_left:
            return False
        state.probes_left -= 1
        return True

    def _expected_of_model(
        self, plan: Plan, prices: Prices, token_seconds: float
    ) -> tuple[float, float]:
        """Return the accepted tokens and the extra seconds of a round of the draft model."""
        gain, extra = prices.expected_round(_FIRST_CHANCE, plan.budget, token_seconds)
        kind = offer_class(plan.text_worth)
        past, own = plan.state.experience.averages, plan.state.averages
        gain = own.gain[kind].value(past.gain[kind].value(gain))
        steps = own.extra_steps[kind].value(past.extra_steps[kind].value(extra / prices.step))
        return gain, steps * prices.step

    def next_chance(self, state: RequestState) -> float:
        """Return how likely the draft model's next token is, before it is drawn."""
        past = state.experience.averages.chance.value(_FIRST_CHANCE)
        return min(_BEST_CHANCE, state.averages.chance.value(past))

    def reading_pays(
        self, view: SessionView, experience: Experience, *, num_sessions: int, num_readers: int
    ) -> bool:
        """Return whether the draft model should read this prompt, by what it may save later, as
        far as `experience` tells.

        So many sessions run, this one among them, and so many would share the draft model.
        """
        context, num_unread = len(view.tokens), self.drafter.num_unread(view)
        if num_unread is None:
            return False
        ceiling = view.wish.num_speculative_tokens
        most = self._most if ceiling is None else min(self._most, ceiling)
        num_sessions, num_readers = (
            min(num_sessions, _MOST_SHARING),
            min(num_readers, _MOST_SHARING),
        )
        seconds = self._costs.target(context)
        rate = num_sessions * _FIRST_RATE / seconds[num_sessions]
        prices = Prices(seconds, num_sessions, rate).shared(num_readers)
        token_seconds = self._costs.draft(num_readers, context) / num_readers
        gain, extra = prices.expected_round(_BEST_CHANCE, most, token_seconds)
        if gain <= prices.rate * extra:
            return False  # even a near-perfect draft would not pay
        gain, extra = prices.expected_round(_FIRST_CHANCE, most, token_seconds)
        # steps saved a token, as far as seen: a first guess counts as the first rounds
        saved = experience.saved.value(gain - extra / prices.step)
        saving = prices.step * saved / experience.tokens.value(1 + gain)
        if saving <= 0:
            return experience.num_requests % _REQUESTS_BETWEEN_TRIES == 0
        expected = experience.reply_tokens.value(_FIRST_REPLY_TOKENS)
        num_tokens = min(expected, view.num_tokens_left)
        # all sessions wait while it reads
        reading = self._costs.reading(num_unread, context - num_unread // 2)
        return saving * num_tokens > num_sessions * reading
