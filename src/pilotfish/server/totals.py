"""What a service has done since it began, as sums: everything that metrics are made of."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pilotfish.accounting.metrics import plain_seconds_estimate
from pilotfish.types import RoundRecord

# seconds; waiting and whole replies go from a fraction of a step to many minutes
_LONG_TIMES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_SHORT_TIMES = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0)
_WIDEST_OF_CLASS = (1, 2, 4, 8, 16, 32, 64)
# classes of passes by their rows
WIDTHS = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65+")


class Histogram:
    """How often a time was at most so long.

    bounds  seconds, ascending; counts has one entry more, for what is longer than all of them
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one time."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_seconds += seconds


class Totals:
    """A `Watcher` that adds up. Reading takes `lock`, so that one reading agrees with itself.

    Each choice of a request counts as one: it has a place and an end of its own. Seconds of rounds
    are the engine's: a pass that several requests share counts once.

    accepted_lengths  by drafter, how many of its rounds had so many accepted tokens
    passes            by class of width: how many, and their seconds
    estimated_seconds of the passes whose plain time is known; `plain_seconds` is that time
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Lock()
        self._clock = clock
        self._last_rounds: dict[int, float] = {}
        self.num_submitted = 0
        self.refusals: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.num_prompt_tokens = self.num_reused_tokens = self.num_completion_tokens = 0
        self.read_seconds = self.draft_seconds = self.round_seconds = 0.0
        self.plain_seconds = self.estimated_seconds = 0.0
        self.accepted_lengths: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.num_drafted: Counter[str] = Counter()
        self.num_failed_rounds = 0
        self.passes = [(0, 0.0)] * len(WIDTHS)
        self.queued, self.whole = Histogram(_LONG_TIMES), Histogram(_LONG_TIMES)
        self.first_token = Histogram(_LONG_TIMES)
        self.between_rounds = Histogram(_SHORT_TIMES)

    def accepted(self) -> None:
        """Count a request that was taken."""
        with self.lock:
            self.num_submitted += 1

    def refused(self, reason: str) -> None:
        """Count a request that was not."""
        with self.lock:
            self.refusals[reason] += 1

    def read(self, num_tokens: int, num_reused_tokens: int, seconds: float) -> None:
        """Count a prompt."""
        with self.lock:
            self.num_prompt_tokens += num_tokens
            self.num_reused_tokens += num_reused_tokens
            self.read_seconds += seconds

    def round(self, records: Sequence[RoundRecord]) -> None:
        """Count one pass of all running sessions; without records, of none."""
        if not records:
            return
        now = self._clock()
        with self.lock:
            # who is not in this round has ended
            last, self._last_rounds = self._last_rounds, {}
            num_rows = 0
            for record in records:
                self.accepted_lengths[record.source][record.num_accepted] += 1
                self.num_drafted[record.source] += record.num_drafted
                self.num_completion_tokens += record.num_emitted
                self.num_failed_rounds += bool(record.failure)
                num_rows += 1 + record.num_drafted
                self._last_rounds[record.request_id] = now
                if record.request_id in last:
                    self.between_rounds.add(now - last[record.request_id])
            self._add_pass(records, num_rows)

    def ended(
        self,
        outcome: str,
        *,
        queued_seconds: float,
        first_token_seconds: float | None,
        total_seconds: float,
        num_prompt_tokens: int,
        num_completion_tokens: int,
    ) -> None:
        """Count the end of a request, whatever it was; its tokens were counted as they came."""
        with self.lock:
            self.outcomes[outcome] += 1
            self.queued.add(queued_seconds)
            self.whole.add(total_seconds)
            if first_token_seconds is not None:
                self.first_token.add(first_token_seconds)

    def _add_pass(self, records: Sequence[RoundRecord], num_rows: int) -> None:
        shared = records[-1]
        width = bisect_left(_WIDEST_OF_CLASS, num_rows)
        number, seconds = self.passes[width]
        self.passes[width] = (number + 1, seconds + shared.target_seconds)
        self.draft_seconds += shared.draft_seconds
        self.round_seconds += shared.round_seconds
        plain_seconds = plain_seconds_estimate(records)
        if plain_seconds is not None:
            # a plain pass would have emitted one token for each of them
            self.plain_seconds += plain_seconds / len(records)
            self.estimated_seconds += shared.round_seconds
