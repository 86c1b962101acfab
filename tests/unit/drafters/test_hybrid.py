from collections.abc import Sequence

from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.types import Proposal, SamplingSettings, SessionView


def view(request_id: int) -> SessionView:
    return SessionView(request_id, [1, 2], 1, SamplingSettings(), 0, 0, frozenset())


class Table:
    """Proposes a fixed list per request and keeps what it was asked."""

    def __init__(self, name: str, answers: dict[int, tuple[int, ...]]) -> None:
        self.name = name
        self.answers = answers
        self.asked: list[list[tuple[int, int]]] = []
        self.forgotten: list[int] = []

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        self.asked.append([(v.request_id, b) for v, b in zip(views, budgets, strict=True)])
        return [
            Proposal(self.answers.get(v.request_id, ())[:b], self.name)
            for v, b in zip(views, budgets, strict=True)
        ]

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)


def test_each_session_keeps_its_first_non_empty_proposal():
    first, second = Table("first", {1: (10, 11)}), Table("second", {1: (20,), 2: (21, 22)})
    hybrid = HybridDrafter([first, second])
    proposals = hybrid.propose([view(1), view(2), view(3)], [5, 1, 5])
    assert [p.token_ids for p in proposals] == [(10, 11), (21,), ()]
    assert [p.source for p in proposals[:2]] == ["first", "second"]


def test_later_drafters_are_asked_only_for_sessions_that_are_still_empty_and_may_draft():
    first, second = Table("first", {2: (10,)}), Table("second", {})
    HybridDrafter([first, second]).propose([view(1), view(2), view(3), view(4)], [3, 3, 0, 2])
    assert first.asked == [[(1, 3), (2, 3), (3, 0), (4, 2)]]
    assert second.asked == [[(1, 3), (4, 2)]]


def test_a_later_drafter_is_not_called_when_nothing_is_left_for_it():
    first, second = Table("first", {1: (10,)}), Table("second", {1: (20,)})
    hybrid = HybridDrafter([first, second])
    hybrid.propose([view(1), view(2)], [3, 0])
    assert second.asked == []
    assert hybrid.propose([], []) == []


def test_a_hybrid_of_nothing_is_plain_decoding():
    assert HybridDrafter([]).propose([view(1)], [4]) == [Proposal.empty()]


def test_forget_reaches_every_drafter():
    parts = [Table("first", {}), Table("second", {})]
    HybridDrafter(parts).forget(7)
    assert [p.forgotten for p in parts] == [[7], [7]]


def test_clearing_reaches_the_drafters_that_keep_replies():
    class Keeping(Table):
        cleared = 0

        def clear(self) -> None:
            self.cleared += 1

    keeping = Keeping("keeping", {})
    HybridDrafter([Table("forgetful", {}), keeping]).clear()
    assert keeping.cleared == 1
