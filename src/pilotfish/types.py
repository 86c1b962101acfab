"""The facts that parts of the engine hand to each other: plain data, no behaviour beyond it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pilotfish.errors import ConfigError

if TYPE_CHECKING:
    from pilotfish.protocols import Cache, Constraint

FloatArray: TypeAlias = NDArray[np.floating[Any]]
IdArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


class StopReason(StrEnum):
    """Why a session ended; the values are those of the OpenAI API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


def require(condition: bool, name: str, value: object, wanted: str) -> None:
    """Raise ConfigError naming the setting unless the condition holds."""
    if not condition:
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")


def require_number(name: str, value: object, wanted: str, *, whole: bool = False) -> None:
    """Raise ConfigError unless the value is a number (an integer if `whole`); NaN is none."""
    kinds = int if whole else (int, float)
    number = isinstance(value, kinds) and not isinstance(value, bool) and value == value
    require(number, name, value, wanted)


def require_in_range(
    name: str,
    value: Any,
    wanted: str,
    *,
    low: float,
    high: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise ConfigError unless the value is a number, `low` or more and below `high`."""
    require_number(name, value, wanted, whole=whole)
    require(low <= value < high, name, value, wanted)


def common_length(one: IdArray, other: IdArray) -> int:
    """Return at how many tokens from the beginning two sequences [n], [m] are the same."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How one token is chosen from one row of logits.

    The order is fixed: penalties, logit bias, minimum and banned tokens, then temperature, top-k,
    top-p, min-p. Temperature 0 is the largest logit, the lowest id among equals. Presence and
    frequency penalties count generated tokens; the repetition penalty counts the prompt too.
    `top_k` 0, `top_p` 1 and `min_p` 0 are off. `logprobs` and `prompt_logprobs` are how many of the
    likeliest tokens are told beside each token of the reply and of the prompt; None tells nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Return whether the largest logit is taken; so small a temperature leaves nothing else."""
        return self.temperature < 1e-5

    def __post_init__(self) -> None:
        self._check("temperature", 0, math.inf, "a finite number, 0 or more")
        self._check("top_k", 0, math.inf, "a whole number, 0 (off) or more", whole=True)
        require_number("top_p", self.top_p, wanted := "above 0 and at most 1")
        require(0 < self.top_p <= 1, "top_p", self.top_p, wanted)
        require_number("min_p", self.min_p, "from 0 to 1")
        require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        # logits are multiplied or divided by it, and must stay finite
        self._check("repetition_penalty", 1e-3, 1e3, "from 0.001 to below 1000")
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(name, -1e9, 1e9, "a finite number")
        biases = self.logit_bias
        require(isinstance(biases, Mapping), "logit_bias", biases, "a mapping of ids to numbers")
        for token, bias in biases.items():
            require_number("logit_bias token id", token, "a token id", whole=True)
            require(token >= 0, "logit_bias token id", token, "a token id")
            require_number("logit_bias value", bias, "a number")
            require(bias < math.inf, "logit_bias value", bias, "below infinity")
        banned = self.banned_tokens
        require(isinstance(banned, Sequence), "banned_tokens", banned, "a list of token ids")
        for token in banned:
            require_number("banned_tokens", token, "token ids", whole=True)
            require(token >= 0, "banned_tokens", token, "token ids")
        self._check("min_tokens", 0, math.inf, "a whole number, 0 or more", whole=True)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._check(name, 0, 101, "a whole number from 0 to 100", whole=True)

    def _check(
        self, name: str, low: float, high: float, wanted: str, *, whole: bool = False
    ) -> None:
        require_in_range(name, getattr(self, name), wanted, low=low, high=high, whole=whole)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A probability law over token ids.

    ids    [n] int64, ascending, no repeats
    probs  [n] float64, sums to 1; ids not listed have probability 0
    """

    ids: IdArray
    probs: NDArray[np.float64]

    def probability(self, token_id: int) -> float:
        """Return the probability of one id, 0 when it is not listed."""
        index = int(np.searchsorted(self.ids, token_id))
        if index < len(self.ids) and self.ids[index] == token_id:
            return float(self.probs[index])
        return 0.0

    @classmethod
    def one_hot(cls, token_id: int) -> Distribution:
        """Return the law that always gives `token_id`."""
        return cls(np.array([token_id], dtype=np.int64), np.ones(1))

    @classmethod
    def dense(cls, probs: FloatArray) -> Distribution:
        """Return the law over ids 0..len(probs)-1; `probs` [n] must sum to 1."""
        return cls(np.arange(len(probs), dtype=np.int64), np.asarray(probs, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens for one session and one round, with the laws they were drawn from.

    `distributions` is None for a deterministic drafter (each token then has probability 1);
    otherwise entry i is the exact law token i was drawn from.

    probabilities  what the drafter expects: entry i is its estimate that token i is accepted once
                   those before it are; None where it has no opinion
    reason         why this was proposed, or nothing; for the record
    plain_seconds  what a round of the same sessions without drafts is expected to take; None where
                   costs are not known
    failure        what a drafter failed of, so that there are fewer drafts, or none; else nothing
    """

    token_ids: tuple[int, ...] = ()
    source: str = "none"
    distributions: tuple[Distribution, ...] | None = None
    probabilities: tuple[float, ...] | None = None
    reason: str = ""
    plain_seconds: float | None = None
    failure: str = ""

    @classmethod
    def empty(cls) -> Proposal:
        """Return the proposal of nothing; its round is plain decoding."""
        return cls()

    def truncated(self, num_tokens: int) -> Proposal:
        """Return the proposal cut to its first `num_tokens` tokens."""
        if num_tokens >= len(self.token_ids):
            return self
        laws, chances = self.distributions, self.probabilities
        return replace(
            self,
            token_ids=self.token_ids[:num_tokens],
            distributions=laws and laws[:num_tokens],
            probabilities=chances and chances[:num_tokens],
        )

    def legal_beginning(self, constraint: Constraint, output_ids: Sequence[int]) -> Proposal:
        """Return the proposal up to the first token that the constraint rules out after a reply of
        `output_ids`.

        A token that was drawn stays, to be rejected: dropped for what it is, it would bend the law
        of the token in its place.
        """
        if not self.token_ids:
            return self
        num_legal = constraint.num_legal(output_ids, self.token_ids)
        return self.truncated(num_legal + (self.distributions is not None))

    def law(self, index: int) -> Distribution:
        """Return the law draft token `index` was drawn from."""
        if self.distributions is None:
            return Distribution.one_hot(self.token_ids[index])
        return self.distributions[index]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification rule decided: the first `num_accepted` draft tokens stand, then
    `next_token` follows (the correction after a rejection, the bonus token otherwise)."""

    num_accepted: int
    next_token: int

    def tokens(self, proposal: Proposal) -> list[int]:
        """Return the tokens to emit, before clipping."""
        return [*proposal.token_ids[: self.num_accepted], self.next_token]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one emitted token and of the most likely ones.

    Taken from the target's own row: log-softmax of the logits *before* penalties, bias,
    temperature and filters, so they say what the model thought, not what the settings left of it.
    `top` is sorted, largest first, lowest id first among equals.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """One token of the reply: its id, who proposed it, and its log-probabilities when asked."""

    token_id: int
    origin: str
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens for one session's cache and the rows that are wanted.

    Logits are returned for `token_ids[first_row:]`; `first_row == len(token_ids)` wants none,
    as a prompt pass does.
    """

    cache: Cache
    token_ids: Sequence[int]
    first_row: int = 0

    @property
    def num_rows(self) -> int:
        """Return how many rows of logits are wanted."""
        return len(self.token_ids) - self.first_row


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWish:
    """What a request asks of drafting, within what the engine offers.

    drafter                 who may draft: "auto" is whoever is there, "none" nobody
    num_speculative_tokens  most draft tokens in a round; None is as many as pay
    prediction              token ids that the reply is expected to be like; none where nothing is
                            expected
    """

    drafter: str = "auto"
    num_speculative_tokens: int | None = None
    prediction: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(isinstance(self.drafter, str), "drafter", self.drafter, "a name")
        require(isinstance(self.prediction, tuple), "prediction", self.prediction, "token ids")
        number = self.num_speculative_tokens
        if number is not None:
            wanted = "a whole number, 0 (off) or more"
            require_in_range("num_speculative_tokens", number, wanted, low=0, whole=True)

    @property
    def is_off(self) -> bool:
        """Return whether nobody may draft."""
        return self.drafter == "none" or self.num_speculative_tokens == 0


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """JSON by a schema, between two fixed texts."""

    begin: str
    schema: Mapping[str, Any] | bool
    end: str


@dataclass(frozen=True, slots=True)
class StructuralTags:
    """What a reply must be: one of the tags, or several with `separator` between two of them where
    that is no None; or else JSON by the schema `otherwise`, where there is one."""

    tags: tuple[StructuralTag, ...]
    separator: str | None = None
    otherwise: Mapping[str, Any] | bool | None = None


@dataclass(frozen=True, slots=True)
class SessionView:
    """What a drafter or controller may know of a request. `tokens` is read-only: the prompt, then
    the reply so far; its last entry is the pending token."""

    request_id: int
    tokens: Sequence[int]
    num_prompt_tokens: int
    settings: SamplingSettings
    seed: int
    round_index: int
    end_ids: frozenset[int]
    needs_laws: bool = False
    num_tokens_left: int = 1 << 30
    wish: DraftWish = DraftWish()
    constraint: Constraint | None = None

    def allows(self, drafter: str) -> bool:
        """Return whether the request may have drafts of `drafter`."""
        return not self.wish.is_off and self.wish.drafter in ("auto", drafter)

    def legal(self, proposal: Proposal) -> Proposal:
        """Return a proposal as far as the request's constraint allows."""
        if self.constraint is None:
            return proposal
        return proposal.legal_beginning(self.constraint, self.tokens[self.num_prompt_tokens :])

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens the reply has so far."""
        return len(self.tokens) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """The facts of one round of one session; every metric is a function of these.

    Times are those of the whole pass, which the session may have shared with `num_sessions - 1`
    others: latency, not a share of cost. `reason` is why so many tokens were drafted, or none.
    `plain_seconds` are those of a round of the same sessions without drafts: measured where nobody
    drafted, else expected by the measured costs, or None where these are not known. `failure` is
    what a drafter failed of, in this round or before it for good, and which cost it drafts.
    """

    request_id: int
    source: str
    num_drafted: int
    num_accepted: int
    num_emitted: int
    num_sessions: int
    draft_seconds: float
    target_seconds: float
    round_seconds: float
    reason: str = ""
    plain_seconds: float | None = None
    failure: str = ""
