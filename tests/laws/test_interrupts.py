"""Whatever ends a step early, Ctrl-C at any line, leaves nothing that later replies could see."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

import pilotfish.drafters.model
import pilotfish.engine.engine
import pilotfish.engine.round
import pilotfish.engine.scheduler
import pilotfish.engine.session
import pilotfish.generation
import pilotfish.prefixes
from pilotfish.backends.scripted import ScriptedModel
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.engine import Engine
from pilotfish.errors import BackendError, NoFreeSlot
from pilotfish.generation import TextEngine
from pilotfish.prefixes import PrefixPool
from pilotfish.types import FloatArray, SamplingSettings
from support.engines import scripted_engine
from support.text_engines import tokenizer

# what a stream does, and what the other ways to a reply do besides
ENGINE = (
    pilotfish.drafters.model,
    pilotfish.engine.engine,
    pilotfish.engine.round,
    pilotfish.engine.session,
    pilotfish.generation,
    pilotfish.prefixes,
)
AROUND = (pilotfish.engine.scheduler, pilotfish.generation)
Line = tuple[str, int]


class InterruptAt:
    """Raises KeyboardInterrupt when a line of the modules is reached for the n-th time.

    Without a line it notes how often each is reached.
    """

    def __init__(
        self, modules: Sequence[ModuleType], line: Line | None = None, number: int = 1
    ) -> None:
        self.line, self.number = line, number
        self.counts: dict[Line, int] = {}
        self._files = {inspect.getfile(module) for module in modules}

    def __enter__(self) -> InterruptAt:
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename in self._files:
            return self._trace
        return None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            self.counts[line] = self.counts.get(line, 0) + 1
            if line == self.line and self.counts[line] == self.number:
                raise KeyboardInterrupt
        return self._trace


VOCAB = 258


def logits(prefix: tuple[int, ...]) -> FloatArray:
    """Return a row that depends on every token before it: a cache that holds another text shows."""
    number = 7
    for token in prefix:
        number = (number * 1_000_003 + token + 1) % (1 << 61)
    row = np.zeros(VOCAB, dtype=np.float32)
    row[97 + number % 26] = 2.0
    row[97 + (number >> 8) % 26] += 1.0
    return row


def draft_logits(prefix: tuple[int, ...]) -> FloatArray:
    row = logits(prefix)
    return row[::-1].copy() if len(prefix) % 3 == 0 else row


class Chat:
    """A conversation on an engine with a draft model and room for one reply and what is kept."""

    def __init__(self) -> None:
        words = tokenizer()
        self.target = ScriptedModel(logits, vocab_size=VOCAB, max_sessions=3)
        self.draft = ScriptedModel(draft_logits, vocab_size=VOCAB, max_sessions=3)
        drafter = ModelDrafter(
            self.draft,
            vocab_size=VOCAB,
            min_survival=0.0,
            prefixes=PrefixPool(self.draft, most_sequences=2),
        )
        engine = Engine(
            target=self.target,
            drafter=drafter,
            controller=FixedController(4),
            prefixes=PrefixPool(self.target, most_sequences=2),
        )
        self.engine = TextEngine(engine, words)
        self.messages: list[dict[str, str]] = []

    def ask(self, text: str, how: Callable[[TextEngine, Any, Any], str]) -> str:
        """Return the reply, which becomes a part of the conversation."""
        messages = [*self.messages, {"role": "user", "content": text}]
        reply = how(self.engine, messages, {"max_tokens": 7, "temperature": 0.7, "seed": 5})
        self.messages = [*messages, {"role": "assistant", "content": reply}]
        return reply


def streamed(engine: TextEngine, messages: Any, options: Any) -> str:
    return "".join(piece.text for piece in engine.stream(messages, **options))


def generated(engine: TextEngine, messages: Any, options: Any) -> str:
    return engine.generate(messages, **options).text


def batched(engine: TextEngine, messages: Any, options: Any) -> str:
    return engine.generate_batch([messages], **options)[0].text


QUESTIONS = ("What is it?", "And then?", "Why so?")


def reference() -> list[str]:
    chat = Chat()
    chat.engine = TextEngine(
        scripted_engine(target=ScriptedModel(logits, vocab_size=VOCAB), num_drafts=0), tokenizer()
    )
    return [chat.ask(question, generated) for question in QUESTIONS]


def lines_of_a_turn(
    how: Callable[[TextEngine, Any, Any], str], modules: Sequence[ModuleType]
) -> Iterator[tuple[Line, int]]:
    """Yield each line that a second turn reaches, with its first and its last time."""
    chat = Chat()
    chat.ask(QUESTIONS[0], how)
    with InterruptAt(modules) as trace:
        chat.ask(QUESTIONS[1], how)
    for line, count in sorted(trace.counts.items()):
        yield line, 1
        if count > 1:
            yield line, count


@pytest.mark.parametrize(
    ("how", "modules", "at_least"),
    [(streamed, ENGINE, 200), (generated, AROUND, 30), (batched, AROUND, 100)],
)
def test_after_ctrl_c_at_any_line_the_conversation_goes_on_as_if_nothing_had_been(
    how: Callable[[TextEngine, Any, Any], str], modules: Sequence[ModuleType], at_least: int
) -> None:
    expected = reference()
    num_interrupted = 0
    for line, number in lines_of_a_turn(how, modules):
        chat = Chat()
        assert chat.ask(QUESTIONS[0], how) == expected[0]
        try:
            with InterruptAt(modules, line, number):
                chat.ask(QUESTIONS[1], how)
        except KeyboardInterrupt:
            num_interrupted += 1
            chat.messages = chat.messages[:2]
            assert chat.ask(QUESTIONS[1], how) == expected[1], (line, number)
        assert chat.ask(QUESTIONS[2], how) == expected[2], (line, number)
        # no slot is lost: there are as many as ever beside what is kept
        assert len(chat.target.open_caches) <= 2, (line, number)
        assert len(chat.draft.open_caches) <= 2, (line, number)
    assert num_interrupted > at_least


def test_a_session_whose_round_was_broken_off_ends_with_an_error() -> None:
    engine = scripted_engine()
    session = engine.start((1, 2, 3), max_tokens=10)
    commit = session.commit
    session.commit = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.step([session])
    session.commit = commit  # type: ignore[method-assign]
    neighbour = engine.start((4, 5), max_tokens=10)
    engine.run_together([session, neighbour])
    assert isinstance(session.error, BackendError)
    assert session.emitted == []
    assert len(neighbour.emitted) == 10


def test_a_prompt_whose_pass_was_broken_off_is_read_no_further() -> None:
    target = ScriptedModel(logits, vocab_size=VOCAB, max_sessions=1)
    engine = scripted_engine(target=target)
    session = engine.open([1] * 20, settings=SamplingSettings())
    forward = target.forward
    target.forward = lambda _: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.read(session)
    target.forward = forward  # type: ignore[method-assign]
    assert engine.read(session)
    assert isinstance(session.error, BackendError)
    with pytest.raises(NoFreeSlot):
        engine.open([1, 2])
    engine.finish(session)
    engine.open([1, 2])
