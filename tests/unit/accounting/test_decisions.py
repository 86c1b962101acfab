"""Why drafts were made or not, as records tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotfish.accounting.decisions import most_frequent, speculation_dict
from pilotfish.types import DraftWish, RoundRecord


def rounds(*reasons: str) -> list[RoundRecord]:
    return [RoundRecord(1, "none", 0, 0, 1, 1, 0.0, 1.0, 1.0, reason) for reason in reasons]


def test_without_reasons_the_configured_one_is_given() -> None:
    for records in ([], rounds("", "")):
        assert speculation_dict(records, on=True, reason="fixed") == {
            "on": True,
            "reason": "fixed",
            "decisions": {},
            "failures": {},
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
    assert (told["on"], told["reason"]) == (False, "the drafter failed: broke")
    assert told["decisions"] == {"a": 1}


def test_what_is_lost_is_told_behind_what_was_decided() -> None:
    records = rounds("paid", "paid")
    records[1] = replace(records[1], failure="a broken row")
    told = speculation_dict(records, on=True, reason="fixed", lost="no draft model")
    failed = "a drafter failed in 1 of 2 rounds (a broken row)"
    assert told["reason"] == f"paid; no draft model; {failed}"
    assert told["failures"] == {"a broken row": 1}
    assert told["on"]


def test_of_equally_frequent_reasons_the_latest_is_told() -> None:
    assert most_frequent([]) == ""
    assert most_frequent(["a", "b"]) == "b"
    assert most_frequent(["a", "b", "a", "b", "a"]) == "a"


@pytest.mark.parametrize(
    ("wish", "on", "reason"),
    [
        (DraftWish(), True, "fixed"),
        (DraftWish(drafter="none"), False, "turned off by the request"),
        (DraftWish(num_speculative_tokens=0), False, "turned off by the request"),
        (
            DraftWish(drafter="suffix"),
            True,
            "fixed; the request allows drafts of suffix only",
        ),
        (
            DraftWish(num_speculative_tokens=3),
            True,
            "fixed; the request allows at most 3 tokens a round",
        ),
        (
            DraftWish(drafter="model", num_speculative_tokens=3),
            True,
            "fixed; the request allows drafts of model only, at most 3 tokens a round",
        ),
        (
            DraftWish(drafter="ngram"),
            False,
            "the request allows drafts of ngram, which are not there",
        ),
    ],
)
def test_what_a_request_asked_is_told_where_it_narrowed_drafting(
    wish: DraftWish, on: bool, reason: str
) -> None:
    drafters = ("suffix", "model")
    told = speculation_dict([], on=True, reason="fixed", drafters=drafters, wish=wish)
    assert told == {"on": on, "reason": reason, "decisions": {}, "failures": {}}
    # an engine that drafts nothing says so, whatever was asked
    told = speculation_dict([], on=False, reason="turned off", wish=wish)
    assert told == {"on": False, "reason": "turned off", "decisions": {}, "failures": {}}
    broken = speculation_dict([], on=True, reason="", wish=wish, error=RuntimeError("broke"))
    assert broken["reason"] == "the drafter failed: broke"


def test_where_it_is_not_known_who_drafts_a_wish_is_taken_at_its_word() -> None:
    told = speculation_dict([], on=True, reason="", wish=DraftWish(drafter="ngram"))
    assert told == {
        "on": True,
        "reason": "the request allows drafts of ngram only",
        "decisions": {},
        "failures": {},
    }
