"""The budget that bounds what drafting may lose against plain decoding."""

from __future__ import annotations

SHARE = 0.02
START = 2.0
MOST = 6.0
# an allowance that grows with the reply keeps short ones near plain decoding
TOKENS_PER_STEP = 150
# what earlier gains may be lost again, in steps
KEPT_GAIN = 30.0


class LossGuard:
    """The account of one request: how much longer its drafted rounds took than plain decoding.

    Everything is in steps, the time of one plain round. After N tokens the account may stand at
    `SHARE` * N plus a start that grows from 2 to 6 steps; a round that could take it above is not
    drafted in. Plain rounds cost what plain decoding costs, so the account never understates the
    loss, and the whole reply takes at most 1.02 * N + 6 steps, whatever the drafts are. Of what was
    gained before, at most 30 steps may be lost again. What other work on the machine does to a
    round is not the drafts' loss, and is for the caller to leave out.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._excess = 0.0

    @property
    def allowance(self) -> float:
        """Return how many steps the next round may take beyond a plain one."""
        start = min(MOST, START + self.num_tokens / TOKENS_PER_STEP)
        return start + SHARE * self.num_tokens - self._excess

    def record(self, num_emitted: int, steps: float | None) -> None:
        """Count a round: its tokens and, if it was drafted in, the steps it took."""
        self.num_tokens += num_emitted
        if steps is not None:
            self._excess = max(self._excess + steps - num_emitted, -KEPT_GAIN)
