"""Recording on scripted models: the reply is the target's, the drafts are the draft model's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.bench.recorder import record
from pilotfish.bench.recording import NO_DRAFT, Recorded
from pilotfish.bench.runner import PLAIN, Mode
from pilotfish.bench.workload import Prompt
from pilotfish.config import Request
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.engine import Engine
from pilotfish.errors import PromptError
from pilotfish.types import SamplingSettings, SessionView
from support.partial_head import PartialHead, PartialModel
from support.scripted_pair import COSTS, PROMPTS, STAIRCASE, VOCAB, ScriptedPair

REQUEST = Request(max_tokens=70, seed=3)
SAMPLED = replace(REQUEST, settings=SamplingSettings(temperature=0.9))


def recorded(pair: ScriptedPair, *, prompts: Any = PROMPTS, **options: Any) -> Recorded:
    options = {"request": REQUEST, "costs": pair.costs, "clock": pair.clock} | options
    draft = options.pop("draft", pair.draft)
    return record(pair.engine(Mode(PLAIN)), draft, prompts, **options)


@pytest.mark.parametrize("request_options", [REQUEST, SAMPLED])
def test_the_reply_is_that_of_plain_decoding(request_options: Request) -> None:
    pair = ScriptedPair(logits=random_logits(VOCAB))
    engine = pair.engine(Mode(PLAIN))
    for prompt, one in zip(
        PROMPTS, recorded(pair, request=request_options).recordings, strict=True
    ):
        ids = engine.prompt_ids(prompt.content, request_options)
        session = engine.engine.start(
            ids,
            max_tokens=70,
            seed=3,
            settings=request_options.settings,
            end_ids=engine.tokenizer.end_ids,
        )
        for _ in engine.engine.run(session):
            pass
        assert (one.prompt, one.reply) == (tuple(ids), tuple(session.output_ids))
        assert (one.id, one.category, one.max_tokens) == (prompt.id, prompt.category, 70)
        assert set(one.end_ids) == engine.tokenizer.end_ids


def drafted_one_by_one(draft: Any, recording: Any, request: Request) -> list[tuple[int, float]]:
    """Return what the draft model's own drafter proposes at each place of the reply."""
    head = getattr(draft, "head", None)
    drafter = ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0, head=head)
    text, first = [*recording.prompt, *recording.reply], len(recording.prompt)
    said = []
    for place in range(first, len(text)):
        view = SessionView(
            1, text[:place], first, request.settings, request.seed or 0, 0, frozenset([257])
        )
        if place == first:
            drafter.prepare(view)
        (proposal,) = drafter.propose([view], [1])
        assert proposal.probabilities is not None
        said.append((proposal.token_ids[0], proposal.probabilities[0]))
    return said


@pytest.mark.parametrize("request_options", [REQUEST, SAMPLED])
@pytest.mark.parametrize("head_size", [0, 40])
def test_drafts_are_what_the_drafter_would_have_proposed_at_each_place(
    request_options: Request, head_size: int
) -> None:
    def draft_model() -> ScriptedModel:
        model = ScriptedModel(random_logits(VOCAB, seed=5, memory=2), vocab_size=VOCAB)
        if not head_size:
            return model
        return PartialModel(model, PartialHead(range(head_size), room=200))

    pair = ScriptedPair(logits=random_logits(VOCAB, memory=2))
    found = recorded(pair, draft=draft_model(), request=request_options, prompts=PROMPTS[:2])
    # the second reply of the recorder must not see what the first added to the head
    for one in found.recordings:
        said = drafted_one_by_one(draft_model(), one, request_options)
        assert one.draft == tuple(token for token, _ in said)
        assert one.draft_probabilities == pytest.approx([chance for _, chance in said])


def test_a_draft_model_reads_in_wide_passes_and_leaves_no_place_open() -> None:
    pair = ScriptedPair()
    recorded(pair)
    assert pair.draft.open_caches == set()
    assert pair.targets[0].open_caches == set()
    widths = [width for (width,) in pair.draft.log.widths]
    # the prompt's last token and the 70 of the reply, then three single passes for their price
    assert widths == [32, 32, 7, 1, 1, 1] * 3


def test_beyond_its_context_a_draft_model_says_nothing() -> None:
    pair = ScriptedPair()
    (one,) = recorded(pair, draft=None, prompts=PROMPTS[:1]).recordings
    room = len(one.prompt) + 9
    short = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, context_size=room)
    (with_draft,) = recorded(pair, draft=short, prompts=PROMPTS[:1]).recordings
    assert [token == NO_DRAFT for token in with_draft.draft] == [False] * 10 + [True] * 60
    assert with_draft.draft_probabilities[10:] == (0.0,) * 60
    tiny = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, context_size=4)
    (silent,) = recorded(pair, draft=tiny, prompts=PROMPTS[:1]).recordings
    assert set(silent.draft) == {NO_DRAFT}
    assert short.open_caches == tiny.open_caches == set()


def test_times_are_those_of_the_clock() -> None:
    pair = ScriptedPair()
    for one in recorded(pair).recordings:
        times = one.times
        assert times is not None
        assert times.target == times.decode == pytest.approx(70.0)
        assert times.prompt == pytest.approx(STAIRCASE.at(len(one.prompt) - 1))
        assert COSTS.draft is not None
        assert times.draft_prompt == pytest.approx(COSTS.draft.at(len(one.prompt) - 1))
        assert times.steps == pytest.approx({2: 1.0, 4: 1.0, 8: 1.4, 16: 2.2})
        assert times.draft_steps == pytest.approx(0.12)
        assert times.drafting == 0.0, "on this clock only passes take time"


def test_without_a_draft_model_nothing_is_said_of_one() -> None:
    found = recorded(ScriptedPair(PairCosts(target=STAIRCASE)), draft=None)
    assert not found.has_drafts
    for one in found.recordings:
        assert one.draft == one.draft_probabilities == ()
        assert one.times is not None
        assert one.times.draft_steps is None


@pytest.mark.parametrize(("max_tokens", "widths"), [(1, {2, 4, 8, 16}), (5, {2, 4, 8, 16})])
def test_short_replies_are_recorded_too(max_tokens: int, widths: set[int]) -> None:
    pair = ScriptedPair()
    (one,) = recorded(
        pair, request=replace(REQUEST, max_tokens=max_tokens), prompts=PROMPTS[:1]
    ).recordings
    assert len(one.reply) == len(one.draft) == max_tokens
    assert one.times is not None
    assert set(one.times.steps) == widths


def test_a_pass_that_holds_few_rows_is_not_asked_for_more() -> None:
    pair = ScriptedPair(max_width=4)
    (one,) = recorded(pair, prompts=PROMPTS[:1]).recordings
    assert one.times is not None
    assert set(one.times.steps) == {2, 4}


def test_when_the_time_is_spent_no_prompt_is_begun_but_the_first() -> None:
    assert len(recorded(ScriptedPair(), seconds=1.0).recordings) == 1
    # a reply takes its prompt, 70 steps, and the passes that are timed
    found = recorded(ScriptedPair(), seconds=190.0)
    assert (len(found.recordings), found.num_left) == (2, 1)
    assert recorded(ScriptedPair()).num_left == 0


def test_a_prompt_that_fails_is_left_out_and_named() -> None:
    pair = ScriptedPair(context_size=150)
    prompts = [Prompt("long", "chat", "x" * 300), PROMPTS[0]]
    found = recorded(pair, prompts=prompts)
    assert [one.id for one in found.recordings] == ["one"]
    assert "context" in found.errors["long"]
    assert pair.targets[0].open_caches == set()
    with pytest.raises(PromptError, match="none of the 1 prompts could be recorded"):
        recorded(pair, prompts=prompts[:1])


def test_progress_names_the_prompt_that_is_next() -> None:
    seen: list[tuple[int, int, str]] = []
    recorded(ScriptedPair(), progress=lambda *values: seen.append(values))
    assert seen == [(0, 3, "one"), (1, 3, "two"), (2, 3, "three")]


def test_recording_leaves_the_engine_as_it_was() -> None:
    pair = ScriptedPair()
    plain = pair.engine(Mode(PLAIN))
    before = (plain.engine.drafter, plain.engine.controller)
    record(plain, pair.draft, PROMPTS, request=REQUEST, costs=COSTS, clock=pair.clock)
    assert (plain.engine.drafter, plain.engine.controller) == before
    assert isinstance(plain.engine, Engine)
