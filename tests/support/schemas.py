"""Schemas made by chance from all keywords that are enforced, and replies that they let pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pilotfish.backends.scripted import ScriptedTokenizer
from pilotfish.grammar import JsonGrammars
from pilotfish.grammar.formats import INTEGER_FORMATS, NEUTRAL_FORMATS, TEXT_FORMATS

END = 256
LONGEST_REPLY = 120
_CLOSING = frozenset(b'"}]')
_NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 5, 10, -7, 99, 100, 0.5, -0.25, 1.75, 1e-7, 12345.678, 0.1 + 0.2),
    *(2**53, 2**53 + 1, -(2**53) - 1, 2**53 + 3, 2**63 - 1, -(2**63), 2**64, 1e18, 1e19),
]
_STEPS = [1, 2, 3, 7, 10, 0.5, 0.1, 0.01, 2.5, 0.07, 0.3]
_PATTERNS = ["^a", "b$", "^[a-c]+$", "^[0-9]{2,3}$", "a|b", "^.$", "[^a]", r"^\d+$", r"^\w+$"]
_LEAVES: list[Any] = [True, {}, {"type": "integer"}, {"type": "boolean"}, {"type": "null"}]
_NAMES = ["a", "b", "c", "aa"]
_TYPES = ["integer", "number", "string", "object", "array", "boolean", "null"]
_UNIONS = [["integer", "null"], ["string", "number"], ["object", "array"], None]


@functools.cache
def grammars() -> JsonGrammars:
    """Return a store of grammars for a tokenizer whose tokens are the bytes."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"<|end|>"]
    return JsonGrammars(ScriptedTokenizer(pieces, special=(END,), end_ids=(END,)))


def random_reply(schema: Any, generator: np.random.Generator) -> str | None:
    """Return a text drawn from those that the schema lets pass, in a hurry to end; None if it does
    not. Raises ConfigError for a schema that is refused."""
    constraint = grammars().compiled(schema).constraint()
    output: list[int] = []
    while len(output) < LONGEST_REPLY:
        allowed = np.flatnonzero(constraint.allowed(output))
        readable = allowed[(allowed < 128) | (allowed == END)]
        allowed = readable if len(readable) else allowed
        weights = [
            len(allowed) if token == END else 1 + len(allowed) / 6 * (token in _CLOSING)
            for token in allowed.tolist()
        ]
        token = int(generator.choice(allowed, p=np.array(weights) / sum(weights)))
        if token == END:
            return bytes(output).decode()
        output.append(token)
    return None


def is_accepted(schema: Any, text: str) -> bool:
    """Return whether a reply may be this text."""
    constraint = grammars().compiled(schema).constraint()
    tokens = [*text.encode(), END]
    return constraint.num_legal([], tokens) == len(tokens)


class SchemaMaker:
    """Makes schemas by chance, some of which contradict themselves."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def schema(self, depth: int = 0) -> Any:
        """Return a schema; `depth` is where it is in another one."""
        if depth > 2:
            return self._pick(_LEAVES)
        schema: dict[str, Any] = {}
        kind = self._pick([*_TYPES, "string", "object", "array", *_UNIONS])
        if kind is not None:
            schema["type"] = kind
        kinds = [kind] if isinstance(kind, str) else kind or _TYPES
        for name, add in (
            ("number", self._add_numbers),
            ("integer", self._add_numbers),
            ("string", self._add_texts),
            ("array", self._add_lists),
            ("object", self._add_objects),
        ):
            if name in kinds:
                add(schema, depth)
        self._maybe(schema, 0.12, "enum", lambda: self._several(self._literal, 4))
        self._maybe(schema, 0.05, "const", self._literal)
        for keyword in ("anyOf", "allOf", "oneOf"):
            below = functools.partial(self.schema, depth + 1)
            self._maybe(schema, 0.1, keyword, lambda below=below: self._several(below, 2))
        return schema

    def _add_numbers(self, schema: dict[str, Any], depth: int) -> None:
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            self._maybe(schema, 0.3, keyword, lambda: self._pick(_NUMBERS))
        self._maybe(schema, 0.2, "multipleOf", lambda: self._pick(_STEPS))
        names = [*INTEGER_FORMATS, *NEUTRAL_FORMATS]
        self._maybe(schema, 0.15, "format", lambda: self._pick(names))

    def _add_texts(self, schema: dict[str, Any], depth: int) -> None:
        self._maybe(schema, 0.3, "minLength", lambda: self._pick([0, 1, 2.0]))
        self._maybe(schema, 0.3, "maxLength", lambda: self._pick([1, 3, 2**40]))
        self._maybe(schema, 0.3, "pattern", lambda: self._pick(_PATTERNS))
        self._maybe(schema, 0.2, "format", lambda: self._pick(list(TEXT_FORMATS)))

    def _add_lists(self, schema: dict[str, Any], depth: int) -> None:
        for keyword in ("minItems", "maxItems"):
            self._maybe(schema, 0.4, keyword, lambda: self._pick([0, 1, 2.0, 3]))
        below = functools.partial(self.schema, depth + 1)
        self._maybe(schema, 0.6, "items", below)
        self._maybe(schema, 0.3, "prefixItems", lambda: self._several(below, 2))

    def _add_objects(self, schema: dict[str, Any], depth: int) -> None:
        below = functools.partial(self.schema, depth + 1)
        names = functools.partial(self._pick, _NAMES)

        def named(keys: Sequence[str]) -> dict[str, Any]:
            return {self._pick(keys): below() for _ in range(self._number(1, 3))}

        self._maybe(schema, 0.5, "properties", lambda: named(_NAMES))
        self._maybe(schema, 0.5, "required", lambda: [*dict.fromkeys(self._several(names, 2))])
        self._maybe(schema, 0.5, "additionalProperties", lambda: self._pick([False, True, below()]))
        self._maybe(schema, 0.2, "patternProperties", lambda: named(["^a", "^b", "c$"]))
        self._maybe(schema, 0.3, "maxProperties", lambda: self._pick([0, 1, 2]))
        self._maybe(schema, 0.1, "minProperties", lambda: self._pick([0, 1]))
        asked = [{}, {"pattern": "^[ab]"}, {"enum": ["a", "q"]}, {"type": "string", "const": "a"}]
        self._maybe(schema, 0.2, "propertyNames", lambda: self._pick(asked))

    def _literal(self, depth: int = 0) -> Any:
        below = functools.partial(self._literal, depth + 1)
        plain = [None, True, False, *_NUMBERS, "a", "ab", "b", "", "x\ny", "é"]
        if depth > 0 or self._generator.random() < 0.7:
            return self._pick(plain)
        if self._generator.random() < 0.5:
            return self._several(below, 3)
        return {self._pick(_NAMES): below() for _ in range(2)}

    def _maybe(
        self, schema: dict[str, Any], chance: float, keyword: str, make: Callable[[], Any]
    ) -> None:
        if self._generator.random() < chance:
            schema[keyword] = make()

    def _several(self, make: Callable[[], Any], most: int) -> list[Any]:
        return [make() for _ in range(self._number(1, most))]

    def _number(self, least: int, most: int) -> int:
        return int(self._generator.integers(least, most + 1))

    def _pick(self, items: Sequence[Any]) -> Any:
        return items[int(self._generator.integers(len(items)))]
