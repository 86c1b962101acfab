"""Drafting changes time, never the reply: token for token on scripted models, no tolerance."""

from __future__ import annotations

import itertools

import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.types import SamplingSettings, StopReason
from support.drafters import FunctionDrafter, RaisingDrafter, never, oracle, random_tokens
from support.engines import SETTINGS, VOCAB, finish, scripted_engine
from support.partial_head import PartialHead, PartialModel

PROMPT = (1, 2, 3, 1, 2)


def drafter_named(name: str, reference: list[int], **context: int):  # type: ignore[no-untyped-def]
    draft = ScriptedModel(random_logits(VOCAB, seed=1), vocab_size=VOCAB, **context)
    same = ScriptedModel(random_logits(VOCAB, seed=0), vocab_size=VOCAB, **context)
    head = PartialHead([1, 7, 2, 5, 3], room=4)
    return {
        "ngram": lambda: NgramDrafter(),
        "suffix": lambda: SuffixDrafter(),
        "model": lambda: ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0),
        "self": lambda: ModelDrafter(same, vocab_size=VOCAB, min_survival=0.0),
        "partial": lambda: ModelDrafter(
            PartialModel(draft, head), vocab_size=VOCAB, min_survival=0.0, head=head
        ),
        "hybrid": lambda: HybridDrafter([SuffixDrafter(), ModelDrafter(draft, vocab_size=VOCAB)]),
        "oracle": lambda: oracle(reference, vocab_size=VOCAB),
        "oracle-3": lambda: oracle(reference, errs_every=3, vocab_size=VOCAB),
        "never": lambda: never(reference, vocab_size=VOCAB),
        "random": lambda: random_tokens(VOCAB),
        "raising": lambda: RaisingDrafter(after=2),
    }[name]()


DRAFTERS = [
    *("ngram", "suffix", "model", "self", "partial", "hybrid"),
    *("oracle", "oracle-3", "never", "random", "raising"),
]


@pytest.mark.parametrize("settings", list(SETTINGS))
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_leaves_the_reply_as_it_is(name: str, settings: str) -> None:
    options = {"settings": SETTINGS[settings], "end_ids": frozenset({0}), "max_tokens": 60}
    for seed in (7, 8):
        reference = finish(scripted_engine(), PROMPT, seed=seed, **options)
        for number in (1, 4, 16):
            drafter = drafter_named(name, reference.output_ids)
            engine = scripted_engine(drafter=drafter, num_drafts=number)
            reply = finish(engine, PROMPT, seed=seed, **options)
            assert reply.output_ids == reference.output_ids
            assert reply.stop_reason == reference.stop_reason
            assert sum(r.num_emitted for r in reply.records) == len(reply.output_ids)


# rows that cost next to nothing: whatever is offered is tried
CHEAP = PairCosts(
    target=CostCurve.flat(1.0, row_seconds=1e-4), draft=CostCurve.flat(1e-4), overhead_seconds=1e-3
)


def cost_aware_engine(text: str, model: str, reference: list[int], rule: str) -> Engine:
    """Return an engine whose controller chooses between two drafters, or one where one is ""."""
    controller = CostAwareController(
        CHEAP,
        text=drafter_named(text, reference) if text else None,
        model=drafter_named(model, reference) if model else None,
        num_speculative_tokens=8,
    )
    target = ScriptedModel(random_logits(VOCAB, seed=0), vocab_size=VOCAB)
    return Engine(target=target, drafter=controller, controller=controller, verify_rule=rule)


PAIRS = [
    *(("suffix", ""), ("oracle-3", ""), ("never", ""), ("raising", ""), ("", "self")),
    *(("ngram", "model"), ("suffix", "self"), ("random", "partial"), ("oracle-3", "model")),
]


@pytest.mark.parametrize("settings", list(SETTINGS))
@pytest.mark.parametrize(("text", "model"), PAIRS)
def test_the_controller_leaves_the_reply_as_it_is(text: str, model: str, settings: str) -> None:
    options = {"settings": SETTINGS[settings], "end_ids": frozenset({0}), "max_tokens": 60}
    # the token rule gives the same tokens where there is one choice, the same law elsewhere
    for rule in ("match", "token") if settings == "greedy" else ("match",):
        num_drafted = 0
        engine = None
        for seed in (7, 8, 9):
            reference = finish(scripted_engine(), PROMPT, seed=seed, **options)
            if engine is None or "oracle" in text or "never" in text:
                engine = cost_aware_engine(text, model, reference.output_ids, rule)
            reply = finish(engine, PROMPT, seed=seed, **options)
            assert reply.output_ids == reference.output_ids
            assert reply.stop_reason == reference.stop_reason
            num_drafted += sum(record.num_drafted for record in reply.records)
        assert num_drafted > 0


@pytest.mark.parametrize("settings", list(SETTINGS))
def test_the_controller_leaves_the_replies_of_several_sessions_as_they_are(settings: str) -> None:
    prompts = [(4,), PROMPT, (1, 2, 3) * 7, (7, 7, 7)]
    options = {"settings": SETTINGS[settings], "max_tokens": 50}
    references = [
        finish(scripted_engine(), prompt, seed=seed, **options).output_ids
        for seed, prompt in enumerate(prompts)
    ]
    engine = cost_aware_engine("suffix", "model", [], "match")
    sessions = [engine.start(prompt, seed=seed, **options) for seed, prompt in enumerate(prompts)]
    engine.run_together(sessions)
    assert [session.output_ids for session in sessions] == references
    assert all(any(record.num_drafted for record in session.records) for session in sessions)


def test_self_draft_under_sampling_is_always_accepted() -> None:
    engine = scripted_engine(drafter=drafter_named("self", []), num_drafts=4)
    reply = finish(engine, settings=SETTINGS["sampled"], max_tokens=50)
    assert sum(r.num_accepted for r in reply.records) == sum(r.num_drafted for r in reply.records)


@pytest.mark.parametrize("number", range(1, 33))
def test_any_number_of_drafts_from_a_one_token_prompt(number: int) -> None:
    reference = finish(scripted_engine(), (4,), max_tokens=50)
    drafter = oracle(reference.output_ids, errs_every=5, vocab_size=VOCAB)
    reply = finish(scripted_engine(drafter=drafter, num_drafts=number), (4,), max_tokens=50)
    assert reply.output_ids == reference.output_ids


def test_every_position_is_evaluated_in_order() -> None:
    reference = finish(scripted_engine(), PROMPT)
    drafter = oracle(reference.output_ids, errs_every=3, vocab_size=VOCAB)
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    finish(scripted_engine(target=target, drafter=drafter), PROMPT)
    # the model itself asserts that each position follows the cache; what is left here is that
    # after the run its tokens, rejected ones undone, were the committed text
    committed: dict[int, int] = {}
    for _, position, token in target.log.evaluations:
        committed[position] = token
    text = [*PROMPT, *reference.output_ids]
    assert [committed[i] for i in range(len(text) - 1)] == text[:-1]


@pytest.mark.parametrize("style", ["self", "never", "oracle"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 8])
def test_penalties_count_every_token_once(style: str, number: int) -> None:
    expected = [0, 1, 0, 2, 1, 0, 2, 1, 0, 2]
    rows = ScriptedModel(lambda prefix: [3.0, 2.45, 1.9, 0.65], vocab_size=4)
    drafts = {
        "self": ModelDrafter(rows, vocab_size=4, min_survival=0.0),
        "never": never(expected, vocab_size=4),
        "oracle": oracle(expected, vocab_size=4),
    }
    target = ScriptedModel(lambda prefix: [3.0, 2.45, 1.9, 0.65], vocab_size=4)
    engine = scripted_engine(target=target, drafter=drafts[style], num_drafts=number)
    settings = SamplingSettings(frequency_penalty=0.6)
    assert finish(engine, (3,), settings=settings, max_tokens=10).output_ids == expected


@pytest.mark.parametrize("end_index", range(1, 13))
def test_an_end_token_inside_an_accepted_draft_ends_the_reply(end_index: int) -> None:
    reference = finish(scripted_engine(), max_tokens=20).output_ids
    end = reference[end_index]
    first = reference.index(end)
    engine = scripted_engine(drafter=oracle(reference, vocab_size=VOCAB), num_drafts=8)
    reply = finish(engine, max_tokens=20, end_ids=frozenset({end, 99}))
    assert reply.output_ids == reference[: first + 1]
    assert reply.stop_reason is StopReason.STOP
    assert len(reply.cache) == len(reply.tokens) - 1


@pytest.mark.parametrize(("limit", "number"), list(itertools.product(range(1, 21), range(1, 17))))
def test_exactly_max_tokens_are_delivered(limit: int, number: int) -> None:
    reference = finish(scripted_engine(), max_tokens=20).output_ids
    engine = scripted_engine(drafter=oracle(reference, vocab_size=VOCAB), num_drafts=number)
    reply = finish(engine, max_tokens=limit)
    assert reply.output_ids == reference[:limit]
    assert reply.stop_reason is StopReason.LENGTH
    emitted = 0
    for record in reply.records:
        assert record.num_drafted <= limit - emitted - 1
        emitted += record.num_emitted


@pytest.mark.parametrize("number", [1, 2, 5, 16])
@pytest.mark.parametrize("length", [40, 62, 63, 64])
def test_neither_model_passes_the_end_of_the_context(number: int, length: int) -> None:
    prompt = [i % VOCAB for i in range(length)]

    def small(seed: int) -> ScriptedModel:
        return ScriptedModel(random_logits(VOCAB, seed=seed), vocab_size=VOCAB, context_size=64)

    reference = finish(scripted_engine(target=small(0)), prompt, max_tokens=100)
    drafter = ModelDrafter(small(0), vocab_size=VOCAB, min_survival=0.0)
    engine = scripted_engine(target=small(0), drafter=drafter, num_drafts=number)
    reply = finish(engine, prompt, max_tokens=100)
    assert reply.output_ids == reference.output_ids
    assert reply.drafting_error is None
    assert len(reply.tokens) == 65  # 64 evaluated, and the last one chosen
    assert reply.stop_reason is StopReason.LENGTH


def test_a_draft_with_a_smaller_context_stops_drafting_there() -> None:
    draft = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, context_size=32)
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, context_size=256)
    drafter = ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0)
    engine = scripted_engine(target=target, drafter=drafter)
    prompt = [i % VOCAB for i in range(20)]
    reference = finish(scripted_engine(), prompt, max_tokens=100)
    first = finish(engine, prompt, max_tokens=100)
    assert first.output_ids == reference.output_ids
    assert first.drafting_error is None
    assert max(position for _, position, _ in draft.log.evaluations) == 31
    position = 20
    for record, width in zip(first.records, target.log.widths, strict=True):
        if position > 32:
            assert record.num_drafted == 0
            assert width == (1,)  # no filler is verified
        position += record.num_emitted
    assert finish(engine, (1, 2), max_tokens=10).records[0].num_drafted > 0
    assert len(finish(engine, [1] * 200, max_tokens=10).output_ids) == 10


@pytest.mark.parametrize("proposal", [[], [5], [5, 5, 5, 5], [0, 0, 0]])
def test_every_round_makes_progress(proposal: list[int]) -> None:
    reference = finish(scripted_engine(), max_tokens=200)
    target = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    drafter = FunctionDrafter(lambda view, budget: proposal)
    reply = finish(scripted_engine(target=target, drafter=drafter), max_tokens=200)
    assert reply.output_ids == reference.output_ids
    assert all(record.num_emitted >= 1 for record in reply.records)
    assert len(target.log.widths) <= 201


def test_padded_vocabularies_never_emit_or_propose_padding() -> None:
    """Real tokens 30; target rows 40 wide in the file and 30 as the backend shows them; a draft
    of 32 real tokens whose best ones are those the target has not."""
    wide = random_logits(32, seed=5)

    def draft_logits(prefix: tuple[int, ...]):  # type: ignore[no-untyped-def]
        row = wide(prefix).copy()
        row[30:] = 50.0
        return row

    for width in (32, 24):
        draft = ScriptedModel(
            draft_logits if width == 32 else random_logits(24, seed=5), vocab_size=width
        )
        drafter = ModelDrafter(draft, vocab_size=30, min_survival=0.0)
        for settings in SETTINGS.values():
            target = ScriptedModel(random_logits(30), vocab_size=30)
            reference = finish(scripted_engine(target=target), settings=settings)
            target = ScriptedModel(random_logits(30), vocab_size=30)
            engine = scripted_engine(target=target, drafter=drafter)
            reply = finish(engine, settings=settings)
            assert reply.output_ids == reference.output_ids
            assert all(token < 30 for _, _, token in target.log.evaluations)
            if width == 32:
                assert any(record.num_drafted for record in reply.records)


def test_same_seed_same_text_and_another_seed_another_text() -> None:
    options = {"settings": SamplingSettings(temperature=2.0), "max_tokens": 32}
    engine = scripted_engine(drafter=drafter_named("model", []))
    first = finish(engine, seed=42, **options).output_ids
    for other in range(20):
        finish(engine, (other % VOCAB, 1), seed=other, **options)
    assert finish(engine, seed=42, **options).output_ids == first
    assert finish(scripted_engine(), seed=42, **options).output_ids == first
    assert finish(engine, seed=43, **options).output_ids != first


def test_without_a_seed_one_is_drawn_and_reported() -> None:
    options = {"settings": SETTINGS["sampled"]}
    first = finish(scripted_engine(), seed=None, **options)
    second = finish(scripted_engine(), seed=None, **options)
    assert first.seed != second.seed
    again = finish(scripted_engine(), seed=first.seed, **options)
    assert again.output_ids == first.output_ids


def test_logprobs_are_the_targets_whoever_proposed() -> None:
    settings = SamplingSettings(logprobs=5)
    reference = finish(scripted_engine(), settings=settings, max_tokens=64)
    for errs_every in (0, 1, 3):
        drafter = oracle(reference.output_ids, errs_every=errs_every, vocab_size=VOCAB)
        reply = finish(scripted_engine(drafter=drafter), settings=settings, max_tokens=64)
        for token, wanted in zip(reply.emitted, reference.emitted, strict=True):
            assert token.logprobs == wanted.logprobs
            assert token.logprobs is not None
            values = [value for _, value in token.logprobs.top]
            assert values == sorted(values, reverse=True)


def test_requests_that_share_a_prefix_draft_as_well_as_the_first() -> None:
    """A long common beginning, five ends, one beginning cut in the middle: the draft model has
    read every position of each, whatever the target did before."""
    beginning = [i * i % VOCAB for i in range(500)]
    draft = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    engine = scripted_engine(drafter=ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0))
    plain = scripted_engine()
    finish(plain, beginning)  # a request without speculation comes first
    prompts = [[*beginning, i, i + 1] for i in range(5)] + [[*beginning[:250], 3, *beginning[250:]]]
    for prompt in prompts:
        draft.log.evaluations.clear()
        reply = finish(engine, prompt)
        assert reply.output_ids == finish(plain, prompt).output_ids
        read = {position for _, position, _ in draft.log.evaluations}
        assert read >= set(range(len(prompt)))
        # the draft is the target itself: every draft must stand
        assert all(r.num_accepted == r.num_drafted for r in reply.records)
