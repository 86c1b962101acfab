"""Compiles JSON schemas for one tokenizer, and keeps what was compiled."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from pilotfish.errors import ConfigError
from pilotfish.grammar.constraint import JsonConstraint, one_line
from pilotfish.grammar.library import load_library
from pilotfish.grammar.schema import Schema, schema_text
from pilotfish.grammar.tags import tags_text
from pilotfish.grammar.vocabulary import make_vocabulary
from pilotfish.text import Tokenizer
from pilotfish.types import StructuralTags

_MOST_KEPT = 64
_OPTIONS = {
    # no blanks between the parts: they are never needed, and models lose themselves in them
    "whitespace_flexible": False,
    # \u0061 for a letter would hide a name that is there already
    "json_allowed_escapes": 'nrbtf\\"',
    "coerce_one_of": False,
    "lenient": False,
}


def check_schema(schema: Schema | StructuralTags) -> None:
    """Raise ConfigError if the schema is none or asks for what cannot be enforced.

    Knows no tokenizer. Raises MissingExtra without llguidance.
    """
    library = load_library()
    is_error, reasons = library.LLMatcher.validate_grammar_with_warnings(_grammar(schema))
    if is_error or reasons:
        raise _refused(reasons[0])


def _text(schema: Schema | StructuralTags) -> str:
    """Return what a schema asks for as one text, equal for equal ones, checked by keywords."""
    if isinstance(schema, StructuralTags):
        return tags_text(schema, _OPTIONS)
    return schema_text(schema)


def _grammar(schema: Schema | StructuralTags) -> str:
    """Return the grammar of a checked schema, as llguidance writes it."""
    text, matcher = _text(schema), load_library().LLMatcher
    try:
        if isinstance(schema, StructuralTags):
            return str(matcher.grammar_from_lark(text))
        return str(matcher.grammar_from_json_schema(text, overrides=_OPTIONS))
    except ValueError as error:
        raise _refused(str(error)) from error


def _refused(reason: str) -> ConfigError:
    hint = "write anyOf in its place" if "oneOf" in reason else ""
    return ConfigError(f"json_schema cannot be used: {one_line(reason)}", hint=hint)


def _check_beginning(matcher: Any) -> None:
    """Raise ConfigError where no reply can begin or get beyond the text that must come first: a
    schema may contradict itself in ways that only its tokens show."""
    matcher.compute_bitmask()
    is_empty = matcher.is_stopped()
    forced = [] if is_empty else matcher.compute_ff_tokens()
    if forced:
        matcher.try_consume_tokens(forced)
        if not matcher.is_stopped():
            matcher.compute_bitmask()
    reason = matcher.get_error()
    if matcher.is_error() or is_empty or reason:
        # of what never ends the compiler can only say that it is too much
        has_no_text = "NoExtension" in reason or "Too many items" in reason
        raise _refused("no reply satisfies it" if has_no_text else reason)


class Grammar:
    """A schema compiled for one tokenizer: any number of replies may be held to it, in any number
    of threads. Whoever has one need not compile it again, whatever its store has dropped."""

    def __init__(self, matcher: Any, tokenizer: Tokenizer) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer

    def constraint(self) -> JsonConstraint:
        """Return what holds a new reply to the schema; takes no time to speak of."""
        size, end_ids = self._tokenizer.vocab_size, self._tokenizer.end_ids
        return JsonConstraint(self._matcher, vocab_size=size, end_ids=end_ids)


class JsonGrammars:
    """The JSON schemas of one tokenizer's requests. Any number of threads may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: Any = None
        self._vocabulary_lock = threading.Lock()
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self._kept_lock = threading.Lock()

    def compiled(self, schema: Schema | StructuralTags) -> Grammar:
        """Return the grammar of a schema; compiled the first time, which takes from a millisecond
        to a second, and again once many others were asked for.

        Raises ConfigError with the compiler's reason, and MissingExtra without llguidance.
        """
        key = _text(schema)
        with self._kept_lock:
            grammar = self._kept.get(key)
        if grammar is None:
            # not under the lock: a large schema must not hold up the small ones
            grammar = Grammar(self._compile(schema), self._tokenizer)
        with self._kept_lock:
            self._kept[key] = grammar
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return grammar

    def _compile(self, schema: Schema | StructuralTags) -> Any:
        check_schema(schema)
        if isinstance(schema, StructuralTags):
            # what nothing satisfies shows at a first token, and that of a tag is another
            for one in (*(tag.schema for tag in schema.tags), schema.otherwise):
                if one is not None:
                    self._compile(one)
        library = load_library()
        matcher = library.LLMatcher(
            self._tokens(),
            _grammar(schema),
            log_level=0,
            limits=library.LLParserLimits(verbose_errors=False),
        )
        _check_beginning(matcher.deep_copy())
        return matcher

    def _tokens(self) -> Any:
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = make_vocabulary(self._tokenizer)
            return self._vocabulary
