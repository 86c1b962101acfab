"""Figures are functions of records; nothing to measure is None."""

from __future__ import annotations

import json

import pytest

from pilotfish.accounting.costs import ModelSize, costs_from_records
from pilotfish.accounting.metrics import (
    acceptance_probabilities,
    acceptance_rate,
    accepted_per_position,
    reply_stats,
    tokens_per_round,
    tried_per_position,
)
from pilotfish.types import RoundRecord


def record(source: str, drafted: int, accepted: int, *, emitted: int | None = None) -> RoundRecord:
    return RoundRecord(
        request_id=1,
        source=source,
        num_drafted=drafted,
        num_accepted=accepted,
        num_emitted=accepted + 1 if emitted is None else emitted,
        num_sessions=1,
        draft_seconds=0.25,
        target_seconds=1.0,
        round_seconds=1.5,
    )


ROUNDS = [
    record("suffix", 4, 4),
    record("none", 0, 0),
    record("model", 3, 1),
    record("suffix", 2, 0),
    record("suffix", 4, 3, emitted=3),  # an end token among the accepted ones
]


def test_without_rounds_there_is_nothing_to_measure() -> None:
    assert acceptance_rate([]) is None
    assert tokens_per_round([]) is None
    assert accepted_per_position([]) == tried_per_position([]) == []
    assert acceptance_probabilities([]) == []
    stats = reply_stats([], prefill_seconds=0.5, speculation={"on": False, "reason": ""})
    assert stats.acceptance_rate is stats.tokens_per_round is stats.tokens_per_second is None
    assert (stats.rounds, stats.emitted, stats.decode_seconds) == (0, 0, 0)
    assert stats.by_drafter == {}
    json.dumps(stats.to_dict(), allow_nan=False)


def test_without_drafts_there_is_no_acceptance_rate() -> None:
    plain = [record("none", 0, 0)] * 3
    assert acceptance_rate(plain) is None
    assert tokens_per_round(plain) == 1.0
    assert accepted_per_position(plain) == []
    assert reply_stats(plain, prefill_seconds=0, speculation={}).by_drafter == {}


def test_drafts_that_all_fail_have_a_rate_of_zero() -> None:
    assert acceptance_rate([record("suffix", 4, 0)]) == 0.0
    assert accepted_per_position([record("suffix", 4, 0)]) == [0, 0, 0, 0]


def test_figures_by_hand() -> None:
    assert acceptance_rate(ROUNDS) == pytest.approx(8 / 13)
    assert tokens_per_round(ROUNDS) == pytest.approx((5 + 1 + 2 + 1 + 3) / 5)
    assert accepted_per_position(ROUNDS) == [3, 2, 2, 1]
    # the first, the third and the fourth try position 1; the end token keeps position 4 untried
    assert tried_per_position(ROUNDS) == [4, 3, 2, 1]
    assert acceptance_probabilities(ROUNDS) == [3 / 4, 2 / 3, 1.0, 1.0]


def test_a_position_that_was_never_tried_has_no_probability() -> None:
    assert tried_per_position([record("suffix", 3, 0)]) == [1, 0, 0]
    assert acceptance_probabilities([record("suffix", 3, 0)]) == [0.0, None, None]


def test_what_was_accepted_was_tried_and_what_was_tried_followed_what_was_accepted() -> None:
    accepted, tried = accepted_per_position(ROUNDS), tried_per_position(ROUNDS)
    proposed = sum(r.num_drafted > 0 for r in ROUNDS)
    for ours, theirs, before in zip(accepted, tried, [proposed, *accepted], strict=False):
        assert ours <= theirs <= before


def test_the_figures_of_a_reply_add_up() -> None:
    stats = reply_stats(ROUNDS, prefill_seconds=2.0, speculation={"on": True, "reason": "fixed"})
    assert (stats.rounds, stats.drafted, stats.accepted, stats.emitted) == (5, 13, 8, 12)
    assert stats.prefill_seconds == 2.0
    assert stats.decode_seconds == 7.5
    assert stats.draft_seconds + stats.target_seconds + stats.overhead_seconds == 7.5
    assert stats.overhead_seconds == 1.25
    assert stats.tokens_per_second == pytest.approx(12 / 7.5)
    assert sum(stats.accepted_per_position) == stats.accepted
    assert list(stats.by_drafter) == ["model", "suffix"]
    assert stats.by_drafter["suffix"].rounds == 3
    for name in ("drafted", "accepted"):
        total = sum(getattr(one, name) for one in stats.by_drafter.values())
        assert total == getattr(stats, name)
    json.dumps(stats.to_dict(), allow_nan=False)


def test_a_reply_has_its_costs_and_with_sizes_all_of_them() -> None:
    counted = reply_stats(ROUNDS, prefill_seconds=1.0, speculation={}).costs
    assert counted == costs_from_records(ROUNDS)
    assert counted.compute.target_passes_per_token == pytest.approx(5 / 12)
    assert counted.compute.wasted_rows_per_token == pytest.approx(18 / 12 - 1)
    sizes = {
        "target": ModelSize(parameters=9, weight_bytes=8, step_bytes=7, cache_bytes_per_token=6),
        "draft": ModelSize(parameters=5, weight_bytes=4, step_bytes=3, cache_bytes_per_token=2),
        "prompt_tokens": 10,
    }
    stats = reply_stats(ROUNDS, prefill_seconds=1.0, speculation={}, **sizes)  # type: ignore[arg-type]
    assert stats.costs == costs_from_records(ROUNDS, **sizes)  # type: ignore[arg-type]
    assert stats.to_dict()["costs"] == stats.costs.to_dict()
    assert stats.costs.serving.memory_bytes == 8 + 6 * 22 + 4 + 2 * 22


def test_figures_do_not_depend_on_the_order_of_rounds() -> None:
    options = {"prefill_seconds": 1.0, "speculation": {}}
    assert reply_stats(ROUNDS[::-1], **options) == reply_stats(ROUNDS, **options)  # type: ignore[arg-type]
