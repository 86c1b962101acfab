"""A prediction equals what a benchmark of the same pair measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.bench.prediction import (
    Prediction,
    Predictor,
    costs_of_recordings,
    pace_of_recordings,
    prediction_dict,
)
from pilotfish.bench.recorder import record
from pilotfish.bench.recording import PlainTimes, Recording
from pilotfish.bench.runner import (
    PLAIN,
    WARM_UP_PROMPT,
    WARM_UP_TOKENS,
    BenchSettings,
    Mode,
    run_benchmark,
)
from pilotfish.bench.summary import summarize
from pilotfish.bench.workload import Prompt
from pilotfish.config import Request
from pilotfish.types import SamplingSettings
from support.scripted_pair import COSTS, PROMPTS, STAIRCASE, WIDEST, ScriptedPair

MODES = [Mode("suffix"), Mode("model"), Mode("auto"), Mode("suffix", 7), Mode("model", 3)]
LINEAR = PairCosts(
    target=CostCurve.flat(1.0, row_seconds=0.15, widest=WIDEST),
    draft=CostCurve.flat(0.3, row_seconds=0.01, widest=WIDEST),
)
REQUEST = Request(max_tokens=150, seed=0)
TIMES = PlainTimes(prompt=1.0, draft_prompt=0.5, target=10.0, decode=12.0, drafting=1.0)


@pytest.mark.parametrize("costs", [COSTS, LINEAR], ids=["staircase", "linear"])
def test_predicted_is_what_a_benchmark_measures(costs: PairCosts) -> None:
    pair = ScriptedPair(costs)
    engines = pair.engines(*MODES)

    def recordings(prompts: list[Prompt], request: Request) -> tuple[Recording, ...]:
        options = {"costs": costs, "clock": pair.clock}
        return record(engines[PLAIN], pair.draft, prompts, request=request, **options).recordings

    # a benchmark warms up, and its controllers learn from that, too
    warm_up = [Prompt("warm up", "none", WARM_UP_PROMPT)]
    replies = [
        *recordings(warm_up, replace(REQUEST, max_tokens=WARM_UP_TOKENS)),
        *recordings(PROMPTS, REQUEST),
    ]
    settings = BenchSettings(rounds=1, request=REQUEST)
    result = run_benchmark(engines, PROMPTS, settings, clock=pair.clock)
    measured = summarize(result, workload="")["modes"]
    predictor = Predictor(replies, costs, backend="native")
    for mode in MODES:
        predicted, found = predictor.predict(mode), measured[mode.name]
        predicted = Prediction(mode=mode.name, replies=predicted.replies[1:])
        ratios = [reply.plain_seconds / reply.seconds for reply in predicted.replies]
        assert predicted.speedup().to_dict() == pytest.approx(found["speedup"], rel=1e-6)
        assert predicted.total_speedup().geomean == pytest.approx(
            found["total_speedup"]["geomean"], rel=0.01
        )
        figures = predicted.to_dict()
        assert figures["tokens_per_round"] == pytest.approx(found["tokens_per_round"], rel=1e-6)
        assert figures["acceptance_rate"] == pytest.approx(found["acceptance_rate"], rel=1e-6)
        by_category = {name: one["speedup"] for name, one in found["by_category"].items()}
        assert list(figures["by_category"]) == list(by_category)
        assert max(ratios) > 1.2, "a prediction of nothing would be too easy"


def test_sampled_replies_are_predicted_as_they_are_measured() -> None:
    # the pair's rows leave nothing to chance for the target, and much for the draft model
    request = replace(REQUEST, settings=SamplingSettings(temperature=0.7))
    pair = ScriptedPair()
    engines = pair.engines(Mode("model", 3))
    recorded = record(
        engines[PLAIN], pair.draft, PROMPTS, request=request, costs=COSTS, clock=pair.clock
    )
    result = run_benchmark(
        engines, PROMPTS, BenchSettings(rounds=1, request=request), clock=pair.clock
    )
    measured = summarize(result, workload="")["modes"]["model:3"]
    predicted = Predictor(recorded.recordings, COSTS, backend="native").predict(Mode("model", 3))
    assert predicted.speedup().geomean == pytest.approx(measured["speedup"]["geomean"], rel=0.01)


def reply(times: PlainTimes | None, **options: object) -> Recording:
    values: dict[str, object] = {
        "id": "r", "category": "chat", "prompt": (1,) * 11, "reply": (1, 2, 3, 4, 5) * 2
    }  # fmt: skip
    return Recording(**(values | {"times": times} | options))  # type: ignore[arg-type]


def test_what_passes_cost_by_then_reshapes_the_calibration() -> None:
    times = replace(TIMES, steps={2: 1.1, 4: 1.2, 8: 2.8}, draft_steps=0.24)
    curve = CostCurve.from_ratios({1: 1.0, 2: 1.0, 4: 1.0, 6: 1.2, 8: 1.4, 16: 2.0})
    costs = PairCosts(target=curve, draft=CostCurve.flat(0.12), draft_overhead_seconds=0.01)
    found = costs_of_recordings([reply(times), reply(None)], costs)
    # between 4 and 8 the factors 1.2 and 2 lie on a line; beyond 8 it stays
    assert found.target.seconds[0] == pytest.approx((1.0, 1.1, 1.2, 1.2 * 1.6, 2.8, 4.0))
    assert found.draft is not None
    assert found.draft.at(1) == pytest.approx(0.24)
    assert found.draft_overhead_seconds == 0.01
    assert found.overhead_seconds == pytest.approx(0.2)


def test_replies_without_times_leave_the_calibration_alone() -> None:
    assert costs_of_recordings([reply(None)], COSTS) is COSTS
    assert pace_of_recordings([reply(None)], COSTS).reading_seconds is None


def test_reading_is_in_the_seconds_of_the_calibration() -> None:
    # steps took a second when calibrated, and as long when recorded: ten tokens in ten seconds
    as_calibrated = pace_of_recordings([reply(TIMES)], COSTS)
    assert as_calibrated.reading_seconds == pytest.approx(0.1)
    assert as_calibrated.draft_reading_seconds == pytest.approx(0.05)
    twice_as_slow = replace(TIMES, prompt=2.0, draft_prompt=1.0, target=20.0, decode=24.0)
    assert pace_of_recordings([reply(twice_as_slow)], COSTS) == as_calibrated


class SecondsAtEachLook:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def test_drafting_takes_what_it_took_beside_the_recorded_replies() -> None:
    recordings = [reply(TIMES)]
    costs = PairCosts(target=STAIRCASE)
    free = Predictor(recordings, costs, backend="native")
    timed = Predictor(recordings, costs, backend="native", timer=SecondsAtEachLook())
    for mode in (Mode("suffix"), Mode("suffix", 3)):
        quick, slow = free.predict(mode).replies[0], timed.predict(mode).replies[0]
        added = slow.seconds - quick.seconds
        assert slow.num_rounds == quick.num_rounds
        # ten rounds took a second; every look at the timer is as long as every other
        assert added == pytest.approx(0.1 * quick.num_rounds)


def test_a_dearer_draft_model_is_dearer_in_all_it_does() -> None:
    pair = ScriptedPair()
    recorded = record(
        pair.engine(Mode(PLAIN)),
        pair.draft,
        PROMPTS,
        request=REQUEST,
        costs=COSTS,
        clock=pair.clock,
    )
    predictor = Predictor(recorded.recordings, COSTS, backend="native")
    mode = Mode("model", 3)
    one, two, free = (
        predictor.predict(mode, draft_factor=factor).replies[0] for factor in (1.0, 2.0, 1e-9)
    )
    assert one.num_rounds == two.num_rounds
    assert two.seconds - one.seconds == pytest.approx(one.seconds - free.seconds)
    assert two.prompt_seconds - one.prompt_seconds == pytest.approx(
        one.prompt_seconds - free.prompt_seconds
    )
    assert one.prompt_seconds > free.prompt_seconds


def test_a_ceiling_bounds_every_round() -> None:
    one = Recording(id="r", category="chat", prompt=(1, 2, 3, 4) * 3, reply=(1, 2, 3, 4) * 10)
    predictor = Predictor([one], COSTS, backend="native")
    rounds = [
        predictor.predict(Mode("suffix"), ceiling=number).replies[0].num_rounds
        for number in (1, 3, 31)
    ]
    assert rounds[0] >= 20
    assert rounds[0] > rounds[1] > rounds[2]


def test_predictions_by_mode_are_plain_values() -> None:
    predictor = Predictor([reply(None)], COSTS, backend="native")
    (found,) = prediction_dict({"suffix": predictor.predict(Mode("suffix"))}).values()
    assert found.keys() == {"expected", "low", "high"}
    assert found["low"] is None, "one reply says nothing about the next"
