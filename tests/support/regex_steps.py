"""Counts the steps that a backtracking matcher takes, so that patterns can be judged without a
clock, and makes the texts that are worst for a pattern."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

# what `re` parses a pattern to; there is no public name for it
PARSER: Any = re._parser  # type: ignore[attr-defined]
CONSTANTS: Any = re._constants  # type: ignore[attr-defined]
Node = tuple[Any, Any]

# a character that no pattern of ours names
UNKNOWN = "\x03"

_CATEGORIES = {
    "DIGIT": str.isdigit,
    "SPACE": str.isspace,
    "WORD": lambda character: character.isalnum() or character == "_",
}
_SINGLE = (CONSTANTS.LITERAL, CONSTANTS.NOT_LITERAL, CONSTANTS.ANY, CONSTANTS.IN)
_REPEATS = (CONSTANTS.MAX_REPEAT, CONSTANTS.MIN_REPEAT, CONSTANTS.POSSESSIVE_REPEAT)


class TooManySteps(Exception):
    """The matcher has taken more steps than it may."""


def num_steps(pattern: str, flags: int, text: str, *, anchored: bool, limit: int) -> int:
    """Return the steps it takes to find out that a pattern matches, or does not.

    `anchored` is the whole text from its beginning; else every place is tried, as `sub` does.
    Raises TooManySteps beyond the limit.
    """
    matcher = _Matcher(text, limit)
    nodes = list(PARSER.parse(pattern, flags))
    if anchored:
        any(end == len(text) for end in matcher.ends(nodes, 0))
        return matcher.steps
    start = 0
    while start <= len(text):
        end = next(matcher.ends(nodes, start), start)
        start = max(end, start + 1)
    return matcher.steps


class _Matcher:
    """A matcher that tries what `re` tries, in its order, without its short cuts."""

    def __init__(self, text: str, limit: int) -> None:
        self._text = text
        self._limit = limit
        self.steps = 0

    def ends(self, nodes: Sequence[Node], start: int) -> Iterator[int]:
        """Yield where a match that begins at `start` can end, the preferred one first."""
        if not nodes:
            yield start
            return
        for end in self._node(nodes[0], start):
            yield from self.ends(nodes[1:], end)

    def _node(self, node: Node, start: int) -> Iterator[int]:
        self.steps += 1
        if self.steps > self._limit:
            raise TooManySteps
        kind, value = node
        if kind in _SINGLE:
            if start < len(self._text) and is_one(node, self._text[start]):
                yield start + 1
        elif kind in _REPEATS:
            least, most, nodes = value
            ends = self._repeated(list(nodes), start, least, most, kind is CONSTANTS.MIN_REPEAT)
            yield from itertools.islice(ends, 1 if kind is CONSTANTS.POSSESSIVE_REPEAT else None)
        elif kind is CONSTANTS.SUBPATTERN:
            yield from self.ends(list(value[-1]), start)
        elif kind is CONSTANTS.ATOMIC_GROUP:
            yield from itertools.islice(self.ends(list(value), start), 1)
        elif kind is CONSTANTS.BRANCH:
            for nodes in value[1]:
                yield from self.ends(list(nodes), start)
        elif kind in (CONSTANTS.ASSERT, CONSTANTS.ASSERT_NOT):
            direction, nodes = value
            if self._looks(list(nodes), start, direction) == (kind is CONSTANTS.ASSERT):
                yield start
        elif kind is CONSTANTS.AT:
            wanted = {CONSTANTS.AT_BEGINNING: 0, CONSTANTS.AT_END: len(self._text)}
            if start == wanted.get(value, start):
                yield start
        else:
            raise NotImplementedError(f"{kind} in a pattern")

    def _repeated(
        self, nodes: list[Node], start: int, least: int, most: int, lazy: bool
    ) -> Iterator[int]:
        if lazy and least <= 0:
            yield start
        if most > 0:
            for end in self.ends(nodes, start):
                if end > start or least > 0:
                    yield from self._repeated(nodes, end, least - 1, most - 1, lazy)
        if not lazy and least <= 0:
            yield start

    def _looks(self, nodes: list[Node], start: int, direction: int) -> bool:
        if direction > 0:
            return any(True for _ in self.ends(nodes, start))
        width = PARSER.SubPattern(PARSER.State(), nodes).getwidth()[0]
        return start >= width and start in self.ends(nodes, start - width)


def is_one(node: Node, character: str) -> bool:
    """Return whether a node for one character stands for this one."""
    kind, value = node
    if kind is CONSTANTS.ANY:
        return True
    if kind is not CONSTANTS.IN:
        return (ord(character) == value) == (kind is CONSTANTS.LITERAL)
    negated = value[0][0] is CONSTANTS.NEGATE
    return any(_is_in(item, character) for item in value[negated:]) != negated


def _is_in(item: Node, character: str) -> bool:
    kind, value = item
    if kind is CONSTANTS.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    if kind is CONSTANTS.CATEGORY:
        *_, negation, name = f"_{value}".split("_")
        return bool(_CATEGORIES[name](character)) != (negation == "NOT")
    return kind is CONSTANTS.LITERAL and ord(character) == value


def nodes_of(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield every node of a parsed pattern, inner ones too."""
    for kind, value in nodes:
        yield kind, value
        if kind in _REPEATS:
            yield from nodes_of(value[2])
        elif kind is CONSTANTS.BRANCH:
            for branch in value[1]:
                yield from nodes_of(branch)
        elif kind in (CONSTANTS.SUBPATTERN, CONSTANTS.ASSERT, CONSTANTS.ASSERT_NOT):
            yield from nodes_of(value[-1])
        elif kind is CONSTANTS.ATOMIC_GROUP:
            yield from nodes_of(value)


def endless_nodes(pattern: str, flags: int) -> list[Node]:
    """Return the nodes below those that may repeat without end."""
    return [
        inner
        for kind, value in nodes_of(PARSER.parse(pattern, flags))
        if kind in _REPEATS and value[1] is CONSTANTS.MAXREPEAT
        for inner in nodes_of(value[2])
    ]


def hostile_texts(pattern: str, flags: int) -> Iterator[tuple[str, str, str]]:
    """Yield (beginning, what is repeated, end) for texts that may cost a matcher much.

    What is repeated is made of one character of each sort that the repeated parts tell apart, and
    of the pattern's runs of fixed characters.
    """
    single = [node for node in endless_nodes(pattern, flags) if node[0] in _SINGLE]
    sorts: dict[tuple[bool, ...], str] = {}
    for character in map(chr, (3, 10, *range(32, 127))):
        sorts.setdefault(tuple(is_one(node, character) for node in single), character)
    known = list(sorts.values())
    runs = _fixed_runs(pattern, flags)
    pairs = map("".join, itertools.product(known, repeat=2))
    repeated = list(dict.fromkeys([*known, *runs, *pairs]))
    yield from itertools.product(["", *runs], repeated, ["", UNKNOWN])


def _fixed_runs(pattern: str, flags: int) -> list[str]:
    parsed = nodes_of(PARSER.parse(pattern, flags))
    runs = itertools.groupby(parsed, key=lambda node: node[0] is CONSTANTS.LITERAL)
    found = ["".join(chr(value) for _, value in run) for fixed, run in runs if fixed]
    return list(dict.fromkeys(found))
