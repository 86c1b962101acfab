import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.drafters.suffix import SuffixDrafter
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


def propose(drafter: SuffixDrafter, tokens: list[int], budget: int, **rest) -> tuple[int, ...]:
    return drafter.propose([view(tokens, **rest)], [budget])[0].token_ids


def eager(**options) -> SuffixDrafter:
    """Return a drafter that proposes whatever it knows."""
    return SuffixDrafter(min_probability=0.0, **options)


def run_request(drafter: SuffixDrafter, request_id: int, prompt: list[int], reply: list[int]):
    propose(drafter, prompt + reply, 1, request_id=request_id, num_prompt_tokens=len(prompt))
    drafter.forget(request_id)


@cases
@given(texts, st.integers(0, 9), st.floats(0, 1))
def test_a_proposal_keeps_the_budget_and_only_holds_tokens_of_the_text(tokens, budget, minimum):
    proposed = propose(SuffixDrafter(min_probability=minimum), tokens, budget)
    assert len(proposed) <= budget
    assert set(proposed) <= set(tokens)


@cases
@given(texts, st.integers(1, 9), st.integers(1, 4))
def test_the_first_token_once_followed_a_run_of_the_asked_length(tokens, budget, min_match):
    proposed = propose(eager(min_match=min_match), tokens, budget)
    if proposed:
        run = [*tokens[-min_match:], proposed[0]]
        starts = range(len(tokens) - min_match)
        assert any(tokens[i : i + min_match + 1] == run for i in starts)


@cases
@given(texts, st.lists(st.integers(0, 5), max_size=20), st.integers(1, 9))
def test_growing_in_steps_gives_what_reading_at_once_gives(tokens, steps, budget):
    drafter = SuffixDrafter()
    length = 1
    for step in steps:
        length = min(len(tokens), length + step)
        prefix = tokens[:length]
        assert propose(drafter, prefix, 0) == ()
        assert propose(drafter, prefix, budget) == propose(SuffixDrafter(), prefix, budget)


def test_a_higher_threshold_cuts_the_same_proposal_shorter():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3]
    longest = propose(eager(), text, 7)
    assert longest == (4, 5, 6, 7, 8, 9, 10)
    lengths = []
    for minimum in (0.2, 0.4, 0.5, 0.6, 0.9):
        proposed = propose(SuffixDrafter(min_probability=minimum), text, 7)
        assert proposed == longest[: len(proposed)]
        lengths.append(len(proposed))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1] == 0


def test_a_repeating_text_is_continued_up_to_the_budget():
    assert propose(SuffixDrafter(), [5] * 40, 6) == (5,) * 6
    assert propose(SuffixDrafter(), [1, 2, 3] * 12, 7) == (1, 2, 3, 1, 2, 3, 1)


def test_nothing_is_proposed_past_an_end_token():
    assert propose(eager(), [1, 2, 3, 99, 4, 1, 2], 5, end_ids=(99,)) == (3,)
    assert propose(eager(), [1, 2, 99, 4, 1, 2], 5, end_ids=(99,)) == ()


def test_the_source_is_named_and_no_laws_are_given():
    proposal = eager().propose([view([1, 2, 3, 1, 2])], [2])[0]
    assert (proposal.source, proposal.distributions) == ("suffix", None)


def test_running_sessions_do_not_disturb_each_other():
    drafter = eager()
    one, two = [1, 2, 3, 1, 2], [1, 2, 4, 1, 2]
    for _ in range(2):
        views = [view(one, 1), view(two, 2), view(one, 3), view([1, 2], 4)]
        proposals = drafter.propose(views, [1, 1, 0, 1])
        assert [p.token_ids for p in proposals] == [(3,), (4,), (), ()]


@pytest.mark.parametrize(
    ("tokens", "num_prompt_tokens"),
    [([1, 2], 1), ([1, 2, 9, 8, 7, 1, 2, 3, 5, 9], 1), ([1, 2, 3, 4, 1, 2, 3], 3)],
    ids=["shrunk", "changed", "another prompt"],
)
def test_a_text_that_does_not_continue_the_read_one_starts_anew(tokens, num_prompt_tokens):
    drafter = eager()
    propose(drafter, [1, 2, 3, 4, 1, 2], 3)
    expected = propose(eager(), tokens, 3)
    assert propose(drafter, tokens, 3, num_prompt_tokens=num_prompt_tokens) == expected


def test_the_reply_of_a_forgotten_request_is_proposed_to_later_ones_and_its_prompt_is_not():
    drafter = eager()
    run_request(drafter, 1, prompt=[50, 51, 52, 53], reply=[10, 11, 12, 13])
    assert propose(drafter, [9, 10, 11], 5, request_id=2) == (12, 13)
    assert propose(drafter, [9, 50, 51], 5, request_id=3) == ()


def test_the_store_follows_a_request_that_was_running_before_it_changed():
    drafter = eager()
    text = [9, 10]
    assert propose(drafter, text, 5, request_id=2) == ()
    run_request(drafter, 1, prompt=[50], reply=[10, 11, 12])
    assert propose(drafter, text, 5, request_id=2) == (11, 12)
    run_request(drafter, 3, prompt=[50], reply=[11, 60, 61])
    text += [11, 60]
    assert propose(drafter, text, 5, request_id=2) == (61,)


def test_the_last_tokens_of_a_reply_are_stored_when_the_session_shares_its_list():
    drafter = eager()
    text = [50, 10]
    propose(drafter, text, 1, request_id=1)
    text += [11, 12]
    drafter.forget(1)
    assert propose(drafter, [9, 10], 5, request_id=2) == (11, 12)


def test_a_request_that_never_drafted_leaves_its_reply_too():
    drafter = eager()
    propose(drafter, [50, 10, 11, 12], 0, request_id=1)
    drafter.forget(1)
    assert propose(drafter, [9, 10], 5, request_id=2) == (11, 12)


def test_replies_are_never_joined():
    drafter = eager()
    run_request(drafter, 1, prompt=[50], reply=[10, 11])
    run_request(drafter, 2, prompt=[50], reply=[12, 13])
    assert propose(drafter, [9, 10, 11], 5, request_id=3) == ()
    assert propose(drafter, [9, 10], 5, request_id=4) == (11,)


def test_the_better_of_own_text_and_store_wins():
    drafter = eager()
    run_request(drafter, 1, prompt=[50], reply=[1, 2, 3, 4, 5, 6, 7])
    assert propose(drafter, [5, 99, 1, 2, 3, 4, 5], 1, request_id=2) == (6,)
    assert propose(drafter, [1, 2, 3, 4, 5, 99, 1, 2, 3, 4, 5], 1, request_id=3) == (99,)


def test_clear_empties_the_store_and_leaves_running_requests_alone():
    drafter = eager()
    run_request(drafter, 1, prompt=[50], reply=[10, 11, 12])
    own = [20, 21, 22, 20]
    propose(drafter, own, 2, request_id=2)
    drafter.clear()
    assert propose(drafter, [9, 10], 5, request_id=3) == ()
    assert propose(drafter, own, 2, request_id=2) == (21, 22)


@pytest.mark.parametrize("size", [0, 1])
def test_no_store_keeps_nothing(size):
    drafter = eager(store_tokens=size)
    run_request(drafter, 1, prompt=[50], reply=[10, 11, 12])
    assert propose(drafter, [9, 10], 5, request_id=2) == ()


def test_the_store_keeps_to_its_size_and_to_the_newest_replies():
    drafter = eager(store_tokens=100)
    rng = random.Random(2)
    for request_id in range(60):
        length = rng.choice([1, 7, 30, 80])
        reply = [1000 * request_id + i for i in range(length)]
        run_request(drafter, request_id, prompt=[1], reply=reply)
        generations = drafter._store.generations
        assert sum(g.num_tokens for g in generations) <= 100
        assert len(generations) <= 2
        if length > 1:
            again = propose(drafter, [2, reply[0]], 1, request_id=-1)
            assert again == (reply[1],)
            drafter._requests.clear()
    assert propose(drafter, [2, 0], 1, request_id=-1) == ()


@cases
@given(st.lists(texts, max_size=5), texts, st.integers(0, 9))
def test_with_a_store_tokens_come_from_texts_that_were_seen(replies, tokens, budget):
    drafter = SuffixDrafter(min_probability=0.1, store_tokens=90)
    for request_id, reply in enumerate(replies, start=1):
        run_request(drafter, request_id, [7], [token + 10 * request_id for token in reply])
    proposed = propose(drafter, tokens, budget)
    assert len(proposed) <= budget
    # nothing of the other replies fits, so nothing of them is proposed
    assert set(proposed) <= set(tokens)


@pytest.mark.parametrize(
    "options",
    [{"min_match": 0}, {"min_probability": -0.1}, {"min_probability": 1.5}, {"store_tokens": -1}],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        SuffixDrafter(**options)


def test_the_same_wrong_proposal_is_given_up_once_the_text_contradicts_it():
    """A drafter must not hold on to what the target keeps rejecting."""
    drafter = SuffixDrafter(store_tokens=0)
    text = [1, 2, 3, 4, 5, 6] * 3
    wrong = 0
    for round_index in range(30):
        proposed = propose(drafter, text, 4, num_prompt_tokens=18)
        wrong += bool(proposed) and proposed[0] != 100 + round_index
        text = [*text, 100 + round_index]
    assert wrong <= 1
