"""Tool calls: how a chat template is told of them, and how they are found in a reply."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pilotfish.server.json_object import ObjectScanner
from pilotfish.types import StructuralTag

log = logging.getLogger("pilotfish.server")

OPENING, CLOSING = "<tool_call>", "</tool_call>"
# how a call is written where a grammar holds the model to it
NAME, ARGUMENTS = '{"name": ', ', "arguments": '
# models write their arguments under all of these
_ARGUMENTS = ("arguments", "parameters", "args", "input")
# what may stand beside the name of a function that is called without arguments
_HARMLESS = frozenset({"name", "type", "id"})
_FENCE = "```"
_FENCES = ("", _FENCE, f"{_FENCE}json")
# how a call without marks begins, blanks left out
_BARE_BEGINNINGS = ('{"name":', '{{"name":')
_LONGEST_BEGINNING = max(map(len, _BARE_BEGINNINGS))


class NoCall(ValueError):
    """Says why a JSON object is no call, in words that repeat nothing of it."""


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


@dataclass(frozen=True, slots=True)
class MoreArguments:
    """More of the arguments of the call that began last, as text."""

    text: str


def whole_calls(parts: Iterable[str | Call | MoreArguments]) -> list[Call]:
    """Return the calls among the parts of a reply, each with all of its arguments."""
    calls: list[tuple[Call, list[str]]] = []
    for part in parts:
        if isinstance(part, Call):
            calls.append((part, [part.arguments]))
        elif isinstance(part, MoreArguments):
            calls[-1][1].append(part.text)
    return [replace(call, arguments="".join(texts)) for call, texts in calls]


class CallReader(Protocol):
    """Finds calls in the text of a reply, which arrives in any cut."""

    num_calls: int

    def feed(self, text: str) -> Sequence[str | Call | MoreArguments]:
        """Return what is certain now."""

    def finish(self) -> Sequence[str | Call | MoreArguments]:
        """Return the rest, when the reply has ended."""


def call_tag(name: str, arguments: Mapping[str, Any] | bool) -> StructuralTag:
    """Return how a call of a function is written, as the templates of this form write it."""
    begin = f"{OPENING}\n{NAME}{json.dumps(name, ensure_ascii=False)}{ARGUMENTS}"
    return StructuralTag(begin, arguments, f"}}\n{CLOSING}")


def writes_calls(chat_template: str | None) -> bool:
    """Return whether models of this template write calls in the form that is read here."""
    return chat_template is not None and OPENING in chat_template


def parsed_call(text: str) -> Call:
    """Return the call that a JSON object is; NoCall says why it is none.

    Line breaks inside texts are taken as they are, and so are arguments that are JSON as text.
    """
    text = text.strip()
    # a widely used template shows the form with its braces doubled, and models copy that
    if text.startswith("{{") and text.endswith("}}"):
        text = text[1:-1]
    value = _object(text, "the call")
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise NoCall("it has no name")
    names = [name for name in _ARGUMENTS if name in value]
    if len(names) > 1:
        raise NoCall(f"it has {names[0]} and {names[1]}")
    if not names and value.keys() - _HARMLESS:
        # as likely its arguments as anything else: a call without them would be another call
        raise NoCall("it has entries beside its name, and no arguments")
    arguments = value[names[0]] if names else None
    if isinstance(arguments, str):
        arguments = _object(arguments, names[0]) if arguments.strip() else None
    if arguments is not None and not isinstance(arguments, dict):
        raise NoCall(f"{names[0]} is no object")
    try:
        return Call(value["name"], json.dumps(arguments or {}, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise NoCall("its arguments cannot be written as JSON") from error


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise NoCall(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise NoCall(f"{what} is no object")
    return value


class CallFinder:
    """Finds calls in text that arrives in any cut; what it returns does not depend on the cut.

    A call is `<tool_call>`, a JSON object with a name and arguments, `</tool_call>`. The JSON says
    where it ends, so its texts may hold any mark, and the last mark may be missing. Blanks around
    calls belong to them. What looks like a call and is none stays text, marks included, and the
    log says why. A reply that may be a bare call of one of the functions `names` is held until that
    is certain. With `only_first` nothing that follows a call is returned.

    The work grows with the length of the text, whatever it says and however it is cut.
    """

    def __init__(self, names: Collection[str] = (), *, only_first: bool = False) -> None:
        self._bare = _BareCall(names) if names else None
        self._only_first = only_first
        # the beginning of a mark, at the end of what was read
        self._held = ""
        self._blanks: list[str] = []
        # what follows an opening mark, while it may be a call
        self._scanner: ObjectScanner | None = None
        self._object: list[str] = []
        self._follows_call = False
        self._awaits_closing = False
        self._reasons: list[str] = []
        self.num_calls = 0

    @property
    def is_over(self) -> bool:
        """Return whether the only call there may be has been found."""
        return self._only_first and self.num_calls > 0

    def feed(self, text: str) -> list[str | Call]:
        """Return what is certain now: parts of the text, and calls."""
        if self._bare is not None:
            if self._bare.feed(text):
                return []
            text, self._bare = self._bare.text, None
        found: list[str | Call] = []
        self._read(text, found)
        return found

    def finish(self) -> list[str | Call]:
        """Return the rest, when the reply has ended."""
        found: list[str | Call] = []
        if self._bare is not None:
            bare, self._bare = self._bare, None
            if bare.is_call:
                self.num_calls = 1
                return [*bare.calls]
            self._read(bare.text, found)
        while self._scanner is not None:
            self._read(self._not_a_call("it is cut off", found), found)
        if not self.is_over:
            # half a closing mark after a call is no text
            self._text("" if self._awaits_closing else self._held, found)
            found += [] if self._follows_call else self._blanks
        self._held, self._blanks = "", []
        self._log_reasons()
        return found

    def _read(self, text: str, found: list[str | Call]) -> None:
        # what is still to be read, the next last: text and a place in it
        pending = [(text, 0)]
        while pending and not self.is_over:
            text, place = pending.pop()
            if self._held:
                text, place, self._held = self._held + text[place:], 0, ""
            while place < len(text) and not self.is_over:
                if self._awaits_closing:
                    place = self._read_closing(text, place)
                elif self._scanner is None:
                    place = self._read_text(text, place, found)
                else:
                    end = self._scanner.feed(text, place)
                    self._object.append(text[place:end])
                    place = end
                    if self._scanner.is_complete or end < len(text):
                        pending.append((text, end))
                        text, place = self._end_object(self._scanner.is_complete, found), 0

    def _read_text(self, text: str, place: int, found: list[str | Call]) -> int:
        """Take text up to the next opening mark, and the mark; return how far it was read."""
        start = text.find(OPENING, place)
        if start >= 0:
            self._text(text[place:start], found)
            self._scanner, self._object = ObjectScanner(), []
            return start + len(OPENING)
        start = max(place, len(text) - _num_begun(text))
        self._text(text[place:start], found)
        self._held = text[start:]
        return len(text)

    def _read_closing(self, text: str, place: int) -> int:
        """Pass over the closing mark of a call, and over braces too many before it; return how far
        it was read. They are text where no mark follows."""
        start = place
        while place < len(text) and (text[place].isspace() or text[place] == "}"):
            place += 1
        self._blanks.append(text[start:place])
        mark = text[place : place + len(CLOSING)]
        if mark == CLOSING:
            self._blanks = []
            place += len(CLOSING)
        elif CLOSING.startswith(mark):
            self._held = mark
            return len(text)
        self._awaits_closing = False
        return place

    def _text(self, text: str, found: list[str | Call]) -> None:
        """Take text, but for the blanks at its end, which may belong to a call."""
        core = text.rstrip()
        if core:
            found.append("".join([*self._blanks, core]))
            self._blanks, self._follows_call = [], False
        if len(core) < len(text):
            self._blanks.append(text[len(core) :])

    def _end_object(self, is_complete: bool, found: list[str | Call]) -> str:
        """Take the object for a call, or for text; return what of it is to be read again."""
        if not is_complete:
            return self._not_a_call("it is not JSON", found)
        try:
            call = parsed_call("".join(self._object))
        except NoCall as error:
            return self._not_a_call(str(error), found)
        self._scanner, self._blanks = None, []
        self._follows_call = self._awaits_closing = True
        self.num_calls += 1
        found.append(call)
        return ""

    def _not_a_call(self, reason: str, found: list[str | Call]) -> str:
        """Take a mark and what follows it for text; return what of it is to be read again.

        A call that begins inside of a broken one breaks it at once, so the last mark is the only
        one that a call can follow, and nothing is read more than twice.
        """
        text = OPENING + "".join(self._object)
        self._scanner = None
        self._reasons.append(reason)
        start = text.rfind(OPENING, 1)
        again = text[start:] if start > 0 else ""
        self._text(text[: len(text) - len(again)], found)
        return again

    def _log_reasons(self) -> None:
        if self._reasons:
            number, first = len(self._reasons), self._reasons[0]
            log.warning("tool calls left as text: %d, the first because %s", number, first)
        self._reasons = []


def first_call_rule() -> Callable[[str], bool]:
    """Return a rule that ends a reply with its first call."""
    finder = CallFinder(only_first=True)

    def is_complete(text: str) -> bool:
        finder.feed(text)
        return finder.is_over

    return is_complete


class _BareCall:
    """A reply that may be one call as a whole, without marks or in a code fence.

    Small models often write their calls so. Any JSON could be meant, so the name must be known.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._parts: list[str] = []
        self._scanner = ObjectScanner()
        self._object: list[str] = []
        # without their blanks: what comes before the object, its beginning, what comes after
        self._before = self._beginning = self._after = ""
        self.calls: list[Call] = []

    @property
    def text(self) -> str:
        """Return the reply so far."""
        return "".join(self._parts)

    @property
    def is_call(self) -> bool:
        """Return whether it is a call, when the reply has ended."""
        return bool(self.calls) and self._after == self._before[: len(_FENCE)]

    def feed(self, text: str) -> bool:
        """Take more of the reply; return whether it may still be one call."""
        self._parts.append(text)
        place = 0
        if not self._object:
            place = text.find("{")
            if place < 0:
                self._before += _squeezed(text)
                return any(fence.startswith(self._before) for fence in _FENCES)
            self._before += _squeezed(text[:place])
            if self._before not in _FENCES:
                return False
        if not self.calls:
            end = self._scanner.feed(text, place)
            self._object.append(text[place:end])
            if not self._begins_as_calls_do(text[place:end]):
                return False
            if not self._scanner.is_complete:
                return end == len(text)
            place = end
            if not self._end_object():
                return False
        self._after += _squeezed(text[place:])
        return self._before[: len(_FENCE)].startswith(self._after)

    def _begins_as_calls_do(self, text: str) -> bool:
        if len(self._beginning) < _LONGEST_BEGINNING:
            self._beginning += _squeezed(text)
        found = self._beginning
        return any(one.startswith(found) or found.startswith(one) for one in _BARE_BEGINNINGS)

    def _end_object(self) -> bool:
        """Return whether the object is a call of a known function."""
        try:
            call = parsed_call("".join(self._object))
        except NoCall:
            return False
        self.calls.append(call)
        return call.name in self._names


def _squeezed(text: str) -> str:
    """Return a text without its blanks."""
    return "".join(text.split())


def _num_begun(text: str) -> int:
    """Return how many of the last characters may begin the opening mark."""
    for number in range(min(len(OPENING) - 1, len(text)), 0, -1):
        if OPENING.startswith(text[-number:]):
            return number
    return 0
