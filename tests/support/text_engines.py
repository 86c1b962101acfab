"""Text engines on scripted parts: a byte tokenizer with a chat format, and a scripted reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pilotfish.backends.scripted import LogitsFunction, ScriptedModel, ScriptedTokenizer
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.engine import Engine
from pilotfish.generation import TextEngine
from pilotfish.types import FloatArray

START, END = 256, 257
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant\n"
)


def tokenizer(*extra: bytes) -> ScriptedTokenizer:
    """Return a tokenizer of all bytes, two control tokens, and `extra` longer tokens."""
    pieces = [*(bytes([i]) for i in range(256)), b"<|start|>", b"<|end|>", *extra]
    return ScriptedTokenizer(pieces, special=(START, END), end_ids=(END,), chat_template=TEMPLATE)


def reply_logits(
    reply: Sequence[int], *, vocab_size: int, num_prompt_tokens: int
) -> LogitsFunction:
    """Return logits whose greedy text after any prompt of that length is `reply`, then the end.

    The row depends on what came before, too, so that a skipped or repeated token shows.
    """

    def logits(prefix: tuple[int, ...]) -> FloatArray:
        index = len(prefix) - num_prompt_tokens
        row = np.random.default_rng([len(prefix), prefix[-1]]).standard_normal(vocab_size)
        in_step = index < 0 or tuple(reply[:index]) == prefix[num_prompt_tokens:]
        if in_step and index >= 0:
            row[reply[index] if index < len(reply) else END] += 20.0
        return row.astype(np.float32)

    return logits


def text_engine(
    logits: LogitsFunction,
    *,
    words: ScriptedTokenizer,
    drafter: Any = None,
    num_drafts: int = 4,
    **model: Any,
) -> TextEngine:
    """Return a text engine whose model answers with `logits`."""
    target = ScriptedModel(logits, vocab_size=words.vocab_size, **model)
    engine = Engine(
        target=target, drafter=drafter or NoDrafter(), controller=FixedController(num_drafts)
    )
    return TextEngine(engine, words)
