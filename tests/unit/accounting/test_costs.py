"""The three costs: by hand, published, and the same from closed forms as from records."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from pilotfish.accounting.cost_curve import CostCurve
from pilotfish.accounting.cost_model import RoundCosts, speedup
from pilotfish.accounting.costs import (
    NOT_MEASURED,
    Costs,
    ModelSize,
    costs_from_records,
    memory_bytes,
    predicted_costs,
    side_by_side,
)
from pilotfish.types import RoundRecord

TARGET = ModelSize(
    parameters=1000,
    weight_bytes=700,
    step_bytes=600,
    cache_bytes_per_token=10,
    vocabulary=50,
    attention_flops_per_token=40,
)
DRAFT = ModelSize(parameters=100, weight_bytes=70, step_bytes=60, cache_bytes_per_token=2)


def record(
    drafted: int, accepted: int, *, source: str = "model", emitted: int | None = None,
    request_id: int = 1, num_sessions: int = 1, seconds: float = 2.0,
) -> RoundRecord:  # fmt: skip
    return RoundRecord(
        request_id=request_id,
        source=source if drafted else "none",
        num_drafted=drafted,
        num_accepted=accepted,
        num_emitted=accepted + 1 if emitted is None else emitted,
        num_sessions=num_sessions,
        draft_seconds=0.5,
        target_seconds=1.0,
        round_seconds=seconds,
    )


def plain(tokens: int, **options: int) -> list[RoundRecord]:
    return [record(0, 0, **options) for _ in range(tokens)]  # type: ignore[arg-type]


def test_costs_of_a_reply_by_hand() -> None:
    # contexts 20, 23, 24; rows 4, 1, 3; tokens 3, 1, 1
    rounds = [record(3, 2), record(0, 0), record(2, 0, source="suffix")]
    costs = costs_from_records(
        rounds, target=TARGET, draft=DRAFT, prompt_tokens=20, plain_seconds_per_token=1.8,
        price_per_hour=3.6, energy_joules=10.0,
    )  # fmt: skip
    assert costs.latency.seconds_per_token == pytest.approx(6 / 5)
    assert costs.latency.speedup == pytest.approx(1.8 / (6 / 5))
    compute = costs.compute
    assert compute.target_passes_per_token == pytest.approx(3 / 5)
    assert compute.verified_rows_per_token == pytest.approx(8 / 5)
    assert compute.wasted_rows_per_token == pytest.approx(3 / 5)
    assert compute.draft_passes_per_token == pytest.approx(3 / 5)
    attention = 40 * (4 * 20 + 1 * 23 + 3 * 24)
    assert compute.flops_per_token == pytest.approx((2000 * 8 + attention + 200 * 3) / 5)
    read = 600 * 3 + 10 * (20 + 23 + 24) + 60 * 3 + 2 * 3 * 20
    assert compute.bytes_read_per_token == pytest.approx(read / 5)
    # 25 tokens in both caches at the end, at most four rows of the target's logits
    assert costs.serving.memory_bytes == 700 + 250 + 4 * 50 * 4 + 70 + 50
    assert costs.serving.tokens_per_second == pytest.approx(5 / 6)
    assert costs.serving.price_per_million_tokens == pytest.approx(0.001 / (5 / 6) * 1e6)
    assert costs.serving.energy_joules_per_token == 2.0


def test_without_sizes_times_and_counts_are_known() -> None:
    costs = costs_from_records([record(3, 2), record(0, 0)])
    assert costs.latency.seconds_per_token == 1.0
    assert costs.latency.speedup is None
    assert costs.compute.verified_rows_per_token == pytest.approx(5 / 4)
    assert costs.compute.flops_per_token is costs.compute.bytes_read_per_token is None
    assert costs.serving.memory_bytes is costs.serving.price_per_million_tokens is None
    assert costs.serving.energy_joules_per_token == NOT_MEASURED


def test_a_draft_model_of_unknown_size_leaves_sums_unknown_and_text_drafts_do_not() -> None:
    def compute(source: str) -> float | None:
        return costs_from_records(
            [record(2, 1, source=source)], target=TARGET
        ).compute.flops_per_token

    assert compute("model") is None
    assert compute("suffix") == 2 * 1000 * 3 / 2
    assert costs_from_records([record(2, 1)], target=TARGET).serving.memory_bytes is None


def test_without_rounds_nothing_is_known_but_what_models_hold() -> None:
    costs = costs_from_records([], target=TARGET, energy_joules=1.0, price_per_hour=1.0)
    known = {name: value for name, value in flat(costs).items() if value is not None}
    assert known == {
        "serving.memory_bytes": 700,
        "serving.energy_joules_per_token": NOT_MEASURED,
    }


def flat(costs: Costs) -> dict[str, object]:
    return {
        f"{cost}.{name}": value
        for cost, figures in costs.to_dict().items()
        for name, value in figures.items()
    }


@pytest.mark.parametrize("drafted", [0, 1, 5])
def test_plain_decoding_wastes_nothing_and_a_draft_wastes_what_is_rejected(drafted: int) -> None:
    for accepted in range(drafted + 1):
        compute = costs_from_records([record(drafted, accepted)]).compute
        tokens = accepted + 1
        assert compute.wasted_rows_per_token == pytest.approx((drafted - accepted) / tokens)
        rows = compute.verified_rows_per_token
        assert rows is not None
        assert rows - (compute.wasted_rows_per_token or 0) == pytest.approx(1.0)


def test_a_row_behind_the_end_of_a_reply_is_wasted() -> None:
    compute = costs_from_records([record(4, 2, emitted=2)]).compute
    assert compute.wasted_rows_per_token == pytest.approx(3 / 2)


def test_requests_that_share_passes_share_their_weights_and_wait_for_all_of_it() -> None:
    alone = costs_from_records(plain(3), target=TARGET, prompt_tokens=5)
    together = costs_from_records(
        [r for i in (1, 2, 3, 4) for r in plain(3, request_id=i, num_sessions=4)],
        target=TARGET,
        prompt_tokens={1: 5, 2: 5, 3: 5, 4: 5},
    )
    assert together.latency == alone.latency
    assert together.compute.target_passes_per_token == pytest.approx(1 / 4)
    assert together.compute.flops_per_token == pytest.approx(alone.compute.flops_per_token)
    saved = 600 * (1 - 1 / 4)
    assert together.compute.bytes_read_per_token == pytest.approx(
        (alone.compute.bytes_read_per_token or 0) - saved
    )
    assert together.serving.tokens_per_second == pytest.approx(
        4 * (alone.serving.tokens_per_second or 0)
    )
    assert together.serving.memory_bytes == 700 + 4 * 8 * 10 + 4 * 50 * 4


def test_each_request_has_its_own_context() -> None:
    both = costs_from_records(
        [record(0, 0, request_id=1), record(0, 0, request_id=2), record(0, 0, request_id=1)],
        target=TARGET,
        prompt_tokens={1: 100, 2: 7},
    )
    assert both.compute.bytes_read_per_token == pytest.approx(600 + 10 * (100 + 7 + 101) / 3)


def test_the_figures_of_replies_add_up_in_any_order() -> None:
    rounds = [record(3, 1), record(2, 2, source="suffix"), record(0, 0)]
    sizes = {"target": replace(TARGET, cache_bytes_per_token=0), "draft": DRAFT}
    forward = costs_from_records(rounds, **sizes)  # type: ignore[arg-type]
    backward = costs_from_records(rounds[::-1], **sizes)  # type: ignore[arg-type]
    assert forward.compute.target_passes_per_token == backward.compute.target_passes_per_token
    assert forward.compute.verified_rows_per_token == backward.compute.verified_rows_per_token
    assert forward.latency == backward.latency


# Leviathan et al. 2023, table 1: acceptance, length, operations over those of plain decoding
PUBLISHED_OPERATIONS = [
    (0.6, 2, 1.53), (0.7, 3, 1.58), (0.8, 2, 1.23), (0.8, 5, 1.63), (0.9, 2, 1.11), (0.9, 10, 1.60),
]  # fmt: skip


def free_drafts(**options: float) -> RoundCosts:
    return RoundCosts(curve=CostCurve.flat(1.0), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("acceptance", "length", "published"), PUBLISHED_OPERATIONS)
def test_operations_grow_as_published(acceptance: float, length: int, published: float) -> None:
    def compute(num_draft_tokens: int) -> float | None:
        size = replace(TARGET, attention_flops_per_token=0)
        costs = predicted_costs(acceptance, num_draft_tokens, free_drafts(), target=size)
        assert costs.compute.flops_per_token == pytest.approx(
            2000 * (costs.compute.verified_rows_per_token or 0)
        )
        return costs.compute.flops_per_token

    assert (compute(length) or 0) / (compute(0) or 1) == pytest.approx(published, abs=0.006)


def test_predicted_costs_are_the_written_formulas() -> None:
    costs = RoundCosts(
        curve=CostCurve.from_ratios({1: 1.0, 5: 1.2}, step_seconds=0.03),
        draft_seconds=0.003,
        context=100,
    )
    options = {"target": TARGET, "draft": DRAFT, "price_per_hour": 0.36}
    found = predicted_costs(0.8, 4, costs, **options)  # type: ignore[arg-type]
    tokens, seconds = 3.3616, 0.036 + 4 * 0.003
    assert found.latency.seconds_per_token == pytest.approx(seconds / tokens)
    assert found.latency.speedup == pytest.approx(speedup(0.8, 4, costs))
    compute = found.compute
    assert compute.target_passes_per_token == pytest.approx(1 / tokens)
    assert compute.wasted_rows_per_token == pytest.approx(5 / tokens - 1)
    assert compute.draft_passes_per_token == pytest.approx(4 / tokens)
    flops = 5 * (2 * 1000 + 40 * 100) + 4 * 2 * 100
    assert compute.flops_per_token == pytest.approx(flops / tokens)
    read = 600 + 10 * 100 + 4 * (60 + 2 * 100)
    assert compute.bytes_read_per_token == pytest.approx(read / tokens)
    assert found.serving.memory_bytes == memory_bytes(TARGET, DRAFT, context_tokens=100, width=5)
    assert found.serving.price_per_million_tokens == pytest.approx(100 * seconds / tokens)
    assert found.serving.energy_joules_per_token == NOT_MEASURED
    alone = predicted_costs(0.8, 0, costs, **options)  # type: ignore[arg-type]
    assert alone.latency.speedup == 1.0
    assert alone.compute.draft_passes_per_token == 0
    assert alone.serving.memory_bytes == memory_bytes(TARGET, context_tokens=100)


def test_steps_of_unknown_length_give_ratios_only() -> None:
    found = predicted_costs(0.8, 4, free_drafts(), price_per_hour=1.0, in_seconds=False)
    assert found.latency.speedup == pytest.approx(3.3616)
    assert found.latency.seconds_per_token is found.serving.tokens_per_second is None
    assert found.serving.price_per_million_tokens is None


def test_a_drafter_that_costs_time_is_a_model_of_unknown_size() -> None:
    costs = predicted_costs(0.8, 4, free_drafts(draft_seconds=0.1), target=TARGET)
    assert costs.compute.draft_passes_per_token == pytest.approx(4 / 3.3616)
    assert costs.compute.flops_per_token is costs.serving.memory_bytes is None
    from_text = predicted_costs(0.8, 4, free_drafts(), target=TARGET)
    assert from_text.compute.draft_passes_per_token == 0
    assert from_text.compute.flops_per_token is not None


def test_records_of_simulated_rounds_cost_what_the_closed_forms_say() -> None:
    """20,000 rounds; the bound is five standard errors of tokens per round, which every figure
    follows: a false alarm has probability 6e-7."""
    acceptance, length, num_rounds = 0.7, 5, 20_000
    draws = np.random.default_rng(20261130).random((num_rounds, length)) < acceptance
    accepted = np.cumprod(draws, axis=1).sum(axis=1)
    bound = 5 * accepted.std() / np.sqrt(num_rounds) / (1 + accepted.mean())
    costs = RoundCosts(curve=CostCurve.from_ratios({1: 1.0, 6: 1.4}), draft_seconds=0.1)
    sizes = {
        "target": replace(TARGET, cache_bytes_per_token=0, attention_flops_per_token=0),
        "draft": replace(DRAFT, cache_bytes_per_token=0),
    }
    rounds = [record(length, int(n), seconds=costs.round_seconds(length)) for n in accepted]
    measured = costs_from_records(rounds, plain_seconds_per_token=1.0, **sizes)  # type: ignore[arg-type]
    expected = predicted_costs(acceptance, length, costs, **sizes)  # type: ignore[arg-type]
    for name, value in flat(expected).items():
        if isinstance(value, float):
            # wasted rows are a difference of two figures that move together
            slack = 2.0 if "wasted" not in name else 5.0
            assert flat(measured)[name] == pytest.approx(value, rel=slack * bound), name


def test_both_ways_stand_side_by_side_in_json() -> None:
    both = side_by_side(
        plain=predicted_costs(0.5, 0, free_drafts()),
        speculative=predicted_costs(0.5, 1, free_drafts()),
    )
    assert set(both) == {"latency", "compute", "serving"}
    assert all(set(cost) == {"plain", "speculative"} for cost in both.values())
    assert both["latency"]["speculative"]["speedup"] == 1.5
    assert both["latency"]["plain"] == asdict(predicted_costs(0.5, 0, free_drafts()).latency)
    json.dumps(both, allow_nan=False)
