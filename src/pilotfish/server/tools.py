"""Tool calls: how a chat template is told of them, and how they are found in a reply."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# how a reply begins, blanks left out, that may be one call and nothing else
_BARE_BEGINNINGS = tuple(
    fence + braces + '"name":' for fence in ("```json", "```", "") for braces in ("{", "{{")
)
_FENCE = re.compile(r"\s*```(?:json)?\s*(.*?)\s*```\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function; `arguments` is a JSON object, as text."""

    name: str
    arguments: str
    call_id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    def to_dict(self, index: int | None = None) -> dict[str, Any]:
        """Return the call as the API has it, in a stream with its index."""
        place = {} if index is None else {"index": index}
        function = {"name": self.name, "arguments": self.arguments}
        return {**place, "id": self.call_id, "type": "function", "function": function}


def writes_calls(chat_template: str | None) -> bool:
    """Return whether models of this template write calls in the form that is read here."""
    return chat_template is not None and OPENING in chat_template


def parsed_call(text: str) -> Call | None:
    """Return the call between two marks, or None if it is none."""
    text = text.strip()
    # a widely used template shows the form with its braces doubled, and models copy that
    if text.startswith("{{") and text.endswith("}}"):
        text = text[1:-1]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    try:
        return Call(value["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except ValueError:
        return None


def bare_call(text: str, names: Collection[str]) -> Call | None:
    """Return the call that a whole reply is, without marks or in a code fence, or None.

    Small models often write their calls so. Any JSON could be meant, so the name must be known.
    """
    fenced = _FENCE.fullmatch(text)
    call = parsed_call(fenced[1] if fenced else text)
    return call if call is not None and call.name in names else None


class CallFinder:
    """Finds calls in text that arrives in any cut; what it returns does not depend on the cut.

    A call is `<tool_call>`, JSON with a name and arguments, `</tool_call>`; at the end of a reply
    the last mark may be missing. Blanks around calls belong to them. What looks like a call and is
    none stays text, marks included. A reply that may be a bare call of one of the functions `names`
    is held until that is certain.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = names
        # the reply so far, while it may be a bare call
        self._bare: str | None = "" if names else None
        self._held = ""
        self._blanks = ""
        self._is_inside = False
        self._follows_call = False
        self.num_calls = 0

    def feed(self, text: str) -> list[str | Call]:
        """Return what is certain now: parts of the text, and calls."""
        if self._bare is not None:
            self._bare += text
            if _may_be_bare(self._bare):
                return []
            text, self._bare = self._bare, None
        self._held += text
        found: list[str | Call] = []
        while self._is_inside or self._held:
            if self._is_inside:
                body, closing, rest = self._held.partition(CLOSING)
                if not closing:
                    break
                self._held, self._is_inside = rest, False
                self._end_call(body, closing, found)
                continue
            before, opening, rest = self._held.partition(OPENING)
            if not opening:
                num_open = _num_begun(before)
                self._held = before[len(before) - num_open :]
                self._text(before[: len(before) - num_open], found)
                break
            self._text(before, found)
            self._held, self._is_inside = rest, True
        return found

    def finish(self) -> list[str | Call]:
        """Return the rest, when the reply has ended."""
        found: list[str | Call] = []
        if self._bare is not None:
            call = bare_call(self._bare, self._names)
            if call is not None:
                self.num_calls = 1
                return [call]
            text, self._bare = self._bare, None
            found = self.feed(text)
        if self._is_inside:
            self._end_call(self._held, "", found)
        else:
            self._text(self._held, found)
        if not self._follows_call:
            found.append(self._blanks)
        self._held, self._blanks, self._is_inside = "", "", False
        return [part for part in found if part]

    def _text(self, text: str, found: list[str | Call]) -> None:
        """Take text, but for the blanks at its end, which may belong to a call."""
        core = text.rstrip()
        if core:
            found.append(self._blanks + core)
            self._blanks, self._follows_call = "", False
        self._blanks += text[len(core) :]

    def _end_call(self, body: str, closing: str, found: list[str | Call]) -> None:
        call = parsed_call(body)
        if call is None:
            self._text(OPENING + body + closing, found)
            return
        self._blanks, self._follows_call = "", True
        self.num_calls += 1
        found.append(call)


def _may_be_bare(text: str) -> bool:
    """Return whether a bare call may begin so."""
    # the beginnings have no blanks, and are short
    squeezed = "".join(text[:200].split())
    return any(squeezed.startswith(one) or one.startswith(squeezed) for one in _BARE_BEGINNINGS)


def _num_begun(text: str) -> int:
    """Return how many of the last characters may begin the opening mark."""
    for number in range(min(len(OPENING) - 1, len(text)), 0, -1):
        if OPENING.startswith(text[-number:]):
            return number
    return 0
