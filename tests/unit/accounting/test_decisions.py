"""Why drafts were made or not, as records tell it."""

from __future__ import annotations

from pilotfish.accounting.decisions import most_frequent, speculation_dict
from pilotfish.types import RoundRecord


def rounds(*reasons: str) -> list[RoundRecord]:
    return [RoundRecord(1, "none", 0, 0, 1, 1, 0.0, 1.0, 1.0, reason) for reason in reasons]


def test_without_reasons_the_configured_one_is_given() -> None:
    for records in ([], rounds("", "")):
        assert speculation_dict(records, on=True, reason="fixed") == {
            "on": True,
            "reason": "fixed",
            "decisions": {},
        }


def test_decisions_count_the_rounds_most_frequent_first() -> None:
    records = rounds("a", "b", "b", "", "c", "b", "c")
    told = speculation_dict(records, on=True, reason="fixed")
    assert told["decisions"] == {"b": 3, "c": 2, "a": 1}
    assert list(told["decisions"]) == ["b", "c", "a"]
    assert told["reason"] == "b"


def test_the_reason_is_that_of_the_last_rounds() -> None:
    records = rounds(*["drafting pays"] * 500, *["paused"] * 16)
    assert speculation_dict(records, on=True, reason="")["reason"] == "paused"
    assert speculation_dict(records[:-9], on=True, reason="")["reason"] == "drafting pays"


def test_a_drafter_that_failed_turned_drafting_off() -> None:
    told = speculation_dict(rounds("a"), on=True, reason="fixed", error=RuntimeError("broke"))
    assert told == {"on": False, "reason": "the drafter failed: broke", "decisions": {"a": 1}}


def test_of_equally_frequent_reasons_the_latest_is_told() -> None:
    assert most_frequent([]) == ""
    assert most_frequent(["a", "b"]) == "b"
    assert most_frequent(["a", "b", "a", "b", "a"]) == "a"
