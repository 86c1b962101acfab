"""Tell what a model thinks from what it answers, by the marks its template or vocabulary has."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.errors import PilotfishError
from pilotfish.text.prompt import ChatPrompt
from pilotfish.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What stands before and after the reasoning at the beginning of a reply."""

    opening: str
    closing: str


KNOWN_MARKS = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("<thinking>", "</thinking>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
)


def reasoning_marks(tokenizer: Tokenizer) -> ReasoningMarks | None:
    """Return the marks that the model's chat template writes or that are tokens of its vocabulary;
    None for a model that does not think aloud."""
    template = tokenizer.chat_template or ""
    for marks in KNOWN_MARKS:
        if marks.closing in template:
            return marks
    for marks in KNOWN_MARKS:
        if _is_token(marks.opening, tokenizer) and _is_token(marks.closing, tokenizer):
            return marks
    return None


def _is_token(text: str, tokenizer: Tokenizer) -> bool:
    try:
        return len(tokenizer.encode(text, parse_special=True)) == 1
    except PilotfishError:  # a vocabulary need not have all letters
        return False


class ReasoningSplitter:
    """Splits text that arrives in any cut into reasoning and content; what comes out as a whole
    does not depend on the cut.

    Reasoning stands at the beginning of a reply, between its marks; marks further on are text. A
    reply to a prompt that ends with the opening mark begins inside. Blanks around reasoning, and
    those before the content that follows it, belong to the marks.
    """

    def __init__(self, marks: ReasoningMarks, prompt: ChatPrompt) -> None:
        self._marks = marks
        _, opening, unfinished = prompt.continued.rpartition(marks.opening)
        ends_open = not prompt.continued and prompt.text.rstrip().endswith(marks.opening)
        self._begins_inside = ends_open or (bool(opening) and marks.closing not in unfinished)
        is_answer = bool(prompt.continued.strip()) and not self._begins_inside
        self._state = "content" if is_answer else "beginning"
        # what may be the beginning of a mark, and blanks before it
        self._held = ""
        self._blanks: list[str] = []
        self._has_begun = False

    def feed(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the content that are certain now."""
        reasoning = ""
        if self._state == "beginning":
            text = self._begin(text)
        if self._state == "inside":
            reasoning, text = self._think(text)
        if self._state == "after":
            text = text.lstrip()
            self._state = "content" if text else "after"
        return reasoning, text if self._state == "content" else ""

    def finish(self) -> tuple[str, str]:
        """Return the rest, when the reply has ended."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return self._release(held), ""
        if self._state == "beginning":
            text = "".join(self._blanks) + held
            self._blanks.clear()
            return (text.strip(), "") if self._begins_inside else ("", text)
        return "", ""

    def whole(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the content of a reply that is all there."""
        parts = (self.feed(text), self.finish())
        return "".join(one for one, _ in parts), "".join(one for _, one in parts)

    def _begin(self, text: str) -> str:
        """Return what follows the opening mark, or all there is when it is certain that there is
        none; nothing before."""
        if not self._held:
            core = text.lstrip()
            self._blanks.append(text[: len(text) - len(core)])
            text = core
        self._held += text
        opening = self._marks.opening
        if opening.startswith(self._held) and self._held != opening:
            return ""
        held, self._held = self._held, ""
        if held.startswith(opening):
            self._blanks.clear()
            self._state = "inside"
            return held.removeprefix(opening)
        self._state = "inside" if self._begins_inside else "content"
        text = "".join(self._blanks) + held
        self._blanks.clear()
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """Return the reasoning in a text, and what follows its closing mark."""
        closing = self._marks.closing
        before, found, rest = (self._held + text).partition(closing)
        if found:
            self._held, self._state = "", "after"
            reasoning = self._release(before)
            self._blanks.clear()
            return reasoning, rest
        lengths = range(min(len(closing) - 1, len(before)), 0, -1)
        num_held = next((n for n in lengths if closing.startswith(before[-n:])), 0)
        self._held = before[len(before) - num_held :]
        return self._release(before[: len(before) - num_held]), ""

    def _release(self, text: str) -> str:
        """Return reasoning without the blanks at its end, which may be the last."""
        if not self._has_begun:
            text = text.lstrip()
        core = text.rstrip()
        if not core:
            self._blanks.append(text)
            return ""
        before, self._blanks = "".join(self._blanks), [text[len(core) :]]
        self._has_begun = True
        return before + core
