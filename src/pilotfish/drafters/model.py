"""Drafts from a smaller language model, with its own cache for each request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pilotfish.errors import BackendError
from pilotfish.prefixes import PrefixPool
from pilotfish.protocols import Cache, StopRule, TargetModel
from pilotfish.sampling import (
    Sampler,
    Stream,
    TokenHistory,
    draw,
    greedy_choice,
    legal_row,
)
from pilotfish.types import (
    BoolArray,
    Distribution,
    FloatArray,
    IdArray,
    Proposal,
    Segment,
    SessionView,
)

# tokens are read in passes this long: they cost no more a token than long ones, and other requests
# do not wait long for their turn
_CATCH_UP_CHUNK_TOKENS = 64


class PartialHead(Protocol):
    """Says which tokens a draft model has rows for, where those are not all of them."""

    @property
    def ids(self) -> IdArray:
        """Return the token of each entry of a row of logits, in any order."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add entries for tokens that have none, at the end of a row, while there is room."""


@dataclass(slots=True)
class _Request:
    """What the draft model has read of one request: `read` mirrors the cache, token by token.

    `history` is the text as the last round saw it, with the drafts tried after it. `entries` are
    those added to a partial head that belong to tokens of this request.
    """

    request_id: int
    cache: Cache
    history: TokenHistory
    num_text_tokens: int
    read: list[int] = field(default_factory=list)
    num_settled: int = 0
    entries: set[int] = field(default_factory=set)

    def follow(self, tokens: Sequence[int]) -> None:
        """Let `history` be the text `tokens`, which has only grown since the last time."""
        self.history.truncate(self.num_text_tokens)
        self.history.extend(tokens[self.num_text_tokens :])
        self.num_text_tokens = len(tokens)

    def unread(self, tokens: Sequence[int]) -> Sequence[int]:
        """Cut the cache to what it shares with `tokens`, leaving at least the last one to read,
        and return the tokens that are missing."""
        # what was in `tokens` the last time cannot have changed: only drafts are ever rejected
        common = min(self.num_settled, len(self.read))
        limit = min(len(self.read), len(tokens) - 1)
        while common < limit and self.read[common] == tokens[common]:
            common += 1
        common = min(common, limit)
        self.num_settled = len(tokens)
        self.cache.truncate(common)
        del self.read[common:]
        return tokens[common:]


@dataclass(slots=True)
class _Draft:
    """One session's proposal while it grows."""

    view: SessionView
    request: _Request
    budget: int
    rule: StopRule
    sampler: Sampler
    unread: Sequence[int]
    token_ids: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    laws: list[Distribution] = field(default_factory=list)
    failure: str = ""

    @property
    def proposal(self) -> Proposal:
        laws = tuple(self.laws) if self.view.needs_laws else None
        chances = tuple(self.chances[: len(self.token_ids)])
        return Proposal(tuple(self.token_ids), "model", laws, chances, failure=self.failure)


class SurvivalRule:
    """Drafts on while the product of the chances is at least `min_survival`."""

    def __init__(self, min_survival: float) -> None:
        self._min_survival = min_survival

    def keeps(self, chances: Sequence[float]) -> bool:
        """Return whether all tokens up to the newest are likely enough."""
        return math.prod(chances) >= self._min_survival

    def goes_on(self, chances: Sequence[float]) -> bool:
        """Return True: the next row decides."""
        return True


class ModelDrafter:
    """Proposes what a draft model would say next, token by token.

    Under the match rule the draft is chosen with the request's own settings and noise, so that
    draft and target agree as often as their laws allow. Under the token rule each token is drawn
    from its law with a stream of its own, and the law is handed on. Drafting stops *before* a
    token is drawn when the rule says so, by default when the product of the largest probabilities
    so far falls below `min_survival`: functions of the prefix alone, so no drawn token is ever
    dropped.

    `prefixes` hands out the caches, with what earlier requests have read of the same text.

    A model with a partial `head` drafts from the tokens it began with and those of the request's
    own text, which are added to the head; laws are over those.
    """

    def __init__(
        self,
        model: TargetModel,
        *,
        vocab_size: int,
        min_survival: float = 0.2,
        head: PartialHead | None = None,
        prefixes: PrefixPool | None = None,
    ) -> None:
        self._model = model
        self._prefixes = prefixes or PrefixPool(model)
        self._head = head
        self._vocab_size = min(vocab_size, model.vocab_size)
        self._rule = SurvivalRule(min_survival)
        self._requests: dict[int, _Request] = {}
        self._first_ids = np.empty(0, dtype=np.int64) if head is None else head.ids.copy()
        # tokens that only the draft has; what is added later comes from the target
        self._foreign = np.flatnonzero(self._first_ids >= self._vocab_size)
        self._added: dict[int, int] = {}

    def prepare(self, view: SessionView) -> bool:
        """Read a pass's worth of the prompt, all but its last token in the end."""
        if len(view.tokens) > self._model.context_size or not view.allows("model"):
            return False  # nothing can or may be drafted after it
        request = self._request(view)
        unread = request.unread(view.tokens)[:-1]
        chunk = unread[:_CATCH_UP_CHUNK_TOKENS]
        if self._head is not None:
            self._extend_head(self._head, request, chunk)
        self._read_chunks(request, chunk)
        return len(chunk) < len(unread)

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one proposal per view; sessions draft together, one token a pass."""
        return self.propose_guided(views, budgets, [self._rule] * len(views))

    def propose_guided(
        self, views: Sequence[SessionView], budgets: Sequence[int], rules: Sequence[StopRule]
    ) -> list[Proposal]:
        """Return one proposal per view as long as its rule says; see `GuidedDrafter`."""
        drafts = [
            self._begin(view, budget, rule)
            for view, budget, rule in zip(views, budgets, rules, strict=True)
        ]
        active = [draft for draft in drafts if draft is not None]
        while active:
            rows = self._read([(draft.request, draft.unread) for draft in active])
            active = [d for d, row in zip(active, rows, strict=True) if self._extend(d, row)]
        return [Proposal.empty() if draft is None else draft.proposal for draft in drafts]

    def num_unread(self, view: SessionView) -> int | None:
        """Return how many tokens the draft model has to read before it can draft; an estimate
        where rejected drafts are still in its cache. None where its context has no room."""
        if len(view.tokens) > self._model.context_size:
            return None
        request = self._requests.get(view.request_id)
        if request is None:
            return len(view.tokens) - self._prefixes.num_known(view.tokens)
        return max(1, len(view.tokens) - len(request.read))

    def forget(self, request_id: int) -> None:
        """Give the request's cache back: it is kept for requests that begin alike, or closed."""
        # in this order: broken off in between, it can be repeated
        self._prefixes.end(request_id)
        self._requests.pop(request_id, None)

    def clear(self) -> None:
        """Give up what is kept of texts of ended requests."""
        self._prefixes.clear()

    def _begin(self, view: SessionView, budget: int, rule: StopRule) -> _Draft | None:
        # drafting k tokens evaluates positions up to len(tokens) + k - 2 of the draft's context
        budget = min(budget, self._model.context_size + 1 - len(view.tokens))
        if budget <= 0 or not view.allows("model"):
            return None
        request = self._request(view)
        # rows come to it without what the view's constraint rules out
        sampler = Sampler(view.settings, view.seed, view.end_ids)
        request.follow(view.tokens)
        unread = request.unread(view.tokens)
        if self._head is not None:
            self._extend_head(self._head, request, unread)
        return _Draft(view, request, budget, rule, sampler, unread)

    def _request(self, view: SessionView) -> _Request:
        request = self._requests.get(view.request_id)
        if request is None:
            cache = self._prefixes.begin(view.tokens)
            request = _Request(
                view.request_id,
                cache,
                TokenHistory(view.tokens, num_prompt_tokens=view.num_prompt_tokens),
                len(view.tokens),
                read=list(view.tokens[: len(cache)]),
            )
            self._requests[view.request_id] = request
            num_prompt_tokens = view.num_prompt_tokens
            self._prefixes.watch(
                view.request_id, cache, request.read, num_prompt_tokens=num_prompt_tokens
            )
            if self._head is not None:
                self._extend_head(self._head, request, request.read)
        return request

    def _extend_head(self, head: PartialHead, request: _Request, tokens: Sequence[int]) -> None:
        """Give the tokens of a request entries where they have none, and note which are its own."""
        head.extend(tokens)
        num_known = len(self._first_ids) + len(self._added)
        for entry, token in enumerate(head.ids[num_known:].tolist(), start=num_known):
            self._added[token] = entry
        added = self._added
        request.entries.update(added[token] for token in tokens if token in added)

    def _read(self, requests: Sequence[tuple[_Request, Sequence[int]]]) -> list[FloatArray]:
        """Evaluate the unread tokens of each request and return its last row [vocab or head]."""
        segments = []
        for request, unread in requests:
            settled = max(0, len(unread) - _CATCH_UP_CHUNK_TOKENS)
            self._read_chunks(request, unread[:settled])
            unread = unread[settled:]
            segments.append(Segment(request.cache, unread, first_row=len(unread) - 1))
        rows = self._forward([request for request, _ in requests], segments)
        if self._head is None:
            return [row[0, : self._vocab_size] for row in rows]
        pairs = zip(rows, requests, strict=True)
        return [self._own_entries(row[0], request) for row, (request, _) in pairs]

    def _read_chunks(self, request: _Request, tokens: Sequence[int]) -> None:
        """Read tokens of which no row is wanted."""
        for first in range(0, len(tokens), _CATCH_UP_CHUNK_TOKENS):
            chunk = tokens[first : first + _CATCH_UP_CHUNK_TOKENS]
            self._forward([request], [Segment(request.cache, chunk, first_row=len(chunk))])

    def _forward(
        self, requests: Sequence[_Request], segments: Sequence[Segment]
    ) -> list[FloatArray]:
        with self._prefixes.changing([request.request_id for request in requests]):
            rows = self._model.forward(segments)
            for request, segment in zip(requests, segments, strict=True):
                request.read.extend(segment.token_ids)
        return rows

    def _own_entries(self, row: FloatArray, request: _Request) -> FloatArray:
        """Return the row with tokens ruled out that the target lacks or other requests added."""
        if not len(self._foreign) and len(request.entries) == len(self._added):
            return row
        own = row.copy()
        own[len(self._first_ids) :] = -np.inf
        entries = list(request.entries)
        own[entries] = row[entries]
        own[self._foreign] = -np.inf
        return own

    def _extend(self, draft: _Draft, row: FloatArray) -> bool:
        """Draw the next token from the row if it is worth it; return whether to go on."""
        view, history = draft.view, draft.request.history
        try:
            if view.constraint is not None:
                row = self._legal(row, view.constraint.allowed(history.output_ids))
                if row.max() == -np.inf:  # a part of a head may lack all that may follow
                    return False
            draft.chances.append(largest_probability(row))
            if not draft.rule.keeps(draft.chances):
                return False
            token = self._choose(draft, row, history)
        except BackendError as error:  # a broken row ends this round's draft, not the request
            draft.failure = f"the draft model: {error}"
            self._prefixes.distrust(view.request_id)
            return False
        draft.token_ids.append(token)
        history.extend([token])
        draft.unread = [token]
        if len(draft.token_ids) >= draft.budget or token in view.end_ids:
            return False
        return draft.rule.goes_on(draft.chances)

    def _legal(self, row: FloatArray, allowed: BoolArray) -> FloatArray:
        return legal_row(row, allowed, None if self._head is None else self._head.ids)

    def _choose(self, draft: _Draft, row: FloatArray, history: TokenHistory) -> int:
        ids = None if self._head is None else self._head.ids
        if not draft.view.needs_laws:
            return draft.sampler.choose(row, history, ids)
        law = draft.sampler.law(row, history, ids)
        draft.laws.append(law)
        return draw(law, draft.sampler.key(len(history), Stream.DRAFT, draft.view.round_index))


def largest_probability(row: FloatArray) -> float:
    """Return the largest softmax probability of a row [vocab] of logits; BackendError on NaN."""
    largest = row[greedy_choice(row)]
    return 1.0 / float(np.exp(row - largest).sum(dtype=np.float64))
