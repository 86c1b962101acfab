"""A request among many is what it is alone: text, tokens, log-probabilities, usage, acceptance."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from pilotfish.backends.scripted import FakeClock, ScriptedModel
from pilotfish.config import Request
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.scheduler import Job, Scheduler
from pilotfish.engine.session import Session
from pilotfish.generation import Reply, TextEngine
from pilotfish.server.service import Generation, Service
from pilotfish.types import SessionView
from support.controlled import CURVES, controlled, reply_token, wrong_token
from support.drafters import FunctionDrafter
from support.services import END, VOCAB, rambling, read, serving, serving_engine, words

PROMPT = [0, 1, 4, 5]


def request(**options: Any) -> Request:
    return Request.from_options({"max_tokens": 24, "seed": 3} | options)


def alone(prompt: Sequence[int], wanted: Request, engine: TextEngine | None = None) -> Reply:
    """Return the reply of an engine that does nothing else, without drafts unless it has them."""
    engine = engine or serving_engine()
    running = engine.open(prompt, wanted)
    while not engine.engine.read(running.session):
        pass
    engine.engine.run_together([running.session])
    return running.reply


def self_drafter() -> ModelDrafter:
    """Return a drafter whose draft model is the target's twin."""
    twin = ScriptedModel(rambling(), vocab_size=VOCAB)
    return ModelDrafter(twin, vocab_size=VOCAB, min_survival=0.0)


def serve(engine: TextEngine, ask: Callable[[Service], Coroutine[Any, Any, Any]], **limits: Any):  # type: ignore[no-untyped-def]
    """Return what `ask` returns of a service over the engine."""

    async def serve() -> Any:
        async with serving(engine, **limits) as service:
            return await ask(service)

    async def guarded() -> Any:
        return await asyncio.wait_for(serve(), 30)

    return asyncio.run(guarded())


async def streamed(generation: Generation) -> Reply:
    """Return the reply; what was streamed must be it."""
    pieces = [piece async for piece in generation]
    reply = generation.reply
    assert "".join(piece.text for piece in pieces) == reply.text
    assert tuple(token for piece in pieces for token in piece.tokens) == reply.tokens
    assert all(piece.tokens or piece.text for piece in pieces)
    return reply


def ask_all(engine: TextEngine, *requests: Request, prompt: Sequence[int] = PROMPT) -> list[Reply]:
    """Return the replies to several requests, served together and streamed."""

    async def ask(service: Service) -> list[Reply]:
        return await asyncio.gather(*(streamed(g) for g in service.submit(prompt, requests)))

    replies: list[Reply] = serve(engine, ask)
    return replies


def same(one: Reply, other: Reply) -> bool:
    """Return whether two replies are the same in everything but who drafted them."""

    def facts(reply: Reply) -> Any:
        tokens = [(token.token_id, token.logprobs) for token in reply.tokens]
        usage = reply.usage
        return reply.text, tokens, reply.finish_reason, usage.prompt_tokens, usage.completion_tokens

    return bool(facts(one) == facts(other))


MIXED = [
    request(),
    request(temperature=1.0, seed=11, max_tokens=30),
    request(temperature=0.8, top_p=0.9, top_k=8, seed=12, presence_penalty=0.5),
    request(stop=["fish"], max_tokens=40, repetition_penalty=1.2, seed=13),
    request(temperature=2.0, seed=14, min_tokens=20, logprobs=2),
    request(seed=15, stop=["##", "END"], logit_bias={2: 1.0}, max_tokens=17),
    request(temperature=1.0, min_p=0.05, frequency_penalty=0.3, seed=16),
    request(temperature=1.0, seed=None, max_tokens=9),
]
PROMPTS = [[1], PROMPT, [2, 3] * 40, PROMPT, [0] * 70, [9, 8, 7, 10], [2, 3] * 40, [5]]


class StyledDrafter(FunctionDrafter):
    """Drafts for each request in a style of its own: always right, never, or every other time."""

    def __init__(self, references: dict[int, list[int]]) -> None:
        super().__init__(self.draft)
        self.references = references

    def draft(self, view: SessionView, budget: int) -> list[int]:
        first, style = view.num_output_tokens, view.seed % 3
        known = self.references.get(view.seed, [])[first : first + budget]
        if style == 0:
            return known
        wrong_every = 1 if style == 1 else 2
        return [
            (token + 1) % VOCAB if (first + i) % wrong_every == 0 else token
            for i, token in enumerate(known)
        ]


@pytest.mark.parametrize("drafter", ["styled", "self"])
def test_requests_that_run_together_do_not_disturb_each_other(drafter: str) -> None:
    plain = [alone(prompt, wanted) for prompt, wanted in zip(PROMPTS, MIXED, strict=True)]
    references = {reply.seed: reply.token_ids for reply in plain if reply.seed < 100}

    def engine(kept: int) -> TextEngine:
        own = StyledDrafter(references) if drafter == "styled" else self_drafter()
        return serving_engine(drafter=own, kept=kept)

    solo = [alone(prompt, wanted, engine(0)) for prompt, wanted in zip(PROMPTS, MIXED, strict=True)]
    generator = random.Random(5)

    async def shuffled_round(service: Service) -> None:
        order = generator.sample(range(8), 8)

        async def one(index: int) -> Reply:
            for _ in range(generator.randrange(40)):
                await asyncio.sleep(0)  # so that they join and leave in mid-run
            (generation,) = service.submit(PROMPTS[index], [MIXED[index]])
            return await streamed(generation)

        replies = await asyncio.gather(*(one(index) for index in order))
        for index, reply in zip(order, replies, strict=True):
            if MIXED[index].seed is None:
                assert len(reply.tokens) <= 9
                continue
            assert same(reply, plain[index])
            rate, alone_rate = reply.stats.acceptance_rate, solo[index].stats.acceptance_rate
            assert (rate is None) == (alone_rate is None)
            assert abs((rate or 0.0) - (alone_rate or 0.0)) < 0.05

    async def ask(service: Service) -> None:
        for _ in range(25):
            await shuffled_round(service)

    serve(engine(3), ask, max_running=5)
    rates = {reply.stats.acceptance_rate for reply in solo}
    assert drafter == "self" or {0.0, 1.0} < rates


def test_a_seed_gives_its_text_whatever_else_was_or_is_asked() -> None:
    wanted = request(temperature=2.0, seed=42, max_tokens=32)
    other = request(temperature=2.0, seed=43, max_tokens=32)
    reference = alone(PROMPT, wanted)
    assert not same(reference, alone(PROMPT, other))

    async def ask(service: Service) -> list[Reply]:
        async def reply(one: Request, prompt: Sequence[int] = PROMPT) -> Reply:
            return await streamed(service.submit(prompt, [one])[0])

        first = [await reply(wanted), await reply(wanted)]
        for number in range(20):
            await reply(request(temperature=1.0, seed=number), [number % END] * 9)
        first.append(await reply(wanted))
        both = await asyncio.gather(
            *(reply(request(temperature=2.0, seed=n, max_tokens=60), [n] * 50) for n in range(3)),
            reply(wanted),
        )
        return [*first, both[-1]]

    for drafter in (None, self_drafter()):
        for _ in range(2):  # a server that was started again knows nothing of the first
            replies = serve(serving_engine(drafter=drafter, kept=4), ask)
            assert all(same(reply, reference) for reply in replies)


@pytest.mark.parametrize("index", range(1, 13))
def test_nothing_follows_an_end_token_inside_an_accepted_draft(index: int) -> None:
    wanted = request(logprobs=1, logit_bias={END: -100.0})
    reference = alone(PROMPT, wanted).token_ids
    end = reference[index]
    length = reference.index(end) + 1
    engine = serving_engine(tokenizer=words(end, END), drafter=self_drafter(), num_drafts=8, kept=2)
    expected = alone(PROMPT, wanted, serving_engine(tokenizer=words(end, END)))
    replies = ask_all(engine, wanted, wanted)
    assert all(same(reply, expected) for reply in replies)
    assert [reply.token_ids for reply in replies] == [reference[:length]] * 2
    assert replies[0].finish_reason == "stop"
    # what is kept ends where the reply does; its end token was never scored
    num_known = len(PROMPT) + length - 1
    assert engine.engine.prefixes.num_kept_tokens == (num_known if num_known >= 16 else 0)


STOPS = [["END"], ["##"], ["fish", "fish the"], ["a", "ab"], ["é"], ["k\n"], ["ab a"], ["the fish"]]


@pytest.mark.parametrize("stop", STOPS, ids=" or ".join)
@pytest.mark.parametrize("number", [1, 4, 16])
def test_a_stop_string_ends_a_reply_in_mid_block_as_it_does_alone(
    stop: list[str], number: int
) -> None:
    engine = serving_engine(drafter=self_drafter(), num_drafts=number)
    requests = [
        request(stop=stop, max_tokens=60, temperature=1.5, seed=seed, logprobs=1)
        for seed in range(4)
    ]
    for reply, wanted in zip(ask_all(engine, *requests), requests, strict=True):
        assert same(reply, alone(PROMPT, wanted))
        assert not any(text in reply.text for text in stop)


def test_a_reply_has_as_many_tokens_as_it_may_have() -> None:
    for number in (1, 2, 5, 16):
        engine = serving_engine(drafter=self_drafter(), num_drafts=number)
        requests = [request(max_tokens=most, min_tokens=most) for most in range(1, 21)]

        async def ask(service: Service, requests: Sequence[Request] = requests) -> list[Reply]:
            return await asyncio.gather(*(streamed(g) for g in service.submit(PROMPT, requests)))

        replies = serve(engine, ask, max_waiting=20)
        for most, reply in enumerate(replies, start=1):
            assert len(reply.tokens) == reply.usage.completion_tokens == most
            assert reply.finish_reason == "length"
            assert reply.usage.total_tokens == len(PROMPT) + most
            # the last round drafts no more than what is still allowed
            assert reply.stats.drafted <= most - reply.stats.rounds


def test_usage_is_that_of_the_request_alone() -> None:
    generator = random.Random(9)
    requests = [
        request(
            seed=seed,
            temperature=generator.choice([0.0, 1.0, 2.0]),
            max_tokens=generator.randrange(1, 50),
            stop=generator.choice(STOPS),
        )
        for seed in range(30)
    ]
    for reply, wanted in zip(
        ask_all(serving_engine(drafter=self_drafter(), kept=4), *requests), requests, strict=True
    ):
        assert same(reply, alone(PROMPT, wanted))
        assert reply.usage.total_tokens == len(PROMPT) + len(reply.tokens)


STUCK: dict[str, Callable[[int], list[int]]] = {
    "nothing": lambda budget: [],
    "one token": lambda budget: [1],
    "the same": lambda budget: [7] * budget,
    "ends": lambda budget: [END] * budget,
}


@pytest.mark.parametrize("name", STUCK)
def test_every_round_makes_progress_whatever_is_drafted(name: str) -> None:
    drafter = FunctionDrafter(lambda view, budget: STUCK[name](budget))
    target = ScriptedModel(rambling(), vocab_size=VOCAB)
    wanted = request(max_tokens=200, min_tokens=200)
    replies = ask_all(serving_engine(target, drafter=drafter), wanted, wanted)
    reference = alone(PROMPT, wanted)
    for reply in replies:
        assert same(reply, reference)
        assert reply.stats.rounds <= 200
    # 200 rounds of both, and the passes in which the second prompt was read
    assert len(target.log.widths) <= 201 + 2


def test_what_is_read_slowly_is_the_same_text() -> None:
    async def ask(service: Service) -> list[str]:
        generations = service.submit(PROMPT, [request(), request(temperature=1.0)])
        await asyncio.gather(*(each.wait() for each in generations))
        return [await read(each) for each in generations]

    texts = serve(serving_engine(drafter=self_drafter()), ask)
    assert texts == [alone(PROMPT, wanted).text for wanted in (request(), request(temperature=1.0))]


def tokens_of(view: SessionView, budget: int, *, are_right: bool) -> list[int]:
    token = reply_token if are_right else wrong_token
    return [token(len(view.tokens) + place) for place in range(budget)]


def serve_crowd(engine: Engine, clock: FakeClock) -> float:
    """Return the seconds of twelve requests that come one after another, eight at once at most."""
    scheduler = Scheduler(engine, max_running=8)
    generator = random.Random(3)
    jobs = []
    for number in range(12):
        most = generator.randrange(20, 120)
        prompt = [1, 2, 3, number]

        def begin(job: Job, most: int = most) -> Session:
            return engine.open(job.prompt, max_tokens=most)

        jobs.append(Job(prompt=prompt, num_tokens=len(prompt) + most, begin=begin))
    for job in jobs:
        scheduler.add([job])
        for _ in range(3):
            scheduler.step()
    while not scheduler.is_idle:
        scheduler.step()
    assert all(job.session is not None and job.error is None for job in jobs)
    return clock()


@pytest.mark.parametrize(
    ("are_right", "draft_seconds", "least", "most"),
    [
        (True, None, 1 / 20, 1 / 2),
        (False, None, 1.0, 1.02),
        (None, 0.15, 1 / 20, 1 / 2),  # a draft model that is always right
    ],
)
def test_many_at_once_gain_by_drafts_that_are_right_and_lose_no_more_than_one_by_others(
    are_right: bool | None, draft_seconds: float | None, least: float, most: float
) -> None:
    text = None
    if are_right is not None:
        text = FunctionDrafter(
            lambda view, budget: tokens_of(view, budget, are_right=bool(are_right)), "suffix"
        )
    drafting = controlled(curve=CURVES["flat"], text=text, draft_seconds=draft_seconds)
    seconds = serve_crowd(drafting.engine, drafting.clock)
    plain = controlled(curve=CURVES["flat"])
    engine = Engine(
        target=plain.target,
        drafter=NoDrafter(),
        controller=FixedController(0),
        clock=plain.clock,
    )
    plain_seconds = serve_crowd(engine, plain.clock)
    # each request may lose up to six steps at first, which all sessions of its passes share
    assert least * plain_seconds <= seconds <= most * plain_seconds + 12 * 6 / 8
