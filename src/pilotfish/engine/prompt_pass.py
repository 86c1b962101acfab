"""One pass over a part of a prompt, with its rows where its log-probabilities are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.engine.session import Session
from pilotfish.protocols import TargetModel
from pilotfish.types import Segment

# rows that are in memory at once: with a large vocabulary one has 600 kB
SCORED_PASS_TOKENS = 32


def read_pass(
    session: Session, chunk: Sequence[int], target: TargetModel, *, any_cut: bool
) -> None:
    """Read a part of the session's prompt.

    Rows, where they are wanted, are made a few at a time, which bounds their memory. Unless the
    bits of `any_cut` are the same, the part is given up then and read as in any request.
    """
    begin = len(session.cache)
    if session.settings.prompt_logprobs is not None:
        _score(session, chunk, target)
        if not any_cut:
            session.cache.truncate(begin)
    if len(session.cache) == begin:
        target.forward([Segment(session.cache, chunk, first_row=len(chunk))])


def _score(session: Session, chunk: Sequence[int], target: TargetModel) -> None:
    begin, width = len(session.cache), min(SCORED_PASS_TOKENS, target.max_width)
    for start in range(0, len(chunk), width):
        part = chunk[start : start + width]
        (rows,) = target.forward([Segment(session.cache, part)])
        session.note_prompt(rows, begin + start)
