"""What the cost-aware controller knows of one request, and what it takes from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotfish.control.guard import LossGuard
from pilotfish.control.reliability import UNKNOWN, Reliability
from pilotfish.types import Proposal, SessionView

# what a text offer is worth in tokens: how much a draft model adds to it depends on that
_OFFER_EDGES = (0.05, 0.5, 1.5, 3.0)
NUM_OFFER_CLASSES = len(_OFFER_EDGES) + 1
# what many requests have in common changes more slowly than one of them
_PAST_FADING = 0.995
FIRST_BACKOFF, MOST_BACKOFF = 16, 48


def offer_class(worth: float) -> int:
    """Return the class of a text offer by what it is worth."""
    return sum(worth > edge for edge in _OFFER_EDGES)


class Average:
    """A mean whose old entries fade by `fading` with each new one, held near a prior that counts
    as much as `weight` entries."""

    def __init__(self, *, fading: float, weight: float) -> None:
        self._fading = fading
        self._weight = weight
        self._sum = 0.0
        self._count = 0.0

    def value(self, prior: float) -> float:
        """Return the mean."""
        return (self._sum + self._weight * prior) / (self._count + self._weight)

    def add(self, entry: float) -> None:
        """Count one entry."""
        self._sum = self._fading * self._sum + entry
        self._count = self._fading * self._count + 1.0


class Averages:
    """The figures of a kind of requests, or of one request."""

    def __init__(self, *, fading: float, weight: float) -> None:
        def averages() -> list[Average]:
            return [Average(fading=fading, weight=weight) for _ in range(NUM_OFFER_CLASSES)]

        # rounds of the draft model by class of the text offer: accepted tokens, and seconds beyond
        # those of a plain round, in steps
        self.gain, self.extra_steps = averages(), averages()
        # tokens and steps of all rounds: their ratio is the rate
        self.tokens, self.steps = (Average(fading=fading, weight=weight) for _ in range(2))
        # of the draft model's next token
        self.chance = Average(fading=fading, weight=weight)


class Experience:
    """What the requests so far have taught that ask the same of drafting: where each new one
    begins. How far a source can be believed they learn together with those of `other`."""

    def __init__(self, other: Experience | None = None) -> None:
        self.averages = Averages(fading=0.98, weight=4.0)
        # steps saved by having the draft model, and tokens, of rounds that could ask it
        self.saved, self.tokens = (Average(fading=0.99, weight=16.0) for _ in range(2))
        self.reply_tokens = Average(fading=0.9, weight=1.0)
        self.num_requests = 0
        self._tables: dict[tuple[str, bool], Reliability] = {} if other is None else other._tables

    def table(self, source: str, *, greedy: bool) -> Reliability:
        """Return a table for one request that begins where experience stands. Greedy and sampled
        requests have nothing to do with each other."""
        past = self._tables.setdefault((source, greedy), Reliability(fading=_PAST_FADING))
        return Reliability(past, weight=12.0)


@dataclass(slots=True)
class Plan:
    """What was decided for one request and one round."""

    view: SessionView
    state: RequestState
    budget: int
    num_tokens: int  # of the text when this was decided
    allowance: float  # steps by which its drafts may make the round longer
    offers: list[Proposal] = field(default_factory=list)  # of all drafters from text
    offer: Proposal = field(default_factory=Proposal.empty)  # the best of them
    chances: list[float] = field(default_factory=list)  # of its tokens
    alive: list[float] = field(default_factory=list)  # survivals of the proposal's tokens
    text_worth: float = 0.0
    text_rate: float = 1.0  # tokens a step of the text's offer alone
    may_ask_model: bool = False
    asks_model: bool = False
    proposal: Proposal = field(default_factory=Proposal.empty)
    first_pass_seconds: float = 0.0  # of the draft model, which reads what it missed
    draft_seconds: float = 0.0
    reason: str = ""
    is_over: bool = False  # its round was learned from


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """What a pass cost beyond a plain one, and whose share of it that was.

    seconds        of a round by width
    num_drafted    draft tokens of all sessions
    draft_seconds  of the draft model, for all of them
    """

    seconds: Sequence[float]
    num_sessions: int
    num_drafted: int
    draft_seconds: float

    @property
    def step(self) -> float:
        """Return the seconds of a plain round of these sessions."""
        return self.seconds[min(self.num_sessions, len(self.seconds) - 1)]

    @property
    def extra_steps(self) -> float:
        """Return the steps the round took longer than a plain one, to every session in it."""
        return (self._row_seconds + self.draft_seconds) / self.step

    def extra_steps_of(self, num_drafted: int, draft_seconds: float) -> float:
        """Return the share of one session in that, by its draft tokens and draft passes."""
        share = num_drafted / self.num_drafted if self.num_drafted else 0.0
        return (share * self._row_seconds + draft_seconds) / self.step

    @property
    def _row_seconds(self) -> float:
        width = self.num_sessions + self.num_drafted
        return self.seconds[min(width, len(self.seconds) - 1)] - self.step


class RequestState:
    """One request while it runs."""

    def __init__(self, experience: Experience, *, greedy: bool) -> None:
        self.experience = experience
        self.averages = Averages(fading=0.9, weight=4.0)
        self.guard = LossGuard()
        self.plan: Plan | None = None
        self.reads_model = False
        self.rounds_without_model = 0
        self.backoff = FIRST_BACKOFF
        self.probes_left = 0
        self.rounds_since_step = 0
        self._greedy = greedy
        self._tables: dict[str, Reliability] = {}

    def table(self, source: str) -> Reliability:
        """Return how far a source can be believed in this request."""
        if source not in self._tables:
            self._tables[source] = self.experience.table(source, greedy=self._greedy)
        return self._tables[source]

    def rate(self) -> float:
        """Return tokens in the time of a plain round; never less than plain decoding makes."""
        own, past = self.averages, self.experience.averages
        tokens = own.tokens.value(past.tokens.value(1.3))
        return max(1.0, tokens / own.steps.value(past.steps.value(1.0)))

    def score_offers(self, tokens: Sequence[int]) -> None:
        """Count the last text offers against what the reply became, whoever drafted it."""
        if self.plan is None:
            return
        for offer in self.plan.offers:
            table = self.table(offer.source)
            for drafted, actual, estimate in zip(
                offer.token_ids, tokens[self.plan.num_tokens :], estimates(offer), strict=False
            ):
                table.record(estimate, drafted == actual)
                if drafted != actual:
                    break


def estimates(proposal: Proposal) -> Sequence[float]:
    """Return a drafter's estimates, or what stands for those of one without opinions."""
    return proposal.probabilities or (UNKNOWN,) * len(proposal.token_ids)
