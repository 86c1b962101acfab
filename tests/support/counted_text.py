"""Text that counts how many of its characters are handled."""

from __future__ import annotations

from typing import Any


class Work:
    """How many characters were handled so far."""

    def __init__(self) -> None:
        self.num_characters = 0


class CountedText(str):
    """A text whose parts are counted texts, too; each operation counts the characters it may touch.

    What is joined is ordinary text again.
    """

    work: Work

    @classmethod
    def of(cls, text: str, work: Work) -> CountedText:
        """Return a text that counts in `work`."""
        counted = cls(text)
        counted.work = work
        return counted

    def _counted(self, result: Any, number: int) -> Any:
        self.work.num_characters += number
        return CountedText.of(result, self.work) if isinstance(result, str) else result

    def __getitem__(self, key: Any) -> Any:
        result = str.__getitem__(self, key)
        return self._counted(result, len(result))

    def __add__(self, other: str) -> Any:
        return self._counted(str.__add__(self, other), len(self) + len(other))

    def __radd__(self, other: str) -> Any:
        return self._counted(str.__add__(other, self), len(self) + len(other))

    def find(self, text: str, start: int = 0, *end: int) -> Any:  # type: ignore[override]
        found = str.find(self, text, start, *end)
        return self._counted(found, (len(self) if found < 0 else found + len(text)) - start)

    def partition(self, mark: str) -> Any:
        parts = str.partition(self, mark)
        return tuple(self._counted(part, len(part)) for part in parts)

    def rstrip(self, *characters: Any) -> Any:
        return self._counted(str.rstrip(self, *characters), len(self))

    def strip(self, *characters: Any) -> Any:
        return self._counted(str.strip(self, *characters), len(self))

    def split(self, *arguments: Any) -> Any:
        return [self._counted(part, len(part) + 1) for part in str.split(self, *arguments)]
