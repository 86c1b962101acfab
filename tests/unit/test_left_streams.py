"""Streams that are left early, in every way Python knows, give their slot to the next request."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.errors import NoFreeSlot
from pilotfish.generation import ReplyStream, TextEngine
from pilotfish.prefixes import PrefixPool
from support.drafters import FunctionDrafter
from support.leaving import WAYS, Stream
from support.text_engines import text_engine, tokenizer

PROMPT = "Tell me all of it, and then tell me again."
OPTIONS: dict[str, Any] = {"raw": True, "max_tokens": 12, "seed": 3, "temperature": 0.8}


def one_slot_engine() -> TextEngine:
    """Return an engine with room for one reply in the target and in the draft model."""
    target, draft = (
        ScriptedModel(random_logits(258, seed=2), vocab_size=258, max_sessions=1) for _ in range(2)
    )
    prefixes = PrefixPool(draft, most_sequences=1)
    drafter = ModelDrafter(draft, vocab_size=258, min_survival=0.0, prefixes=prefixes)
    engine = Engine(
        target=target,
        drafter=drafter,
        controller=FixedController(3),
        prefixes=PrefixPool(target, most_sequences=1),
    )
    return TextEngine(engine, tokenizer())


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let nothing be freed by chance."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_left_in_any_way_gives_its_slot_to_the_next_one(
    way: Callable[[Stream], None], no_collector: None
) -> None:
    expected = one_slot_engine().generate(PROMPT, **OPTIONS).token_ids
    engine = one_slot_engine()

    def stream() -> ReplyStream:
        # opens a session as streams do, but without looking for what only the collector finds
        prompt_ids = engine.tokenizer.encode(PROMPT, parse_special=False)
        engine.engine.finish(engine.engine.open(prompt_ids))
        return engine.stream(PROMPT, **OPTIONS)

    for _ in range(3):
        way(stream)
        assert engine.generate(PROMPT, **OPTIONS).token_ids == expected
    stream().close()


def num_sessions() -> int:
    return sum(isinstance(each, Session) for each in gc.get_objects())


def test_200_streams_left_leave_nothing_behind(no_collector: None) -> None:
    engine = one_slot_engine()
    gc.collect()  # what other tests left
    before = num_sessions()
    for number in range(200):
        WAYS[number % len(WAYS)](lambda: engine.stream(PROMPT, **OPTIONS))
    engine.generate(PROMPT, **OPTIONS)
    assert len(engine.engine.target.open_caches) <= 1  # type: ignore[attr-defined]
    assert not engine.engine._sessions
    assert not engine.engine._drivers
    assert not engine.engine._given_up
    assert num_sessions() == before


def test_streams_in_a_circle_of_references_are_found_when_their_slot_is_wanted(
    no_collector: None,
) -> None:
    engine = one_slot_engine()
    expected = engine.generate(PROMPT, **OPTIONS).token_ids
    for _ in range(3):
        circle: list[Any] = [engine.stream(PROMPT, **OPTIONS)]
        next(circle[0])
        circle.append(circle)
        del circle
        assert engine.generate(PROMPT, **OPTIONS).token_ids == expected


def test_a_stream_that_is_held_keeps_its_slot_and_the_error_says_so(no_collector: None) -> None:
    engine = one_slot_engine()
    held = engine.stream(PROMPT, **OPTIONS)
    for _ in held:
        break
    with pytest.raises(NoFreeSlot, match="all 1 sequences") as caught:
        engine.generate(PROMPT, **OPTIONS)
    assert "stream" in caught.value.hint
    del caught
    rest = sum(len(piece.tokens) for piece in held)
    assert 0 < rest < 12
    assert len(engine.generate(PROMPT, **OPTIONS).token_ids) == 12


def test_what_finalizers_drop_in_the_middle_of_a_pass_is_given_back_after_it() -> None:
    """A collector may run at any place of a pass; here the drafter drops streams in it."""
    dropped: list[Any] = []
    finalized: list[str] = []

    def propose(view: Any, budget: int) -> list[int]:
        while dropped:
            dropped.pop()
            finalized.append("in a pass")
        return [1] * budget

    drafter = FunctionDrafter(propose)
    engine = text_engine(random_logits(258), words=tokenizer(), drafter=drafter, max_sessions=4)
    expected = engine.generate(PROMPT, **OPTIONS).token_ids
    for _ in range(5):
        unread_stream = engine.stream(PROMPT, **OPTIONS)
        rounds = engine.engine.run(engine.engine.start([1, 2, 3], max_tokens=5))
        next(rounds)
        owner = type("Owner", (), {})()
        session = engine.engine.start([4, 5], max_tokens=5)
        weakref.finalize(owner, engine.engine.finish, session)
        dropped += [unread_stream, rounds, owner]
        del unread_stream, rounds, owner, session
        assert engine.generate(PROMPT, **OPTIONS).token_ids == expected
    assert len(finalized) == 15
    assert engine.generate(PROMPT, **OPTIONS).token_ids == expected
    assert not engine.engine._sessions
    assert not engine.engine.target.open_caches  # type: ignore[attr-defined]
