"""What the engine asks of its parts. Implementations live elsewhere and are injected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pilotfish.types import (
    BoolArray,
    FloatArray,
    IdArray,
    Proposal,
    RoundRecord,
    Segment,
    SessionView,
)


class Cache(Protocol):
    """The keys and values of one sequence inside a model."""

    def __len__(self) -> int:
        """Return how many tokens the model has evaluated for this sequence."""

    def truncate(self, length: int) -> None:
        """Cut the sequence to `length` tokens; an absolute number, never a count to go back."""

    def prefix(self, length: int) -> Cache:
        """Return a new cache that holds the first `length` tokens and takes a place of its own;
        raises BackendError when all places are taken."""

    def close(self) -> None:
        """Give the sequence's place back; the cache must not be used afterwards."""


class TargetModel(Protocol):
    """A language model that scores several new tokens of several sequences in one pass."""

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens: the length of every row of logits."""

    @property
    def context_size(self) -> int:
        """Return the largest number of tokens one sequence may hold."""

    @property
    def max_width(self) -> int:
        """Return the largest number of rows one session may ask for in one pass."""

    def new_cache(self) -> Cache:
        """Return an empty cache; raises BackendError when all places are taken."""

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        """Evaluate the segments and return float32 logits [num_rows, vocab_size] for each.

        The arrays may be views that the next `forward` of the same model overwrites.
        """


class Constraint(Protocol):
    """What a reply may be: a grammar, say. Every answer is a function of the reply's tokens so far,
    so that rejected drafts leave no trace. `output_ids` are those tokens, drafts before the row in
    question included."""

    def allowed(self, output_ids: Sequence[int] | IdArray) -> BoolArray:
        """Return which tokens may follow, [vocab_size]; never none of them. The array may be a view
        that the next call overwrites."""

    def num_legal(self, output_ids: Sequence[int] | IdArray, draft_ids: Sequence[int]) -> int:
        """Return how many of the draft tokens may follow, one after the other."""

    def forced(self, output_ids: Sequence[int] | IdArray) -> tuple[int, ...]:
        """Return the tokens of the text that must follow, as far as there is no choice; often none.
        The same text may be cut into tokens in other ways: these are the likely ones."""


class Drafter(Protocol):
    """Anything that proposes tokens. A request may name who drafts for it (`view.allows`)."""

    def prepare(self, view: SessionView) -> bool:
        """Read a part of the prompt of a request that begins; return whether more is left, and is
        to be read by calling again. Counted as prompt time, not as drafting."""

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        """Return one proposal per view, of at most `budgets[i]` tokens each."""

    def forget(self, request_id: int) -> None:
        """Drop what is kept for a request that ended."""


class StopRule(Protocol):
    """Decides, while a draft model drafts for one request, how far it goes.

    `chances` holds the largest probability of each row of the draft so far: functions of the
    prefix alone, so that no drawn token is ever dropped for what it is.
    """

    def keeps(self, chances: Sequence[float]) -> bool:
        """Return whether the token of the newest row is worth a row of the target's pass."""

    def goes_on(self, chances: Sequence[float]) -> bool:
        """Return whether one more pass of the draft model is worth its time."""


class GuidedDrafter(Drafter, Protocol):
    """A drafter that pays for every token, and takes advice."""

    def num_unread(self, view: SessionView) -> int | None:
        """Return how many tokens of the request it has to read before it can draft; None where
        it no longer can."""

    def propose_guided(
        self, views: Sequence[SessionView], budgets: Sequence[int], rules: Sequence[StopRule]
    ) -> list[Proposal]:
        """Return one proposal per view, as long as its budget and its rule say."""


class Controller(Protocol):
    """Decides how many tokens each session is worth drafting."""

    def draft_budgets(self, views: Sequence[SessionView]) -> list[int]:
        """Return the draft budget of each session; 0 is plain decoding."""

    def observe(self, records: Sequence[RoundRecord]) -> None:
        """Learn from the rounds that just ended."""
