"""The self-check: rows of wide passes have the bits of single rows, on this file and machine.

The kernels add each row's numbers in one order whatever else is in the pass, so this must hold. It
is checked on real rows all the same, and kept for this file, build, processor and settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pilotfish.backends.self_check import load_result, row_bits, save_result

if TYPE_CHECKING:
    from pilotfish_native import Model

WIDTHS = (1, 2, 4, 8, 16)
_PREFIX_TOKENS = 24
_NUM_ROWS = max(WIDTHS)
_NEIGHBOUR_TOKENS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """What was compared: the widths tried, and those whose rows had other bits."""

    checked_widths: tuple[int, ...]
    differing_widths: tuple[int, ...]

    @property
    def passed(self) -> bool:
        """Return whether every width gave the bits of single rows."""
        return not self.differing_widths

    def exactness(self) -> dict[str, Any]:
        """Return what is known about the rows' bits, in the form of the JSON output."""
        if self.passed:
            level = "bit-identical"
            reason = f"{_NUM_ROWS} rows had the bits of single rows at every width, in a batch too"
        else:
            level = "in distribution"
            reason = f"rows of passes of width {list(self.differing_widths)} had other bits"
        return {
            "level": level,
            "checked_widths": list(self.checked_widths),
            "strict_width": None,
            "reason": reason,
        }


def kept_or_run(core: Model, sample_ids: Sequence[int], description: dict[str, Any]) -> SelfCheck:
    """Return the result kept for `description`, or run the check and keep what it finds."""
    try:
        return _from_stored(load_result(description))
    except (ValueError, TypeError, KeyError):
        check = run(core, sample_ids)
        save_result(description, asdict(check))
        return check


def run(core: Model, sample_ids: Sequence[int]) -> SelfCheck:
    """Return which widths agree with single rows: about 20 passes over a short text."""
    needed = _PREFIX_TOKENS + _NUM_ROWS
    ids = [*sample_ids, *sample_ids[::-1]] * (needed // len(sample_ids) + 1)
    text, sequence = ids[_PREFIX_TOKENS:needed], core.new_sequence()
    core.forward([sequence], [ids[:_PREFIX_TOKENS]], [_PREFIX_TOKENS])
    single = [row_bits(core.forward([sequence], [[one]], [0])[0]) for one in text]
    differing = []
    for width in WIDTHS:
        start = _NUM_ROWS - width
        sequence.truncate(_PREFIX_TOKENS + start)
        rows = core.forward([sequence], [text[start:]], [0])
        if [row_bits(row) for row in rows] != single[start:]:
            differing.append(width)
    if not _agrees_in_a_batch(core, sequence, text, single):
        differing.append(_NUM_ROWS)
    sequence.close()
    return SelfCheck(checked_widths=WIDTHS, differing_widths=tuple(sorted(set(differing))))


def _agrees_in_a_batch(
    core: Model, sequence: Any, text: Sequence[int], single: Sequence[bytes]
) -> bool:
    neighbour = core.new_sequence()
    sequence.truncate(_PREFIX_TOKENS)
    other = list(text[:_NEIGHBOUR_TOKENS])
    rows = core.forward([neighbour, sequence], [other, text], [len(other) - 1, 0])
    neighbour.close()
    return [row_bits(row) for row in rows[1:]] == list(single)


def _from_stored(raw: Any) -> SelfCheck:
    checked, differing = (
        tuple(int(width) for width in raw[name]) for name in ("checked_widths", "differing_widths")
    )
    if checked != WIDTHS:
        raise ValueError("other widths were checked")
    return SelfCheck(checked_widths=checked, differing_widths=differing)
