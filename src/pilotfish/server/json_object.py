"""Where a JSON object ends, in text that a model writes."""

from __future__ import annotations

_BLANKS = frozenset(" \t\r\n")
_CLOSERS = {"{": "}", "[": "]"}
# all that JSON has outside of texts, and what may follow a text
_OUTSIDE = frozenset('{}[],:"+-.0123456789eEtrufalsn')
_AFTER_TEXT = frozenset(",:}]")


class ObjectScanner:
    """Finds the end of a JSON object in text of any cut, and looks at each character once.

    It follows texts and brackets, and notices soon where something is no JSON: outside of texts
    there are few characters, and few may follow a text. Whether all of it is JSON it does not say.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._is_inside_text = False
        self._is_escaped = False
        self._expected = frozenset("{")
        self.is_complete = False

    def feed(self, text: str, start: int = 0) -> int:
        """Take text from `start` on; return where the object ends, or where the first character is
        that no object has there, or else the length of the text."""
        for place in range(start, len(text)):
            character = text[place]
            if self._is_inside_text:
                self._inside_text(character)
            elif character in _BLANKS:
                continue
            elif character not in self._expected:
                return place
            elif character in "}]":
                if self._open.pop() != character:
                    return place
                self._expected = _OUTSIDE
                if not self._open:
                    self.is_complete = True
                    return place + 1
            else:
                self._outside(character)
        return len(text)

    def _inside_text(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_inside_text, self._expected = False, _AFTER_TEXT

    def _outside(self, character: str) -> None:
        self._expected = _OUTSIDE
        if character == '"':
            self._is_inside_text = True
        elif character in _CLOSERS:
            self._open.append(_CLOSERS[character])
