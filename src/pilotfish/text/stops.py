"""Find stop strings in a reply that arrives token by token, control tokens included.

A control token leaves no text in a reply. To a stop string that names it, it is one character that
no text can contain, so that it is found as a whole or not at all.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pilotfish.errors import ConfigError
from pilotfish.text.tokenizer import Tokenizer

# lone surrogates: text that was decoded from bytes has none
_FIRST_SYMBOL, _NUM_SYMBOLS = 0xD800, 0x800
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def named_control_tokens(stop: str | Sequence[str], tokenizer: Tokenizer) -> dict[int, str]:
    """Return id and text of each control token whose text occurs in a stop string."""
    stops = _checked_stops(stop)
    named = {}
    for text in tokenizer.special_texts:
        if text and any(text in one for one in stops):
            ids = tokenizer.encode(text, parse_special=True)
            if len(ids) == 1 and not tokenizer.token_bytes(ids[0]):
                named[ids[0]] = text
    return named


def _checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) for text in stops):
        raise ConfigError("stop must be a string or a list of strings")
    if "" in stops:
        raise ConfigError("stop must not contain an empty string")
    if any(_SURROGATE.search(text) for text in stops):
        raise ConfigError("stop must be valid text, and it holds a lone surrogate")
    return stops


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What is looked for: `text` is the stop string with symbols in place of control tokens."""

    stop: str
    text: str

    def view(self, text: str, symbols: frozenset[str]) -> tuple[str, Sequence[int]]:
        """Return the text without the symbols that this stop does not name, and where each of its
        characters stood: control tokens that nobody named hide nothing."""
        foreign = symbols.difference(self.text)
        if foreign.isdisjoint(text):
            return text, range(len(text))
        kept = [index for index, character in enumerate(text) if character not in foreign]
        return "".join(text[index] for index in kept), kept


class StopFinder:
    """Find the first stop string in text that arrives piece by piece.

    A stop counts with the first piece that completes an occurrence of any stop string; the text
    then ends where the earliest of the occurrences completed by that piece starts. A piece is what
    one token adds. So of the stops "ab" and "abc" the shorter one wins when its last character
    comes first, and "bcd" wins over "c" when one token brings both.

    `control_texts` are texts of control tokens: where one stands in a stop string, both that token
    (see `feed_control`) and the same text written out count.
    """

    def __init__(self, stop: str | Sequence[str] = (), control_texts: Iterable[str] = ()) -> None:
        stops = _checked_stops(stop)
        texts = sorted(set(control_texts), key=lambda text: (-len(text), text))
        if len(texts) > _NUM_SYMBOLS:
            raise ConfigError(
                f"stop names {len(texts)} control tokens", hint=f"{_NUM_SYMBOLS} are possible"
            )
        self._symbol_of = {text: chr(_FIRST_SYMBOL + index) for index, text in enumerate(texts)}
        self._symbols = frozenset(self._symbol_of.values())
        self._patterns = [_Pattern(one, one) for one in stops]
        self._patterns += [
            _Pattern(one, named) for one in stops if (named := self._with_symbols(one)) != one
        ]
        self._held = ""
        self._found: str | None = None

    @property
    def found(self) -> str | None:
        """Return the stop string that ended the text, or None while there is none."""
        return self._found

    def feed(self, piece: str, *, may_stop: bool = True) -> str:
        """Return the text that is now safe to show; look at `found` afterwards.

        Text that could be the beginning of a stop string is held back. With `may_stop` False a
        stop completed by this piece is ordinary text for good.
        """
        assert self._found is None, "no text follows a stop string"
        text = self._held + piece
        if may_stop and (occurrences := self._completed(text, len(self._held))):
            start, _, self._found = min(occurrences)
            self._held = ""
            return self._shown(text[:start])
        num_safe = min((self._open_from(text, one) for one in self._patterns), default=len(text))
        self._held = text[num_safe:]
        return self._shown(text[:num_safe])

    def feed_control(self, text: str, *, may_stop: bool = True) -> str:
        """Take the control token of one of the `control_texts`; return what `feed` does."""
        return self.feed(self._symbol_of[text], may_stop=may_stop)

    def finish(self) -> str:
        """Return the text held back, once: nothing more will complete it."""
        held, self._held = self._held, ""
        return self._shown(held)

    def _with_symbols(self, stop: str) -> str:
        # longer texts first, as a tokenizer looks for them
        for text, symbol in self._symbol_of.items():
            stop = stop.replace(text, symbol)
        return stop

    def _shown(self, text: str) -> str:
        if self._symbols.isdisjoint(text):
            return text
        return "".join(character for character in text if character not in self._symbols)

    def _completed(self, text: str, num_old: int) -> list[tuple[int, int, str]]:
        """Return (start, length, stop) of the occurrences that end after `num_old` characters."""
        occurrences = []
        for pattern in self._patterns:
            view, positions = pattern.view(text, self._symbols)
            length = len(pattern.text)
            start = view.find(pattern.text, max(0, bisect_left(positions, num_old) - length + 1))
            if start >= 0:
                occurrences.append((positions[start], length, pattern.stop))
        return occurrences

    def _open_from(self, text: str, pattern: _Pattern) -> int:
        """Return where the longest end of `text` that an unfinished occurrence begins with starts;
        the length of `text` where there is none."""
        view, positions = pattern.view(text, self._symbols)
        for length in range(min(len(pattern.text) - 1, len(view)), 0, -1):
            if pattern.text.startswith(view[-length:]):
                return positions[len(view) - length]
        return len(text)
