"""The reasoning of a reply, apart from its content, where the model has marks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pilotfish.config import EndRule, Request
from pilotfish.text import ChatPrompt, ReasoningMarks, ReasoningSplitter


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How the replies to one prompt mark what the model thinks."""

    marks: ReasoningMarks
    prompt: ChatPrompt

    def splitter(self) -> ReasoningSplitter:
        """Return what splits one reply."""
        return ReasoningSplitter(self.marks, self.prompt)

    def requests(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests with rules that look at the content alone: a call that the model
        merely thinks of ends no reply."""
        return [replace(one, end_rule=self._rule(one.end_rule)) for one in requests]

    def _rule(self, inner: Callable[[], EndRule]) -> Callable[[], EndRule]:
        def make() -> EndRule:
            is_complete, splitter = inner(), self.splitter()
            return lambda text: is_complete(splitter.feed(text)[1])

        return make


def showing(requests: Sequence[Request], marks: ReasoningMarks | None) -> list[Request]:
    """Return the requests with the marks in the text of their replies: in some files they are
    control tokens."""
    shown = (marks.opening, marks.closing) if marks else ()
    return [replace(one, shown_tokens=(*one.shown_tokens, *shown)) for one in requests]
