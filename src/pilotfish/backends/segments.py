"""What a pass may be asked for: the checks that every backend makes before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pilotfish.errors import BackendError
from pilotfish.types import Segment


def check_segments(
    segments: Sequence[Segment],
    *,
    check_cache: Callable[[object], None],
    context_size: int,
    num_ids: int,
) -> None:
    """Raise BackendError for segments that cannot be evaluated.

    check_cache    raises BackendError for a cache that is closed or of another model
    context_size   tokens one sequence may hold
    num_ids        token ids go from 0 to this, exclusive
    """
    taken = set()
    for segment in segments:
        cache, token_ids = segment.cache, segment.token_ids
        check_cache(cache)
        if not 0 <= segment.first_row <= len(token_ids):
            raise BackendError(f"first_row {segment.first_row} is outside the segment")
        if len(cache) + len(token_ids) > context_size:
            raise BackendError(
                f"{len(cache)} + {len(token_ids)} tokens exceed the context of {context_size}"
            )
        if len(token_ids) and not 0 <= min(token_ids) <= max(token_ids) < num_ids:
            raise BackendError(
                f"token ids must be from 0 to {num_ids - 1}, got {min(token_ids)} to "
                f"{max(token_ids)}"
            )
        taken.add(id(cache))
    if len(taken) < len(segments):
        raise BackendError("one cache appears twice in a pass")


def check_prefix(length: int, num_tokens: int) -> None:
    """Raise BackendError for a length a cache of `num_tokens` tokens cannot be copied up to."""
    if not 0 <= length <= num_tokens:
        raise BackendError(f"cannot copy {length} tokens of a cache of {num_tokens}")
