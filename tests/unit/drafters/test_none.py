from pilotfish.drafters.none import NoDrafter
from pilotfish.protocols import Drafter
from pilotfish.types import SamplingSettings, SessionView


def view(request_id: int, tokens: list[int]) -> SessionView:
    return SessionView(request_id, tokens, 1, SamplingSettings(), 0, 0, frozenset())


def test_every_session_gets_an_empty_proposal():
    drafter: Drafter = NoDrafter()
    proposals = drafter.propose([view(1, [1, 1, 1]), view(2, [2])], [4, 0])
    assert [p.token_ids for p in proposals] == [(), ()]
    assert [p.source for p in proposals] == ["none", "none"]
    drafter.forget(1)


def test_no_sessions_no_proposals():
    assert NoDrafter().propose([], []) == []
