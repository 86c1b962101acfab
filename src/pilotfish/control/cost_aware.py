"""The controller that drafts what pays: by measured costs, expected acceptance, a loss budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.control.choice import Prices, survivals
from pilotfish.control.live_costs import LiveCosts
from pilotfish.control.model_rule import ModelRule
from pilotfish.control.request_state import (
    FIRST_BACKOFF,
    MOST_BACKOFF,
    Experience,
    PassCost,
    Plan,
    RequestState,
    estimates,
    offer_class,
)
from pilotfish.protocols import Drafter, GuidedDrafter
from pilotfish.types import Proposal, RoundRecord, SessionView

# what is believed of a draft model before the first draft
_FIRST_CHANCE = 0.8
# a draft model that would not pay even so sure of itself is not worth a try
_BEST_CHANCE = 0.97
# a copy ends where nothing foretells it: no token of one is surer than this
_SUREST = 0.98
_PROBE_ROUNDS = 2
# the draft model's reading of tokens it missed serves this many rounds
_CATCH_UP_ROUNDS = 4
# after so many rounds without one a plain round is run: the price of a step must stay honest
_ROUNDS_BETWEEN_STEPS = 200
# what a round takes beyond so many times what it should is no fault of drafts: whatever disturbed
# it disturbs plain rounds as well
_MOST_CHARGED = 1.5
_FIRST_REPLY_TOKENS = 128.0
# tokens in the time of a plain round, before anything is known
_FIRST_RATE = 1.3
# rows of a pass that many sessions may share
_WIDEST = 64
# a draft model that did not pay reads the prompt of one request in so many all the same
_REQUESTS_BETWEEN_TRIES = 8

TEXT_PAYS = "a repeat of earlier text is likely enough to pay"
MODEL_PAYS = "the draft model is expected to pay"
PROBING = "trying whether the draft model pays by now"
NOTHING_PAYS = "no draft is likely enough to pay for its row"
NOTHING_OFFERED = "the text repeats nothing"
MODEL_DOES_NOT_PAY = "paused: the draft model is not expected to pay"
PAUSED = "paused: drafts have lost what they may"
MEASURING = "a plain step, to know its price"
NO_ROOM = "no room for drafts"


def draft_can_pay(costs: PairCosts, num_speculative_tokens: int) -> bool:
    """Return whether a draft model pays when it is nearly always right."""
    if costs.draft is None:
        return False
    seconds = costs.target.row(num_speculative_tokens + 1, costs.target.contexts[0])
    prices = Prices(seconds, 1, 1 / seconds[1])
    token_seconds = costs.draft.at(1, costs.target.contexts[0]) + costs.draft_overhead_seconds
    gain, extra = prices.expected_round(_BEST_CHANCE, num_speculative_tokens, token_seconds)
    return gain > prices.rate * extra


class CostAwareController:
    """Chooses, for each round of each request, who drafts and how many tokens. It is `Controller`
    and `Drafter` in one, as what is worth drafting depends on what is offered.

    text   drafts that cost next to nothing; asked in every round, and scored against the reply
           whether they were used or not
    model  a draft model, asked when it is expected to bring more than the text's offer
    costs  what passes cost here, followed as they change

    A proposal is as long as makes its accepted tokens less (rate x extra seconds) the most; the
    rate is the request's own, so that tokens a second are the most in the long run. A loss guard
    bounds what a reply may lose against plain decoding, whatever the drafts are.
    """

    def __init__(
        self,
        costs: PairCosts,
        *,
        text: Drafter | None = None,
        model: GuidedDrafter | None = None,
        num_speculative_tokens: int = 31,
    ) -> None:
        self._text = text
        self._model = None if costs.draft is None else model
        self._most = num_speculative_tokens
        self.costs = LiveCosts(costs, max_width=max(_WIDEST, num_speculative_tokens + 1))
        self._experience = Experience()
        self._requests: dict[int, RequestState] = {}
        self._context = 0

    def prepare(self, view: SessionView) -> bool:
        """Let the text read the prompt, and the draft model too where that is expected to pay: a
        part of it at a time."""
        is_new = view.request_id not in self._requests
        state = self._state(view)
        if is_new:
            self._experience.num_requests += 1
            if self._text is not None:
                self._text.prepare(view)
            if self._model is not None and view.allows("model"):
                state.reads_model = self._reading_pays(view)
        return self._model is not None and state.reads_model and self._model.prepare(view)

    def forget(self, request_id: int) -> None:
        """Keep what the request taught, and drop the rest."""
        state = self._requests.pop(request_id, None)
        if state is not None and state.guard.num_tokens:
            self._experience.reply_tokens.add(state.guard.num_tokens)
        for drafter in (self._text, self._model):
            if drafter is not None:
                drafter.forget(request_id)

    def clear(self) -> None:
        """Forget past replies; what was learned about drafts and costs stays."""
        clear = getattr(self._text, "clear", None)
        if clear is not None:
            clear()

    def draft_budgets(self, views: Sequence[SessionView]) -> list[int]:
        """Return the ceiling for every session; `propose` decides below it."""
        return [self._most] * len(views)

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return what is worth scoring for each view, and why."""
        self._context = max(len(view.tokens) for view in views)
        plans = [
            Plan(view, self._state(view), min(budget, self._most), len(view.tokens))
            for view, budget in zip(views, budgets, strict=True)
        ]
        prices = self._prices(plans)
        self._take_offers(plans)
        num_readers = sum(plan.state.reads_model for plan in plans)
        for plan in plans:
            self._choose(plan, prices, num_readers)
        asking = [plan for plan in plans if plan.asks_model]
        if asking:
            self._ask_model(asking, plans, prices)
        self._settle_lengths(plans, prices)
        for plan in plans:
            plan.state.plan = plan
        return [plan.proposal for plan in plans]

    def observe(self, records: Sequence[RoundRecord]) -> None:
        """Learn from the rounds of one pass."""
        if not records:
            return
        width = sum(record.num_drafted + 1 for record in records)
        self.costs.observe_target(width, self._context, records[0].target_seconds)
        learned = []
        for record in records:
            state = self._requests.get(record.request_id)
            if state is None:
                continue
            if state.plan is None or state.plan.is_over:
                # nobody was asked: no room was left, or the drafter failed
                state.guard.record(record.num_emitted, None)
            else:
                state.plan.is_over = True
                learned.append((state.plan, record))
        draft_seconds = sum(plan.draft_seconds for plan, _ in learned)
        self.costs.observe_draft(draft_seconds, records[0].draft_seconds)
        cost = PassCost(
            seconds=self.costs.rounds(self._context),
            num_sessions=len(records),
            num_drafted=width - len(records),
            draft_seconds=draft_seconds,
        )
        for plan, record in learned:
            self._learn(plan, record, cost)

    def _state(self, view: SessionView) -> RequestState:
        state = self._requests.get(view.request_id)
        if state is None:
            greedy = view.settings.greedy
            state = self._requests[view.request_id] = RequestState(self._experience, greedy=greedy)
        return state

    def _prices(self, plans: Sequence[Plan]) -> Prices:
        seconds = self.costs.rounds(self._context)
        base = min(len(plans), len(seconds) - 1)
        # all sessions share the pass: an extra second costs what all of them make in it
        rate = sum(plan.state.rate() for plan in plans) / seconds[base]
        return Prices(seconds, base, rate)

    def _take_offers(self, plans: Sequence[Plan]) -> None:
        """Score the last text offers and ask for new ones."""
        if self._text is None:
            return
        for plan in plans:
            plan.state.score_offer(plan.view.tokens)
        offers = self._text.propose([p.view for p in plans], [p.budget for p in plans])
        for plan, offer in zip(plans, offers, strict=True):
            plan.offer = offer
            believed = plan.state.table(offer.source).chances(estimates(offer))
            plan.chances = [min(chance, _SUREST) for chance in believed]

    def _choose(self, plan: Plan, prices: Prices, num_readers: int) -> None:
        """Decide between the text's offer, the draft model and nothing."""
        state = plan.state
        if plan.budget <= 0:
            plan.reason = NO_ROOM
        elif state.rounds_since_step >= _ROUNDS_BETWEEN_STEPS:
            plan.reason = MEASURING
        else:
            self._weigh_text(plan, prices)
            if state.reads_model:
                self._weigh_model(plan, prices, num_readers)
            elif self._model is not None and plan.view.allows("model") and plan.reason != TEXT_PAYS:
                plan.reason = MODEL_DOES_NOT_PAY

    def _weigh_text(self, plan: Plan, prices: Prices) -> None:
        """Decide how much of the text's offer is worth scoring."""
        plan.reason = NOTHING_PAYS if plan.chances else NOTHING_OFFERED
        plan.proposal = plan.offer
        wanted = 0
        if plan.chances:
            others = prices.rate * prices.step - plan.state.rate()
            wanted = prices.best_first_length(plan.chances, others=others)
        affordable = min(wanted, prices.num_affordable(plan.state.guard.allowance))
        plan.alive = survivals(plan.chances[:affordable])
        length, plan.text_worth = prices.best_length(plan.alive)
        text_steps = 1 + prices.extra_seconds(length) / prices.step
        plan.text_rate = (1 + sum(plan.alive[:length])) / text_steps
        if length:
            plan.reason = TEXT_PAYS
        elif affordable < wanted:
            plan.reason = PAUSED

    def _weigh_model(self, plan: Plan, prices: Prices, num_readers: int) -> None:
        """Decide whether the draft model is asked."""
        assert self._model is not None
        state, num_unread = plan.state, self._model.num_unread(plan.view)
        if num_unread is None:
            return
        first_pass = plan.first_pass_seconds = self.costs.reading(num_unread, self._context)
        if first_pass > state.guard.allowance * prices.step:
            plan.reason = TEXT_PAYS if plan.reason == TEXT_PAYS else PAUSED
            return
        # the sessions that have the draft model share its passes and the rows, if all ask it
        prices = prices.shared(num_readers)
        token_seconds = self.costs.draft(num_readers, self._context) / num_readers
        catch_up = (first_pass / num_readers - token_seconds) / _CATCH_UP_ROUNDS
        gain, extra = self._expected_of_model(plan, prices, token_seconds)
        if gain - prices.rate * (extra + catch_up) > plan.text_worth:
            plan.asks_model, plan.reason = True, MODEL_PAYS
            state.backoff = FIRST_BACKOFF
        elif self._probe_is_due(plan, prices, token_seconds):
            plan.asks_model, plan.reason = True, PROBING
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
        past, own = self._experience.averages, plan.state.averages
        gain = own.gain[kind].value(past.gain[kind].value(gain))
        steps = own.extra_steps[kind].value(past.extra_steps[kind].value(extra / prices.step))
        return gain, steps * prices.step

    def _ask_model(self, asking: Sequence[Plan], plans: Sequence[Plan], prices: Prices) -> None:
        """Let the draft model draft for all that ask, one pass a token for all of them."""
        assert self._model is not None
        others = sum(prices.best_length(p.alive)[0] for p in plans if not p.asks_model)
        rules = [
            ModelRule(
                table=plan.state.table("model"),
                next_chance=self._next_chance(plan.state),
                prices=prices.beside(others).shared(len(asking)),
                first_pass_seconds=plan.first_pass_seconds / len(asking),
                pass_seconds=self.costs.draft(len(asking), self._context) / len(asking),
                # each is charged the whole round, so together they may take what one might alone
                affordable_seconds=plan.state.guard.allowance * prices.step / len(asking),
                probes=plan.reason == PROBING,
            )
            for plan in asking
        ]
        proposals = self._model.propose_guided(
            [plan.view for plan in asking], [plan.budget for plan in asking], rules
        )
        for plan, rule, proposal in zip(asking, rules, proposals, strict=True):
            plan.proposal, plan.alive = proposal, rule.alive[: len(proposal.token_ids)]
            plan.draft_seconds = rule.spent_seconds

    def _next_chance(self, state: RequestState) -> float:
        past = self._experience.averages.chance.value(_FIRST_CHANCE)
        return min(_BEST_CHANCE, state.averages.chance.value(past))

    def _settle_lengths(self, plans: Sequence[Plan], prices: Prices) -> None:
        """Cut the proposals to the rows that pay in the pass they share."""
        lengths = prices.share_rows([plan.alive for plan in plans])
        for plan, length in zip(plans, lengths, strict=True):
            # under the token rule a drawn token must not be dropped for what it is
            if plan.asks_model and plan.view.needs_laws:
                length = len(plan.alive)
            elif plan.reason == PROBING:
                length = max(length, min(1, len(plan.alive)))
            if not length and plan.reason in (TEXT_PAYS, MODEL_PAYS):
                plan.reason = NOTHING_PAYS
            plan.alive = plan.alive[:length]
            plan.proposal = replace(
                plan.proposal.truncated(length), reason=plan.reason, plain_seconds=prices.step
            )

    def _learn(self, plan: Plan, record: RoundRecord, cost: PassCost) -> None:
        """Learn from one round of one request."""
        state, steps = plan.state, 1 + cost.extra_steps
        drafted = record.num_drafted > 0 or plan.draft_seconds > 0
        measured = min(record.round_seconds / cost.step, _MOST_CHARGED * steps)
        state.guard.record(record.num_emitted, measured if drafted else None)
        state.rounds_since_step = state.rounds_since_step + 1 if drafted else 0
        for averages in (state.averages, self._experience.averages):
            averages.tokens.add(record.num_emitted)
            averages.steps.add(steps)
        extra = cost.extra_steps_of(record.num_drafted, plan.draft_seconds)
        if plan.draft_seconds:
            self._learn_of_model(plan, record, extra)
        if state.reads_model:
            alone = record.num_emitted / plan.text_rate if plan.draft_seconds else 1 + extra
            self._experience.saved.add(alone - 1 - extra)
            self._experience.tokens.add(record.num_emitted)

    def _learn_of_model(self, plan: Plan, record: RoundRecord, extra_steps: float) -> None:
        state, kind = plan.state, offer_class(plan.text_worth)
        state.rounds_without_model = 0
        worth = record.num_accepted - record.num_sessions * extra_steps
        if plan.reason == PROBING and worth > plan.text_worth:
            # what paid goes on, until it is expected to pay or no longer does
            state.probes_left = max(state.probes_left, 1)
        table = state.table("model")
        tried = estimates(plan.proposal)[: record.num_accepted + 1]
        if record.num_emitted == record.num_accepted:  # the reply ended there: nothing was rejected
            tried = tried[: record.num_accepted]
        # half of what was expected, half of what came: the one is steadier, the other is true
        gain = (sum(plan.alive) + record.num_accepted) / 2
        for averages in (state.averages, self._experience.averages):
            averages.gain[kind].add(gain)
            averages.extra_steps[kind].add(extra_steps)
            for estimate in tried:
                averages.chance.add(table.chance(estimate))
        for place, estimate in enumerate(tried):
            table.record(estimate, place < record.num_accepted)

    def _reading_pays(self, view: SessionView) -> bool:
        """Return whether the draft model should read this prompt, by what it may save later."""
        experience, context = self._experience, len(view.tokens)
        seconds = self.costs.target(context)
        prices = Prices(seconds, 1, _FIRST_RATE / seconds[1])
        token_seconds = self.costs.draft(1, context)
        gain, extra = prices.expected_round(_BEST_CHANCE, self._most, token_seconds)
        if gain <= prices.rate * extra:
            return False  # even a near-perfect draft would not pay
        gain, extra = prices.expected_round(_FIRST_CHANCE, self._most, token_seconds)
        # steps saved a token, as far as seen: a first guess counts as the first rounds
        saved = experience.saved.value(gain - extra / prices.step)
        saving = prices.step * saved / experience.tokens.value(1 + gain)
        if saving <= 0:
            return experience.num_requests % _REQUESTS_BETWEEN_TRIES == 0
        expected = experience.reply_tokens.value(_FIRST_REPLY_TOKENS)
        num_tokens = min(expected, view.num_tokens_left)
        return saving * num_tokens > self.costs.reading(context, context // 2)
