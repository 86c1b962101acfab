"""Requests that fail, end early, or run beside each other."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.scripted import (
    FakeClock,
    ScriptedCosts,
    ScriptedModel,
    random_logits,
)
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import PROMPT_CHUNK_TOKENS, Engine
from pilotfish.errors import (
    BackendError,
    CacheNotTruncatable,
    ContextLengthExceeded,
    PromptError,
)
from pilotfish.types import Distribution, Proposal, SamplingSettings, StopReason
from support.drafters import FunctionDrafter, RaisingDrafter, oracle, random_tokens
from support.engines import SETTINGS, VOCAB, finish, scripted_engine


@pytest.mark.parametrize("length", [65, 5_000])
def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(length: int) -> None:
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, context_size=64)
    engine = scripted_engine(target=target)
    with pytest.raises(ContextLengthExceeded, match=rf"{length} tokens.*64"):
        engine.start([1] * length)
    assert target.log.evaluations == []
    assert len(finish(engine, [1] * 64, max_tokens=9).output_ids) == 1


@pytest.mark.parametrize("prompt", [[], [VOCAB], [-1]])
def test_unusable_prompts_are_refused_and_the_next_one_works(prompt: list[int]) -> None:
    engine = scripted_engine()
    with pytest.raises(PromptError):
        engine.start(prompt)
    assert len(finish(engine, max_tokens=5).output_ids) == 5


def test_prompts_are_cut_at_fixed_positions() -> None:
    class Recording(ScriptedModel):
        cuts: list[int] = []  # noqa: RUF012

        def forward(self, segments):  # type: ignore[no-untyped-def]
            self.cuts.append(len(segments[0].token_ids))
            return super().forward(segments)

    target = Recording(random_logits(VOCAB), vocab_size=VOCAB)
    engine = scripted_engine(target=target)
    engine.start([1] * (2 * PROMPT_CHUNK_TOKENS + 10))
    assert target.cuts == [PROMPT_CHUNK_TOKENS, PROMPT_CHUNK_TOKENS, 9]


def test_a_drafter_that_raises_costs_the_drafts_of_that_request_only() -> None:
    reference = finish(scripted_engine())
    engine = scripted_engine(drafter=RaisingDrafter(after=1))
    reply = finish(engine)
    assert reply.output_ids == reference.output_ids
    assert isinstance(reply.drafting_error, RuntimeError)
    assert sum(record.num_drafted > 0 for record in reply.records) == 1


def test_in_a_batch_only_the_failing_request_loses_its_drafts() -> None:
    def propose(view, budget):  # type: ignore[no-untyped-def]
        if view.request_id == 1:
            raise RuntimeError("broken")
        return [0] * budget

    engine = scripted_engine(drafter=FunctionDrafter(propose))
    sessions = [engine.start((i, 2), max_tokens=6, seed=1) for i in range(3)]
    engine.run_together(sessions)
    assert [s.drafting_error is not None for s in sessions] == [True, False, False]
    assert all(any(r.num_drafted for r in s.records) for s in sessions[1:])


class FailingController(FixedController):
    """Raises, or answers nonsense, in one of its calls."""

    def __init__(self, method: str, answer: Any = None) -> None:
        super().__init__(4)
        self.method, self.answer = method, answer
        self.calls = 0

    def draft_budgets(self, views: Any) -> Any:
        return self._now("draft_budgets") or super().draft_budgets(views)

    def observe(self, records: Any) -> None:
        self._now("observe")

    def _now(self, method: str) -> Any:
        if method != self.method:
            return None
        self.calls += 1
        if self.calls >= 3 and self.answer is None:
            raise RuntimeError("the controller broke")
        return self.answer


@pytest.mark.parametrize(
    "controller",
    [
        FailingController("draft_budgets"),
        FailingController("observe"),
        FailingController("draft_budgets", [1, 2, 3, 4]),
        FailingController("draft_budgets", ["many"] * 2),
    ],
)
def test_a_controller_that_fails_costs_drafts_and_no_reply(controller: FailingController) -> None:
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    engine = Engine(target=target, drafter=random_tokens(VOCAB), controller=controller)
    sessions = [engine.start((i, 2), max_tokens=20, seed=7) for i in range(2)]
    engine.run_together(sessions)
    for index, session in enumerate(sessions):
        reference = finish(scripted_engine(), (index, 2), max_tokens=20)
        assert session.output_ids == reference.output_ids
        assert session.error is None
        assert isinstance(session.drafting_error, RuntimeError | ValueError | TypeError)
        assert not session.records[-1].num_drafted


@pytest.mark.parametrize(
    ("proposed", "ends", "emitted", "accepted"),
    [
        # the reply is 5 6 7 8 9: an end token in the middle, at the end, and as the bonus
        ([5, 6, 7, 8, 9], {7}, [5, 6, 7], 3),
        ([5, 6, 7, 8, 9], {5}, [5], 1),
        ([5, 6, 7, 8, 9], {9}, [5, 6, 7, 8, 9], 5),
        ([5, 6], {7}, [5, 6, 7], 2),
        # a difference before the end token, and at it
        ([5, 0, 7], {7}, [5, 6], 1),
        ([5, 6, 0, 8], {7}, [5, 6, 7], 2),
        ([], {5}, [5], 0),
    ],
)
def test_a_record_counts_what_was_drafted_accepted_and_emitted(
    proposed: list[int], ends: set[int], emitted: list[int], accepted: int
) -> None:
    def reply(prefix: tuple[int, ...]) -> Any:
        return np.eye(VOCAB, dtype=np.float32)[min(len(prefix) + 2, VOCAB - 1)]

    target = ScriptedModel(reply, vocab_size=VOCAB)
    drafter = FunctionDrafter(lambda view, budget: proposed)
    engine = scripted_engine(target=target, drafter=drafter, num_drafts=5)
    session = engine.start((1, 2, 3), max_tokens=20, end_ids=frozenset(ends))
    (record,) = engine.step([session])
    assert session.output_ids == emitted
    assert record.num_drafted == len(proposed)
    assert record.num_accepted == accepted
    assert record.num_emitted == len(emitted)
    assert record.source == ("model" if proposed else "none")
    origins = [token.origin for token in session.emitted]
    assert origins == ["model"] * accepted + ["target"] * (len(emitted) - accepted)
    assert session.done == (emitted[-1] in ends)
    engine.finish(session)


def test_budgets_below_zero_are_none_at_all() -> None:
    controller = FailingController("draft_budgets", [-1, -1])
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    engine = Engine(target=target, drafter=random_tokens(VOCAB), controller=controller)
    sessions = [engine.start((i, 2), max_tokens=9) for i in range(2)]
    engine.run_together(sessions)
    assert [len(session.output_ids) for session in sessions] == [9, 9]
    assert target.log.widths == [(1, 1)] * 9


@pytest.mark.parametrize("drafts", [[VOCAB], [1, -1], [1.5], ["a"], [None]])
def test_drafts_that_are_no_tokens_of_the_target_cost_their_request_its_drafts_alone(
    drafts: list[Any],
) -> None:
    def propose(view, budget):  # type: ignore[no-untyped-def]
        return drafts if view.tokens[0] == 1 else [0] * budget

    engine = scripted_engine(drafter=FunctionDrafter(propose))
    sessions = [engine.start((i, 2), max_tokens=6, seed=1) for i in range(3)]
    engine.run_together(sessions)
    assert [s.drafting_error is not None for s in sessions] == [False, True, False]
    for index, session in enumerate(sessions):
        reference = finish(scripted_engine(), (index, 2), max_tokens=6, seed=1)
        assert session.output_ids == reference.output_ids
    assert all(any(r.num_drafted for r in s.records) for s in (sessions[0], sessions[2]))


def test_drafts_without_their_laws_cost_drafts_and_no_reply() -> None:
    class Lawless(FunctionDrafter):
        def propose(self, views, budgets):  # type: ignore[no-untyped-def]
            return [Proposal((1, 2), "model", (Distribution.one_hot(1),)) for _ in views]

    drafter = Lawless(lambda view, budget: [])
    engine = scripted_engine(drafter=drafter, verify_rule="token")
    reply = finish(engine, max_tokens=9)
    assert reply.output_ids == finish(scripted_engine(verify_rule="token"), max_tokens=9).output_ids
    assert isinstance(reply.drafting_error, ValueError)


def test_a_target_that_fails_in_the_third_round_ends_the_request_not_the_engine() -> None:
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, max_sessions=1, fail_at=4)
    engine = scripted_engine(target=target)
    session = engine.start((1, 2))
    with pytest.raises(BackendError, match="pass 4"):
        for _ in engine.run(session):
            pass
    assert session.stop_reason is StopReason.ERROR
    assert len(session.output_ids) == 2
    assert len(finish(engine, max_tokens=5).output_ids) == 5


def test_a_broken_target_row_ends_its_request_and_not_its_neighbours() -> None:
    plain = random_logits(VOCAB)

    def logits(prefix):  # type: ignore[no-untyped-def]
        return np.full(VOCAB, np.nan) if prefix[0] == 9 and len(prefix) > 4 else plain(prefix)

    engine = scripted_engine(target=ScriptedModel(logits, vocab_size=VOCAB))
    sessions = [engine.start((first, 2), max_tokens=20) for first in (1, 9)]
    engine.run_together(sessions)
    assert isinstance(sessions[1].error, BackendError)
    assert sessions[0].output_ids == finish(scripted_engine(), (1, 2), max_tokens=20).output_ids


def test_a_broken_draft_row_costs_one_rounds_draft() -> None:
    plain = random_logits(VOCAB)

    def logits(prefix):  # type: ignore[no-untyped-def]
        return np.full(VOCAB, np.nan) if len(prefix) % 7 == 0 else plain(prefix)

    draft = ScriptedModel(logits, vocab_size=VOCAB)
    engine = scripted_engine(drafter=ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0))
    reply = finish(engine)
    assert reply.output_ids == finish(scripted_engine()).output_ids
    assert reply.drafting_error is None
    assert sum(record.num_accepted for record in reply.records) > 0


def test_a_cache_that_cannot_be_cut_ends_the_request_with_an_error_and_the_next_one_works() -> None:
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, can_truncate=False)
    engine = scripted_engine(target=target, drafter=random_tokens(VOCAB))
    session = engine.start((1, 2))
    with pytest.raises(CacheNotTruncatable):
        for _ in engine.run(session):
            pass
    plain = Engine(target=target, drafter=NoDrafter(), controller=FixedController(0))
    assert finish(plain).output_ids == finish(scripted_engine()).output_ids


def test_closing_a_run_early_cancels_it_and_frees_its_place() -> None:
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, max_sessions=1)
    draft = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, max_sessions=1)
    engine = scripted_engine(target=target, drafter=ModelDrafter(draft, vocab_size=VOCAB))
    for _ in range(5):
        session = engine.start((1, 2))
        rounds = engine.run(session)
        next(rounds)
        evaluated = len(target.log.widths)
        rounds.close()
        assert session.stop_reason is StopReason.CANCELLED
        assert len(target.log.widths) == evaluated
    assert finish(engine).output_ids == finish(scripted_engine()).output_ids
    assert not target.open_caches
    assert not draft.open_caches


def test_a_prompt_that_fails_frees_its_place() -> None:
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, max_sessions=1, fail_at=1)
    engine = scripted_engine(target=target)
    with pytest.raises(BackendError):
        engine.start((1, 2))
    assert len(finish(engine, max_tokens=5).output_ids) == 5


def requests(count: int):  # type: ignore[no-untyped-def]
    """Mixed requests: greedy and sampled, several settings, limits and end tokens."""
    settings = list(SETTINGS.values())
    return [
        {
            "prompt": tuple((i + j) % VOCAB for j in range(1 + i % 5)),
            "settings": settings[i % len(settings)],
            "seed": 100 + i,
            "max_tokens": 5 + 7 * (i % 4),
            "end_ids": frozenset({i % VOCAB}) if i % 3 == 0 else frozenset(),
        }
        for i in range(count)
    ]


@pytest.mark.parametrize("name", ["none", "model", "suffix", "random", "raising"])
@pytest.mark.parametrize("order", range(5))
def test_requests_together_equal_their_solo_runs(name: str, order: int) -> None:
    draft = ScriptedModel(random_logits(VOCAB, seed=0), vocab_size=VOCAB)
    drafters = {
        "none": NoDrafter(),
        "model": ModelDrafter(draft, vocab_size=VOCAB),
        "suffix": SuffixDrafter(),
        "random": random_tokens(VOCAB),
        "raising": RaisingDrafter(after=4),
    }
    everything = requests(8)
    solo = [
        finish(scripted_engine(), r["prompt"], **{k: r[k] for k in r if k != "prompt"})
        for r in everything
    ]
    engine = scripted_engine(drafter=drafters[name])
    generator = np.random.default_rng(order)
    waiting = [int(i) for i in generator.permutation(8)]
    sessions: dict[int, object] = {}
    # requests join in mid-run: one or two new ones a round, and leave when they are done
    while waiting or not all(s.done for s in sessions.values()):  # type: ignore[attr-defined]
        for _ in range(int(generator.integers(0, 3))):
            if waiting:
                index = waiting.pop()
                options = dict(everything[index])
                sessions[index] = engine.start(options.pop("prompt"), **options)
        engine.step(list(sessions.values()))  # type: ignore[arg-type]
    for index, session in sessions.items():
        assert session.output_ids == solo[index].output_ids  # type: ignore[attr-defined]
        assert session.stop_reason == solo[index].stop_reason  # type: ignore[attr-defined]


def test_threads_may_drive_their_own_sessions() -> None:
    engine = scripted_engine(drafter=SuffixDrafter())
    results: dict[int, list[int]] = {}

    def work(index: int) -> None:
        results[index] = finish(engine, (index, 2), seed=index).output_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for index, ids in results.items():
        assert ids == finish(scripted_engine(), (index, 2), seed=index).output_ids
    assert len(results) == 6


def test_records_carry_the_clocks_times() -> None:
    clock = FakeClock()
    costs = ScriptedCosts(step_seconds=1.0, extra_row_seconds=0.25)
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, clock=clock, costs=costs)
    reference = finish(scripted_engine()).output_ids
    engine = Engine(
        target=target,
        drafter=oracle(reference, vocab_size=VOCAB),
        controller=FixedController(3),
        clock=clock,
    )
    session = finish(engine, max_tokens=8)
    assert session.prefill_seconds == 1.25
    assert [r.target_seconds for r in session.records] == [1.75, 1.75]
    assert [r.num_emitted for r in session.records] == [4, 4]


def test_the_limit_of_rows_in_a_pass_is_kept() -> None:
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, max_width=4)
    reference = finish(scripted_engine()).output_ids
    engine = scripted_engine(
        target=target, drafter=oracle(reference, vocab_size=VOCAB), num_drafts=1000
    )
    assert finish(engine).output_ids == reference
    assert max(target.log.widths) == (4,)


def test_min_tokens_keeps_end_tokens_away() -> None:
    plain = finish(scripted_engine(), max_tokens=30).output_ids
    end = plain[2]
    settings = SamplingSettings(min_tokens=10)
    reply = finish(scripted_engine(), settings=settings, end_ids=frozenset({end}), max_tokens=30)
    assert end not in reply.output_ids[:10]
