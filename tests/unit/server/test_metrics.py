"""Metrics: all there from the start, equal to what was counted by hand and to the stats."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

import pilotfish
from pilotfish.accounting.metrics import plain_seconds_estimate
from pilotfish.backends.scripted import FakeClock, ScriptedCosts, ScriptedModel, random_logits
from pilotfish.config import Request
from pilotfish.control.fixed import FixedController
from pilotfish.engine.engine import Engine
from pilotfish.generation import Facts, Reply, TextEngine
from pilotfish.prefixes import PrefixPool
from pilotfish.server.limits import ServiceLimits
from pilotfish.server.metrics import (
    DRAFTERS,
    NUM_POSITIONS,
    OUTCOMES,
    REFUSALS,
    ServerMetrics,
    make_router,
)
from pilotfish.server.service import QueueFull, Service, ShuttingDown
from pilotfish.server.totals import WIDTHS, Totals
from pilotfish.types import Proposal, RoundRecord, SessionView
from support.controlled import CURVES, controlled
from support.drafters import FunctionDrafter, never, oracle
from support.engines import finish
from support.text_engines import tokenizer

ROOT = Path(pilotfish.__file__).parents[2]
PROMPT = (72, 105, 33)
# bytes alone: no end token can come
VOCAB = 256
NUM_TOKENS = 40


class Switched:
    """Drafts as the drafter that is chosen for the request."""

    def __init__(self) -> None:
        self.chosen: FunctionDrafter = FunctionDrafter(lambda view, budget: [])

    def prepare(self, view: SessionView) -> bool:
        return False

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        return self.chosen.propose(views, budgets)

    def forget(self, request_id: int) -> None:
        self.chosen.forget(request_id)


class Served:
    """A service over a scripted model, watched, with its own `/metrics`."""

    def __init__(
        self, *, facts: Facts | None = None, fail_at: int | None = None, **limits: Any
    ) -> None:
        self.drafter = Switched()
        self.clock = FakeClock()
        self.target = ScriptedModel(
            random_logits(VOCAB, seed=2),
            vocab_size=VOCAB,
            fail_at=fail_at,
            clock=self.clock,
            costs=ScriptedCosts(step_seconds=1.0, extra_row_seconds=0.25),
        )
        engine = Engine(
            target=self.target,
            drafter=self.drafter,
            controller=FixedController(4),
            clock=self.clock,
            prefixes=PrefixPool(self.target, most_sequences=2),
        )
        self.metrics = ServerMetrics(clock=self.clock)
        self.service = Service(
            TextEngine(engine, tokenizer(), facts=facts),
            ServiceLimits(**limits),
            watcher=self.metrics,
            clock=self.clock,
        )
        app = FastAPI()
        app.include_router(make_router(self.metrics, self.service))
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def reply(
        self,
        drafter: FunctionDrafter | None = None,
        prompt: Sequence[int] = PROMPT,
        **options: Any,
    ) -> Reply:
        """Return the reply to one request that runs alone."""
        if drafter is not None:
            self.drafter.chosen = drafter
        [generation] = self.service.submit(prompt, [request(**options)])
        return await generation.wait()

    async def text(self) -> str:
        """Return what `/metrics` says."""
        response = await self.client.get("/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain; version=")
        return response.text

    async def values(self) -> dict[str, float]:
        """Return the samples by name and labels, as they stand in the text."""
        lines = (await self.text()).splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and line[0] != "#"]
        assert len({name for name, _ in pairs}) == len(pairs), "each sample is there once"
        return {name.removeprefix("pilotfish_"): float(value) for name, value in pairs}


def request(**options: Any) -> Request:
    return Request.from_options({"max_tokens": NUM_TOKENS, "seed": 1, **options})


def reference() -> list[int]:
    target = ScriptedModel(random_logits(VOCAB, seed=2), vocab_size=VOCAB)
    drafter = FunctionDrafter(lambda view, budget: [])
    engine = Engine(target=target, drafter=drafter, controller=FixedController(0))
    return finish(engine, PROMPT, max_tokens=NUM_TOKENS).output_ids


REFERENCE = reference()
NEVER = never(REFERENCE, vocab_size=VOCAB)
SELF = oracle(REFERENCE, vocab_size=VOCAB)
ORACLE_3 = oracle(REFERENCE, errs_every=3, vocab_size=VOCAB)


def test_before_any_request_every_metric_is_there_and_0() -> None:
    async def run() -> None:
        served = Served()
        values = await served.values()
        assert {value for name, value in values.items() if name != "saved_seconds"} == {0.0}
        expected = [f'requests_total{{outcome="{outcome}"}}' for outcome in OUTCOMES]
        expected += [f'refused_total{{reason="{reason}"}}' for reason in REFUSALS]
        expected += [f'pass_seconds_count{{width="{width}"}}' for width in WIDTHS]
        expected += [f'rounds_total{{drafter="{name}"}}' for name in ("none", *DRAFTERS)]
        for name in DRAFTERS:
            expected += [f'{kind}_tokens_total{{drafter="{name}"}}' for kind in ("drafted",)]
            expected += [f'accepted_tokens_total{{drafter="{name}"}}']
            expected += [
                f'accepted_at_position_total{{drafter="{name}",position="{place}"}}'
                for place in range(1, NUM_POSITIONS + 1)
            ]
        expected += ["running_requests", "waiting_requests", "cache_tokens", "kept_tokens"]
        expected += ["plain_seconds_estimate_total", "saved_seconds", "completion_tokens_total"]
        assert set(expected) <= values.keys()

    asyncio.run(run())


def test_every_metric_has_help_and_type_and_reads_as_prometheus_reads_it() -> None:
    async def run() -> None:
        models = {"target": {"path": "/models/a.gguf", "parameters": 7}, "draft": None}
        served = Served(facts=Facts(models=models, speculation_on=True))
        served.service.start()
        await served.reply(SELF)
        text = await served.text()
        families = list(text_string_to_metric_families(text))
        assert all(family.documentation and family.type != "unknown" for family in families)
        names = re.findall(r"^# TYPE (\S+) ", text, flags=re.MULTILINE)
        assert names == re.findall(r"^# HELP (\S+) ", text, flags=re.MULTILINE)
        assert len(names) == len(set(names)) == len(families)
        assert all(name.startswith("pilotfish_") for name in names)
        values = await served.values()
        assert values['model_info{file="a.gguf",parameters="7",role="target"}'] == 1
        assert (values["speculation_on"], values["engine_alive"]) == (1, 1)
        await served.service.drain(5)
        values = await served.values()
        assert (values["engine_alive"], values["draining"]) == (0, 1)

    asyncio.run(run())


def test_the_page_on_metrics_names_all_of_them_and_no_other() -> None:
    async def run() -> None:
        served = Served(facts=Facts(models={"target": {"path": "a.gguf"}}))
        samples = re.findall(r"^# TYPE (\S+) ", await served.text(), flags=re.MULTILINE)
        page = (ROOT / "docs" / "guides" / "metrics.md").read_text(encoding="utf-8")
        tables = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
        assert set(re.findall(r"pilotfish_\w+", " ".join(tables))) == set(samples)

    asyncio.run(run())


def test_a_known_run_is_counted_as_by_hand_and_as_the_stats_say() -> None:
    async def run() -> None:
        served = Served()
        served.service.start()
        replies = [await served.reply(drafter) for drafter in (NEVER, SELF, ORACLE_3)]
        assert all(reply.token_ids == REFERENCE for reply in replies)
        values = await served.values()
        # 40 tokens each; the last rounds draft no more than what is left but one
        #   never: 40 rounds, the last without drafts; 36 x 4 + 3 + 2 + 1 drafted, none accepted
        #   self: 8 rounds of 4 drafted and 4 accepted
        #   every third wrong: 13 rounds of 2 accepted, 12 x 4 + 3 drafted; one without drafts
        assert values['rounds_total{drafter="model"}'] == 39 + 8 + 13
        assert values['rounds_total{drafter="none"}'] == 1 + 0 + 1
        assert values['drafted_tokens_total{drafter="model"}'] == 150 + 32 + 51
        assert values['accepted_tokens_total{drafter="model"}'] == 0 + 32 + 26
        positions = [
            values[f'accepted_at_position_total{{drafter="model",position="{place}"}}']
            for place in range(1, 6)
        ]
        assert positions == [21, 21, 8, 8, 0]
        assert values["completion_tokens_total"] == 3 * NUM_TOKENS
        assert values["prompt_tokens_total"] == 3 * len(PROMPT)
        assert values['requests_total{outcome="length"}'] == values["submitted_requests_total"] == 3
        assert values["passes_total"] == 62
        widths = {width: values[f'pass_seconds_count{{width="{width}"}}'] for width in WIDTHS}
        # of 5 rows: 36 + 8 + 12; of 4: 1 + 1; of 3: 1; of 2: 1; of 1: 2
        assert list(widths.values()) == [2, 1, 3, 56, 0, 0, 0, 0]
        assert values['pass_seconds_sum{width="5-8"}'] == 56 * 2.0
        assert values['pass_seconds_sum{width="3-4"}'] == 2 * 1.75 + 1.5

        stats = [reply.stats for reply in replies]
        by_model = [one.by_drafter["model"] for one in stats]
        assert values['rounds_total{drafter="model"}'] == sum(one.rounds for one in by_model)
        for name in ("drafted", "accepted"):
            total = sum(getattr(one, name) for one in stats)
            assert values[f'{name}_tokens_total{{drafter="model"}}'] == total
        per_position = zip(*(one.accepted_per_position for one in stats), strict=True)
        assert positions[:4] == [sum(one) for one in per_position]
        assert values["round_seconds_total"] == sum(one.decode_seconds for one in stats)

    asyncio.run(run())


def test_every_request_ends_once_however_it_ends() -> None:
    async def run() -> None:
        served = Served(fail_at=3, max_running=1, max_waiting=1)
        # nothing moves before the service is started
        first, second = (served.service.submit(PROMPT, [request()])[0] for _ in range(2))
        with pytest.raises(QueueFull):
            served.service.submit(PROMPT, [request()])
        second.cancel()
        second.cancel()
        values = await served.values()
        assert (values["waiting_requests"], values["running_requests"]) == (2, 0)
        served.service.start()
        with pytest.raises(Exception, match="as told"):
            await first.wait()
        with pytest.raises(Exception, match="cancelled"):
            await second.wait()
        await served.reply(stop=["\x00"])
        await served.service.drain(5)
        with pytest.raises(ShuttingDown):
            served.service.submit(PROMPT, [request(), request()])
        values = await served.values()
        ended = {one: values[f'requests_total{{outcome="{one}"}}'] for one in OUTCOMES}
        assert ended["error"] == ended["cancelled"] == 1
        assert sum(ended.values()) == values["submitted_requests_total"] == 3
        assert values['refused_total{reason="queue_full"}'] == 1
        assert values['refused_total{reason="shutting_down"}'] == 2
        assert values["request_seconds_count"] == values["queue_seconds_count"] == 3
        # the failed one was read and has a token; the cancelled one never began
        assert values["prompt_tokens_total"] == 2 * len(PROMPT)
        assert values["first_token_seconds_count"] == 2
        assert (values["running_requests"], values["waiting_requests"]) == (0, 0)

    asyncio.run(run())


def test_counters_never_fall_while_requests_come_go_and_fail() -> None:
    async def run() -> None:
        served = Served(max_running=3)
        served.service.start()
        before: dict[str, float] = {}
        for number in range(6):
            served.drafter.chosen = (SELF, NEVER, ORACLE_3)[number % 3]
            generations = served.service.submit(PROMPT, [request(), request()])
            await anext(generations[0])
            generations[0].cancel()
            await generations[1].wait()
            values = await served.values()
            falling = ("_requests", "_tokens", "saved_seconds", "_progress")
            for name, value in before.items():
                if not name.partition("{")[0].endswith(falling):
                    assert values[name] >= value, name
            before = values
        await served.service.drain(5)

    asyncio.run(run())


def test_what_was_read_for_another_request_is_counted_as_reused() -> None:
    async def run() -> None:
        served = Served()
        served.service.start()
        prompt = tuple(range(100))
        replies = [await served.reply(prompt=prompt) for _ in range(2)]
        values = await served.values()
        assert values["prompt_tokens_total"] == 200
        assert values["reused_prompt_tokens_total"] == 99 == replies[1].usage.cached_tokens
        assert values["kept_tokens"] > 0
        await served.service.drain(5)

    asyncio.run(run())


def test_the_plain_estimate_and_what_was_saved_are_those_of_the_stats() -> None:
    pair = controlled(curve=CURVES["staircase"], draft_seconds=0.1)
    session = pair.reply(max_tokens=200)
    totals = Totals(clock=pair.clock)
    for record in session.records:
        totals.round([record])
    assert totals.plain_seconds == pytest.approx(plain_seconds_estimate(session.records))
    took = sum(record.round_seconds for record in session.records)
    assert totals.estimated_seconds == totals.round_seconds == pytest.approx(took)
    assert totals.plain_seconds > took


def shared_pass(emitted: Sequence[int], plain_seconds: float | None) -> list[RoundRecord]:
    return [
        RoundRecord(i, "suffix", 4, n - 1, n, len(emitted), 0.5, 1.5, 2.5, "", plain_seconds)
        for i, n in enumerate(emitted)
    ]


def test_a_pass_that_requests_share_counts_its_seconds_once() -> None:
    totals = Totals(clock=FakeClock())
    totals.round(shared_pass([1, 2, 4, 5], 1.25))
    # four plain passes for four tokens each: 12 tokens take three
    assert (totals.plain_seconds, totals.estimated_seconds) == (3 * 1.25, 2.5)
    totals.round(shared_pass([1, 1, 1, 1], None))
    assert (totals.plain_seconds, totals.estimated_seconds) == (3 * 1.25, 2.5)
    assert (totals.round_seconds, totals.draft_seconds) == (5.0, 1.0)
    assert totals.passes[WIDTHS.index("17-32")] == (2, 3.0)


def test_gaps_are_those_between_the_rounds_of_one_request() -> None:
    clock = FakeClock()
    totals = Totals(clock=clock)
    for ids, seconds in (((1,), 0.0), ((1, 2), 0.25), ((2,), 2.0), ((2, 1), 4.0)):
        clock.advance(seconds)
        totals.round([RoundRecord(i, "none", 0, 0, 1, 1, 0.0, 1.0, 1.0) for i in ids])
    # of 1: 0.25; of 2: 2 and 4; a request that was not in the last round is another's
    gaps = totals.between_rounds
    assert (sum(gaps.counts), gaps.sum_seconds) == (3, 6.25)
    assert gaps.counts[-1] == 0
    clock.advance(100.0)
    totals.round([RoundRecord(2, "none", 0, 0, 1, 1, 0.0, 1.0, 1.0)])
    assert gaps.counts[-1] == 1
    totals.round([])


def test_buckets_hold_what_is_at_most_as_long() -> None:
    async def run() -> None:
        served = Served()
        for seconds in (0.01, 0.0101, 700.0):
            served.metrics.ended(
                "stop",
                queued_seconds=seconds,
                first_token_seconds=None,
                total_seconds=seconds,
                num_prompt_tokens=1,
                num_completion_tokens=1,
            )
        values = await served.values()
        buckets = [values[f'queue_seconds_bucket{{le="{le}"}}'] for le in (0.01, 0.03, 600.0)]
        assert [*buckets, values['queue_seconds_bucket{le="+Inf"}']] == [1, 2, 2, 3]
        assert values["queue_seconds_sum"] == pytest.approx(700.0201)
        assert values["first_token_seconds_count"] == 0

    asyncio.run(run())


def test_drafters_and_positions_nobody_knew_of_are_counted_as_well() -> None:
    async def run() -> None:
        served = Served()
        served.metrics.round([RoundRecord(1, "other", 40, 34, 35, 1, 0.0, 1.0, 1.0)])
        values = await served.values()
        assert values['accepted_tokens_total{drafter="other"}'] == 34
        assert values['accepted_at_position_total{drafter="other",position="34"}'] == 1
        assert 'accepted_at_position_total{drafter="other",position="35"}' not in values
        served.metrics.refused("too_hot")
        assert (await served.values())['refused_total{reason="too_hot"}'] == 1

    asyncio.run(run())
