"""What drafting takes besides passes: the engine's work in a round, and that for a draft token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from pilotfish.protocols import Cache, TargetModel
from pilotfish.types import FloatArray, RoundRecord, Segment

# where nothing was measured: sampling from one row of a large vocabulary is most of it
DEFAULT_OVERHEAD_SECONDS = 2e-4
DEFAULT_DRAFT_OVERHEAD_SECONDS = 2e-4


class TimedModel:
    """A model that adds up the seconds of its passes; in all else the model it was given.

    Passes of which no row is wanted read prompts, and do not count.
    """

    def __init__(
        self, model: TargetModel, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model = model
        self._clock = clock
        self.pass_seconds = 0.0

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens."""
        return self._model.vocab_size

    @property
    def context_size(self) -> int:
        """Return the largest number of tokens one sequence may hold."""
        return self._model.context_size

    @property
    def max_width(self) -> int:
        """Return the largest number of rows one session may ask for in one pass."""
        return self._model.max_width

    def new_cache(self) -> Cache:
        """Return an empty cache of the model."""
        return self._model.new_cache()

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        """Evaluate the segments and return the model's rows."""
        start = self._clock()
        rows = self._model.forward(segments)
        if any(segment.num_rows for segment in segments):
            self.pass_seconds += self._clock() - start
        return rows


def measure_overhead(run_reply: Callable[[], Sequence[RoundRecord]]) -> float:
    """Return the engine's own seconds in a round, drafts from text included: the median over the
    rounds of a reply.

    run_reply  generates a short reply and returns its records; called twice, first to warm up
    """
    run_reply()
    own = [
        record.round_seconds
        - record.target_seconds
        - (record.draft_seconds if record.source == "model" else 0.0)
        for record in run_reply()
    ]
    return max(0.0, statistics.median(own)) if own else DEFAULT_OVERHEAD_SECONDS


def measure_draft_overhead(
    run_reply: Callable[[], Sequence[RoundRecord]], draft: TimedModel
) -> float:
    """Return the seconds for one draft token that are no pass of the draft model.

    run_reply  generates a short reply drafted by `draft` alone and returns its records; called
               twice, first to warm up
    """
    run_reply()
    passes_before = draft.pass_seconds
    records = run_reply()
    drafted = sum(record.num_drafted for record in records)
    if not drafted:
        return DEFAULT_DRAFT_OVERHEAD_SECONDS
    drafting = sum(record.draft_seconds for record in records)
    return max(0.0, drafting - (draft.pass_seconds - passes_before)) / drafted
