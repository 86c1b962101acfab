"""The pool of caches: who is taken over from, what is kept, and which places are given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.backends.scripted import ScriptedCache, ScriptedModel, random_logits
from pilotfish.errors import BackendError
from pilotfish.prefixes import PrefixPool
from pilotfish.types import Segment

VOCAB = 12
LEAST = 16  # shorter beginnings are not taken over


def text(*parts: tuple[int, int]) -> list[int]:
    """Return a text of stretches (token, length)."""
    return [token for token, length in parts for _ in range(length)]


class Pool:
    """A pool over a scripted model, and what happens to a sequence in an engine."""

    def __init__(self, *, places: int = 64, **options: Any) -> None:
        self.model = ScriptedModel(
            random_logits(VOCAB), vocab_size=VOCAB, context_size=8192, max_sessions=places
        )
        self.pool = PrefixPool(self.model, **({"most_sequences": 4} | options))
        self.caches: dict[int, ScriptedCache] = {}
        self._num_begun = 0

    def begin(self, prompt: list[int], *, read: int | None = None) -> int:
        """Begin a sequence and read `read` tokens of its prompt, all but the last unless said
        otherwise; return its key. Its prompt grows as the reply does."""
        self._num_begun += 1
        key = self._num_begun
        cache = self.pool.begin(prompt)
        assert isinstance(cache, ScriptedCache)
        assert cache.tokens == prompt[: len(cache)]
        assert len(cache) < len(prompt)
        self.caches[key] = cache
        self.pool.watch(key, cache, prompt, num_prompt_tokens=len(prompt))
        self.read(key, prompt[len(cache) : len(prompt) - 1 if read is None else read])
        return key

    def read(self, key: int, tokens: Sequence[int]) -> None:
        self.model.forward([Segment(self.caches[key], tokens, first_row=len(tokens))])

    def run(self, prompt: list[int]) -> int:
        """Begin a sequence, read it and end it; return how much of it was known."""
        before = len(self.model.log.evaluations)
        self.pool.end(self.begin(prompt))
        return len(prompt) - 1 - (len(self.model.log.evaluations) - before)

    def known(self, prompt: list[int]) -> int:
        """Return how much of a prompt is known, which changes nothing."""
        return self.pool.num_known(prompt)


SYSTEM = text((1, 40))


def test_what_an_ended_sequence_has_read_need_not_be_read_again() -> None:
    pool = Pool()
    assert pool.run([*SYSTEM, 2, 2]) == 0
    assert pool.run([*SYSTEM, 3, 3, 3]) == 40
    # the last token is never taken over: its row is wanted
    assert pool.run([*SYSTEM, 3, 3, 3]) == 42
    assert pool.run(SYSTEM[:30]) == 29


def test_the_longest_beginning_wins_among_kept_and_running() -> None:
    pool = Pool()
    pool.run([*SYSTEM, *text((2, 10)), 3])
    running = pool.begin([*SYSTEM, *text((2, 20)), 3])
    pool.run([*SYSTEM, *text((5, 30)), 3])
    assert pool.known([*SYSTEM, *text((2, 15)), 4]) == 55
    assert pool.known([*SYSTEM, *text((2, 8)), 4]) == 48
    assert pool.known([*SYSTEM, *text((5, 40))]) == 70
    pool.pool.end(running)
    assert pool.known([*SYSTEM, *text((2, 15)), 4]) == 55


def test_a_running_sequence_gives_what_it_has_read_so_far() -> None:
    pool = Pool()
    prompt = [*SYSTEM, *text((2, 30))]
    key = pool.begin(prompt, read=25)
    assert pool.known(prompt) == 25
    pool.read(key, prompt[25:69])
    assert pool.known([*prompt, 4]) == 69
    # the reply, too, as far as it is in the cache
    prompt += [7, 8, 9]
    pool.read(key, [2, 7, 8])
    assert pool.known([*prompt, 4, 4]) == 72


def test_a_short_beginning_is_not_worth_a_copy() -> None:
    pool = Pool()
    pool.run([*text((1, LEAST)), 2])
    assert pool.known([*text((1, LEAST - 1)), 3, 3]) == 0
    assert pool.known([*text((1, LEAST)), 3, 3]) == LEAST
    pool.run(text((4, LEAST)))
    assert pool.pool.num_kept == 1


def test_the_whole_passes_of_prompts_are_taken_over_and_nothing_of_replies() -> None:
    pool = Pool(unit=20)
    prompt = text((1, 70))
    running = pool.begin(prompt)
    prompt += text((2, 60))
    pool.read(running, prompt[69:120])
    # of 69 tokens read as a prompt three passes were whole, though the cache holds 120
    for wanted in (text((1, 70)), prompt[:130], [*text((1, 69)), 5]):
        assert pool.known(wanted) == 60
    assert pool.known(text((1, 60))) == 40
    pool.pool.end(running)
    assert pool.known(prompt[:130]) == 60
    assert pool.pool.num_kept_tokens == 60
    # read only in part, and less than a pass
    short = pool.begin(text((3, 70)), read=30)
    assert pool.known(text((3, 70))) == 20
    pool.pool.end(short)
    # the last token of a prompt is read with the reply, even where it ends a pass
    prompt = text((4, 40))
    running = pool.begin(prompt)
    prompt += [5, 5]
    pool.read(running, [4, 5])
    assert pool.known(prompt) == 20
    pool.pool.end(running)
    pool.pool.end(pool.begin(text((6, 20))))
    assert (pool.pool.num_kept, pool.pool.num_kept_tokens) == (3, 100)


@pytest.mark.parametrize(("length", "whole"), [(40, 20), (41, 40), (42, 40), (60, 40), (61, 60)])
def test_a_pass_that_the_prompt_fills_is_whole_without_the_last_token(
    length: int, whole: int
) -> None:
    pool = Pool(unit=20)
    pool.begin(text((1, length)))
    assert pool.known(text((1, 100))) == whole


def test_a_pool_keeps_nothing_unless_it_is_told_to() -> None:
    model = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    pool = PrefixPool(model)
    cache = pool.begin(SYSTEM)
    pool.watch(1, cache, SYSTEM, num_prompt_tokens=len(SYSTEM))
    model.forward([Segment(cache, SYSTEM[:-1])])
    assert pool.num_known(SYSTEM) == 0
    pool.end(1)
    assert (pool.num_kept, model.open_caches) == (0, set())
    assert pool.unit == 1


def test_the_sequence_unused_for_longest_goes_first() -> None:
    pool = Pool(most_sequences=2)
    first, second, third = (text((token, 41)) for token in (1, 2, 3))
    early = pool.begin(first, read=25)
    pool.run(first)
    pool.run(second)
    # one that begins like it uses it, and so does one that ends and is contained in it
    pool.begin([*first[:30], 9])
    pool.run(third)
    assert [pool.known(one) for one in (first, second, third)] == [40, 0, 40]
    pool.pool.end(early)
    pool.run(second)
    assert [pool.known(one) for one in (first, second, third)] == [40, 40, 0]


def test_asking_what_is_known_is_no_use() -> None:
    pool = Pool(most_sequences=2)
    first, second, third = (text((token, 41)) for token in (1, 2, 3))
    pool.run(first)
    pool.run(second)
    assert pool.known(first) == 40
    pool.run(third)
    assert pool.known(first) == 0


def test_tokens_are_limited_and_the_newest_is_cut_to_what_may_be_kept() -> None:
    pool = Pool(most_tokens=100)
    pool.run(text((1, 61)))
    pool.run(text((2, 41)))
    assert pool.pool.num_kept_tokens == 100
    pool.run(text((3, 18)))
    assert (pool.known(text((1, 61))), pool.pool.num_kept_tokens) == (0, 57)
    pool.run(text((4, 500)))
    assert pool.pool.num_kept_tokens == 100
    assert pool.known(text((4, 500))) == 100


def test_a_sequence_in_another_is_not_kept_twice() -> None:
    pool = Pool()
    short, long = text((1, 40)), text((1, 60))
    pool.run(short)
    pool.run(long)
    assert (pool.pool.num_kept, pool.pool.num_kept_tokens) == (1, 59)
    pool.run(short)
    assert (pool.pool.num_kept, pool.pool.num_kept_tokens) == (1, 59)
    pool.run([*short, 5, 5])
    assert pool.pool.num_kept == 2


def test_a_turn_of_a_chat_replaces_the_turn_before() -> None:
    pool = Pool(most_sequences=1)
    history = text((1, 40))
    for turn in range(5):
        key = pool.begin([*history, 2])
        assert len(pool.caches[key]) >= (40 + 20 * (turn - 1) if turn else 40)
        history += text((3 + turn, 20))
        pool.pool.end(key)
        assert (pool.pool.num_kept, len(pool.model.open_caches)) == (1, 1)


@pytest.mark.parametrize("while_running", [True, False])
def test_what_a_failed_sequence_has_read_is_taken_over_by_nobody(while_running: bool) -> None:
    pool = Pool()
    key = pool.begin(SYSTEM)
    pool.pool.distrust(key)
    if not while_running:
        pool.pool.end(key)
        assert not pool.model.open_caches
    assert pool.known(SYSTEM) == 0
    pool.pool.distrust(99)  # nobody


def test_a_sequence_gives_nothing_while_it_changes_and_never_again_where_that_broke_off() -> None:
    pool = Pool()
    key, other = pool.begin(SYSTEM), pool.begin(text((2, 40)))
    with pool.pool.changing([key, 99]):
        assert pool.known(SYSTEM) == 0
        assert pool.known(text((2, 40))) == 39
        assert (pool.pool.is_broken_off(key), pool.pool.is_broken_off(other)) == (True, False)
    assert pool.known(SYSTEM) == 39
    assert not pool.pool.is_broken_off(key)
    with pytest.raises(KeyboardInterrupt), pool.pool.changing([key]):
        raise KeyboardInterrupt
    assert (pool.known(SYSTEM), pool.pool.is_broken_off(key)) == (0, True)
    # the end of a later change makes up for nothing
    with pool.pool.changing([key]):
        pass
    assert pool.known(SYSTEM) == 0
    pool.pool.end(key)
    assert pool.pool.num_kept == 0
    assert not pool.pool.is_broken_off(key)
    pool.pool.end(other)
    assert pool.pool.num_kept == 1


def test_a_cache_that_holds_more_than_the_text_gives_the_text_only() -> None:
    """As after a round that failed between its pass and the choice of its tokens."""
    pool = Pool()
    prompt = text((1, 30))
    key = pool.begin(prompt)
    pool.read(key, [1, 1, 1, 1])
    assert len(pool.caches[key]) == 33
    assert pool.known(text((1, 60))) == 30
    pool.pool.end(key)
    assert pool.pool.num_kept_tokens == 30


def test_ending_is_safe_to_repeat_and_a_key_can_come_again() -> None:
    pool = Pool()
    key = pool.begin(text((1, 40)))
    for _ in range(2):
        pool.pool.end(key)
    for token in (2, 3):
        prompt = text((token, 40))
        cache = pool.pool.begin(prompt)
        pool.pool.watch(key, cache, prompt, num_prompt_tokens=40)
        pool.model.forward([Segment(cache, prompt[:39], first_row=39)])
        pool.pool.end(key)
    assert (pool.pool.num_kept, len(pool.model.open_caches)) == (3, 3)


def test_without_places_to_keep_nothing_is_shared() -> None:
    pool = Pool(most_sequences=0)
    running = pool.begin(SYSTEM)
    assert pool.known(SYSTEM) == pool.pool.num_shared(40) == 0
    assert pool.run(SYSTEM) == 0
    pool.pool.end(running)
    assert (pool.pool.num_kept, len(pool.model.open_caches)) == (0, 0)


def test_a_newcomer_gets_the_place_of_what_was_kept_longest() -> None:
    pool = Pool(places=3)
    for token in (1, 2, 3):
        pool.run(text((token, 41)))
    pool.begin(text((4, 41)))
    assert [pool.known(text((token, 41))) for token in (1, 2, 3)] == [0, 40, 40]
    # who is taken over from stays while another can go
    pool.begin([*text((2, 40)), 5])
    assert [pool.known(text((token, 41))) for token in (2, 3)] == [40, 0]


def test_where_no_other_place_is_left_the_newcomer_gets_the_cache_it_begins_like() -> None:
    pool = Pool(places=2)
    pool.begin(text((4, 41)))
    pool.run(text((1, 41)))
    key = pool.begin([*text((1, 30)), 5, 5])
    assert len(pool.caches[key]) == 31
    assert pool.model.log.copies == []
    assert (pool.pool.num_kept, len(pool.model.open_caches)) == (0, 2)
    with pytest.raises(BackendError, match="in use"):
        pool.begin(text((1, 41)))
    assert pool.known(text((1, 41))) == 30


def test_clearing_gives_back_every_place_that_is_kept() -> None:
    pool = Pool()
    running = pool.begin(text((5, 41)))
    for token in (1, 2):
        pool.run(text((token, 41)))
    assert (pool.pool.num_kept_tokens, pool.pool.num_live_tokens) == (80, 40)
    pool.pool.clear()
    assert (pool.pool.num_kept, len(pool.model.open_caches)) == (0, 1)
    assert pool.known(text((5, 41))) == 40
    pool.pool.end(running)
    assert (pool.pool.num_kept, pool.pool.num_live_tokens) == (1, 0)


@dataclass
class SlowPool:
    """What a pool of one unit, without a limit of tokens, is to do: lists and loops."""

    most_sequences: int
    running: dict[int, list[int]] = field(default_factory=dict)
    kept: list[list[int]] = field(default_factory=list)

    def known(self, prompt: list[int]) -> int:
        return max([0, *(self.common(t, prompt) for t in [*self.kept, *self.running.values()])])

    def begin(self, key: int, prompt: list[int]) -> None:
        known = self.known(prompt)
        for used in [t for t in self.kept if known and self.common(t, prompt) == known][:1]:
            self.kept = [*(t for t in self.kept if t is not used), used]
        self.running[key] = prompt[:known]

    def end(self, key: int) -> None:
        ended = self.running.pop(key)
        within = [t for t in self.kept if t[: len(ended)] == ended]
        if len(ended) < LEAST:
            return
        if within:
            ended = within[0]
        self.kept = [t for t in self.kept if t is not ended and ended[: len(t)] != t]
        self.kept = [*self.kept, ended][-self.most_sequences :]

    @staticmethod
    def common(one: list[int], prompt: list[int]) -> int:
        pairs = zip(one, prompt[:-1], strict=False)
        length = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        length = min(len(one), len(prompt) - 1) if length is None else length
        return length if length >= LEAST else 0


prompts = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), min_size=1, max_size=4).map(
    lambda parts: text(*((token, 9 * n) for token, n in parts))
)
# begin a sequence; read so many tokens of the one that runs longest; end that or the newest
steps = st.lists(
    st.one_of(prompts, st.integers(1, 40), st.sampled_from(["oldest", "newest"])), max_size=30
)


@settings(max_examples=150)
@given(steps, st.integers(1, 3))
def test_any_course_of_events_is_that_of_a_slow_pool(course: list[Any], most: int) -> None:
    pool, slow = Pool(most_sequences=most), SlowPool(most)
    prompts_of: dict[int, list[int]] = {}
    for step in course:
        if isinstance(step, list):
            slow.begin(key := len(prompts_of) + 1, step)
            assert pool.known(step) == len(slow.running[key])
            assert pool.begin(list(step), read=0) == key
            assert pool.caches[key].tokens == slow.running[key]
            prompts_of[key] = step
        elif slow.running and isinstance(step, int):
            key = min(slow.running)
            new = prompts_of[key][len(slow.running[key]) : -1][:step]
            pool.read(key, new)
            slow.running[key] += new
        elif slow.running:
            key = min(slow.running) if step == "oldest" else max(slow.running)
            pool.pool.end(key)
            slow.end(key)
        assert pool.pool.num_kept == len(slow.kept)
        assert pool.pool.num_kept_tokens == sum(len(t) for t in slow.kept)
        assert len(pool.model.open_caches) == len(slow.kept) + len(slow.running)
        for prompt in prompts_of.values():
            assert pool.known(prompt) == slow.known(prompt)
