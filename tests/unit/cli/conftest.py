"""The command line on a scripted model: what it prints and returns, in milliseconds."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pilotfish import build
from pilotfish.backends.scripted import ScriptedModel, ScriptedTokenizer
from pilotfish.cli import main
from pilotfish.config import EngineConfig
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.errors import BackendError
from pilotfish.generation import Facts, TextEngine
from pilotfish.prefixes import PrefixPool
from pilotfish.types import FloatArray

START, END = 256, 257
TOKENS = [bytes([i]) for i in range(256)] + [b"<|im_start|>", b"<|im_end|>", b" the shark"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
BODY = "naïve 🦈 [bold]x[/bold] [1] the shark decides, the shark decides, the shark decides. :fish:"


def reply_text(turn: int = 1) -> str:
    """Return what the scripted model answers to the turn of that number."""
    return f"{turn}: {BODY}"


@dataclass
class ScriptedProgram:
    """`pilotfish` with the loading of models replaced."""

    context_size: int = 2048
    interrupt_after: int | None = None
    failure_after: int | None = None
    warning: str = ""
    notices: tuple[str, ...] = ()
    configs: list[EngineConfig] = field(default_factory=list)
    scripts: dict[int, list[int]] = field(default_factory=dict)
    tokenizer: ScriptedTokenizer = field(
        default_factory=lambda: ScriptedTokenizer(
            TOKENS, special=(START, END), end_ids=(END,), chat_template=TEMPLATE
        )
    )

    def load_engine(self, config: EngineConfig, **_: Any) -> TextEngine:
        self.configs.append(config)
        drafter = {
            "none": NoDrafter, "ngram": NgramDrafter, "prediction": PredictionDrafter
        }.get(config.speculation.drafter, SuffixDrafter)  # fmt: skip
        model = ScriptedModel(
            self.logits,
            vocab_size=len(TOKENS),
            context_size=self.context_size,
            max_sessions=config.num_places,
        )
        prefixes = PrefixPool(model, most_sequences=config.kept_sequences)
        return TextEngine(
            Engine(
                target=model,
                drafter=drafter(),
                controller=FixedController(8),
                prefixes=prefixes,
            ),
            self.tokenizer,
            facts=Facts(
                exactness={"level": "bit-identical", "checked_widths": [1, 2]},
                models={"target": {"path": "scripted"}, "draft": None},
                notices=self.notices,
                speculation_on=True,
                speculation_reason="fixed",
            ),
        )

    def script(self, turn: int) -> list[int]:
        if turn not in self.scripts:
            ids = self.tokenizer.encode(reply_text(turn), parse_special=False)
            self.scripts[turn] = [*ids, END]
        return self.scripts[turn]

    def logits(self, prefix: tuple[int, ...]) -> FloatArray:
        row = np.zeros(len(TOKENS), dtype=np.float32)
        header = len("assistant\n")
        start = len(prefix) - prefix[::-1].index(START) + header if START in prefix else 0
        turn = 1 + prefix.count(END) // 2
        script = self.script(turn)
        index = len(prefix) - start
        if self.warning and index == 5:
            logging.getLogger("pilotfish").warning(self.warning)
        if self.interrupt_after is not None and index >= self.interrupt_after:
            self.interrupt_after = None
            raise KeyboardInterrupt
        if self.failure_after is not None and index >= self.failure_after:
            raise BackendError("the pass failed", hint="try again")
        row[script[index] if 0 <= index < len(script) else END] = 50.0
        return row


@dataclass(frozen=True)
class Outcome:
    """What one run of the program left."""

    code: int
    out: str
    err: str

    def is_one_error(self, *words: str, code: int = 2) -> None:
        """Assert an error in two lines, with these words in the first, and nothing on stdout."""
        lines = self.err.splitlines()
        assert self.code == code
        assert self.out == ""
        assert len(lines) == 2
        assert lines[0].startswith("error: ")
        assert lines[1].startswith("hint: ")
        for word in words:
            assert word in lines[0]


Run = Callable[..., Outcome]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ScriptedProgram:
    """Return the scripted program; every load goes to it."""
    scripted = ScriptedProgram()
    monkeypatch.setattr(build, "load_engine", scripted.load_engine)
    return scripted


@pytest.fixture
def run(
    program: ScriptedProgram, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Return a function that runs the command line with arguments and stdin."""
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", "")):
        monkeypatch.setenv(name, value)

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        arguments_list: Sequence[str] = arguments
        capfd.readouterr()
        code = main(arguments_list)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
