"""Suffix decoding: the most frequent continuation of the longest match, while it is likely enough.

After SuffixDecoding (Oliaro et al. 2024), on suffix automata instead of tries.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.drafters.suffix_automaton import Continuation, Match, SuffixAutomaton
from pilotfish.errors import ConfigError
from pilotfish.types import Proposal, SessionView

# how many of the last indexed tokens must still be where they were
_CHECKED_TOKENS = 8
# a request looks for at most this many of its last tokens when the store has changed
_RESUMED_TOKENS = 32


class _Store:
    """The replies of the past, at most `max_tokens` tokens of them, in two generations.

    When a reply no longer fits the young generation's half, that one becomes the old one and the
    old one goes: nothing is ever rebuilt.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_generation_tokens = max_tokens // 2
        self.generations: list[SuffixAutomaton] = []
        self.version = 0  # changes with every change of the store

    def clear(self) -> None:
        """Empty the store."""
        self.generations = []
        self.version += 1

    def add(self, reply: Sequence[int]) -> None:
        """Add one reply, cut to one generation."""
        kept = reply[: self._max_generation_tokens]
        if not kept:
            return
        young = self.generations[-1] if self.generations else None
        if young is None or young.num_tokens + len(kept) > self._max_generation_tokens:
            young = SuffixAutomaton()
            self.generations = [*self.generations[-1:], young]
        young.extend(kept)
        young.end_text()
        self.version += 1


class _Request:
    """One request's own text, read so far, and where the store matches its end."""

    def __init__(self, view: SessionView) -> None:
        self.num_prompt_tokens = view.num_prompt_tokens
        self.tokens = view.tokens
        self.text = SuffixAutomaton()
        self._tail: list[int] = []
        self._store_version = -1
        self._num_matched = 0
        self._matches: list[Match] = []

    def fits(self, view: SessionView) -> bool:
        """Return whether the view continues the text that was read."""
        read = self.text.num_tokens
        return (
            self.num_prompt_tokens == view.num_prompt_tokens
            and read <= len(view.tokens)
            and self._tail == list(view.tokens[max(0, read - _CHECKED_TOKENS) : read])
        )

    def read(self) -> None:
        """Read what was added to the text."""
        self.text.extend(self.tokens[self.text.num_tokens :])
        self._tail = list(self.tokens[-_CHECKED_TOKENS:])

    def store_matches(self, store: _Store) -> list[Match]:
        """Return the longest match of the text's end in each generation of the store."""
        start = self._num_matched
        if self._store_version != store.version:
            # states may have been split since: find the place again
            start = max(0, len(self.tokens) - _RESUMED_TOKENS)
            self._matches = [Match()] * len(store.generations)
            self._store_version = store.version
        new = self.tokens[start:]
        pairs = zip(store.generations, self._matches, strict=True)
        self._matches = [past.advance(match, new) for past, match in pairs]
        self._num_matched = len(self.tokens)
        return self._matches


class SuffixDrafter:
    """Propose what most often followed the longest match of the text's end.

    Matches are looked for in the request's own text and in the store, the replies of requests
    that ended; the continuation with the most expected right tokens wins. `min_match` is the
    shortest match that counts; a proposal ends where its estimated probability of being right so
    far falls below `min_probability`: higher where a wide pass of the target is dear.

    The store holds at most `store_tokens` tokens (about half a kilobyte each) and serves all
    requests alike; 0 turns it off. `clear` empties it: a benchmark that repeats its prompts would
    otherwise measure the store.
    """

    def __init__(
        self, *, min_match: int = 1, min_probability: float = 0.4, store_tokens: int = 65_536
    ) -> None:
        if min_match < 1:
            raise ConfigError(f"min_match must be 1 or more, got {min_match}")
        if not 0 <= min_probability <= 1:
            raise ConfigError(f"min_probability must be from 0 to 1, got {min_probability}")
        if store_tokens < 0:
            raise ConfigError(f"store_tokens must be 0 or more, got {store_tokens}")
        self._min_match = min_match
        self._min_probability = min_probability
        self._store = _Store(store_tokens)
        self._requests: dict[int, _Request] = {}

    def prepare(self, view: SessionView) -> bool:
        """Read the prompt, all at once."""
        if view.allows("suffix"):
            self._request(view).read()
        return False

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one proposal per view, of at most `budgets[i]` tokens each."""
        return [self._propose(v, b) for v, b in zip(views, budgets, strict=True)]

    def forget(self, request_id: int) -> None:
        """Drop the text of a request that ended; its reply goes to the store."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._store.add(request.tokens[request.num_prompt_tokens :])

    def clear(self) -> None:
        """Empty the store."""
        self._store.clear()

    def _propose(self, view: SessionView, budget: int) -> Proposal:
        if not view.allows("suffix"):
            return Proposal.empty()
        request = self._request(view)
        if budget <= 0:
            return Proposal.empty()
        best = self._continuation(request, budget)
        token_ids = _before_end(best.token_ids, view.end_ids)
        if not token_ids:
            return Proposal.empty()
        pairs = zip((1.0, *best.survivals), best.survivals[: len(token_ids)], strict=False)
        chances = tuple(after / before for before, after in pairs)
        return Proposal(token_ids, "suffix", probabilities=chances)

    def _request(self, view: SessionView) -> _Request:
        request = self._requests.get(view.request_id)
        if request is None or not request.fits(view):
            request = self._requests[view.request_id] = _Request(view)
        request.tokens = view.tokens
        return request

    def _continuation(self, request: _Request, budget: int) -> Continuation:
        request.read()
        sources = [request.text, *self._store.generations]
        matches = [request.text.longest_repeat(), *request.store_matches(self._store)]
        continuations = [
            source.continuation(
                match,
                max_tokens=budget,
                min_match=self._min_match,
                min_probability=self._min_probability,
            )
            for source, match in zip(sources, matches, strict=True)
        ]
        return max(continuations, key=lambda c: c.score)


def _before_end(token_ids: tuple[int, ...], end_ids: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens before the first end token: as the bonus token it comes for nothing."""
    if end_ids.isdisjoint(token_ids):
        return token_ids
    return token_ids[: next(i for i, token in enumerate(token_ids) if token in end_ids)]
