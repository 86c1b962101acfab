"""Keep what users write from becoming control tokens.

A mark (one character that occurs nowhere else) is put into user text wherever a control text could
come out. The chat template is rendered with the marks in place. Then every mark that lies inside a
control text becomes a cut, the others vanish, and the pieces are tokenised one by one: no piece
holds the control text, while the template's own control texts stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise


class SpecialTexts:
    """The control texts of one tokenizer.

    A control text of a single character has no inside to cut at and is left alone.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if len(text) > 1)
        self._lengths = sorted({len(text) for text in self._texts})
        self._beginnings = frozenset(t[:end] for t in self._texts for end in range(1, len(t)))
        self._endings = frozenset(t[start:] for t in self._texts for start in range(1, len(t)))
        first_characters = sorted({text[0] for text in self._texts})
        self._first_character = re.compile("|".join(map(re.escape, first_characters)) or r"(?!)")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return (start, end) of every control text in `text`, overlapping ones too."""
        return [
            (start, start + length)
            for start in (match.start() for match in self._first_character.finditer(text))
            for length in self._lengths
            if text[start : start + length] in self._texts
        ]

    def marked(self, text: str, mark: str, *, borders: bool = False) -> str:
        """Return `text` with a mark inside every control text.

        With `borders` also where the text around it could complete one.
        """
        positions = self._inner_positions(text)
        if borders:
            positions |= self._border_positions(text)
        edges = [0, *sorted(positions), len(text)]
        return mark.join(text[start:end] for start, end in pairwise(edges))

    def pieces(self, marked: str, mark: str) -> list[str]:
        """Return the text without its marks, cut at those that lie inside a control text."""
        parts = marked.split(mark)
        text = "".join(parts)
        spans = self.spans(text) if len(parts) > 1 else []
        inside = {position for start, end in spans for position in range(start + 1, end)}
        pieces, position = [parts[0]], len(parts[0])
        for part in parts[1:]:
            if position in inside:
                pieces.append(part)
            else:
                pieces[-1] += part
            position += len(part)
        return pieces

    def _inner_positions(self, text: str) -> set[int]:
        positions: set[int] = set()
        last = 0
        # by end, each cut as late as it can be: the fewest positions that hit every span
        for start, end in sorted(self.spans(text), key=lambda span: span[1]):
            if last <= start:
                last = end - 1
                positions.add(last)
        return positions

    def _border_positions(self, text: str) -> set[int]:
        """Return where to mark a text that ends like a control text begins, or the reverse.

        Templates often trim, so blanks at the border do not count and stay outside the marks.
        """
        positions = set()
        core = text.strip()
        start = len(text) - len(text.lstrip())
        sizes = range(1, min(len(core), max(self._lengths, default=0)) + 1)
        if any(core[-size:] in self._beginnings for size in sizes):
            positions.add(start + len(core))
        if any(core[:size] in self._endings for size in sizes):
            positions.add(start)
        return positions


@lru_cache(maxsize=8)
def special_texts(texts: tuple[str, ...]) -> SpecialTexts:
    """Return the prepared control texts; kept, because some tokenizers have thousands."""
    return SpecialTexts(texts)
