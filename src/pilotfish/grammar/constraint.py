"""What a reply may be, asked at any place of it: the matcher is moved there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pilotfish.errors import BackendError
from pilotfish.types import BoolArray, IdArray, common_length

_FIRST_ROOM_TOKENS = 256


class JsonConstraint:
    """A `Constraint` by a matcher of llguidance, for one reply.

    The matcher stands where it was last asked. Going on from there costs the new tokens, going
    back costs nothing to speak of: rejected drafts leave no trace.
    """

    def __init__(self, matcher: Any, *, vocab_size: int, end_ids: frozenset[int]) -> None:
        self._fresh = matcher
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._only_ends = np.zeros(vocab_size, dtype=np.bool_)
        self._only_ends[list(end_ids)] = True
        # what the matcher has taken: end tokens are not among it
        self._taken: IdArray = np.empty(_FIRST_ROOM_TOKENS, dtype=np.int64)
        self._num_taken = 0
        self._matcher = matcher.deep_copy()

    def allowed(self, output_ids: Sequence[int] | IdArray) -> BoolArray:
        """Return which tokens may follow, [vocab_size]: end tokens only where the reply may end,
        and nothing but them after one. Raises BackendError where none may."""
        if self._move_to(output_ids):
            return self._only_ends
        bits = np.frombuffer(self._checked(self._matcher.compute_bitmask()), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if not allowed.any():
            raise BackendError("no token of this model goes on as its json_schema asks")
        return allowed

    def num_legal(self, output_ids: Sequence[int] | IdArray, draft_ids: Sequence[int]) -> int:
        """Return how many of the draft tokens may follow, one after the other; an end token is the
        last that may."""
        if self._move_to(output_ids):
            return 0
        num_inner = self._num_before_end(draft_ids)
        inner = list(draft_ids[:num_inner])
        num_legal: int = self._checked(self._matcher.validate_tokens(inner))
        if num_legal < num_inner or num_inner == len(draft_ids):
            return num_legal
        self._take(inner)
        return num_inner + bool(self._checked(self._matcher.is_accepting()))

    def forced(self, output_ids: Sequence[int] | IdArray) -> tuple[int, ...]:
        """Return the tokens of the text that must follow, as the model would cut it."""
        if self._move_to(output_ids):
            return ()
        return tuple(self._checked(self._matcher.compute_ff_tokens()))

    def _num_before_end(self, token_ids: Sequence[int]) -> int:
        ends = (place for place, token in enumerate(token_ids) if token in self._end_ids)
        return next(ends, len(token_ids))

    def _move_to(self, output_ids: Sequence[int] | IdArray) -> bool:
        """Let the matcher have taken exactly these tokens, up to an end token; return whether there
        is one."""
        wanted = np.asarray(output_ids, dtype=np.int64)
        num_shared = common_length(self._taken[: self._num_taken], wanted)
        if num_shared < self._num_taken:
            self._matcher.rollback(self._num_taken - num_shared)
            self._num_taken = num_shared
        missing = wanted[num_shared:].tolist()
        num_inner = self._num_before_end(missing)
        self._take(missing[:num_inner])
        return num_inner < len(missing)

    def _take(self, token_ids: list[int]) -> None:
        if not token_ids:
            return
        num_taken = self._num_taken + len(token_ids)
        if num_taken > len(self._taken):
            self._taken = np.concatenate([self._taken, np.empty(num_taken, dtype=np.int64)])
        self._taken[self._num_taken : num_taken] = token_ids
        self._num_taken += self._checked(self._matcher.try_consume_tokens(token_ids))
        if self._num_taken < num_taken:
            place, token = self._num_taken, int(self._taken[self._num_taken])
            raise BackendError(f"token {token} at {place} of the reply is not what its schema asks")

    def _checked(self, answer: Any) -> Any:
        """Return a matcher's answer, which is worth nothing once the matcher has failed."""
        if not self._matcher.is_error():
            return answer
        reason = one_line(self._matcher.get_error())
        # a matcher that failed stays so: whoever asks elsewhere must not suffer
        self._matcher = self._fresh.deep_copy()
        self._num_taken = 0
        raise BackendError(f"the reply cannot go on as its json_schema asks: {reason}")


def one_line(reason: str) -> str:
    """Return llguidance's reason without what it appends for its authors."""
    return " ".join(reason.partition("\n<")[0].split())[:300]
