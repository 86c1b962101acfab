"""How many drafts pay: every choice against trying all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.control.choice import Prices, survivals

chances_lists = st.lists(st.floats(0.0, 1.0), max_size=9)
# passes in any shape, steps down among them: a wider pass may cost less
seconds_lists = st.lists(st.floats(0.2, 5.0), min_size=2, max_size=12).map(lambda row: [0.0, *row])
rates = st.floats(0.0, 3.0)
STAIRCASE = [0.0, 1.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 2.0, 2.0, 2.0, 2.0]
LINEAR = [0.0, *(1.0 + 0.15 * n for n in range(12))]
SAWTOOTH = [0.0, 1.0, 1.6, 1.85, 1.83, 2.3, 2.4, 2.6, 2.2, 3.0, 3.1]
FLAT = [0.0, *[1.0] * 12]


def test_survivals_are_products() -> None:
    assert survivals([]) == []
    assert survivals([0.5, 0.5, 1.0, 0.0, 1.0]) == [0.5, 0.25, 0.25, 0.0, 0.0]


def test_prices_know_the_step_and_what_is_left_of_a_pass() -> None:
    prices = Prices(STAIRCASE, 2, 1.0)
    assert (prices.step, prices.room) == (1.0, 10)
    assert [prices.extra_seconds(n) for n in (0, 2, 3, 6, 7, 10)] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert prices.extra_seconds(11) == float("inf")
    assert prices.beside(3) == Prices(STAIRCASE, 5, 1.0)
    assert prices.beside(100).room == 0


@given(seconds_lists, st.integers(1, 5))
def test_sessions_that_draft_alike_share_what_their_rows_cost(
    seconds: list[float], num_sessions: int
) -> None:
    prices = Prices(seconds, 1, 1.3)
    shared = prices.shared(num_sessions)
    assert (shared.step, shared.rate) == (prices.step, prices.rate)
    assert shared.room == prices.room // num_sessions
    for length in range(shared.room + 1):
        together = num_sessions * shared.extra_seconds(length)
        assert together == pytest.approx(prices.extra_seconds(num_sessions * length))


@given(seconds_lists, st.floats(-1.0, 4.0))
def test_affordable_is_the_longest_draft_within_the_allowance(
    seconds: list[float], steps: float
) -> None:
    prices = Prices(seconds, 1, 1.0)
    most = prices.num_affordable(steps)
    allowed = [n for n in range(1, prices.room + 1) if seconds[1 + n] <= (1 + steps) * seconds[1]]
    near = [n for n in allowed if abs(seconds[1 + n] - (1 + steps) * seconds[1]) < 1e-9]
    assert most == max(allowed, default=0) or near


def value(prices: Prices, alive: Sequence[float], length: int) -> float:
    return sum(alive[:length]) - prices.rate * prices.extra_seconds(length)


@given(chances_lists, seconds_lists, rates)
def test_best_length_is_the_best_of_all_lengths(
    chances: list[float], seconds: list[float], rate: float
) -> None:
    prices, alive = Prices(seconds, 1, rate), survivals(chances)
    length, worth = prices.best_length(alive)
    values = [value(prices, alive, n) for n in range(min(len(alive), prices.room) + 1)]
    assert worth == pytest.approx(max(values)) == pytest.approx(values[length])


def worth_of_policy(prices: Prices, chances: Sequence[float], policy: Sequence[int]) -> float:
    """Return the expected tokens less price of standing at the draft's beginning and scoring
    policy[i] tokens whenever all before i were right: by trying every outcome of the draft."""
    total = 0.0
    for right in itertools.product((True, False), repeat=len(chances)):
        weight = 1.0
        for is_right, chance in zip(right, chances, strict=True):
            weight *= chance if is_right else 1 - chance
        place, gained = 0, 0.0
        while place < len(chances):
            length = policy[place]
            run = list(itertools.takewhile(bool, right[place : place + length]))
            gained += 1 + len(run) - prices.rate * prices.seconds[prices.base + length]
            after = place + length
            if len(run) < length or after >= len(chances) or not right[after]:
                break  # off the draft, or at its end: as any other place of the text
            place = after + 1
        total += weight * gained
    return total


def best_of_policies(prices: Prices, chances: Sequence[float], first: int | None = None) -> float:
    """Return the worth of the best policy, or of the best that begins with `first` tokens."""
    choices = [range(len(chances) - i + 1) for i in range(len(chances))]
    if first is not None:
        choices[0] = range(first, first + 1)
    return max(worth_of_policy(prices, chances, policy) for policy in itertools.product(*choices))


@pytest.mark.parametrize("curve", [FLAT, STAIRCASE, LINEAR, SAWTOOTH])
@pytest.mark.parametrize("rate", [1.0, 1.4, 2.2])
@pytest.mark.parametrize(
    "chances", [[0.9], [0.3, 0.95, 0.95], [0.95, 0.4, 0.9], [0.6, 0.6, 0.6], [1.0, 0.0, 1.0]]
)
def test_best_first_length_begins_a_best_policy(
    curve: list[float], rate: float, chances: list[float]
) -> None:
    prices = Prices(curve, 1, rate)
    first = prices.best_first_length(chances)
    assert best_of_policies(prices, chances, first) == pytest.approx(
        best_of_policies(prices, chances)
    )


def test_a_long_draft_behind_an_uncertain_beginning_is_tried_with_few_rows() -> None:
    prices = Prices(LINEAR, 1, 1.6)
    chances = [0.5, *[0.98] * 8]
    now, _ = prices.best_length(survivals(chances))
    assert prices.best_first_length(chances) < now


def test_a_session_among_others_begins_its_draft_as_it_would_alone() -> None:
    """Three others that decode plainly pay for their rows, one token each: a step of 4 seconds and
    a token a second of all are a step of 1 and a token a second of one."""
    crowded = Prices([0.0, 1.0, 2.0, 3.0, *(3.0 + seconds for seconds in LINEAR[1:])], 4, 1.0)
    for chances in ([0.5, 0.9, 0.9, 0.9], [0.1, 0.99, 0.99], [0.2, 0.2], [0.9] * 5):
        alone = Prices(LINEAR, 1, 1.0).best_first_length(chances)
        assert crowded.best_first_length(chances, others=3.0) == alone


@given(chances_lists, seconds_lists, rates, st.floats(0.0, 0.5), st.data())
def test_further_tokens_pay_if_some_beginning_of_them_does(
    chances: list[float],
    seconds: list[float],
    rate: float,
    token_seconds: float,
    data: st.DataObject,
) -> None:
    prices, alive = Prices(seconds, 1, rate), survivals(chances)
    num_rows = data.draw(st.integers(0, prices.room))
    num_drafted = data.draw(st.integers(0, 2))
    margins = [
        sum(alive[:more])
        - rate * (prices.extra_seconds(num_rows + more) - prices.extra_seconds(num_rows))
        - rate * token_seconds * max(0, more - num_drafted)
        for more in range(1, min(len(alive), prices.room - num_rows) + 1)
    ]
    pays = prices.further_pays(
        alive, num_rows=num_rows, token_seconds=token_seconds, num_drafted=num_drafted
    )
    if all(abs(margin) > 1e-9 for margin in margins):
        assert pays == any(margin > 0 for margin in margins)


@given(st.floats(0.0, 1.0), st.integers(0, 12), seconds_lists, rates, st.floats(0.0, 0.5))
def test_an_expected_round_is_the_best_of_at_least_one_token(
    chance: float, most: int, seconds: list[float], rate: float, token_seconds: float
) -> None:
    prices = Prices(seconds, 1, rate)
    gain, extra = prices.expected_round(chance, most, token_seconds)
    rounds = [
        (sum(chance**i for i in range(1, n + 1)), prices.extra_seconds(n) + n * token_seconds)
        for n in range(1, min(most, prices.room) + 1)
    ]
    if rounds:
        best = max(own_gain - rate * own_extra for own_gain, own_extra in rounds)
        assert gain - rate * extra == pytest.approx(best)
        assert any(pytest.approx(pair) == (gain, extra) for pair in rounds)
    else:
        assert (gain, extra) == (0.0, 0.0)


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=3).map(survivals), min_size=1, max_size=3),
    seconds_lists,
    rates,
)
def test_shared_rows_are_the_best_of_all_divisions(
    alive: list[list[float]], seconds: list[float], rate: float
) -> None:
    prices = Prices(seconds, 1, rate)
    worths = {
        lengths: sum(sum(own[:n]) for own, n in zip(alive, lengths, strict=True))
        - rate * prices.extra_seconds(sum(lengths))
        for lengths in itertools.product(*(range(len(own) + 1) for own in alive))
        if sum(lengths) <= prices.room
    }
    lengths = tuple(prices.share_rows(alive))
    assert worths[lengths] == pytest.approx(max(worths.values()))


def test_the_likeliest_rows_of_all_sessions_come_first() -> None:
    prices = Prices(STAIRCASE, 2, 1.0)
    # two more rows fill the first step; the next four cost half a step together
    assert prices.share_rows([[0.9, 0.8], [0.3, 0.1]]) == [2, 0]
    assert prices.share_rows([[0.9, 0.8], [0.7, 0.6]]) == [2, 2]
    assert prices.share_rows([[], []]) == [0, 0]
    steep = Prices([0.0, *(float(n) for n in range(1, 12))], 2, 1.0)
    assert steep.share_rows([[0.99, 0.98], [0.9]]) == [0, 0]
