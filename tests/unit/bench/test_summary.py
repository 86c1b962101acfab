"""The summary's numbers, against counts made by hand on a fake clock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pilotfish.accounting.costs import ModelSize
from pilotfish.backends.scripted import FakeClock
from pilotfish.bench.findings import headline
from pilotfish.bench.runner import PLAIN, BenchResult, BenchSettings, Run, run_benchmark
from pilotfish.bench.statistics import geometric_mean
from pilotfish.bench.summary import (
    ModelSizes,
    first_difference,
    mode_summary,
    ratios_by_prompt,
    summarize,
)
from pilotfish.bench.workload import Prompt
from pilotfish.config import Request
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.types import FloatArray
from support.bench_engines import VOCAB, avoids, counting, engine, errs_every, knows, prompt_seconds

PROMPTS = [Prompt("one", "chat", "hello"), Prompt("two", "story", "once upon a time")]
NUM_TOKENS = 12

# passes of w rows cost 1 + 0.05 (w - 1); drafts of 3, less where the reply ends
PLAIN_SECONDS = 12 * 1.0
SELF_SECONDS = 3 * 1.15
NEVER_SECONDS = 9 * 1.15 + 1.10 + 1.05 + 1.0
ORACLE_SECONDS = 3 * 1.15 + 1.10


def measured(prompts: Any = PROMPTS, *, keep_store: bool = False, **modes: Any) -> BenchResult:
    """Return what two rounds of plain decoding and of some drafters gave."""
    clock = FakeClock()
    request = Request(max_tokens=NUM_TOKENS, seed=0)
    settings = BenchSettings(rounds=2, keep_store=keep_store, request=request)
    engines = {PLAIN: engine(clock)} | {n: engine(clock, one) for n, one in modes.items()}
    return run_benchmark(engines, prompts, settings, clock=clock)


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summarize(
        measured(self=knows(), never=avoids(), oracle=errs_every(3)), workload="counting"
    )


def test_plain_decoding_emits_one_token_a_pass(summary: dict[str, Any]) -> None:
    plain = summary["plain"]
    assert (plain["passes"], plain["emitted"]) == (4 * 12, 4 * 12)
    assert plain["tokens_per_second"] == pytest.approx(1.0)
    assert plain["rounds_spread"] == pytest.approx({"min": 1.0, "median": 1.0, "max": 1.0})


COUNTS = {
    "self": {"passes": 3, "drafted": 9, "accepted": 9},
    "never": {"passes": 12, "drafted": 9 * 3 + 2 + 1, "accepted": 0},
    "oracle": {"passes": 4, "drafted": 3 * 3 + 2, "accepted": 8},
}
BY_POSITION = {"self": [1.0, 1.0, 1.0], "never": [0.0, 0.0, 0.0], "oracle": [1.0, 1.0, 0.0]}


@pytest.mark.parametrize("mode", COUNTS)
def test_counters_are_those_counted_by_hand(summary: dict[str, Any], mode: str) -> None:
    found, counts = summary["modes"][mode], COUNTS[mode]
    assert {name: found[name] for name in counts} == {n: 4 * c for n, c in counts.items()}
    assert found["emitted"] == 4 * NUM_TOKENS
    assert found["tokens_per_round"] == pytest.approx(NUM_TOKENS / counts["passes"])
    assert found["acceptance_rate"] == pytest.approx(counts["accepted"] / counts["drafted"])
    assert found["acceptance_by_position"] == BY_POSITION[mode]
    num_proposals = {"self": 3, "never": 11, "oracle": 4}[mode]
    assert found["mean_acceptance_length"] == pytest.approx(1 + counts["accepted"] / num_proposals)
    assert found["by_drafter"] == {
        "model": {
            "rounds": 4 * num_proposals,
            "drafted": 4 * counts["drafted"],
            "accepted": 4 * counts["accepted"],
        }
    }


@pytest.mark.parametrize(
    ("mode", "seconds"),
    [("self", SELF_SECONDS), ("never", NEVER_SECONDS), ("oracle", ORACLE_SECONDS)],
)
def test_a_speedup_is_plain_time_by_time(
    summary: dict[str, Any], mode: str, seconds: float
) -> None:
    found, ratio = summary["modes"][mode], PLAIN_SECONDS / seconds
    same = {"geomean": ratio, "low": ratio, "high": ratio}
    assert found["speedup"] == pytest.approx(same)
    assert found["rounds_spread"] == pytest.approx({"min": ratio, "median": ratio, "max": ratio})
    assert found["tokens_per_second"] == pytest.approx(NUM_TOKENS / seconds)
    for category in ("chat", "story"):
        assert found["by_category"][category] == {
            "speedup": {"geomean": pytest.approx(ratio), "low": None, "high": None},
            "prompts": 1,
            "tokens_per_second": pytest.approx(NUM_TOKENS / seconds),
            "tokens_per_round": found["tokens_per_round"],
            "acceptance_rate": found["acceptance_rate"],
        }
    assert [prompt["speedup"][mode] for prompt in summary["prompts"]] == pytest.approx([ratio] * 2)


def test_the_total_speedup_counts_the_reading_of_the_prompt(summary: dict[str, Any]) -> None:
    text_engine = engine(FakeClock())
    ratios = []
    for prompt in PROMPTS:
        reading = prompt_seconds(text_engine, text_engine.prompt_ids(prompt.content, Request()))
        ratios.append((reading + PLAIN_SECONDS) / (reading + SELF_SECONDS))
    found = summary["modes"]["self"]["total_speedup"]
    assert found["geomean"] == pytest.approx(geometric_mean(ratios))
    assert (found["low"], found["high"]) == pytest.approx((min(ratios), max(ratios)))


def test_seconds_add_up_to_the_time_on_the_clock() -> None:
    clock = FakeClock()
    settings = BenchSettings(rounds=2, request=Request(max_tokens=NUM_TOKENS, seed=0))
    engines = {PLAIN: engine(clock), "self": engine(clock, knows())}
    result = run_benchmark(engines, PROMPTS, settings, clock=clock)
    summary = summarize(result, workload="counting")
    found = summary["modes"]["self"]["seconds"]
    assert found["target"] == pytest.approx(4 * SELF_SECONDS)
    assert (found["draft"], found["draft_prompt"]) == (0.0, 0.0)
    assert found["overhead"] == pytest.approx(0.0, abs=1e-9)
    ids = [engines[PLAIN].prompt_ids(prompt.content, Request()) for prompt in PROMPTS]
    assert found["prompt"] == pytest.approx(2 * sum(prompt_seconds(engines[PLAIN], i) for i in ids))
    assert found["prompt"] == pytest.approx(summary["plain"]["seconds"]["prompt"])


def test_times_of_drafter_and_controller_have_their_places() -> None:
    result = measured()
    (plain, *_) = result.runs
    record = replace(
        plain.records[0], draft_seconds=0.5, target_seconds=1.0, round_seconds=1.75, reason="worth"
    )
    run = replace(
        plain,
        mode="model",
        records=(record, record),
        output_ids=plain.output_ids[:2],
        decode_seconds=4.0,
        draft_prompt_seconds=3.0,
    )
    found = mode_summary(result, "model", [plain, run])
    assert found["seconds"] == pytest.approx(
        {
            "target": 2.0,
            "draft": 1.0,
            "overhead": 1.0,
            "prompt": plain.prompt_seconds,
            "draft_prompt": 3.0,
        }
    )
    assert found["draft_time_share"] == pytest.approx(0.25)
    assert found["decisions"] == {"worth": 2}


def test_the_same_text_is_counted_and_the_first_difference_is_told() -> None:
    def other(prefix: tuple[int, ...]) -> FloatArray:
        # after six tokens of the reply to the first prompt, count on from elsewhere
        row = counting(prefix)
        if prefix[-1] == 122 and b"hello" in bytes(token for token in prefix if token < 256):
            row = np.zeros(VOCAB, dtype=np.float32)
            row[40] = 1.0
        return row

    clock = FakeClock()
    settings = BenchSettings(rounds=2, request=Request(max_tokens=NUM_TOKENS, seed=0))
    engines = {PLAIN: engine(clock), "other": engine(clock, knows(), logits=other)}
    result = run_benchmark(engines, PROMPTS, settings, clock=clock)
    summary = summarize(result, workload="counting")
    assert summary["modes"]["other"]["same_text"] == [1, 2]
    assert [prompt["parted"] for prompt in summary["prompts"]] == [{"other": 6}, {"other": None}]


def test_texts_part_at_the_first_id_that_differs_or_where_one_ends() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == first_difference([1, 2, 3], [1, 2]) == 2


def test_a_disturbed_round_does_not_bend_a_prompts_ratio() -> None:
    runs = [
        Run(
            mode=mode,
            prompt_index=0,
            round_index=index,
            records=(),
            output_ids=(1, 2),
            prompt_seconds=0.0,
            draft_prompt_seconds=0.0,
            decode_seconds=seconds,
        )
        for mode, times in ((PLAIN, (4.0, 40.0, 4.0)), ("own", (2.0, 20.0, 30.0)))
        for index, seconds in enumerate(times)
    ]
    own, plain = runs[3:], runs[:3]
    assert ratios_by_prompt(own, plain) == {0: 2.0}


def test_first_and_repeated_runs_are_told_apart_when_replies_are_kept() -> None:
    kept = summarize(measured(PROMPTS[:1], keep_store=True, suffix=SuffixDrafter()), workload="w")
    cleared = summarize(measured(PROMPTS[:1], suffix=SuffixDrafter()), workload="w")
    first, fresh = kept["modes"]["suffix"], cleared["modes"]["suffix"]
    assert first["speedup"]["geomean"] == pytest.approx(fresh["speedup"]["geomean"])
    assert fresh["repeated"] is None
    assert first["repeated"]["runs"] == 1
    assert first["repeated"]["speedup"]["geomean"] > 1.5 * first["speedup"]["geomean"]
    assert first["emitted"] * 2 == fresh["emitted"], "repeated runs are in no other figure"


def test_a_failed_prompt_is_listed_and_in_no_figure() -> None:
    clock = FakeClock()
    prompts = [*PROMPTS, Prompt("long", "chat", "x" * 300)]
    engines = {
        PLAIN: engine(clock, context_size=200),
        "self": engine(clock, knows(), context_size=200),
    }
    settings = BenchSettings(request=Request(max_tokens=NUM_TOKENS, seed=0))
    result = run_benchmark(engines, prompts, settings, clock=clock)
    summary = summarize(result, workload="counting")
    failed = summary["prompts"][2]
    assert "context holds 200" in failed["error"]
    assert (failed["reply_tokens"], failed["speedup"]) == (None, {"self": None})
    assert failed["prompt_tokens"] > 300
    mode = summary["modes"]["self"]
    assert mode["same_text"] == [2, 2]
    assert mode["by_category"]["chat"]["prompts"] == 1
    assert summary["workload"]["categories"] == {"chat": 2, "story": 1}
    assert headline(summary)


def test_costs_count_passes_and_rows_and_know_bytes_where_sizes_are_given() -> None:
    size = ModelSize(parameters=100, weight_bytes=60, step_bytes=50, cache_bytes_per_token=0)
    result = measured(**{"suffix:3": knows(), "model:3": knows()})
    summary = summarize(result, workload="w", sizes=ModelSizes(size, size))
    plain, model = summary["plain"]["costs"], summary["modes"]["model:3"]["costs"]
    assert plain["compute"]["target_passes_per_token"] == 1.0
    assert plain["compute"]["bytes_read_per_token"] == 50.0
    assert plain["serving"]["memory_bytes"] == 60
    assert model["compute"]["target_passes_per_token"] == pytest.approx(3 / 12)
    assert model["compute"]["wasted_rows_per_token"] == 0.0
    assert model["serving"]["memory_bytes"] == 120
    # these drafts are recorded as a model's, and this mode has none: what they took is unknown
    assert summary["modes"]["suffix:3"]["costs"]["serving"]["memory_bytes"] is None
    assert summarize(result, workload="w")["plain"]["costs"]["serving"]["memory_bytes"] is None


def test_the_summary_is_plain_json(summary: dict[str, Any]) -> None:
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["workload"] == {
        "name": "counting",
        "prompts": 2,
        "categories": {"chat": 1, "story": 1},
        "max_tokens": 12,
        "temperature": 0.0,
        "seed": 0,
        "rounds": 2,
        "keep_store": False,
    }


def test_plain_decoding_alone_is_a_benchmark_too() -> None:
    summary = summarize(measured(), workload="counting")
    assert summary["modes"] == {}
    assert summary["plain"]["emitted"] == 48
