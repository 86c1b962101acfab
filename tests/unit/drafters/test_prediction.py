"""Predicted replies: followed, left, and found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.drafters.prediction_alignment import Alignment, likeliest_place
from pilotfish.errors import ConfigError
from pilotfish.types import DraftWish, SamplingSettings, SessionView

END = 9999
# a text in which few tokens stand for many places, as in source code
TEXT = tuple(np.random.default_rng(3).zipf(1.3, 400).clip(max=900).tolist())
NOTHING_ELSE: frozenset[int] = frozenset()


def view(
    reply: Sequence[int], prediction: Sequence[int], *, drafter: str = "auto", request_id: int = 1
) -> SessionView:
    wish = DraftWish(drafter=drafter, prediction=tuple(prediction))
    tokens = [7, 7, 7, *reply]
    settings = SamplingSettings()
    return SessionView(request_id, tokens, 3, settings, 0, 0, frozenset({END}), wish=wish)


def offered(reply: Sequence[int], prediction: Sequence[int], budget: int = 8) -> tuple[int, ...]:
    (proposal,) = PredictionDrafter(min_probability=0.0).propose(
        [view(reply, prediction)], [budget]
    )
    return proposal.token_ids


def rounds(reply: Sequence[int], prediction: Sequence[int], budget: int = 31) -> int:
    """Return how many rounds a reply takes with drafts of the prediction alone."""
    alignment, done, number = Alignment(prediction), 0, 0
    while done < len(reply):
        drafts, _ = alignment.draft(budget, end_ids=NOTHING_ELSE, min_probability=0.0)
        pairs = zip(drafts, reply[done:], strict=False)
        accepted = next((i for i, (x, y) in enumerate(pairs) if x != y), len(drafts))
        for token in reply[done : done + accepted + 1]:
            alignment.read(token)
        done, number = done + accepted + 1, number + 1
    return number


def test_a_reply_is_drafted_from_its_first_token_on() -> None:
    assert offered([], [3, 4, 5, 6]) == (3, 4, 5, 6)
    assert offered([3, 4], [3, 4, 5, 6], 1) == (5,)
    assert offered([3, 4, 5, 6], [3, 4, 5, 6]) == ()
    assert rounds(TEXT, TEXT) == -(-len(TEXT) // 32)


def test_nothing_is_proposed_without_a_prediction_or_budget() -> None:
    assert offered([3], []) == ()
    assert offered([3], [3, 4], 0) == ()


def test_drafts_end_before_an_end_token() -> None:
    assert offered([], [3, 4, END, 5]) == (3, 4)


def test_what_a_reply_has_before_the_prediction_begins_is_waited_out() -> None:
    fence = [901, 902, 903]
    for number in range(1, 4):
        assert offered(fence[:number], TEXT)[:3] == TEXT[:3]
    assert rounds([*fence, *TEXT, 904], TEXT) <= rounds(TEXT, TEXT) + 4


@pytest.mark.parametrize("length", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("kind", ["inserted", "deleted", "replaced"])
@pytest.mark.parametrize("at", [20, 150, 300])
def test_a_reply_is_found_again_a_few_tokens_after_a_difference(
    kind: str, length: int, at: int
) -> None:
    new = list(range(1000, 1000 + length)) if kind != "deleted" else []
    goes_on = at if kind == "inserted" else at + length
    alignment = Alignment(TEXT)
    for token in (*TEXT[:at], *new):
        alignment.read(token)
    for number in range(6):
        drafts, _ = alignment.draft(8, end_ids=NOTHING_ELSE, min_probability=0.0)
        if tuple(drafts) == TEXT[goes_on + number : goes_on + number + 8]:
            break
        alignment.read(TEXT[goes_on + number])
    else:
        pytest.fail("not found again")


def test_a_prompt_that_ends_inside_the_prediction_is_continued_there() -> None:
    settings, wish = SamplingSettings(), DraftWish(prediction=TEXT)

    def first(prompt: Sequence[int]) -> tuple[int, ...]:
        shown = SessionView(1, prompt, len(prompt), settings, 0, 0, frozenset({END}), wish=wish)
        return PredictionDrafter(min_probability=0.0).propose([shown], [8])[0].token_ids

    assert first(TEXT[40:200]) == TEXT[200:208]
    # an end that is alike by chance is no such thing
    assert first([*range(5000, 5040), *TEXT[195:200]]) == TEXT[:8]
    assert first([7]) == TEXT[:8]


def test_one_replaced_token_costs_one_round() -> None:
    reply = [*TEXT[:100], 1000, *TEXT[101:]]
    assert offered(reply[:101], TEXT) == TEXT[101:109]
    assert rounds(reply, TEXT) <= rounds(TEXT, TEXT) + 1


def test_a_change_made_before_is_expected_again() -> None:
    # "x" becomes two tokens wherever it stands
    x, total = 950, (1001, 1002)
    prediction = [token for i, one in enumerate(TEXT) for token in ([x] if i % 9 == 4 else [one])]
    reply = [token for one in prediction for token in (total if one == x else (one,))]
    start = reply.index(1001)
    after = [*reply[: start + 2], *reply[start + 2 : start + 6]]
    assert offered(after, prediction, 16) == tuple(reply[len(after) : len(after) + 16])
    assert rounds(reply, prediction) <= rounds(TEXT, TEXT) + 6


def test_a_change_that_does_not_come_again_is_given_up_and_comes_back() -> None:
    x, total = 950, 1001
    part = (10, 20, 30, x, 40, 50)
    alignment = Alignment(part * 8)

    def read(changed: bool) -> None:
        for token in part:
            alignment.read(total if changed and token == x else token)

    def expected() -> int:
        drafts, _ = alignment.draft(6, end_ids=NOTHING_ELSE, min_probability=0.0)
        return drafts[3]

    assert expected() == x
    read(changed=True)
    assert expected() == total
    read(changed=False)
    assert expected() == x
    for _ in range(2):
        read(changed=True)
    assert expected() == total


def test_identical_lines_do_not_confuse_it_for_long() -> None:
    line = [5, 6, 7, 8, 9]
    prediction = [*range(100, 140), *line * 30, *range(200, 240)]
    for number in (0, 3, 29, 33, 60):
        reply = [*range(100, 140), *line * number, *range(200, 240)]
        # of lines beyond the predicted ones each may take a look of its own
        assert rounds(reply, prediction) <= 2 + rounds(reply, reply) + max(0, number - 30) + 2
    # the reply went into the second of two like parts
    alike = [*line, 11, 12, 13, *line, 14, 15, 16]
    assert offered([*line, 14], alike) == (15, 16)


def test_the_most_matched_place_wins_and_of_equals_the_nearest() -> None:
    predicted = np.array([1, 2, 3, 9, 2, 3, 8, 2, 3, 7])
    for last, expected, best in (
        ([0, 2, 3], 3, (3, 2)),
        ([0, 2, 3], 8, (9, 2)),
        ([8, 2, 3], 3, (9, 3)),
    ):
        found = likeliest_place(predicted, last, expected)
        assert found is not None
        assert found[:2] == best
    assert likeliest_place(predicted, [4], 3) is None


def test_one_token_repeated_without_end_is_looked_at_nearby_only() -> None:
    predicted = np.full(300_000, 4)
    found = likeliest_place(predicted, [4] * 1000, 200_000)
    assert found is not None
    assert found[:2] == (200_000, 32)


def test_a_wrong_prediction_is_offered_with_little_hope() -> None:
    alignment = Alignment(TEXT)
    for token in range(2000, 2030):
        alignment.read(token)
    _, chances = alignment.draft(8, end_ids=NOTHING_ELSE, min_probability=0.0)
    assert chances[0] < 0.01
    assert PredictionDrafter().propose([view(range(2000, 2030), TEXT)], [8])[0].token_ids == ()


def test_the_chances_rise_while_the_prediction_is_followed() -> None:
    alignment = Alignment(TEXT)
    firsts = []
    for token in TEXT[:50]:
        firsts.append(alignment.draft(1, end_ids=NOTHING_ELSE, min_probability=0.0)[1][0])
        alignment.read(token)
    assert firsts == sorted(firsts)
    assert 0.5 < firsts[0] < 0.7 < 0.98 < firsts[-1]


def shuffled(text: Sequence[int]) -> list[int]:
    return np.random.default_rng(5).permutation(text).tolist()


@pytest.mark.parametrize("change", [list, shuffled, lambda text: [*text[50:], *text[:50]]])
def test_what_is_offered_is_a_function_of_the_reply_so_far(
    change: Callable[[Sequence[int]], list[int]],
) -> None:
    """However many tokens came at once, and whatever was drafted and rejected before."""
    reply, drafter = change(TEXT), PredictionDrafter()
    steps = np.random.default_rng(7).integers(1, 9, 60).cumsum().tolist()
    shown = view([], TEXT)
    tokens = [7, 7, 7]
    for step in steps:
        tokens.extend(reply[len(tokens) - 3 : step])
        one = SessionView(1, tokens, 3, shown.settings, 0, 0, frozenset({END}), wish=shown.wish)
        (kept,) = drafter.propose([one], [8])
        (fresh,) = PredictionDrafter().propose([one], [8])
        assert kept == fresh


def test_a_request_that_may_not_have_it_reads_nothing() -> None:
    drafter = PredictionDrafter()
    for name in ("none", "suffix"):
        shown = view([], [3, 4], drafter=name)
        assert not drafter.prepare(shown)
        assert drafter.propose([shown], [4])[0].token_ids == ()
        assert not drafter._requests
    assert drafter.propose([view([], [3, 4], drafter="prediction")], [4])[0].source == "prediction"
    drafter.forget(1)
    assert not drafter._requests


def test_a_probability_is_from_0_to_1() -> None:
    with pytest.raises(ConfigError, match="min_probability"):
        PredictionDrafter(min_probability=2)
