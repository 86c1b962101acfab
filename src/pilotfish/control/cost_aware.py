"""The controller that drafts what pays: by measured costs, expected acceptance, a loss budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.accounting.decisions import TURNED_OFF
from pilotfish.control.choice import Prices, survivals
from pilotfish.control.live_costs import LiveCosts
from pilotfish.control.model_choice import ModelChoice
from pilotfish.control.model_rule import ModelRule
from pilotfish.control.reasons import (
    FORCED,
    MEASURING,
    MODEL_DOES_NOT_PAY,
    MODEL_PAYS,
    NO_ROOM,
    NOTHING_OFFERED,
    NOTHING_PAYS,
    PAUSED,
    PREDICTION_PAYS,
    PROBING,
    TEXT_PAYS,
)
from pilotfish.control.request_state import (
    Experience,
    PassCost,
    Plan,
    RequestState,
    estimates,
    offer_class,
)
from pilotfish.protocols import Drafter, GuidedDrafter
from pilotfish.types import DraftWish, Proposal, RoundRecord, SessionView

# a copy ends where nothing foretells it: no token of one is surer than this
_SUREST = 0.98
# after so many rounds without one a plain round is run: the price of a step must stay honest
_ROUNDS_BETWEEN_STEPS = 200
# what a round takes beyond so many times what it should is no fault of drafts: whatever disturbed
# it disturbs plain rounds as well
_MOST_CHARGED = 1.5
# rows of a pass that many sessions may share
_WIDEST = 64
# a prediction knows which copies of the text are to be changed, and other drafts from text do not:
# their chances are those of copies on the whole
_PREFERENCE = 1.2
# why a draft from text was made, by who made it where that is not the text so far
_PAYING_TEXTS = {"forced": FORCED, "prediction": PREDICTION_PAYS}


class CostAwareController:
    """Chooses, for each round of each request, who drafts and how many tokens. It is `Controller`
    and `Drafter` in one, as what is worth drafting depends on what is offered.

    text        drafts that cost next to nothing; asked in every round, and scored against the reply
                whether they were used or not
    prediction  the same from what requests say their replies will be; of both offers the one
                that is worth more is the text's
    model       a draft model, asked when it is expected to bring more than the text's offer
    costs       what passes cost here, followed as they change

    A proposal is as long as makes its accepted tokens less (rate x extra seconds) the most; the
    rate is the request's own, so that tokens a second are the most in the long run. A loss guard
    bounds what a reply may lose against plain decoding, whatever the drafts are.
    """

    def __init__(
        self,
        costs: PairCosts,
        *,
        text: Drafter | None = None,
        prediction: Drafter | None = None,
        model: GuidedDrafter | None = None,
        num_speculative_tokens: int = 31,
    ) -> None:
        self._texts = [each for each in (prediction, text) if each is not None]
        self._most = num_speculative_tokens
        self.costs = LiveCosts(costs, max_width=max(_WIDEST, num_speculative_tokens + 1))
        self._experience = Experience()
        self._experiences = {DraftWish(): self._experience}
        self._requests: dict[int, RequestState] = {}
        self._context = 0
        self._model: ModelChoice | None = None
        if model is not None and costs.draft is not None:
            self._model = ModelChoice(model, costs=self.costs, most=self._most)

    def prepare(self, view: SessionView) -> bool:
        """Let the text read the prompt, and the draft model too where that is expected to pay: a
        part of it at a time."""
        is_new = view.request_id not in self._requests
        state = self._state(view)
        if is_new:
            state.experience.num_requests += 1
            for text in self._texts:
                text.prepare(view)
            if self._model is not None and view.allows("model"):
                num_readers = sum(each.reads_model for each in self._requests.values())
                state.reads_model = self._model.reading_pays(
                    view,
                    state.experience,
                    num_sessions=len(self._requests),
                    num_readers=num_readers + 1,
                )
        if self._model is None or not state.reads_model:
            return False
        return self._model.drafter.prepare(view)

    def forget(self, request_id: int) -> None:
        """Keep what the request taught, and drop the rest."""
        state = self._requests.pop(request_id, None)
        if state is not None and state.guard.num_tokens:
            state.experience.reply_tokens.add(state.guard.num_tokens)
        for text in self._texts:
            text.forget(request_id)
        if self._model is not None:
            self._model.drafter.forget(request_id)

    def clear(self) -> None:
        """Forget past texts; what was learned about drafts and costs stays."""
        drafters = [*self._texts, *([self._model.drafter] if self._model else [])]
        for drafter in drafters:
            if (clear := getattr(drafter, "clear", None)) is not None:
                clear()

    def draft_budgets(self, views: Sequence[SessionView]) -> list[int]:
        """Return the ceiling for every session; `propose` decides below it."""
        return [self._most] * len(views)

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return what is worth scoring for each view, and why."""
        self._context = max(len(view.tokens) for view in views)
        plans = [self._plan(v, b, len(views)) for v, b in zip(views, budgets, strict=True)]
        prices = self._prices(plans)
        self._take_offers(plans, prices)
        for plan in plans:
            self._choose(plan, prices)
        if self._model is not None:
            asking = self._model.choose(plans, prices, self._context)
            if asking:
                self._ask(self._model, asking, plans, prices)
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
            experience, greedy = self._experience_of(view.wish), view.settings.greedy
            state = self._requests[view.request_id] = RequestState(experience, greedy=greedy)
        return state

    def _experience_of(self, wish: DraftWish) -> Experience:
        """Return what requests with the same wish have taught: those that may not draft, or less,
        would make drafts look worth less than they are to the others."""
        ceiling = wish.num_speculative_tokens
        if ceiling is not None and ceiling >= self._most:
            wish = replace(wish, num_speculative_tokens=None)
        # what a prediction says is nothing to others; that there is one makes replies faster
        wish = replace(wish, prediction=(0,) if wish.prediction else ())
        return self._experiences.setdefault(wish, Experience(self._experience))

    def _plan(self, view: SessionView, budget: int, num_sessions: int) -> Plan:
        state = self._state(view)
        # what drafts take longer, all sessions of the pass take longer
        allowance = state.guard.allowance / num_sessions
        return Plan(view, state, min(budget, self._most), len(view.tokens), allowance)

    def _prices(self, plans: Sequence[Plan]) -> Prices:
        seconds = self.costs.rounds(self._context)
        base = min(len(plans), len(seconds) - 1)
        # all sessions share the pass: an extra second costs what all of them make in it
        rate = sum(plan.state.rate() for plan in plans) / seconds[base]
        return Prices(seconds, base, rate)

    def _take_offers(self, plans: Sequence[Plan], prices: Prices) -> None:
        """Score the last text offers, ask for new ones, and take the best for each request."""
        for plan in plans:
            plan.state.score_offers(plan.view.tokens)
        for text in self._texts:
            offers = text.propose([p.view for p in plans], [p.budget for p in plans])
            for plan, offer in zip(plans, offers, strict=True):
                if offer.token_ids:
                    plan.offers.append(offer)
        for plan in plans:
            believed = [self._believed(plan, offer) for offer in plan.offers]
            pairs = zip(plan.offers, believed, strict=True)
            worth = [_worth(offer, chances, prices) for offer, chances in pairs]
            if worth:
                best = worth.index(max(worth))
                plan.offer, plan.chances = plan.offers[best], believed[best]

    def _believed(self, plan: Plan, offer: Proposal) -> list[float]:
        """Return the chance of each token of an offer, as experience has it."""
        table = plan.state.table(offer.source)
        return [min(chance, _SUREST) for chance in table.chances(estimates(offer))]

    def _choose(self, plan: Plan, prices: Prices) -> None:
        """Decide between the text's offer and nothing; the draft model may still do better."""
        state = plan.state
        if plan.budget <= 0:
            plan.reason = TURNED_OFF if plan.view.wish.is_off else NO_ROOM
        elif state.rounds_since_step >= _ROUNDS_BETWEEN_STEPS:
            plan.reason = MEASURING
        else:
            self._weigh_text(plan, prices)
            plan.may_ask_model = state.reads_model
            is_out = not state.reads_model and self._model is not None
            if is_out and plan.view.allows("model") and plan.reason != TEXT_PAYS:
                plan.reason = MODEL_DOES_NOT_PAY

    def _weigh_text(self, plan: Plan, prices: Prices) -> None:
        """Decide how much of the text's offer is worth scoring."""
        plan.reason = NOTHING_PAYS if plan.chances else NOTHING_OFFERED
        plan.proposal = plan.offer
        wanted = 0
        if plan.chances:
            others = prices.rate * prices.step - plan.state.rate()
            wanted = prices.best_first_length(plan.chances, others=others)
        affordable = min(wanted, prices.num_affordable(plan.allowance))
        plan.alive = survivals(plan.chances[:affordable])
        length, plan.text_worth = prices.best_length(plan.alive)
        text_steps = 1 + prices.extra_seconds(length) / prices.step
        plan.text_rate = (1 + sum(plan.alive[:length])) / text_steps
        if length:
            plan.reason = TEXT_PAYS
        elif affordable < wanted:
            plan.reason = PAUSED

    def _ask(
        self,
        model: ModelChoice,
        asking: Sequence[Plan],
        plans: Sequence[Plan],
        prices: Prices,
    ) -> None:
        """Let the draft model draft for all that ask, one pass a token for all of them."""
        for plan in asking:
            plan.asks_model = True
        others = sum(prices.best_length(p.alive)[0] for p in plans if not p.asks_model)
        rules = [
            ModelRule(
                table=plan.state.table("model"),
                next_chance=model.next_chance(plan.state),
                prices=prices.beside(others).shared(len(asking)),
                first_pass_seconds=plan.first_pass_seconds / len(asking),
                pass_seconds=self.costs.draft(len(asking), self._context) / len(asking),
                affordable_seconds=plan.allowance * prices.step,
                probes=plan.reason == PROBING,
            )
            for plan in asking
        ]
        proposals = model.drafter.propose_guided(
            [plan.view for plan in asking], [plan.budget for plan in asking], rules
        )
        for plan, rule, proposal in zip(asking, rules, proposals, strict=True):
            plan.proposal, plan.alive = proposal, rule.alive[: len(proposal.token_ids)]
            plan.draft_seconds = rule.spent_seconds

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
            elif plan.reason == TEXT_PAYS:
                plan.reason = _PAYING_TEXTS.get(plan.proposal.source, TEXT_PAYS)
            plan.alive = plan.alive[:length]
            plan.proposal = replace(
                plan.proposal.truncated(length), reason=plan.reason, plain_seconds=prices.step
            )

    def _learn(self, plan: Plan, record: RoundRecord, cost: PassCost) -> None:
        """Learn from one round of one request."""
        state, steps = plan.state, 1 + cost.extra_steps
        drafted = record.num_drafted > 0 or plan.draft_seconds > 0
        extra = cost.extra_steps_of(record.num_drafted, plan.draft_seconds)
        measured = min(record.round_seconds / cost.step, _MOST_CHARGED * steps)
        share = extra / (steps - 1) if steps > 1 else 1 / record.num_sessions
        # what its drafts took longer was lost to every session of the pass
        charged = 1 + record.num_sessions * share * (measured - 1)
        state.guard.record(record.num_emitted, charged if drafted else None)
        state.rounds_since_step = state.rounds_since_step + 1 if drafted else 0
        for averages in (state.averages, state.experience.averages):
            averages.tokens.add(record.num_emitted)
            averages.steps.add(steps)
        if plan.draft_seconds:
            self._learn_of_model(plan, record, extra)
        if state.reads_model:
            alone = record.num_emitted / plan.text_rate if plan.draft_seconds else 1 + extra
            state.experience.saved.add(alone - 1 - extra)
            state.experience.tokens.add(record.num_emitted)

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
        for averages in (state.averages, state.experience.averages):
            averages.gain[kind].add(gain)
            averages.extra_steps[kind].add(extra_steps)
            for estimate in tried:
                averages.chance.add(table.chance(estimate))
        for place, estimate in enumerate(tried):
            table.record(estimate, place < record.num_accepted)


def _worth(offer: Proposal, chances: Sequence[float], prices: Prices) -> tuple[float, float]:
    """Return how an offer ranks: by what it is worth in this round, and among such that pay nothing
    by the right tokens in it, for they may pay later."""
    alive = survivals(chances)
    factor = _PREFERENCE if offer.source == "prediction" else 1.0
    return factor * prices.best_length(alive)[1], factor * sum(alive)
