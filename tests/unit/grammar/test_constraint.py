"""What may follow at any place of a reply, as a function of the tokens before it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.scripted import ScriptedTokenizer
from pilotfish.errors import BackendError
from pilotfish.grammar import JsonConstraint, JsonGrammars
from support.json_words import (
    END,
    OTHER_END,
    PIECES,
    SCHEMA,
    START,
    is_valid,
    json_tokenizer,
    text_of,
)

GRAMMARS = JsonGrammars(json_tokenizer())
ENDS = {END, OTHER_END}


def constraint(schema: Any = SCHEMA) -> JsonConstraint:
    return GRAMMARS.compiled(schema).constraint()


def legal(of: JsonConstraint, output_ids: list[int]) -> set[int]:
    return set(np.flatnonzero(of.allowed(output_ids)).tolist())


def random_reply(generator: np.random.Generator, most: int = 60) -> list[int]:
    """Return a reply drawn from what may follow, its end token included."""
    walker, output = constraint(), []
    while len(output) < most and not (output and output[-1] in ENDS):
        output.append(int(generator.choice(sorted(legal(walker, output)))))
    return output


def ids(text: str) -> list[int]:
    return json_tokenizer().encode(text, parse_special=False)


def test_every_walk_through_what_is_allowed_ends_in_a_valid_text() -> None:
    generator = np.random.default_rng(1)
    replies = [random_reply(generator) for _ in range(60)]
    ended = [reply for reply in replies if reply[-1] in ENDS]
    assert len(ended) > 40
    assert all(is_valid(text_of(reply)) for reply in ended)
    # many cuts of few texts: the walks do not follow one path
    assert len({tuple(reply) for reply in ended}) > 30


def test_answers_depend_on_the_tokens_alone_in_whatever_order_they_are_asked() -> None:
    generator = np.random.default_rng(2)
    replies = [random_reply(generator) for _ in range(6)]
    asked = constraint()
    for _ in range(300):
        reply = replies[generator.integers(len(replies))]
        output = reply[: generator.integers(len(reply) + 1)]
        fresh = constraint()
        drafts = [int(token) for token in generator.integers(0, len(PIECES), 3)]
        drafts = reply[len(output) : len(output) + 4] + drafts
        questions = [
            lambda one, output=output: one.allowed(np.array(output, dtype=np.int64)).tolist(),
            lambda one, output=output: one.forced(output),
            lambda one, output=output, drafts=drafts: one.num_legal(output, drafts),
        ]
        for place in generator.permutation(len(questions)):
            assert questions[place](asked) == questions[place](fresh)


def test_the_legal_beginning_of_a_draft_is_what_is_allowed_token_by_token() -> None:
    generator = np.random.default_rng(3)
    asked, stepwise = constraint(), constraint()
    for _ in range(100):
        reply = random_reply(generator)
        start = int(generator.integers(len(reply) + 1))
        output, drafts = reply[:start], reply[start : start + 5]
        drafts += [int(token) for token in generator.integers(0, len(PIECES), 4)]
        expected, after = 0, list(output)
        while not ENDS & set(after) and drafts[expected] in legal(stepwise, after):
            after.append(drafts[expected])
            expected += 1
            if expected == len(drafts):
                break
        assert asked.num_legal(output, drafts) == expected


def test_forced_tokens_are_legal_and_leave_no_other_text() -> None:
    asked = constraint()
    assert text_of(asked.forced([])) == '{"a":'
    output = ids('{"a":7,')
    forced = asked.forced(output)
    # the quote after it may be a part of the word's token
    assert text_of(forced) == '"b":'
    assert asked.num_legal(output, forced) == len(forced)
    # no choice of texts is left, though there are several ways to cut it
    for length in range(len(forced)):
        for token in legal(asked, output + list(forced[:length])):
            assert '"b":"'.startswith(text_of((*forced[:length], token)))
    assert asked.forced(ids('{"a":')) == ()


def test_the_end_may_follow_where_the_text_is_complete_and_nothing_else_follows_it() -> None:
    asked, whole = constraint(), ids('{"a":7,"b":"red"}')
    for length in range(len(whole)):
        assert not ENDS & legal(asked, whole[:length])
    assert legal(asked, whole) == ENDS
    assert asked.forced(whole) == ()
    assert legal(asked, [*whole, END]) == ENDS
    assert asked.num_legal(whole, [END, END]) == 1
    assert asked.num_legal(whole[:-1], [whole[-1], OTHER_END, whole[0]]) == 2
    assert asked.num_legal(whole[:-1], [END]) == 0
    assert asked.num_legal([*whole, END], [END]) == 0


def test_a_number_may_end_or_go_on() -> None:
    asked = constraint({"type": "integer"})
    assert legal(asked, ids("12")) > ENDS
    assert PIECES.index(b"3") in legal(asked, ids("12"))
    assert legal(asked, [*ids("12"), END]) == ENDS


def test_control_tokens_never_follow() -> None:
    generator = np.random.default_rng(4)
    asked = constraint({})
    for _ in range(20):
        for length in range(len(reply := random_reply(generator))):
            assert START not in legal(constraint(), reply[:length])
    assert START not in legal(asked, ids('"'))


def test_no_blanks_stand_between_the_parts_but_in_texts_they_may() -> None:
    blank = PIECES.index(b" ")
    asked = constraint({"type": "object", "additionalProperties": {"type": "string"}})
    for text in ("", "{", '{"a"', '{"a":', '{"a":"b"', '{"a":"b"}'):
        assert blank not in legal(asked, ids(text)), text
    assert blank in legal(asked, ids('{"a":"'))


def test_a_name_cannot_come_in_disguise() -> None:
    tokenizer = ScriptedTokenizer([*PIECES, b"\\", b"\\u", b"n"], end_ids=(END,), special=(END,))
    asked = (
        JsonGrammars(tokenizer).compiled({"properties": {"a": {"type": "integer"}}}).constraint()
    )
    allowed = asked.allowed(tokenizer.encode('{"', parse_special=False))
    assert allowed[len(PIECES)], "an escape may begin"
    assert not allowed[len(PIECES) + 1], "but not one that stands for a letter"


def test_a_vocabulary_that_cannot_go_on_gives_an_error_and_no_early_end() -> None:
    asked = constraint({"type": "string", "pattern": "^[ab][xyz]$"})
    assert legal(asked, []) == {PIECES.index(b'"')}
    for _ in range(2):  # asking again is no way around it
        with pytest.raises(BackendError, match="json_schema"):
            asked.allowed(ids('"a'))
    # and elsewhere it goes on
    assert legal(asked, []) == {PIECES.index(b'"')}


def test_what_a_reply_could_not_have_said_is_an_error() -> None:
    with pytest.raises(BackendError, match="token 4 at 1"):
        constraint().allowed([PIECES.index(b"{"), PIECES.index(b"}")])


def test_compiled_schemas_are_kept_and_their_constraints_are_apart() -> None:
    grammars = JsonGrammars(json_tokenizer())
    first, second = (
        grammars.compiled(SCHEMA).constraint(),
        grammars.compiled(dict(SCHEMA)).constraint(),
    )
    assert legal(first, ids('{"a":7,')) == legal(second, ids('{"a":7,'))
    assert legal(first, ids('{"a":')) != legal(second, ids('{"a":7,'))
    assert first.forced([]) == second.forced([])


def test_several_threads_may_compile_and_ask_at_once() -> None:
    grammars = JsonGrammars(json_tokenizer())
    reply = [*ids('{"a":345,"b":"blue"}'), END]
    expected = [legal(constraint(), reply[:length]) for length in range(len(reply) + 1)]

    def walk(number: int) -> bool:
        # half of them compile the same schema, half one of their own
        schema = SCHEMA if number % 2 else {**SCHEMA, "title": str(number)}
        asked = grammars.compiled(schema).constraint()
        answers = [legal(asked, reply[:length]) for length in range(len(reply) + 1)]
        return answers == expected and asked.forced([]) == constraint().forced([])

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(walk, range(64)))


def test_a_tokenizer_that_puts_a_blank_first_still_gives_forced_tokens() -> None:
    class Blank(ScriptedTokenizer):
        def encode(self, text: str, *, parse_special: bool) -> list[int]:
            return super().encode(" " + text, parse_special=parse_special)

    tokenizer = Blank(PIECES, special=(START, END), end_ids=(END,))
    forced = JsonGrammars(tokenizer).compiled(SCHEMA).constraint().forced([])
    assert text_of(forced) == '{"a":'


def test_a_tokenizer_that_cannot_write_the_text_forces_nothing() -> None:
    class Failing(ScriptedTokenizer):
        def encode(self, text: str, *, parse_special: bool) -> list[int]:
            raise ValueError("no")

    tokenizer = Failing(PIECES, special=(START, END), end_ids=(END,))
    asked = JsonGrammars(tokenizer).compiled(SCHEMA).constraint()
    assert asked.forced([]) == ()
    assert asked.allowed([]).any()
