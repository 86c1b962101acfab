import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.drafters.suffix_automaton import MAX_COUNTED_LINKS, Match, SuffixAutomaton

cases = settings(max_examples=60, deadline=None, derandomize=True)
# short enough that counting is never cut, whatever the text
texts = st.lists(st.integers(0, 2), max_size=MAX_COUNTED_LINKS - 2)


def automaton_of(*several: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for text in several:
        automaton.extend(text)
        if len(several) > 1:
            automaton.end_text()
    return automaton


def ends(several: list[list[int]], run: list[int]) -> list[tuple[int, int]]:
    """Return (text, end) of every occurrence of a run, the slow way."""
    n = len(run)
    return [
        (i, end)
        for i, text in enumerate(several)
        for end in range(n, len(text) + 1)
        if text[end - n : end] == run
    ]


def longest_match(several: list[list[int]], text: list[int]) -> list[int]:
    """Return the longest suffix of `text` that occurs in any of the texts."""
    return next(text[i:] for i in range(len(text) + 1) if ends(several, text[i:]) or i == len(text))


def continuation(
    several: list[list[int]], run: list[int], max_tokens: int, min_match: int, minimum: float
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Follow the most frequent next token, counting occurrences anew at each step."""

    def followers(run: list[int]) -> list[int]:
        return [several[i][end] for i, end in ends(several, run) if end < len(several[i])]

    token_ids, survivals, survival = [], [], 1.0
    while len(token_ids) < max_tokens:
        if not followers(run):  # go on with the longest suffix that occurs more often
            known = len(ends(several, run))
            while run and len(ends(several, run)) == known:
                run = run[1:]
        found = followers(run)
        if len(run) < min_match or not found:
            break
        last_seen = {token: place for place, token in enumerate(found)}
        token = max(last_seen, key=lambda t: (found.count(t), last_seen[t]))
        survival *= found.count(token) / (len(found) + 3.0 / len(run) ** 1.5)
        if survival < minimum:
            break
        run = [*run, token]
        token_ids.append(token)
        survivals.append(survival)
    return tuple(token_ids), tuple(survivals)


@cases
@given(texts)
def test_the_repeat_is_the_longest_suffix_that_also_occurs_earlier(text):
    automaton = automaton_of(text)
    assert automaton.longest_repeat().length == len(longest_match([text[:-1]], text))


def test_every_run_is_counted_as_often_as_it_occurs():
    rng = random.Random(1)
    for _ in range(60):
        several = [[rng.randrange(3) for _ in range(rng.randrange(25))] for _ in range(3)]
        automaton = automaton_of(*several)
        for text in several:
            for start in range(len(text)):
                for end in range(start + 1, len(text) + 1):
                    run = text[start:end]
                    assert automaton.num_occurrences(run) == len(ends(several, run))
        assert automaton.num_occurrences([0, 3]) == 0


@cases
@given(texts, st.integers(0, 12), st.integers(1, 3), st.sampled_from([0.0, 0.1, 0.5]))
def test_the_continuation_follows_the_counts_of_the_own_text(text, budget, min_match, minimum):
    automaton = automaton_of(text)
    match = automaton.longest_repeat()
    got = automaton.continuation(
        match, max_tokens=budget, min_match=min_match, min_probability=minimum
    )
    run = text[len(text) - match.length :]
    token_ids, survivals = continuation([text], run, budget, min_match, minimum)
    assert got.token_ids == token_ids
    assert got.survivals == pytest.approx(survivals)


@cases
@given(st.lists(texts.filter(len), min_size=2, max_size=4), texts, st.integers(1, 6))
def test_another_text_is_matched_and_continued_as_the_counts_say(several, text, budget):
    automaton = automaton_of(*several)
    match = automaton.advance(Match(), text)
    run = longest_match(several, text)
    assert match.length == len(run)
    got = automaton.continuation(match, max_tokens=budget)
    token_ids, survivals = continuation(several, run, budget, 1, 0.0)
    assert got.token_ids == token_ids
    assert got.survivals == pytest.approx(survivals)


@cases
@given(texts, st.lists(st.integers(0, 2), max_size=8))
def test_advancing_token_by_token_is_advancing_at_once(text, other):
    automaton = automaton_of(text)
    match = Match()
    for token in other:
        match = automaton.advance(match, [token])
    assert match == automaton.advance(Match(), other)


@cases
@given(st.lists(texts, max_size=3), texts)
def test_survivals_are_probabilities_that_never_rise(several, text):
    automaton = automaton_of(*several, text)
    got = automaton.continuation(automaton.advance(Match(), text), max_tokens=9)
    assert len(got.token_ids) == len(got.survivals) <= 9
    assert all(1.0 >= a >= b > 0.0 for a, b in zip(got.survivals, got.survivals[1:], strict=False))
    assert got.score == pytest.approx(sum(got.survivals))


def test_no_run_crosses_from_one_text_into_the_next():
    automaton = automaton_of([1, 2, 3], [4, 5, 6])
    assert automaton.num_occurrences([3, 4]) == 0
    match = automaton.advance(Match(), [2, 3])
    assert match.length == 2
    assert automaton.continuation(match, max_tokens=5).token_ids == ()
    assert automaton.advance(Match(), [2, 3, 4, 5]).length == 2


def test_one_sighting_after_a_long_match_counts_more_than_after_a_short_one():
    long, short = automaton_of([1, 2, 3, 4, 5, 6, 7, 8]), automaton_of([7, 8])
    after_long = long.continuation(long.advance(Match(), [1, 2, 3, 4, 5, 6, 7]), max_tokens=1)
    after_short = short.continuation(short.advance(Match(), [7]), max_tokens=1)
    assert after_long.token_ids == after_short.token_ids == (8,)
    assert after_long.score > 0.8 > 0.3 > after_short.score


def test_the_more_frequent_continuation_wins_over_the_later_one():
    automaton = automaton_of([1, 7, 1, 7, 1, 8, 0, 1])
    got = automaton.continuation(Match(*automaton.longest_repeat()), max_tokens=1)
    assert got.token_ids == (7,)


@cases
@given(st.integers(2, 400))
def test_a_text_of_one_token_is_continued_with_it(length):
    automaton = automaton_of([5] * length)
    assert automaton.longest_repeat().length == length - 1
    got = automaton.continuation(automaton.longest_repeat(), max_tokens=7)
    assert got.token_ids == (5,) * 7
    assert 1 <= automaton.num_occurrences([5]) <= length


def test_an_empty_automaton_matches_nothing():
    automaton = SuffixAutomaton()
    assert automaton.longest_repeat() == Match(0, 0)
    assert automaton.continuation(Match(), max_tokens=3).token_ids == ()
    assert automaton.advance(Match(), [1, 2]) == Match(0, 0)


def executed_lines(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs: a clock that is the same everywhere."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def fibonacci_word(length: int) -> list[int]:
    older, word = [0], [0, 1]
    while len(word) < length:
        older, word = word, word + older
    return word[:length]


# both counting walks, some lines each, and what adding the states takes
LINES_A_TOKEN = 2 * MAX_COUNTED_LINKS * 7 + 60


def test_twenty_thousand_equal_tokens_take_bounded_work_each():
    automaton = SuffixAutomaton()
    automaton.extend([5] * 19_500)
    assert executed_lines(lambda: automaton.extend([5] * 500)) < 500 * LINES_A_TOKEN
    match = automaton.longest_repeat()
    assert match.length == 19_999
    assert executed_lines(lambda: automaton.continuation(match, max_tokens=16)) < 16 * 20


@pytest.mark.parametrize(
    "text",
    [
        [5] * 1_000,
        [5, 6] * 500,
        [5] * 499 + [6] + [5] * 499 + [7],
        fibonacci_word(1_000),
        [0] + [1] * 499 + [2] * 500,
    ],
    ids=["equal", "alternating", "broken run", "fibonacci", "two runs"],
)
def test_work_grows_with_the_text_and_not_faster(text):
    automaton = SuffixAutomaton()
    assert executed_lines(lambda: automaton.extend(text)) < len(text) * LINES_A_TOKEN
    cursor = executed_lines(lambda: automaton.advance(Match(), text[::-1] + text))
    assert cursor < 2 * len(text) * 12


@cases
@given(st.lists(st.integers(0, 1), min_size=60, max_size=200))
def test_a_cut_count_is_a_lower_bound(text):
    automaton = automaton_of(text)
    for length in (1, 2, 5):
        run = text[-length:]
        assert 1 <= automaton.num_occurrences(run) <= len(ends([text], run))


def test_survivals_never_rise_where_counts_are_cut():
    rng = random.Random(3)
    for _ in range(3):
        text: list[int] = []
        while len(text) < 400:
            pieces = [[0] * rng.randrange(1, 120), [1], [0, 1] * rng.randrange(1, 60)]
            text += rng.choice([*pieces, text[-rng.randrange(1, 60) :]])
        automaton = automaton_of(text)
        match = Match()
        for token in text:
            match = automaton.advance(match, [token])
            shorter = [automaton.advance(Match(), [0] * n + [token]) for n in range(0, 70, 5)]
            for start in [match, *shorter]:
                survivals = automaton.continuation(start, max_tokens=2).survivals
                assert list(survivals) == sorted(survivals, reverse=True)
                assert all(0.0 < survival < 1.0 for survival in survivals)
