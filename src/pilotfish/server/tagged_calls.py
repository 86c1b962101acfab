"""Calls in a reply that a grammar holds to the form of calls: nothing has to be guessed."""

from __future__ import annotations

import json

from pilotfish.server.json_object import ObjectScanner
from pilotfish.server.tools import ARGUMENTS, NAME, OPENING, Call, MoreArguments


class TaggedCallReader:
    """Reads calls and gives out their arguments as they come, in text of any cut.

    A reply that begins otherwise is text as a whole. Calls that are cut off are given as far as
    they came; the fixed text around calls is never shown.
    """

    def __init__(self) -> None:
        self._is_text: bool | None = None
        # what leads to the next arguments
        self._held = ""
        self._scanner: ObjectScanner | None = None
        self.num_calls = 0

    def feed(self, text: str) -> list[str | Call | MoreArguments]:
        """Return the calls that begin in a text, each with no arguments yet, and arguments."""
        if self._is_text is None and text:
            self._is_text = text[0] != OPENING[0]
        if self._is_text:
            return [text]
        found: list[str | Call | MoreArguments] = []
        while text:
            if self._scanner is None:
                before, mark, text = (self._held + text).partition(ARGUMENTS)
                self._held = "" if mark else before
                if mark:
                    found.append(self._begin_call(before))
                continue
            end = self._scanner.feed(text)
            assert end > 0, "arguments are not what the grammar asks for"
            found.append(MoreArguments(text[:end]))
            text = text[end:]
            if self._scanner.is_complete:
                self._scanner = None
        return found

    def finish(self) -> list[str | Call | MoreArguments]:
        """Return nothing: what is held belongs to no call that has begun."""
        return []

    def _begin_call(self, before: str) -> Call:
        self._scanner = ObjectScanner()
        self.num_calls += 1
        return Call(json.loads(before.rpartition(NAME)[2]), "")
