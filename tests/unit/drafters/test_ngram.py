import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.errors import ConfigError
from pilotfish.types import SamplingSettings, SessionView

cases = settings(max_examples=60, deadline=None, derandomize=True)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def view(
    tokens: list[int],
    request_id: int = 0,
    num_prompt_tokens: int = 1,
    end_ids: tuple[int, ...] = (),
) -> SessionView:
    return SessionView(
        request_id, tokens, num_prompt_tokens, SamplingSettings(), 0, 0, frozenset(end_ids)
    )


def propose(drafter: NgramDrafter, tokens: list[int], budget: int, **rest) -> tuple[int, ...]:
    return drafter.propose([view(tokens, **rest)], [budget])[0].token_ids


def lookup(tokens: list[int], budget: int, longest: int, shortest: int) -> tuple[int, ...]:
    """Prompt lookup, the slow way."""
    for n in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[end - n : end] == tokens[-n:]:
                copied = list(tokens)
                for i in range(budget):
                    copied.append(copied[end + i])
                return tuple(copied[len(tokens) :])
    return ()


@cases
@given(texts, st.integers(0, 9), st.integers(1, 3), st.integers(0, 3))
def test_the_index_finds_what_a_scan_of_the_text_finds(tokens, budget, shortest, more):
    drafter = NgramDrafter(max_match=shortest + more, min_match=shortest)
    assert propose(drafter, tokens, budget) == lookup(tokens, budget, shortest + more, shortest)


@cases
@given(texts, st.lists(st.integers(1, 5), max_size=20), st.integers(1, 9))
def test_growing_in_steps_gives_what_indexing_at_once_gives(tokens, steps, budget):
    drafter = NgramDrafter()
    length = 1
    for step in steps:
        length = min(len(tokens), length + step)
        prefix = tokens[:length]
        assert propose(drafter, prefix, budget) == propose(NgramDrafter(), prefix, budget)


@cases
@given(texts, st.integers(0, 9))
def test_a_proposal_keeps_the_budget_and_only_holds_tokens_of_the_text(tokens, budget):
    proposed = propose(NgramDrafter(min_match=1), tokens, budget)
    assert len(proposed) <= budget
    assert set(proposed) <= set(tokens)


def test_the_longest_run_wins_over_a_later_shorter_one():
    assert propose(NgramDrafter(), [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], 1) == (7,)


def test_the_latest_of_equal_runs_wins():
    assert propose(NgramDrafter(), [1, 2, 7, 1, 2, 8, 1, 2], 1) == (8,)


def test_a_repeating_text_is_continued_up_to_the_budget():
    assert propose(NgramDrafter(), [5] * 10, 6) == (5,) * 6
    assert propose(NgramDrafter(), [1, 2, 3, 1, 2, 3, 1], 7) == (2, 3, 1, 2, 3, 1, 2)


def test_nothing_is_proposed_past_an_end_token():
    text = [1, 2, 3, 99, 4, 1, 2]
    assert propose(NgramDrafter(), text, 5, end_ids=(99,)) == (3,)
    assert propose(NgramDrafter(), [1, 2, 99, 4, 1, 2], 5, end_ids=(99,)) == ()


def test_the_source_is_named_and_no_laws_are_given():
    proposal = NgramDrafter().propose([view([1, 2, 3, 1, 2])], [2])[0]
    assert (proposal.source, proposal.distributions) == ("ngram", None)


def test_sessions_do_not_disturb_each_other():
    one, two = [1, 2, 3, 1, 2], [1, 2, 4, 1, 2]
    proposals = NgramDrafter().propose([view(one, 1), view(two, 2), view(one, 3)], [1, 1, 0])
    assert [p.token_ids for p in proposals] == [(3,), (4,), ()]


@pytest.mark.parametrize(
    ("tokens", "num_prompt_tokens"),
    [([1, 2], 1), ([1, 2, 9, 8, 7, 1, 2, 3, 5, 9], 1), ([1, 2, 3, 4, 1, 2, 3], 3)],
    ids=["shrunk", "changed", "another prompt"],
)
def test_a_text_that_does_not_continue_the_indexed_one_starts_anew(tokens, num_prompt_tokens):
    drafter = NgramDrafter()
    propose(drafter, [1, 2, 3, 4, 1, 2], 3)
    expected = propose(NgramDrafter(), tokens, 3)
    assert propose(drafter, tokens, 3, num_prompt_tokens=num_prompt_tokens) == expected


def test_a_forgotten_request_leaves_nothing_behind():
    drafter = NgramDrafter()
    propose(drafter, [1, 2, 3, 1, 2], 3, request_id=4)
    drafter.forget(4)
    drafter.forget(4)
    assert propose(drafter, [9, 1, 2], 3, request_id=4) == ()


@pytest.mark.parametrize(("longest", "shortest"), [(1, 2), (3, 0)])
def test_impossible_match_lengths_are_refused(longest, shortest):
    with pytest.raises(ConfigError, match="min_match"):
        NgramDrafter(max_match=longest, min_match=shortest)
