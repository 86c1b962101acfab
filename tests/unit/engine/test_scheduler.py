"""Who gets a place, whose prompt is read, and how jobs end: step by step on scripted models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pilotfish.backends.scripted import FakeClock, ScriptedCache, ScriptedModel, random_logits
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import PROMPT_CHUNK_TOKENS, Engine
from pilotfish.engine.scheduler import (
    SHORT_PASS_TOKENS,
    SHORTEST_PASS_TOKENS,
    Job,
    Scheduler,
    common_length,
)
from pilotfish.engine.session import Session
from pilotfish.errors import BackendError, PilotfishError, RequestTimedOut
from pilotfish.prefixes import PrefixPool
from pilotfish.types import Segment, StopReason
from support.drafters import FunctionDrafter
from support.engines import VOCAB, finish
from support.services import cached

LOGITS = cached(random_logits(VOCAB, memory=2))


class PassLog(ScriptedModel):
    """A model that notes the segments of each pass: (sequence, tokens, rows)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(LOGITS, vocab_size=VOCAB, **options)
        self.passes: list[list[tuple[int, int, int]]] = []

    def forward(self, segments: Sequence[Segment]) -> Any:
        self.passes.append([(s.cache.sequence, len(s.token_ids), s.num_rows) for s in segments])  # type: ignore[attr-defined]
        return super().forward(segments)

    @property
    def prompt_passes(self) -> list[tuple[int, int]]:
        """The (sequence, tokens) of the passes that read prompts."""
        return [(p[0][0], p[0][1]) for p in self.passes if not p[0][2]]

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of prompts that were evaluated."""
        return sum(tokens for _, tokens in self.prompt_passes)


def engine_on(
    model: ScriptedModel, *, drafter: Any = None, kept: int = 0, unit: int = 1, number: int = 3
) -> Engine:
    return Engine(
        target=model,
        drafter=drafter or NoDrafter(),
        controller=FixedController(number),
        prefixes=PrefixPool(model, most_sequences=kept, unit=unit),
    )


def job(engine: Engine, prompt: Sequence[int] = (1, 2, 3), **options: Any) -> Job:
    limit = {"limit_seconds": options.pop("limit_seconds")} if "limit_seconds" in options else {}
    options = {"max_tokens": 20, "seed": 7} | options

    def begin(own: Job) -> Session:
        return engine.open(own.prompt, **options)

    return Job(prompt=prompt, num_tokens=len(prompt) + options["max_tokens"], begin=begin, **limit)


def run(scheduler: Scheduler, *jobs: Job, most_steps: int = 3000) -> list[Job]:
    """Return the jobs in the order in which they ended."""
    scheduler.add(jobs)
    ended: list[Job] = []
    for _ in range(most_steps):
        if scheduler.is_idle:
            return ended
        ended += scheduler.step().ended
    raise AssertionError("the scheduler makes no progress")


def alone(prompt: Sequence[int] = (1, 2, 3), **options: Any) -> list[int]:
    """Return what a fresh engine replies."""
    options = {"max_tokens": 20, "seed": 7} | options
    return finish(engine_on(PassLog()), prompt, **options).output_ids


def output(job: Job) -> list[int]:
    assert job.session is not None
    assert job.error is None
    return job.session.output_ids


def long_prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * 7 + i * i) % VOCAB for i in range(length)]


@pytest.mark.parametrize("length", [1, 2, SHORT_PASS_TOKENS, SHORT_PASS_TOKENS + 2, 300])
@pytest.mark.parametrize("max_tokens", [1, 2, 30])
def test_a_job_ends_as_it_does_alone(length: int, max_tokens: int) -> None:
    engine = engine_on(model := PassLog())
    prompt = long_prompt(length)
    (ended,) = run(Scheduler(engine, max_running=1), job(engine, prompt, max_tokens=max_tokens))
    assert output(ended) == alone(prompt, max_tokens=max_tokens)
    assert ended.session is not None
    assert ended.session.stop_reason == StopReason.LENGTH
    assert model.open_caches == set()


def test_places_go_to_those_who_came_first() -> None:
    engine = engine_on(PassLog())
    scheduler = Scheduler(engine, max_running=2)
    jobs = [job(engine, (i + 1,), max_tokens=4) for i in range(7)]
    ended = run(scheduler, *jobs)
    assert ended == jobs
    assert [output(each) for each in jobs] == [alone((i + 1,), max_tokens=4) for i in range(7)]


def test_no_more_than_may_run_at_once_do() -> None:
    engine = engine_on(model := PassLog())
    scheduler = Scheduler(engine, max_running=3)
    scheduler.add(job(engine, (i + 1,), max_tokens=5) for i in range(8))
    while not scheduler.is_idle:
        scheduler.step()
        assert scheduler.num_running + scheduler.num_waiting <= 8
        assert len(model.open_caches) <= 3
    assert max(len(each) for each in model.passes) == 3


def test_a_large_job_is_not_overtaken_by_small_ones() -> None:
    engine = engine_on(PassLog())
    scheduler = Scheduler(engine, max_running=8, most_tokens=60)
    small = [job(engine, (i + 1,), max_tokens=9) for i in range(9)]
    large = job(engine, (5, 5), max_tokens=50)
    order = [*small[:4], large, *small[4:]]
    scheduler.add(order)
    while not scheduler.is_idle:
        scheduler.step()
        begun = [each.session is not None for each in order]
        assert begun == sorted(begun, reverse=True)
        together = [each for each in order if each.session and not each.has_ended]
        assert sum(each.num_tokens for each in together) <= 60


def test_a_job_larger_than_the_token_limit_runs_alone() -> None:
    engine = engine_on(PassLog())
    scheduler = Scheduler(engine, max_running=8, most_tokens=20)
    giant = job(engine, (1,), max_tokens=40)
    jobs = [job(engine, (2,), max_tokens=9), giant, job(engine, (3,), max_tokens=9)]
    scheduler.add(jobs)
    while not scheduler.is_idle:
        scheduler.step()
        if giant.session is not None and not giant.has_ended:
            assert scheduler.num_running == 1
    assert len(output(giant)) == 40


def test_a_long_prompt_holds_up_neither_short_ones_nor_replies() -> None:
    engine = engine_on(PassLog())
    scheduler = Scheduler(engine, max_running=3)
    running = job(engine, (1, 2), max_tokens=1000)
    scheduler.add([running])
    scheduler.step()
    long, short = job(engine, long_prompt(1000)), job(engine, (4, 5))
    scheduler.add([long, short])
    for _ in range(4):
        before = len(running.session.emitted) if running.session else 0
        scheduler.step()
        assert running.session is not None
        assert len(running.session.emitted) == before + 1
        if short.session is not None and short.session.emitted:
            break
    else:
        raise AssertionError("the short prompt waits for the long one")
    assert long.session is not None
    assert not long.session.is_read


def test_prompts_are_read_in_turn_in_short_passes() -> None:
    engine = engine_on(model := PassLog())
    scheduler = Scheduler(engine, max_running=3)
    run(scheduler, *(job(engine, long_prompt(3 * SHORT_PASS_TOKENS + 1, i)) for i in range(3)))
    sequences = [sequence for sequence, _ in model.prompt_passes]
    assert sequences == [1, 2, 3] * 3
    assert {tokens for _, tokens in model.prompt_passes} == {SHORT_PASS_TOKENS}


def test_where_bits_depend_on_the_cut_prompts_are_read_in_whole_passes() -> None:
    engine = engine_on(model := PassLog(), unit=PROMPT_CHUNK_TOKENS)
    run(Scheduler(engine, max_running=2), *(job(engine, long_prompt(600, i)) for i in range(2)))
    cuts = [tokens for sequence, tokens in model.prompt_passes if sequence == 1]
    assert cuts == [PROMPT_CHUNK_TOKENS, PROMPT_CHUNK_TOKENS, 599 - 2 * PROMPT_CHUNK_TOKENS]


def test_one_pass_of_one_prompt_is_read_in_a_step() -> None:
    engine = engine_on(model := PassLog())
    scheduler = Scheduler(engine, max_running=4)
    scheduler.add(job(engine, long_prompt(150, i)) for i in range(4))
    while not scheduler.is_idle:
        before = len(model.prompt_passes)
        scheduler.step()
        assert len(model.prompt_passes) <= before + 1


@pytest.mark.parametrize("failing_pass", range(1, 9))
def test_a_failing_pass_ends_those_in_it_and_nobody_else(failing_pass: int) -> None:
    engine = engine_on(model := PassLog(fail_at=failing_pass), kept=4)
    scheduler = Scheduler(engine, max_running=2)
    jobs = [job(engine, long_prompt(80, i), max_tokens=6) for i in range(4)]
    ended = run(scheduler, *jobs)
    assert sorted(map(id, ended)) == sorted(map(id, jobs))
    failed = [each for each in jobs if each.error is not None]
    assert 1 <= len(failed) <= 2
    assert all(isinstance(each.error, BackendError) for each in failed)
    for index, each in enumerate(jobs):
        if each not in failed:
            assert output(each) == alone(long_prompt(80, index), max_tokens=6)
    # the engine goes on, and nobody takes over what a failed pass left
    (again,) = run(scheduler, job(engine, failed[0].prompt, max_tokens=6))
    assert output(again) == alone(failed[0].prompt, max_tokens=6)
    engine.prefixes.clear()
    assert model.open_caches == set()


class Broken(PassLog):
    """A model that breaks once in a way that nobody foresaw, and leaves nonsense in the caches."""

    is_broken = False

    def forward(self, segments: Sequence[Segment]) -> Any:
        rows = super().forward(segments)
        if self.is_broken:
            self.is_broken = False
            for segment in segments:
                assert isinstance(segment.cache, ScriptedCache)
                segment.cache.tokens = [(token + 1) % VOCAB for token in segment.cache.tokens]
            raise ZeroDivisionError("a fault of ours")
        return rows


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_an_unforeseen_fault_ends_those_in_the_pass_and_nobody_else(steps: int) -> None:
    engine = engine_on(model := Broken(), kept=2)
    scheduler = Scheduler(engine, max_running=1)
    first, second = job(engine, long_prompt(120)), job(engine, long_prompt(120))
    scheduler.add([first, second])
    for _ in range(steps - 1):
        scheduler.step()
    model.is_broken = True
    run(scheduler)
    assert isinstance(first.error, ZeroDivisionError)
    assert output(second) == alone(long_prompt(120))


def test_a_job_waits_while_the_places_of_the_model_are_taken() -> None:
    engine = engine_on(model := PassLog(max_sessions=2))
    jobs = [job(engine, (i + 1, 2), max_tokens=5) for i in range(6)]
    ended = run(Scheduler(engine, max_running=4), *jobs)
    assert ended == jobs
    assert [output(each) for each in jobs] == [alone((i + 1, 2), max_tokens=5) for i in range(6)]
    assert model.open_caches == set()


def test_a_model_that_is_full_is_not_asked_again_until_a_job_has_ended() -> None:
    engine = engine_on(PassLog(max_sessions=1))
    tried: list[int] = []

    def begin(own: Job) -> Session:
        tried.append(scheduler.num_running)
        return engine.open(own.prompt, max_tokens=4, seed=7)

    scheduler = Scheduler(engine, max_running=3)
    jobs = [Job(prompt=(i + 1, 2), num_tokens=6, begin=begin) for i in range(3)]
    assert run(scheduler, *jobs) == jobs
    # the second finds no slot, twice the third: after each end once more
    assert tried == [3, 3, 2, 2, 1]


def test_who_cannot_begin_or_waits_for_a_leader_holds_up_nobody_behind() -> None:
    engine = engine_on(PassLog(), kept=4)

    def refuse(own: Job) -> Session:
        raise PilotfishError("no")

    bad = Job(prompt=(1,), num_tokens=2, begin=refuse)
    leader, follower = (job(engine, long_prompt(200)) for _ in range(2))
    last = job(engine, (3, 4))
    scheduler = Scheduler(engine, max_running=4)
    scheduler.add([bad, leader, follower, last])
    assert scheduler.step().ended == [bad]
    sessions = [one.session is not None for one in (leader, follower, last)]
    assert sessions == [True, False, True]
    scheduler.end_all()


def test_a_follower_that_would_take_over_no_more_than_is_known_begins_at_once() -> None:
    engine = engine_on(PassLog(), kept=4)
    common = [1] * 40
    run(Scheduler(engine, max_running=1), job(engine, [*common, 2, 2]))
    scheduler = Scheduler(engine, max_running=2)
    leader, follower = (job(engine, common + [token] * 150) for token in (3, 4))
    scheduler.add([leader, follower])
    scheduler.step()
    assert leader.session is not None
    assert follower.session is not None
    scheduler.end_all()


def test_jobs_fit_up_to_the_very_limit_of_tokens() -> None:
    engine = engine_on(PassLog())
    for limit, running in ((46, 2), (45, 1)):
        scheduler = Scheduler(engine, max_running=4, most_tokens=limit)
        scheduler.add([job(engine), job(engine)])  # 23 tokens each
        scheduler.step()
        assert scheduler.num_running == running
        scheduler.end_all()


def test_the_time_of_a_job_runs_from_its_arrival_and_its_begin_is_noted() -> None:
    engine, clock = engine_on(PassLog()), FakeClock()
    clock.advance(100)
    scheduler = Scheduler(engine, max_running=1, clock=clock)
    first = job(engine, max_tokens=500, limit_seconds=10)
    late = job(engine, max_tokens=500, limit_seconds=6)
    first.arrived_at, late.arrived_at = 98, 98
    scheduler.add([first, late])
    clock.advance(3)
    assert scheduler.step().ended == []
    assert (first.begun_at, late.begun_at) == (103, None)
    clock.advance(1)
    # one behind another that has time left
    assert scheduler.step().ended == [late]
    clock.advance(4)
    assert scheduler.step().ended == [first]


def test_a_job_fails_when_there_is_no_place_though_nothing_runs() -> None:
    engine = engine_on(PassLog(max_sessions=1))
    taken = engine.open((1,))
    (ended,) = run(Scheduler(engine, max_running=2), job(engine))
    assert isinstance(ended.error, BackendError)
    assert ended.session is None
    engine.finish(taken)


def test_a_job_that_cannot_begin_fails_alone() -> None:
    engine = engine_on(PassLog())

    def refuse(own: Job) -> Session:
        raise PilotfishError("no")

    bad = Job(prompt=(1,), num_tokens=2, begin=refuse)
    good = job(engine)
    assert run(Scheduler(engine, max_running=2), bad, good) == [bad, good]
    assert str(bad.error) == "no"
    assert output(good) == alone()


@pytest.mark.parametrize("steps", range(8))
def test_what_is_cancelled_is_not_evaluated_again_and_is_given_back_once(steps: int) -> None:
    drafter = FunctionDrafter(lambda view, budget: [1] * budget)
    engine = engine_on(model := PassLog(), drafter=drafter)
    scheduler = Scheduler(engine, max_running=2)
    gone = job(engine, long_prompt(2 * SHORT_PASS_TOKENS), max_tokens=50)
    jobs = [gone, job(engine, (1, 2)), job(engine, (3, 4))]
    scheduler.add(jobs)
    ended = []
    for _ in range(steps):
        ended += scheduler.step().ended
    gone.cancel()
    num_passes = len(model.passes)
    ended += run(scheduler)
    of_gone = {1} if steps else set()
    assert not [p for p in model.passes[num_passes:] if of_gone & {segment[0] for segment in p}]
    assert sorted(map(id, ended)) == sorted(map(id, jobs))
    assert sorted(drafter.forgotten) == sorted(set(drafter.forgotten))
    assert len(drafter.forgotten) == (3 if steps else 2)
    assert gone.error is None
    assert gone.session is None or gone.session.stop_reason == StopReason.CANCELLED
    assert [output(each) for each in jobs[1:]] == [alone((1, 2)), alone((3, 4))]
    assert model.open_caches == set()


def test_a_prompt_is_not_read_on_when_its_job_was_cancelled_in_the_round_before() -> None:
    drafter = FunctionDrafter(lambda view, budget: gone.cancel() or [])  # type: ignore[func-returns-value]
    engine = engine_on(model := PassLog(), drafter=drafter)
    scheduler = Scheduler(engine, max_running=2)
    first, gone = job(engine, (1, 2)), job(engine, long_prompt(300))
    scheduler.add([first, gone])
    scheduler.step()
    scheduler.step()
    assert model.num_prompt_tokens == 1
    run(scheduler)
    assert output(first) == alone((1, 2))
    assert model.num_prompt_tokens == 1


def test_a_job_ends_when_its_time_is_over_wherever_it_is() -> None:
    clock = FakeClock()
    engine = engine_on(model := PassLog())
    scheduler = Scheduler(engine, max_running=2, clock=clock)
    running = job(engine, (1,), max_tokens=100, limit_seconds=10)
    reading = job(engine, long_prompt(4000), limit_seconds=10)
    waiting = job(engine, (2,), limit_seconds=10)
    patient = job(engine, (3,))
    scheduler.add([running, reading, waiting, patient])
    for _ in range(9):
        assert not scheduler.step().ended
        clock.advance(1)
    num_passes = len(model.passes)
    clock.advance(1)
    assert set(scheduler.step().ended) == {running, reading, waiting}
    assert {type(each.error) for each in (running, reading, waiting)} == {RequestTimedOut}
    assert "10 seconds" in str(waiting.error)
    assert waiting.session is None
    run(scheduler)
    assert output(patient) == alone((3,))
    assert {s for p in model.passes[num_passes:] for s, _, _ in p} == {3}


def test_a_prompt_that_is_being_read_is_not_read_again() -> None:
    engine = engine_on(model := PassLog(), kept=4)
    prompt = long_prompt(300)
    jobs = [job(engine, prompt, seed=seed, max_tokens=9) for seed in range(8)]
    ended = run(Scheduler(engine, max_running=8), *jobs)
    assert len(ended) == 8
    assert [output(each) for each in jobs] == [alone(prompt, max_tokens=9)] * 8
    assert model.num_prompt_tokens == 299
    assert [each.session.num_reused_tokens for each in jobs if each.session] == [0] + [299] * 7


def test_a_common_beginning_is_read_once_and_the_rest_in_turn() -> None:
    engine = engine_on(model := PassLog(), kept=4)
    common = long_prompt(200)
    prompts = [common + [i] * 100 for i in range(4)]
    jobs = [job(engine, prompt, max_tokens=9) for prompt in prompts]
    run(Scheduler(engine, max_running=4), *jobs)
    assert [output(each) for each in jobs] == [alone(p, max_tokens=9) for p in prompts]
    # a pass may go beyond what is common
    assert model.num_prompt_tokens <= 200 + 4 * 100


def test_where_bits_depend_on_the_cut_whole_passes_are_taken_over() -> None:
    engine = engine_on(model := PassLog(), kept=4, unit=PROMPT_CHUNK_TOKENS)
    prompt = long_prompt(600)
    jobs = [job(engine, prompt, max_tokens=9) for _ in range(3)]
    run(Scheduler(engine, max_running=3), *jobs)
    assert [output(each) for each in jobs] == [alone(prompt, max_tokens=9)] * 3
    assert model.num_prompt_tokens == 599 + 2 * (599 - 2 * PROMPT_CHUNK_TOKENS)


def test_nobody_waits_for_a_prompt_whose_beginning_is_kept_already() -> None:
    engine = engine_on(model := PassLog(), kept=4)
    prompt = long_prompt(400)
    run(Scheduler(engine, max_running=1), job(engine, prompt))
    scheduler = Scheduler(engine, max_running=2)
    other = prompt[:100] + long_prompt(900, seed=2)
    scheduler.add([job(engine, other), follower := job(engine, prompt)])
    scheduler.step()
    assert follower.session is not None
    run(scheduler)
    assert output(follower) == alone(prompt)
    assert model.num_prompt_tokens == 399 + len(other) - 1 - 100


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_followers_go_on_with_what_a_leader_read_before_it_left(steps: int) -> None:
    engine = engine_on(model := PassLog(), kept=4)
    prompt = long_prompt(300)
    leader, *followers = jobs = [job(engine, prompt) for _ in range(3)]
    scheduler = Scheduler(engine, max_running=3)
    scheduler.add(jobs)
    for _ in range(steps):
        scheduler.step()
    leader.cancel()
    run(scheduler)
    assert [output(each) for each in followers] == [alone(prompt)] * 2
    assert model.num_prompt_tokens == 299


def test_followers_do_not_wait_where_nothing_is_shared() -> None:
    engine = engine_on(model := PassLog(), kept=0)
    prompt = long_prompt(100)
    run(Scheduler(engine, max_running=3), *(job(engine, prompt) for _ in range(3)))
    assert model.num_prompt_tokens == 3 * 99


def test_a_draft_model_reads_a_common_prompt_once_too() -> None:
    draft = PassLog()
    drafter = ModelDrafter(
        draft, vocab_size=VOCAB, prefixes=PrefixPool(draft, most_sequences=4), min_survival=0.0
    )
    engine = engine_on(model := PassLog(), drafter=drafter, kept=4)
    prompt = long_prompt(900)
    jobs = [job(engine, prompt) for _ in range(4)]
    run(Scheduler(engine, max_running=4), *jobs)
    assert [output(each) for each in jobs] == [alone(prompt)] * 4
    assert model.num_prompt_tokens == 899
    assert draft.num_prompt_tokens == 899


def test_the_same_calls_give_the_same_steps() -> None:
    def passes() -> list[Any]:
        engine = engine_on(model := PassLog(), kept=2)
        jobs = [job(engine, long_prompt(50 * i + 1, i), max_tokens=5 + i) for i in range(6)]
        run(Scheduler(engine, max_running=3, most_tokens=400), *jobs)
        return model.passes

    assert passes() == passes()


def test_all_can_be_ended_at_once() -> None:
    engine = engine_on(model := PassLog(), kept=2)
    scheduler = Scheduler(engine, max_running=2)
    jobs = [job(engine, long_prompt(100, i)) for i in range(4)]
    scheduler.add(jobs)
    for _ in range(4):
        scheduler.step()
    error = PilotfishError("over")
    assert set(scheduler.end_all(error)) == set(jobs)
    assert {each.error for each in jobs} == {error}
    assert scheduler.is_idle
    engine.prefixes.clear()
    assert model.open_caches == set()


@pytest.mark.parametrize("error", [PilotfishError("over"), None])
def test_sessions_that_are_ended_with_an_error_fail_and_are_not_kept(
    error: PilotfishError | None,
) -> None:
    engine = engine_on(PassLog(), kept=2)
    scheduler = Scheduler(engine, max_running=1)
    scheduler.add([one := job(engine, long_prompt(60), max_tokens=100)])
    for _ in range(4):
        scheduler.step()
    scheduler.end_all(error)
    assert one.session is not None
    assert one.session.error is one.error is error
    assert one.session.stop_reason is (StopReason.ERROR if error else StopReason.CANCELLED)
    assert engine.prefixes.num_kept == (0 if error else 1)


@pytest.mark.parametrize("earlier", [None, PilotfishError("earlier")])
def test_an_end_that_fails_is_told_unless_there_was_an_error_before(
    monkeypatch: pytest.MonkeyPatch, earlier: PilotfishError | None
) -> None:
    engine = engine_on(PassLog())
    scheduler = Scheduler(engine, max_running=1)
    scheduler.add([one := job(engine, max_tokens=100)])
    scheduler.step()

    def fail(session: Session) -> None:
        raise failure

    failure = ValueError("a cache cannot be closed")
    monkeypatch.setattr(engine, "finish", fail)
    scheduler.end_all(earlier)
    assert one.error is (earlier or failure)


def test_a_step_reports_its_round_and_whose_prompt_is_complete() -> None:
    engine = engine_on(PassLog(), drafter=FunctionDrafter(lambda view, budget: [0]))
    scheduler = Scheduler(engine, max_running=2)
    jobs = [job(engine, (1, 2, i), max_tokens=9) for i in range(2)]
    scheduler.add(jobs)
    reports = [scheduler.step() for _ in range(3)]
    assert [report.read for report in reports] == [*jobs, None]
    sessions = [one.session for one in jobs]
    assert None not in sessions
    first, second = (session.records for session in sessions if session is not None)
    assert [[*report.records] for report in reports] == [[], [first[0]], [first[1], second[0]]]


def steps_until_read(length: int) -> int:
    """Return in which step of its own a prompt of this length is complete."""
    engine = engine_on(PassLog())
    scheduler = Scheduler(engine, max_running=1)
    scheduler.add([job(engine, long_prompt(length))])
    for step in range(1, 20):
        if scheduler.step().read:
            return step
    raise AssertionError("the prompt is never read")


def test_what_is_soon_read_is_read_by_drafters_in_the_same_step() -> None:
    short, shortest = SHORT_PASS_TOKENS, SHORTEST_PASS_TOKENS
    # the last token of a prompt is read with the reply
    steps = {length: steps_until_read(length + 1) for length in (0, 1, shortest - 1, shortest)}
    assert set(steps.values()) == {1}
    assert [steps_until_read(1 + n) for n in (shortest + 1, short, short + 1)] == [2, 2, 2]
    assert steps_until_read(1 + short + shortest) == 2
    assert steps_until_read(1 + short + shortest + 1) == 3


def test_prompts_are_read_in_the_shortest_passes_while_replies_run() -> None:
    engine = engine_on(model := PassLog())
    scheduler = Scheduler(engine, max_running=2)
    scheduler.add([job(engine, (1, 2), max_tokens=500)])
    scheduler.step()
    scheduler.add([job(engine, long_prompt(101))])
    for _ in range(5):
        scheduler.step()
    assert [tokens for _, tokens in model.prompt_passes] == [1, 32, 32, 32, 4]
    assert SHORTEST_PASS_TOKENS == 32
    scheduler.end_all()


def test_the_common_length_is_that_of_the_same_beginning() -> None:
    def length(one: Sequence[int], other: Sequence[int]) -> int:
        jobs = [Job(prompt=ids, num_tokens=1, begin=lambda own: Session) for ids in (one, other)]  # type: ignore[arg-type,return-value]
        return common_length(jobs[0].ids, jobs[1].ids)

    assert length([1, 2, 3], [1, 2, 4]) == 2
    assert length([1, 2], [1, 2, 4]) == 2
    assert length([3], [1]) == 0
    assert length([], [1]) == 0
