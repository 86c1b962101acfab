"""What is taken over from other requests changes time, never a reply; and the draft model has
everything the target has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pilotfish.accounting.metrics import acceptance_rate
from pilotfish.backends.scripted import ScriptedModel
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.errors import BackendError
from pilotfish.prefixes import PrefixPool
from pilotfish.types import DraftWish
from support.engines import SETTINGS, finish, scripted_engine
from support.partial_head import PartialHead, PartialModel
from support.sharing import VOCAB, Sharing, draft_logits, sharing, target_logits

DRAFTERS = ["none", "suffix", "model", "hybrid"]
CHUNK = 256
DRAFT_CHUNK = 64


def noise(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


SYSTEM = noise(60, seed=1)


def alone(prompt: list[int], **options: Any) -> list[int]:
    """Return REF: the reply of an engine that keeps nothing and drafts nothing."""
    return sharing(most_sequences=0).reply(prompt, **options).output_ids


@pytest.mark.parametrize("name", ["greedy", "penalised"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_chat_whose_turns_are_kept_is_the_chat_without(drafter: str, name: str) -> None:
    options = {"settings": SETTINGS[name], "end_ids": frozenset({0})}
    engine = sharing(drafter)
    prompt = list(SYSTEM)
    for turn in range(4):
        prompt += noise(8, seed=turn + 2)
        session = engine.reply(prompt, **options)
        assert session.output_ids == alone(prompt, **options)
        assert session.num_reused_tokens == (len(prompt) - 9 if turn else 0)
        assert engine.num_read(session) == (8 if turn else len(prompt) - 1)
        prompt += session.output_ids
    # the last turn is asked otherwise, then one in the middle
    for cut in (len(prompt) - 5, len(SYSTEM) + 3):
        edited = [*prompt[:cut], (prompt[cut] + 1) % VOCAB, *noise(4, seed=9)]
        session = engine.reply(edited, **options)
        assert session.output_ids == alone(edited, **options)
        assert session.num_reused_tokens == cut


@pytest.mark.parametrize("unit", [1, CHUNK])
def test_where_bits_depend_on_passes_whole_ones_of_prompts_are_taken_over(unit: int) -> None:
    """A row that depends on which pass its text was read in: replies are the same all the same."""
    prompt = noise(2 * CHUNK + 50, seed=3)
    engine = sharing(unit=unit)
    first = engine.reply(prompt)
    for longer in (noise(300, seed=4), first.output_ids):
        text = [*prompt, *longer, *noise(300, seed=5)]
        session = engine.reply(text, max_tokens=5)
        assert session.output_ids == alone(text, max_tokens=5)
        whole = 2 * CHUNK
        known = len(prompt) - 1 + (1 if unit == 1 else 0)
        if longer == first.output_ids and unit == 1:
            known = len(prompt) + len(longer) - 1
        assert session.num_reused_tokens == (known if unit == 1 else whole)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("course", range(3))
def test_requests_that_come_and_go_at_any_time_get_the_replies_they_would_get_alone(
    drafter: str, course: int
) -> None:
    """They join while others read or answer, and some are given up in the middle of either."""
    generator = np.random.default_rng(course)
    engine, settings = sharing(drafter, most_sequences=2), list(SETTINGS.values())
    parent = list(SYSTEM)
    waiting: list[tuple[list[int], dict[str, Any]]] = []
    for number in range(10):
        cut = int(generator.integers(20, len(parent) + 1))
        prompt = [*parent[:cut], *noise(int(generator.integers(1, 30)), seed=number)]
        parent = prompt if generator.random() < 0.7 else parent
        waiting.append((prompt, {"settings": settings[number % 4], "seed": number}))
    running: list[tuple[Session, dict[str, Any]]] = []
    finished: list[tuple[Session, dict[str, Any]]] = []
    while waiting or running:
        if waiting and generator.random() < 0.4:
            prompt, options = waiting.pop(0)
            running.append((engine.engine.open(prompt, max_tokens=12, **options), options))
        for session, _ in running:
            if not session.is_read and generator.random() < 0.7:
                engine.engine.read(session, most_tokens=int(generator.integers(1, 40)))
        engine.engine.step([session for session, _ in running if session.is_read])
        for pair in list(running):
            given_up = generator.random() < 0.04
            if pair[0].done or given_up:
                engine.engine.finish(pair[0])
                running.remove(pair)
                finished.append(pair)
    reused = 0
    for session, options in finished:
        reference = alone(session.tokens[: session.num_prompt_tokens], max_tokens=12, **options)
        assert session.output_ids == reference[: len(session.output_ids)]
        assert session.error is session.drafting_error is None
        assert (len(session.output_ids) == 12) == (session.stop_reason == "length")
        reused += session.num_reused_tokens
    assert reused > 200
    assert len(engine.target.open_caches) <= 2
    assert len(engine.draft.open_caches) <= 2


@pytest.mark.parametrize("is_running", [True, False])
def test_nothing_is_taken_over_from_a_request_that_failed(is_running: bool) -> None:
    """One whose row is no number, and one whose prompt could not be read to its end."""
    bad = [*SYSTEM, 1, 2]

    def logits(prefix: tuple[int, ...]) -> Any:
        return np.full(VOCAB, np.nan) if prefix[:62] == (*bad,) else target_logits(prefix)

    engine = sharing(logits=logits)
    session = engine.engine.start(bad)
    engine.engine.step([session])
    assert isinstance(session.error, BackendError)
    if not is_running:
        engine.engine.finish(session)
    good = engine.reply([*SYSTEM, 3])
    assert (good.num_reused_tokens, engine.num_read(good)) == (0, 60)
    assert good.output_ids == alone([*SYSTEM, 3])

    engine = sharing(fail_at=2)
    session = engine.engine.open([*SYSTEM, 1, 2])
    engine.engine.read(session, most_tokens=30)
    with pytest.raises(BackendError):
        engine.engine.read(session)
    if not is_running:
        engine.engine.finish(session)
    assert engine.reply([*SYSTEM, 3]).num_reused_tokens == 0
    engine.engine.finish(session)
    assert engine.reply([*SYSTEM, 4]).num_reused_tokens == 60


def test_a_request_that_cannot_begin_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sharing(max_sessions=1)
    with monkeypatch.context() as patch:
        patch.setattr("pilotfish.engine.engine.Session", lambda *args, **options: 1 / 0)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                engine.engine.open(SYSTEM)
    assert len(engine.reply(SYSTEM).output_ids) == 20


def test_a_prompt_is_read_no_further_once_its_request_was_given_up() -> None:
    engine = sharing()
    session = engine.engine.open(SYSTEM)
    engine.engine.read(session, most_tokens=30)
    engine.engine.finish(session)
    assert engine.engine.read(session)
    assert session.stop_reason == "cancelled"
    assert engine.reply(SYSTEM).num_reused_tokens == 30


# --- the draft model


LONG_SYSTEM = noise(500, seed=20)
QUESTIONS = [[number, *noise(5 + number, seed=30 + number)] for number in range(5)]


def drafts(session: Session) -> list[tuple[str, int, int]]:
    return [(r.source, r.num_drafted, r.num_accepted) for r in session.records]


def saw_every_position(engine: Sharing, prompt: list[int], since: int) -> bool:
    seen = engine.seen[since:]
    return bool(seen) and all(text[: len(prompt)] == tuple(prompt) for text in seen)


@pytest.mark.parametrize("first", ["auto", "none", "suffix"])
@pytest.mark.parametrize("drafter", ["model", "hybrid"])
def test_requests_with_a_long_beginning_in_common_draft_as_well_as_without(
    drafter: str, first: str
) -> None:
    """Whether or not the draft model has read what the target need not read again."""
    engine, twin = sharing(drafter), sharing(drafter, most_sequences=0)
    prompts = [[*LONG_SYSTEM, *question] for question in QUESTIONS]
    # a turn is edited: the text parts in the middle of what is known
    prompts.append([*LONG_SYSTEM[:250], (LONG_SYSTEM[250] + 1) % VOCAB, *LONG_SYSTEM[250:]])
    rates = []
    for number, prompt in enumerate(prompts):
        wish = DraftWish(drafter=first if number == 0 else "auto")
        since, num_read = len(engine.seen), len(engine.draft.log.evaluations)
        session = engine.reply(prompt, wish=wish, max_tokens=40)
        assert session.output_ids == alone(prompt, max_tokens=40)
        assert session.drafting_error is None
        assert session.num_reused_tokens == (500 if 0 < number < 5 else 250 if number else 0)
        assert drafts(session) == drafts(twin.reply(prompt, wish=wish, max_tokens=40))
        if number == 0 and first != "auto":
            assert engine.seen == []
            continue
        assert saw_every_position(engine, prompt, since)
        num_read = len(engine.draft.log.evaluations) - num_read
        # the long beginning once
        assert (num_read >= 500) == (number == (0 if first == "auto" else 1))
        rates.append(acceptance_rate(session.records))
    assert min(rates) > 0.2


def test_the_draft_model_takes_over_from_requests_that_run() -> None:
    engine = sharing("model")
    first = engine.engine.start([*LONG_SYSTEM, 1], seed=7, max_tokens=30)
    engine.engine.step([first])
    num_read = len(engine.draft.log.evaluations)
    second = engine.engine.start([*LONG_SYSTEM, 2], seed=7, max_tokens=30)
    assert len(engine.draft.log.evaluations) == num_read
    engine.engine.run_together([first, second])
    for session, last in ((first, 1), (second, 2)):
        prompt = [*LONG_SYSTEM, last]
        assert session.output_ids == alone(prompt, max_tokens=30)
        reference = sharing("model", most_sequences=0).reply(prompt, max_tokens=30)
        assert drafts(session) == drafts(reference)


@pytest.mark.parametrize("breaks", ["pass", "row"])
def test_a_draft_model_that_failed_on_a_text_does_not_pass_it_on(breaks: str) -> None:
    def broken(prefix: tuple[int, ...]) -> Any:
        is_bad = len(prefix) == 63 and prefix[60] == 1
        return np.full(VOCAB, np.nan) if is_bad else target_logits(prefix)

    engine = sharing("model")
    session = engine.engine.start([*SYSTEM, 1], seed=7, max_tokens=20)
    if breaks == "pass":
        engine.draft._fail_at = engine.draft._num_passes + 1
    else:
        engine.draft._logits = broken
    engine.engine.run_together([session])
    assert (session.drafting_error is not None) == (breaks == "pass")
    assert session.output_ids == alone([*SYSTEM, 1])
    num_read = len(engine.draft.log.evaluations)
    again = engine.reply([*SYSTEM, 2])
    assert len(engine.draft.log.evaluations) - num_read >= 60
    assert again.drafting_error is None
    assert sum(record.num_accepted for record in again.records) > 0
    # what was read afresh is passed on
    num_read = len(engine.draft.log.evaluations)
    engine.reply([*SYSTEM, 3])
    assert len(engine.draft.log.evaluations) - num_read < 60


def test_what_a_draft_model_has_to_read_counts_what_others_have_read() -> None:
    engine = sharing("model")
    drafter = engine.engine.drafter
    assert isinstance(drafter, ModelDrafter)
    session = engine.engine.open([*LONG_SYSTEM, 1])
    assert drafter.num_unread(session.view()) == 501
    drafter.prepare(session.view())
    assert drafter.num_unread(session.view()) == 501 - DRAFT_CHUNK
    other = engine.engine.open([*LONG_SYSTEM, 2, 3])
    assert drafter.num_unread(other.view()) == 502 - DRAFT_CHUNK
    while drafter.prepare(session.view()):
        pass
    assert drafter.num_unread(session.view()) == 1
    assert drafter.num_unread(other.view()) == 2
    drafter.prepare(other.view())
    assert drafter.num_unread(other.view()) == 1


def test_a_prompt_is_read_for_drafts_a_pass_at_a_time() -> None:
    engine = sharing("model")
    session = engine.engine.open(noise(3 * CHUNK + 10, seed=40))
    num_read = []
    while not engine.engine.read(session):
        num_read.append(len(engine.draft.log.evaluations))
    assert [*num_read, len(engine.draft.log.evaluations)] == [
        *[0] * 4,
        *range(DRAFT_CHUNK, 3 * CHUNK + 1, DRAFT_CHUNK),
        3 * CHUNK + 9,
    ]


def test_a_partial_head_knows_the_tokens_of_what_was_taken_over() -> None:
    def engine(most_sequences: int) -> Engine:
        head = PartialHead([1, 7])
        rows = ScriptedModel(draft_logits, vocab_size=VOCAB)
        model = PartialModel(rows, head)
        prefixes = PrefixPool(model, most_sequences=most_sequences)
        drafter = ModelDrafter(
            model, vocab_size=VOCAB, min_survival=0.0, head=head, prefixes=prefixes
        )
        return scripted_engine(
            target=ScriptedModel(target_logits, vocab_size=VOCAB), drafter=drafter
        )

    keeping, twin = engine(4), engine(0)
    for last in (1, 2, 3):
        one, other = (finish(each, [*SYSTEM, last], max_tokens=30) for each in (keeping, twin))
        assert drafts(one) == drafts(other)
        assert sum(record.num_accepted for record in one.records) > 0


def test_after_what_was_taken_over_passes_end_where_they_always_do() -> None:
    prompt = noise(3 * CHUNK, seed=50)
    engine = sharing()
    engine.reply(prompt[: CHUNK + 40])
    session = engine.engine.open(prompt)
    ends = [len(session.cache)]
    while not engine.engine.read(session):
        ends.append(len(session.cache))
    assert CHUNK + 39 <= ends[0] < 2 * CHUNK
    assert ends[1:] == [2 * CHUNK, 3 * CHUNK - 1]
    engine.engine.finish(session)
    other = engine.engine.open(noise(500, seed=51))
    for most, end in ((100, 100), (None, CHUNK), (50, CHUNK + 50), (CHUNK, 499)):
        engine.engine.read(other, most_tokens=most)
        assert len(other.cache) == end
