"""What every controller keeps to: a budget for each session, and no harm in learning."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.fixed import FixedController
from pilotfish.protocols import Controller
from pilotfish.types import RoundRecord, SamplingSettings, SessionView


def cost_aware(number: int) -> CostAwareController:
    costs = PairCosts(target=CostCurve.flat(1.0, row_seconds=0.1), draft=CostCurve.flat(0.2))
    return CostAwareController(costs, num_speculative_tokens=number)


MAKERS: dict[str, Callable[[int], Controller]] = {
    "fixed": FixedController,
    "cost-aware": cost_aware,
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[int], Controller]:
    return MAKERS[request.param]


def view(request_id: int, num_tokens: int = 5) -> SessionView:
    return SessionView(
        request_id, [1] * num_tokens, 3, SamplingSettings(), 7, num_tokens - 3, frozenset()
    )


def record(request_id: int, *, drafted: int, accepted: int) -> RoundRecord:
    return RoundRecord(request_id, "suffix", drafted, accepted, accepted + 1, 1, 0.1, 1.0, 1.2)


@pytest.mark.parametrize("number", [0, 1, 4, 15])
def test_every_session_gets_a_budget_within_the_ceiling(
    make: Callable[[int], Controller], number: int
) -> None:
    controller = make(number)
    for num_sessions in (0, 1, 3):
        budgets = controller.draft_budgets([view(i) for i in range(num_sessions)])
        assert len(budgets) == num_sessions
        assert all(isinstance(budget, int) and 0 <= budget <= number for budget in budgets)


def test_observing_never_fails_and_keeps_the_ceiling(make: Callable[[int], Controller]) -> None:
    controller = make(4)
    controller.observe([])
    for accepted in (0, 4, 2):
        controller.observe(
            [record(1, drafted=4, accepted=accepted), record(2, drafted=0, accepted=0)]
        )
        assert max(controller.draft_budgets([view(1), view(2)])) <= 4


def test_the_same_records_give_the_same_budgets(make: Callable[[int], Controller]) -> None:
    first, second = make(8), make(8)
    for accepted in (8, 0, 3):
        for controller in (first, second):
            controller.observe([record(1, drafted=8, accepted=accepted)])
        assert first.draft_budgets([view(1)]) == second.draft_budgets([view(1)])
