"""The account that bounds the loss, as arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.control.guard import KEPT_GAIN, LossGuard

# whether drafting is wanted, the steps a drafted round takes, and the tokens it brings
rounds_lists = st.lists(
    st.tuples(st.booleans(), st.floats(0.3, 9.0), st.integers(1, 12)), max_size=120
)


def test_the_start_grows_from_two_steps_to_six() -> None:
    guard = LossGuard()
    assert guard.allowance == 2.0
    for _ in range(300):
        guard.record(1, None)
    assert guard.allowance == pytest.approx(2 + 300 / 150 + 0.02 * 300)
    for _ in range(700):
        guard.record(1, None)
    assert guard.allowance == pytest.approx(6 + 0.02 * 1000)
    assert guard.num_tokens == 1000


def test_the_account_is_steps_less_tokens() -> None:
    guard = LossGuard()
    guard.record(1, 2.5)
    assert guard.allowance == pytest.approx(2 + 1 / 150 + 0.02 - 1.5)
    guard.record(4, 2.0)
    assert guard.allowance == pytest.approx(2 + 5 / 150 + 0.02 * 5 - 1.5 + 2.0)


@given(rounds_lists)
def test_whatever_happens_the_loss_is_bounded(rounds: list[tuple[bool, float, int]]) -> None:
    guard = LossGuard()
    total, num_tokens = 0.0, 0
    for wanted, steps, emitted in rounds:
        drafts = wanted and steps - 1 <= guard.allowance
        guard.record(emitted if drafts else 1, steps if drafts else None)
        total += steps if drafts else 1.0
        num_tokens += emitted if drafts else 1
        assert total <= 1.02 * num_tokens + 6 + 1e-9
        assert total <= 1.02 * num_tokens + 2 + num_tokens / 150 + 1e-9


@given(st.floats(1.05, 5.0))
def test_hostile_rounds_are_stopped_near_the_bound(steps: float) -> None:
    """Every round loses: the account is used up, and no more."""
    guard, total = LossGuard(), 0.0
    for _ in range(400):
        drafts = steps - 1 <= guard.allowance
        guard.record(1, steps if drafts else None)
        total += steps if drafts else 1.0
    assert total <= 1.04 * 400
    one_round = steps - 1 + 0.03
    assert total >= min(400 * steps, 1.02 * 400 + 2 + 400 / 150 - one_round)


def test_of_earlier_gains_thirty_steps_may_be_lost_again() -> None:
    guard = LossGuard()
    for _ in range(200):
        guard.record(5, 1.0)  # 800 steps saved
    start = 6 + 0.02 * 1000
    assert guard.allowance == pytest.approx(start + KEPT_GAIN)
    lost = 0.0
    while guard.allowance >= 1.0:
        guard.record(1, 2.0)
        lost += 1.0
    assert lost <= KEPT_GAIN + 6 + 0.02 * guard.num_tokens
