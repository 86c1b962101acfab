"""Rows of a prompt, for its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.engine.session import Session
from pilotfish.protocols import TargetModel
from pilotfish.types import Segment

# rows that are in memory at once: with a large vocabulary one has 600 kB
SCORED_PASS_TOKENS = 32


def score_prompt(
    session: Session, chunk: Sequence[int], target: TargetModel, *, keeps: bool
) -> None:
    """Read a part of the prompt with all its rows, few at a time, which bounds their memory.

    `keeps` says whether the bits of what was read do not depend on the cut. Where they do, the part
    is given up again, to be read as in any request.
    """
    begin, width = len(session.cache), min(SCORED_PASS_TOKENS, target.max_width)
    for start in range(0, len(chunk), width):
        part = chunk[start : start + width]
        (rows,) = target.forward([Segment(session.cache, part)])
        session.note_prompt(rows, begin + start)
    if not keeps:
        session.cache.truncate(begin)
