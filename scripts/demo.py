"""One code edit, plain and speculative, side by side, with the figures and a check of the texts.

Exit code 1 when the two texts differ in a way that rounding does not explain.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.live import Live

import pilotfish
from pilotfish import models
from pilotfish.cli import main as command_line
from pilotfish.cli.console import (
    ORIGIN_STYLES,
    OriginSpans,
    SideBySide,
    Span,
    drafts_by_source,
    figures_table,
    legend,
    print_error,
    talk,
    waiting,
)
from pilotfish.config import DRAFTERS
from pilotfish.errors import PilotfishError, UnknownModel
from pilotfish.generation import Reply

STRICT_TOKENS = 48
# two scores this near can change places when a pass of another width rounds differently
LARGEST_ROUNDING_MARGIN = 1.0
REDRAW_SECONDS = 0.1

PROMPT = '''\
Rename the class Basket to Cart, and add type hints and one-line docstrings to its methods. \
Change nothing else. Answer with the code only.

```python
class Basket:
    def __init__(self, owner, currency="EUR"):
        self.owner = owner
        self.currency = currency
        self.items = {}
        self.discount = 0.0

    def add(self, name, price, quantity=1):
        if quantity < 1:
            raise ValueError("quantity must be at least 1")
        if name in self.items:
            known_price, known_quantity = self.items[name]
            if known_price != price:
                raise ValueError(f"{name} costs {known_price}, not {price}")
            quantity += known_quantity
        self.items[name] = (price, quantity)

    def remove(self, name):
        if name not in self.items:
            raise KeyError(name)
        del self.items[name]

    def set_discount(self, share):
        if not 0.0 <= share < 1.0:
            raise ValueError("the discount must be from 0 to 1")
        self.discount = share

    def total(self):
        amount = 0.0
        for price, quantity in self.items.values():
            amount += price * quantity
        return round(amount * (1.0 - self.discount), 2)

    def receipt(self):
        lines = [f"Basket of {self.owner}"]
        for name, (price, quantity) in self.items.items():
            lines.append(f"{quantity} x {name}: {price * quantity:.2f} {self.currency}")
        lines.append(f"Total: {self.total():.2f} {self.currency}")
        return "\\n".join(lines)
```
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where two replies part; `token_index` None is nowhere.

    `margin` is the gap in nats between the two likeliest tokens of the plain run there, and
    `second_best` whether the other run took the second of them.
    """

    token_index: int | None = None
    margin: float = 0.0
    second_best: bool = False

    @property
    def explained(self) -> bool:
        """Return whether the texts agree, or rounding can have parted them."""
        near = self.margin <= LARGEST_ROUNDING_MARGIN
        return self.token_index is None or (self.second_best and near)


def compare(plain: Reply, other: Reply) -> Comparison:
    """Return where the replies part; the plain one must have the two best log-probabilities."""
    ids, other_ids = plain.token_ids, other.token_ids
    pairs = zip(ids, other_ids, strict=False)
    index = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
    if index is None:
        return Comparison() if len(ids) == len(other_ids) else Comparison(token_index=len(ids))
    logprobs = plain.tokens[index].logprobs
    assert logprobs is not None, "the plain run was made with logprobs"
    (_, best), (second_id, second) = logprobs.top[:2]
    return Comparison(
        token_index=index, margin=best - second, second_best=other_ids[index] == second_id
    )


class Columns:
    """The two texts while they are written: redrawn on a terminal, printed at the end elsewhere."""

    def __init__(self, left: str, right: str) -> None:
        self._both = SideBySide(left, right)
        self._console = pilotfish_console()
        self._drawn = 0.0
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Columns:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        self._console.print(self._both.table(self._console))

    def add(self, column: int, spans: Sequence[Span]) -> None:
        """Append to a column and redraw, between two rounds and not too often."""
        self._both.add(column, spans)
        now = time.perf_counter()
        if self._live.is_started and now - self._drawn >= REDRAW_SECONDS:
            num_lines = max(self._console.height - 3, 1)
            self._live.update(
                self._both.table(self._console, num_lines=num_lines), refresh=True
            )
            self._drawn = now
