"""Drafts from the text that whoever asks expects the reply to be."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.drafters.prediction_alignment import Alignment
from pilotfish.errors import ConfigError
from pilotfish.types import Proposal, SessionView

# how many of the last tokens read must still be where they were
_CHECKED_TOKENS = 8


class _Request:
    """One request's reply, read so far, along its prediction."""

    def __init__(self, view: SessionView) -> None:
        self.predicted = view.wish.prediction
        self.num_prompt_tokens = view.num_prompt_tokens
        self.num_read = view.num_prompt_tokens
        self.tail: list[int] = []
        prompt = view.tokens[: view.num_prompt_tokens]
        self.alignment = Alignment(self.predicted, prompt)

    def fits(self, view: SessionView) -> bool:
        """Return whether the view continues the reply that was read."""
        return (
            self.predicted is view.wish.prediction
            and self.num_prompt_tokens == view.num_prompt_tokens
            and self.num_read <= len(view.tokens)
            and self.tail == _tail(view, self.num_read)
        )

    def read(self, view: SessionView) -> None:
        """Read what was added to the reply."""
        for token in view.tokens[self.num_read :]:
            self.alignment.read(token)
        self.num_read = len(view.tokens)
        self.tail = _tail(view, self.num_read)


class PredictionDrafter:
    """Propose what follows in the prediction that came with the request, from the place where the
    reply is; `prediction_alignment` says how that is found again after a difference.

    A proposal ends where the estimated probability of all its tokens falls below
    `min_probability`. Requests without a prediction have no proposals.
    """

    def __init__(self, *, min_probability: float = 0.1) -> None:
        if not 0 <= min_probability <= 1:
            raise ConfigError(f"min_probability must be from 0 to 1, got {min_probability}")
        self._min_probability = min_probability
        self._requests: dict[int, _Request] = {}

    def prepare(self, view: SessionView) -> bool:
        """Read the prediction, all at once."""
        if view.wish.prediction and view.allows("prediction"):
            self._request(view)
        return False

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one proposal per view, of at most `budgets[i]` tokens each."""
        return [self._propose(v, b) for v, b in zip(views, budgets, strict=True)]

    def forget(self, request_id: int) -> None:
        """Drop the prediction of a request that ended."""
        self._requests.pop(request_id, None)

    def _propose(self, view: SessionView, budget: int) -> Proposal:
        if budget <= 0 or not view.wish.prediction or not view.allows("prediction"):
            return Proposal.empty()
        request = self._request(view)
        request.read(view)
        token_ids, chances = request.alignment.draft(
            budget, end_ids=view.end_ids, min_probability=self._min_probability
        )
        if not token_ids:
            return Proposal.empty()
        proposal = Proposal(tuple(token_ids), "prediction", probabilities=tuple(chances))
        return view.legal(proposal)

    def _request(self, view: SessionView) -> _Request:
        request = self._requests.get(view.request_id)
        if request is None or not request.fits(view):
            request = self._requests[view.request_id] = _Request(view)
        return request


def _tail(view: SessionView, end: int) -> list[int]:
    return list(view.tokens[max(view.num_prompt_tokens, end - _CHECKED_TOKENS) : end])
