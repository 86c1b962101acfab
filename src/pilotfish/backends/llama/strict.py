"""The self-check behind strict mode: which widths give the same bits for the same prefix.

llama.cpp picks kernels by the number of rows in a pass, and other kernels add in another order. So
the same position gets other bits at another width, and a near tie can fall either way. Strict mode
keeps to widths that were seen to agree, on real rows of this file, on this machine and build.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pilotfish.backends.llama.context import LlamaContext
from pilotfish.backends.self_check import RowBits, row_bits

DEFAULT_WIDTHS = (1, 2, 3, 4, 6, 8, 16)
_NUM_ROWS = 16
# the cache grows in steps of 256 cells; rows on both sides of a step must agree too
_PREFIX_LENGTH = 248
_NEIGHBOUR_LENGTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthReport:
    """What the self-check found.

    checked          the widths that were tried
    classes          groups of widths whose rows agree bit for bit, slots and strides included
    unsteady         widths whose own rows depend on the slot, the stride or a neighbour
    strict_widths    the group strict mode keeps to, ascending; empty when none passed
    seconds_by_width rough cost of one pass, for choosing between groups
    """

    checked: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    unsteady: tuple[int, ...]
    strict_widths: tuple[int, ...]
    num_positions: int
    seconds_by_width: dict[int, float] = field(compare=False)
    reason: str


class WidthCheck:
    """Runs the self-check on sequence 0 of an otherwise empty context, and leaves it empty."""

    def __init__(
        self,
        context: LlamaContext,
        sample_ids: Sequence[int],
        *,
        has_neighbour: bool,
        widths: Sequence[int] = DEFAULT_WIDTHS,
    ) -> None:
        self._context = context
        # shorter texts repeat: the rows stay real, and their prefixes still differ
        room = context.options.cells_per_sequence
        self._prefix = min(_PREFIX_LENGTH, room - _NUM_ROWS - max(widths))
        needed = self._prefix + _NUM_ROWS + max(widths)
        repeats = -(-needed // len(sample_ids))
        self._ids = [*sample_ids, *sample_ids[::-1]] * repeats
        self._has_neighbour = has_neighbour
        self._widths = tuple(sorted(set(widths)))
        self._seconds: dict[int, float] = {}

    def run(self) -> WidthReport:
        """Return which widths agree; some seconds on a model of a billion parameters."""
        self._prefill(0, self._ids[: self._prefix])
        bits: dict[int, list[RowBits]] = {}
        unsteady = []
        for width in self._widths:
            bits[width] = list(self._sweep(width, phase=0))
            # half a width later every row sits in another slot
            if width > 1 and list(self._sweep(width, phase=width // 2)) != bits[width]:
                unsteady.append(width)
        classes = group_equal(bits, unsteady)
        strict_widths: tuple[int, ...] = ()
        if self._has_neighbour:
            self._prefill(1, self._ids[-_NEIGHBOUR_LENGTH:])
        for candidates in rank_classes(classes):
            if self._stands(candidates, bits[candidates[0]]):
                strict_widths = candidates
                break
            unsteady.extend(candidates)
        self._context.truncate(0, 0)
        if self._has_neighbour:
            self._context.truncate(1, 0)
        return WidthReport(
            checked=self._widths,
            classes=classes,
            unsteady=tuple(sorted(unsteady)),
            strict_widths=strict_widths,
            num_positions=_NUM_ROWS,
            seconds_by_width=self._seconds,
            reason=_explain(strict_widths, unsteady),
        )

    def _prefill(self, sequence: int, token_ids: Sequence[int]) -> None:
        step = self._context.options.batch_size
        for begin in range(0, len(token_ids), step):
            piece = token_ids[begin : begin + step]
            self._context.run_one(piece, position=begin, sequence=sequence, first_row=len(piece))

    def _sweep(self, width: int, *, phase: int) -> Iterator[RowBits]:
        """Yield the bits of the checked rows, evaluated `width` at a time.

        The first pass keeps `phase` rows, so that all later rows move to other slots.
        """
        keep = phase or width
        done = 0
        while done < _NUM_ROWS:
            kept = min(keep, _NUM_ROWS - done)
            yield from self._pass(done, width=width, keep=kept, junk=0)
            done, keep = done + kept, width

    def _stands(self, widths: tuple[int, ...], expected: list[RowBits]) -> bool:
        """Return whether rows keep their bits however passes of `widths` follow each other:
        any slot, any stride, any ids behind the kept rows, cut back, beside a neighbour."""
        draws = np.random.default_rng(20240601)
        for _ in range(2):
            done = 0
            while done < _NUM_ROWS:
                width = int(draws.choice(widths))
                keep = min(int(draws.integers(1, width + 1)), _NUM_ROWS - done)
                junk = int(draws.integers(1, len(self._ids)))
                rows = list(self._pass(done, width=width, keep=keep, junk=junk))
                if rows != expected[done : done + keep]:
                    return False
                done += keep
        return True

    def _pass(self, done: int, *, width: int, keep: int, junk: int) -> list[RowBits]:
        begin = self._prefix + done
        token_ids = self._ids[begin : begin + width]
        if junk:
            # what follows the kept rows is rolled back, so it may be anything
            token_ids[keep:] = [self._ids[junk]] * (width - keep)
        self._context.truncate(0, begin)
        start = time.perf_counter()
        rows = self._context.run_one(token_ids, position=begin, sequence=0)
        elapsed = time.perf_counter() - start
        self._seconds[width] = min(self._seconds.get(width, elapsed), elapsed)
        self._context.truncate(0, begin + keep)
        return [row_bits(row) for row in rows[:keep]]


def group_equal(
    bits: dict[int, list[RowBits]], unsteady: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the steady widths, grouped by equal bits, ascending."""
    groups: dict[tuple[RowBits, ...], list[int]] = {}
    for width in sorted(bits):
        if width not in unsteady:
            groups.setdefault(tuple(bits[width]), []).append(width)
    return tuple(tuple(group) for group in groups.values())


def rank_classes(classes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the groups of widths in the order strict mode should try them.

    First a group that has width 1 and more: plain decoding then costs nothing extra. Then the
    group of width 4, where one pass still costs well below four. Then larger groups, and among
    those of one size the narrower.
    """

    def rank(group: tuple[int, ...]) -> tuple[bool, bool, int, int]:
        is_free = 1 in group and len(group) > 1
        return (not is_free, 4 not in group, -len(group), group[0] if group[0] > 1 else 99)

    return sorted(classes, key=rank)


def _explain(strict_widths: tuple[int, ...], unsteady: Sequence[int]) -> str:
    if strict_widths:
        shown = ", ".join(str(width) for width in strict_widths)
        many = len(strict_widths) > 1
        return (
            f"every decode pass keeps to width{'s' if many else ''} {shown}; {_NUM_ROWS} rows "
            "agreed bit for bit over slots, strides and truncation"
        )
    return f"no width gave the same bits in every slot and stride (failed: {sorted(unsteady)})"
