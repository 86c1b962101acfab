"""The service over scripted models: one thread, many readers, and every way to leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pilotfish.backends.scripted import FakeClock, ScriptedModel
from pilotfish.config import Request
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.session import Session
from pilotfish.errors import BackendError, ConfigError, ContextLengthExceeded, PromptError
from pilotfish.generation import Reply
from pilotfish.server.delivery import Ticket
from pilotfish.server.service import (
    Generation,
    QueueFull,
    RequestTimedOut,
    Service,
    ServiceLimits,
    ShuttingDown,
)
from pilotfish.types import SamplingSettings
from support.drafters import RaisingDrafter
from support.services import (
    VOCAB,
    CountingWatcher,
    GatedModel,
    WatchedModel,
    rambling,
    read,
    serving,
    serving_engine,
)

PROMPT = [0, 1, 4, 5]
Test = Callable[[], Coroutine[Any, Any, None]]


def run(test: Test) -> None:
    """Run one test on a loop of its own; a test that hangs fails."""

    async def guarded() -> None:
        await asyncio.wait_for(test(), 30)

    asyncio.run(guarded())


def request(max_tokens: int = 12, **options: Any) -> Request:
    """Return a seeded request that does not end early."""
    options = {"seed": 3, "min_tokens": max_tokens} | options
    return Request.from_options({"max_tokens": max_tokens} | options)


def alone(prompt: list[int] = PROMPT, **options: Any) -> Reply:
    """Return the reply of an engine that does nothing else."""
    engine = serving_engine()
    running = engine.open(prompt, request(**options))
    while not engine.engine.read(running.session):
        pass
    engine.engine.run_together([running.session])
    return running.reply


def gated(**options: Any) -> tuple[GatedModel, Any]:
    model = GatedModel(rambling(), vocab_size=VOCAB)
    return model, serving_engine(model, **options)


def test_pieces_are_the_reply_and_come_round_by_round() -> None:
    async def test() -> None:
        async with serving(serving_engine()) as service:
            (generation,) = service.submit(PROMPT, [request()])
            pieces = [piece async for piece in generation]
            reply = await generation.wait()
            assert "".join(piece.text for piece in pieces) == reply.text == alone().text
            assert [t for piece in pieces for t in piece.tokens] == list(reply.tokens)
            assert [len(piece.tokens) for piece in pieces] == [1] * 12
            assert generation.reply is reply
            assert reply.usage.completion_tokens == 12
            queued, first = generation.queued_seconds, generation.first_token_seconds
            assert queued is not None
            assert first is not None
            assert 0 <= queued <= first

    run(test)


def test_a_reply_can_be_waited_for_without_reading_it() -> None:
    async def test() -> None:
        async with serving(serving_engine()) as service:
            (generation,) = service.submit(PROMPT, [request()])
            with pytest.raises(Exception, match="has not ended"):
                _ = generation.reply
            assert (await generation.wait()).text == alone().text
            assert await read(generation) == alone().text  # nothing was lost meanwhile
            assert await read(generation) == ""

    run(test)


def test_a_slow_reader_holds_nobody_up() -> None:
    async def test() -> None:
        async with serving(serving_engine()) as service:
            (slow,), (quick,) = (service.submit(PROMPT, [request(40)]) for _ in range(2))
            async for _ in slow:
                assert (await quick.wait()).text == alone(max_tokens=40).text
                await slow.wait()
                break
            assert slow.reply.text == alone(max_tokens=40).text

    run(test)


def test_models_are_used_by_one_thread_only_and_never_by_the_loop() -> None:
    async def test() -> None:
        draft = WatchedModel(rambling(1), vocab_size=VOCAB)
        target = WatchedModel(rambling(), vocab_size=VOCAB)
        drafter = ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0)
        engine = serving_engine(target, drafter=drafter, kept=2)
        async with serving(engine, max_running=3) as service:
            generations = [g for _ in range(4) for g in service.submit(PROMPT, [request()] * 2)]
            generations[3].cancel()
            await asyncio.gather(*(read(each) for each in generations))
        assert len(target.threads) == len(draft.threads) == 1
        assert target.threads == draft.threads != {threading.get_ident()}

    run(test)


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, PromptError),
        ([VOCAB], {}, PromptError),
        ([-1], {}, PromptError),
        ([0] * 5000, {}, ContextLengthExceeded),
        ([0], {"logit_bias": {VOCAB: 1.0}}, PromptError),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(
    prompt: list[int], options: dict[str, Any], error: type[Exception]
) -> None:
    async def test() -> None:
        watcher = CountingWatcher()
        async with serving(serving_engine(), watcher=watcher) as service:
            with pytest.raises(error):
                service.submit(prompt, [request(**options)])
            assert (service.state.num_running, service.state.num_waiting) == (0, 0)
        assert watcher.num_accepted == 0

    run(test)


def test_all_choices_are_taken_or_none() -> None:
    async def test() -> None:
        model, engine = gated()
        watcher = CountingWatcher()
        async with serving(engine, watcher=watcher, max_running=2, max_waiting=3) as service:
            first = service.submit(PROMPT, [request()] * 3)
            with pytest.raises(QueueFull) as refused:
                service.submit(PROMPT, [request()] * 3)
            assert refused.value.retry_after_seconds >= 1
            assert refused.value.hint
            with pytest.raises(ConfigError, match="6 choices"):
                service.submit(PROMPT, [request()] * 6)
            rest = service.submit(PROMPT, [request()] * 2)
            assert service.state.num_running + service.state.num_waiting == 5
            model.open()
            await asyncio.gather(*(each.wait() for each in [*first, *rest]))
            # and there is room again
            await asyncio.gather(*(g.wait() for g in service.submit(PROMPT, [request()] * 5)))
        assert watcher.num_accepted == 10
        assert watcher.refusals == ["queue_full"] * 3

    run(test)


def test_when_to_come_again_follows_what_replies_take() -> None:
    async def test() -> None:
        clock = FakeClock()
        model, engine = gated()
        limits = {"max_running": 1, "max_waiting": 0, "request_seconds": 0}
        async with serving(engine, clock=clock, **limits) as service:
            waits = []
            for _ in range(30):
                (generation,) = service.submit(PROMPT, [request(1)])
                await model.arrival()
                with pytest.raises(QueueFull) as refused:
                    service.submit(PROMPT, [request(1)])
                waits.append(refused.value.retry_after_seconds)
                clock.advance(90)
                model.let(2)
                await model.arrival()
                await generation.wait()
            assert waits == sorted(waits)
            assert waits[0] == 5
            assert 85 <= waits[-1] <= 90

    run(test)


@pytest.mark.parametrize("number", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_choices_of_one_request_are_what_each_would_be_alone(
    number: int, temperature: float
) -> None:
    async def test() -> None:
        requests = [request(9 + i, temperature=temperature, seed=i) for i in range(number)]
        async with serving(serving_engine(kept=2), max_running=5) as service:
            for _ in range(2):  # and the same again
                choices = await asyncio.gather(
                    *(g.wait() for g in service.submit(PROMPT, requests))
                )
                references = [
                    alone(max_tokens=9 + i, temperature=temperature, seed=i) for i in range(number)
                ]
                assert [each.text for each in choices] == [each.text for each in references]
                assert [each.seed for each in choices] == list(range(number))
                if temperature:
                    assert len({each.text for each in choices}) == number

    run(test)


def test_a_prompt_of_several_choices_is_read_once() -> None:
    async def test() -> None:
        model = ScriptedModel(rambling(), vocab_size=VOCAB)
        prompt = [i % (VOCAB - 1) for i in range(200)]
        async with serving(serving_engine(model, kept=4)) as service:
            choices = service.submit(prompt, [request(1, seed=i) for i in range(6)])
            replies = await asyncio.gather(*(each.wait() for each in choices))
        assert [reply.usage.cached_tokens for reply in replies] == [0] + [199] * 5
        assert len(model.log.evaluations) == 199 + 6

    run(test)


async def leave_before_it_begins(model: GatedModel, service: Service) -> tuple[Generation, int]:
    busy = service.submit(PROMPT, [request(3)] * 2)
    (gone,) = service.submit(PROMPT, [request()])
    await model.arrival()
    gone.cancel()
    model.open()
    await asyncio.gather(*(each.wait() for each in busy))
    return gone, 0


async def leave_while_the_prompt_is_read(
    model: GatedModel, service: Service
) -> tuple[Generation, int]:
    (gone,) = service.submit([0] * 1000, [request()])
    model.let(3)
    for _ in range(4):
        await model.arrival()
    gone.cancel()
    model.open()
    return gone, 4  # the pass that ran when it left is the last


async def leave_in_mid_stream(model: GatedModel, service: Service) -> tuple[Generation, int]:
    (gone,) = service.submit(PROMPT, [request()])
    model.let(4)
    pieces = [await anext(gone) for _ in range(3)]
    for _ in range(5):
        await model.arrival()
    gone.cancel()
    model.open()
    assert (
        "".join(piece.text for piece in pieces) == alone().text[: sum(map(len, pieces_of(pieces)))]
    )
    return gone, 5


def pieces_of(pieces: list[Any]) -> list[str]:
    return [piece.text for piece in pieces]


async def be_dropped_in_mid_stream(model: GatedModel, service: Service) -> tuple[None, int]:
    (gone,) = service.submit(PROMPT, [request()])
    model.let(3)
    async for _ in gone:
        break
    for _ in range(4):
        await model.arrival()
    del gone
    model.open()
    return None, 4


@pytest.mark.parametrize(
    "leave",
    [
        leave_before_it_begins,
        leave_while_the_prompt_is_read,
        leave_in_mid_stream,
        be_dropped_in_mid_stream,
    ],
)
def test_who_leaves_costs_one_more_pass_at_most(leave: Any) -> None:
    async def test() -> None:
        for _ in range(25):
            model, engine = gated(kept=1)
            watcher = CountingWatcher()
            async with serving(engine, watcher=watcher, max_running=2) as service:
                gone, most_passes = await leave(model, service)
                if gone is not None:
                    await read(gone)
                # its place is free, and the next one's reply is its own
                (after,) = service.submit(PROMPT, [request()])
                assert (await after.wait()).text == alone().text
            sequences = [sequence for one in model.passes for sequence, _ in one]
            if most_passes:
                assert sequences.count(1) <= most_passes
            assert watcher.outcomes.count("cancelled") == 1
            assert len(watcher.outcomes) == watcher.num_accepted
            engine.engine.prefixes.clear()
            assert model.open_caches == set()

    run(test)


def test_a_cancelled_reply_can_be_read_as_far_as_it_came() -> None:
    async def test() -> None:
        model, engine = gated()
        async with serving(engine) as service:
            (gone,) = service.submit(PROMPT, [request()])
            model.let(4)
            first = await anext(gone)
            gone.cancel()
            gone.cancel()
            model.open()
            reply = await gone.wait()
            assert first.text + await read(gone) == reply.text
            assert reply.finish_reason == "cancelled"
            assert alone().text.startswith(reply.text)
            gone.cancel()
            assert gone.reply is reply

    run(test)


def test_a_request_that_was_cancelled_before_it_began_says_so() -> None:
    async def test() -> None:
        service = Service(serving_engine())
        (gone,) = service.submit(PROMPT, [request()])
        gone.cancel()
        await service.drain(30)
        assert [piece async for piece in gone] == []
        with pytest.raises(Exception, match="before it began"):
            await gone.wait()
        assert gone.queued_seconds is None

    run(test)


def test_a_failing_pass_is_one_error_and_the_service_goes_on() -> None:
    async def test() -> None:
        model = ScriptedModel(rambling(), vocab_size=VOCAB, fail_at=4)
        watcher = CountingWatcher()
        async with serving(serving_engine(model), watcher=watcher) as service:
            (failed,) = service.submit(PROMPT, [request()])
            pieces = [await anext(failed) for _ in range(2)]
            assert alone().text.startswith("".join(pieces_of(pieces)))
            with pytest.raises(BackendError, match="pass 4"):
                await anext(failed)
            with pytest.raises(BackendError):
                await failed.wait()
            (after,) = service.submit(PROMPT, [request()])
            assert (await after.wait()).text == alone().text
        assert watcher.outcomes == ["error", "length"]
        assert model.open_caches == set()

    run(test)


def test_a_failing_drafter_costs_drafts_only() -> None:
    async def test() -> None:
        async with serving(serving_engine(drafter=RaisingDrafter(after=2))) as service:
            (generation,) = service.submit(PROMPT, [request()])
            assert await read(generation) == alone().text

    run(test)


class Unforeseen(WatchedModel):
    """A model that fails in a way no backend should."""

    def forward(self, segments: Any) -> Any:
        if self.log.widths and not getattr(self, "has_failed", False):
            self.has_failed = True
            raise ZeroDivisionError("a fault of ours")
        return super().forward(segments)


def test_an_unforeseen_fault_ends_what_ran_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        engine = serving_engine(Unforeseen(rambling(), vocab_size=VOCAB), kept=2)
        async with serving(engine) as service:
            (failed,) = service.submit(PROMPT, [request()])
            with pytest.raises(ZeroDivisionError):
                await failed.wait()
            assert service.state.is_alive
            (after,) = service.submit(PROMPT, [request()])
            assert (await after.wait()).text == alone().text

    with caplog.at_level(logging.ERROR, logger="pilotfish"):
        run(test)
    assert any(record.exc_info for record in caplog.records)


def test_a_fault_of_the_scheduler_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        model, engine = gated()
        async with serving(engine, max_running=1) as service:
            generations = service.submit(PROMPT, [request()] * 3)
            await model.arrival()
            broken = [True]

            def fail_once() -> Any:
                if broken:
                    broken.clear()
                    raise ZeroDivisionError("a fault of ours")
                return place()

            # in mid-step, when some have ended already
            place = service._scheduler._place
            monkeypatch.setattr(service._scheduler, "_place", fail_once)
            gone, *others = generations
            gone.cancel()
            model.open()
            assert (await gone.wait()).finish_reason == "cancelled"
            for each in others:
                with pytest.raises(ZeroDivisionError):
                    await each.wait()
            (after,) = service.submit(PROMPT, [request()])
            assert (await after.wait()).text == alone().text

    with caplog.at_level(logging.ERROR, logger="pilotfish"):
        run(test)
    assert "the scheduler failed" in caplog.text


class Deadly(WatchedModel):
    """A model whose second round takes the whole thread with it."""

    def forward(self, segments: Any) -> Any:
        if len(self.log.widths) > 1:
            raise SystemExit
        return super().forward(segments)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_leaves_nobody_waiting() -> None:
    async def test() -> None:
        engine = serving_engine(Deadly(rambling(), vocab_size=VOCAB))
        service = Service(engine, ServiceLimits(max_running=1))
        service.start()
        generations = service.submit(PROMPT, [request()] * 3)
        for each in generations:
            with pytest.raises(ShuttingDown, match="has stopped"):
                await each.wait()
        assert not service.state.is_alive
        with pytest.raises(ShuttingDown):
            service.submit(PROMPT, [request()])
        await service.drain(30)

    run(test)


def test_requests_end_when_their_time_is_over_queued_or_running() -> None:
    async def test() -> None:
        clock, watcher = FakeClock(), CountingWatcher()
        model, engine = gated()
        limits = {"max_running": 1, "request_seconds": 60}
        async with serving(engine, clock=clock, watcher=watcher, **limits) as service:
            running, waiting = service.submit(PROMPT, [request()] * 2)
            model.let(3)
            pieces = [await anext(running), await anext(running)]
            assert alone().text.startswith("".join(pieces_of(pieces)))
            clock.advance(61)
            model.open()
            for each in (running, waiting):
                with pytest.raises(RequestTimedOut, match="60 seconds"):
                    await read(each)
            (after,) = service.submit(PROMPT, [request()])
            await after.wait()
        assert watcher.outcomes == ["timeout", "timeout", "length"]
        assert [end["queued_seconds"] for end in watcher.ends] == [0, 61, 0]

    run(test)


def test_a_drain_lets_what_was_taken_end_and_refuses_the_rest() -> None:
    async def test() -> None:
        watcher = CountingWatcher()
        model, engine = gated()
        service = Service(engine, ServiceLimits(max_running=1), watcher=watcher)
        service.start()
        taken = service.submit(PROMPT, [request()] * 3)
        drain = asyncio.create_task(service.drain(30))
        await model.arrival()
        assert service.state.is_draining
        with pytest.raises(ShuttingDown, match="shutting down"):
            service.submit(PROMPT, [request()])
        model.open()
        await drain
        assert [await read(each) for each in taken] == [alone().text] * 3
        assert not service.state.is_alive
        assert watcher.refusals == ["shutting_down"]
        assert watcher.outcomes == ["length"] * 3
        await service.drain(30)  # safe to repeat

    run(test)


def test_a_drain_cuts_off_what_takes_too_long() -> None:
    async def test() -> None:
        watcher = CountingWatcher()
        model, engine = gated()
        service = Service(engine, ServiceLimits(max_running=1), watcher=watcher)
        service.start()
        running, waiting = service.submit(PROMPT, [request(1000)] * 2)
        model.let(3)
        await anext(running)
        drain = asyncio.create_task(service.drain(0))
        while not drain.done():
            model.let(1)
            await asyncio.sleep(0.001)
        for each in (running, waiting):
            with pytest.raises(ShuttingDown, match="before the reply ended"):
                await read(each)
        assert watcher.outcomes == ["cancelled"] * 2
        assert model.open_caches == set()

    run(test)


def test_a_loop_that_is_gone_costs_nothing(recwarn: pytest.WarningsRecorder) -> None:
    model, engine = gated()
    service = Service(engine)
    service.start()

    async def be_gone() -> None:
        generations.extend(service.submit(PROMPT, [request(1000)] * 2))
        await model.arrival()

    generations: list[Generation] = []
    asyncio.run(be_gone())
    model.open()

    async def test() -> None:
        (after,) = service.submit(PROMPT, [request()])
        assert (await after.wait()).text == alone().text
        await service.drain(30)

    run(test)
    # each was cancelled when its first news found nobody
    assert sum(len(one) for one in model.passes) < 100
    assert model.open_caches == set()


def test_it_sleeps_when_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        steps = []
        async with serving(serving_engine()) as service:
            step = service._scheduler.step
            monkeypatch.setattr(service._scheduler, "step", lambda: (steps.append(1), step())[1])
            for _ in range(3):
                await service.submit(PROMPT, [request(5)])[0].wait()
                num_steps = len(steps)
                await asyncio.to_thread(threading.Event().wait, 0.02)
                # one more may have found nothing left
                assert len(steps) <= num_steps + 1
        assert len(steps) < 30

    run(test)


def test_the_watcher_is_told_of_everything_once() -> None:
    async def test() -> None:
        watcher = CountingWatcher()
        async with serving(serving_engine(kept=2), watcher=watcher, max_running=2) as service:
            prompt = [0, 1] * 50
            for generation in service.submit(prompt, [request(5), request(5), request(7)]):
                await generation.wait()
        assert watcher.num_accepted == len(watcher.outcomes) == 3
        assert watcher.outcomes == ["length"] * 3
        assert watcher.prompts[0] == (100, 0)
        assert all(100 > reused > 90 for _, reused in watcher.prompts[1:])
        assert sum(watcher.rounds) == 5 + 5 + 7
        assert max(watcher.rounds) == 2
        for end, tokens in zip(watcher.ends, (5, 5, 7), strict=True):
            assert end["num_prompt_tokens"] == 100
            assert end["num_completion_tokens"] == tokens
            assert 0 <= end["queued_seconds"] <= end["first_token_seconds"] <= end["total_seconds"]

    run(test)


class ClumsyWatcher(CountingWatcher):
    """A watcher that breaks its promise."""

    def round(self, records: Any) -> None:
        raise ZeroDivisionError("counted wrong")

    def ended(self, outcome: str, **facts: Any) -> None:
        raise ZeroDivisionError("counted wrong")


def test_a_watcher_that_fails_costs_no_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(serving_engine(), watcher=ClumsyWatcher()) as service:
            (generation,) = service.submit(PROMPT, [request()])
            assert (await generation.wait()).text == alone().text

    with caplog.at_level(logging.ERROR, logger="pilotfish"):
        run(test)
    assert "the watcher failed" in caplog.text


def test_the_state_says_what_runs_waits_and_is_kept() -> None:
    async def test() -> None:
        clock = FakeClock()
        model, engine = gated(kept=2)
        limits = {"max_running": 2, "request_seconds": 0}
        async with serving(engine, clock=clock, **limits) as service:
            assert service.state.seconds_since_progress == 0
            choices = service.submit([0] * 100, [request(3)] * 3)
            await model.arrival()
            clock.advance(5)
            state = service.state
            assert state.num_running + state.num_waiting == 3
            assert state.seconds_since_progress == 5
            model.open()
            await asyncio.gather(*(each.wait() for each in choices))
            assert service.state.num_kept_tokens >= 100
            assert service.state.seconds_since_progress == 0

    run(test)


@pytest.mark.parametrize(
    "limits",
    [
        {"max_running": 0},
        {"max_running": 1.5},
        {"max_waiting": -1},
        {"request_seconds": -1},
        {"request_seconds": float("inf")},
        {"most_tokens": 0},
        {"max_running": True},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(limits))):
        ServiceLimits(**limits)


NUM_REQUESTS = 70


@pytest.mark.parametrize("num_clients", [2, 4, 16])
def test_every_request_of_a_crowd_that_comes_and_goes_is_answered(num_clients: int) -> None:
    generator = random.Random(num_clients)
    outcomes: list[str] = []

    async def ask(service: Service, number: int) -> None:
        hangs_up, streams = generator.random() < 0.2, generator.random() < 0.5
        prompt = [generator.randrange(VOCAB - 1) for _ in range(generator.choice([1, 20, 150]))]
        options = {"temperature": generator.choice([0.0, 1.0]), "seed": number, "max_tokens": 8}
        try:
            (generation,) = service.submit(prompt, [request(**options)])
        except QueueFull:
            outcomes.append("refused")
            return
        if hangs_up:
            if streams:
                async for _ in generation:
                    break
            generation.cancel()
            outcomes.append("gone")
            return
        text = await read(generation) if streams else (await generation.wait()).text
        assert text == alone(prompt, **options).text
        outcomes.append("answered")

    async def client(service: Service, numbers: range) -> None:
        for number in numbers:
            await ask(service, number)

    async def test() -> None:
        draft = WatchedModel(rambling(1), vocab_size=VOCAB)
        target = WatchedModel(rambling(), vocab_size=VOCAB)
        drafter = ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0)
        watcher = CountingWatcher()
        engine = serving_engine(target, drafter=drafter, num_drafts=2, kept=2)
        limits = {"max_running": 4, "max_waiting": 11}
        async with serving(engine, watcher=watcher, **limits) as service:
            numbers = [range(i, NUM_REQUESTS, num_clients) for i in range(num_clients)]
            await asyncio.gather(*(client(service, each) for each in numbers))
        assert len(target.threads) == len(draft.threads) == 1
        assert len(outcomes) == NUM_REQUESTS
        assert outcomes.count("answered") > NUM_REQUESTS / 2
        assert watcher.num_accepted == len(watcher.outcomes)
        assert watcher.num_accepted + len(watcher.refusals) == NUM_REQUESTS
        engine.engine.prefixes.clear()
        assert target.open_caches == set()

    run(test)


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    async def test() -> None:
        async with serving(serving_engine(), max_running=3) as service:
            for number in range(60):
                generations = service.submit(PROMPT, [request(3), request(30)])
                if number % 3 == 0:
                    generations[1].cancel()
                elif number % 3 == 1:
                    del generations[1]
                await asyncio.gather(*(each.wait() for each in generations[:1]))
            del generations
        assert num_alive() <= before

    def num_alive() -> int:
        return sum(isinstance(each, Ticket | Session) for each in gc.get_objects())

    before = num_alive()
    run(test)


def test_sampled_requests_without_a_seed_are_served() -> None:
    async def test() -> None:
        async with serving(serving_engine()) as service:
            free = Request(max_tokens=20, settings=SamplingSettings(temperature=1.5))
            first, second = service.submit(PROMPT, [free] * 2)
            assert (await first.wait()).seed != (await second.wait()).seed

    run(test)
