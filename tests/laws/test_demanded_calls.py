"""Calls that a grammar demands: the same text, and calls of known functions, whatever drafts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.config import Request
from pilotfish.drafters.forced import ForcedDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.generation import Reply
from pilotfish.protocols import Drafter
from pilotfish.server.tagged_calls import TaggedCallReader
from pilotfish.server.tools import call_tag, whole_calls
from pilotfish.types import FloatArray, StructuralTags
from support.drafters import FunctionDrafter, random_tokens
from support.text_engines import END, text_engine, tokenizer

# most of the fixed text can be cut in several ways
WORDS = tokenizer(b"<tool", b"<tool_call>", b'{"name": "', b'", "arg', b"uments", b"}\n</", b'":')
VOCAB = WORDS.vocab_size
SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "wait": {"type": "object", "properties": {}, "additionalProperties": False},
}
ONE = StructuralTags(tuple(call_tag(name, SCHEMAS[name]) for name in SCHEMAS))
SOME = StructuralTags(ONE.tags, separator="\n")
OR_TEXT = StructuralTags(ONE.tags, separator="\n", otherwise={"enum": ["yes", "no"]})
_ANYTHING = random_logits(VOCAB, seed=8, memory=2)


@functools.cache
def _row(recent: tuple[int, ...]) -> FloatArray:
    row = np.asarray(_ANYTHING(recent)).copy()
    row[END] += 4.0
    # numbers end
    row[ord("}")] += 6.0
    return row


def target(prefix: tuple[int, ...]) -> FloatArray:
    return _row(prefix[-2:])


def self_drafter() -> Drafter:
    draft = ScriptedModel(target, vocab_size=VOCAB)
    return ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0)


DRAFTS: dict[str, Callable[[], Drafter]] = {
    "plain": NoDrafter,
    "self": self_drafter,
    "never": lambda: FunctionDrafter(lambda view, budget: [ord("#")] * budget),
    "random": lambda: random_tokens(VOCAB),
    "forced": lambda: ForcedDrafter(NoDrafter()),
    "forced or self": lambda: ForcedDrafter(self_drafter()),
}


def reply(draft: str, number: int, tags: StructuralTags, run: int) -> Reply:
    engine = text_engine(target, words=WORDS, drafter=DRAFTS[draft](), num_drafts=number)
    options: dict[str, Any] = {"raw": True, "max_tokens": 150, "seed": run}
    return engine.generate(chr(97 + run), **options, json_schema=tags, temperature=float(run % 2))


@functools.cache
def plain_ids(tags: int, run: int) -> list[int]:
    return reply("plain", 0, (ONE, SOME, OR_TEXT)[tags], run).token_ids


@pytest.mark.parametrize("number", [1, 16])
@pytest.mark.parametrize("draft", [draft for draft in DRAFTS if draft != "plain"])
@pytest.mark.parametrize("tags", range(3))
def test_calls_are_those_of_plain_decoding(tags: int, draft: str, number: int) -> None:
    num_accepted = 0
    for run in range(4):
        found = reply(draft, number, (ONE, SOME, OR_TEXT)[tags], run)
        assert found.token_ids == plain_ids(tags, run)
        num_accepted += found.stats.accepted
    assert draft == "random" or (num_accepted > 0) == (draft != "never")
    if draft == "forced":
        # the frame and the end of a name cost next to nothing
        forced = found.stats.by_drafter["forced"]
        assert forced.drafted >= forced.accepted > 0


@pytest.mark.parametrize("tags", range(3))
def test_a_reply_that_ends_is_calls_of_known_functions_and_nothing_else(tags: int) -> None:
    num_ended = 0
    for run in range(12):
        found = reply("forced", 8, (ONE, SOME, OR_TEXT)[tags], run)
        if found.finish_reason != "stop":
            continue
        num_ended += 1
        if found.text in ('"yes"', '"no"'):
            assert tags == 2
            continue
        reader = TaggedCallReader()
        calls = whole_calls(reader.feed(found.text))
        written = [call_tag(call.name, {}) for call in calls]
        assert found.text == "\n".join(
            tag.begin + call.arguments + tag.end for tag, call in zip(written, calls, strict=True)
        )
        assert len(calls) == 1 or tags > 0
        for call in calls:
            arguments = json.loads(call.arguments)
            properties = SCHEMAS[call.name]["properties"]
            assert arguments.keys() <= properties.keys()
            assert set(SCHEMAS[call.name].get("required", ())) <= arguments.keys()
            assert arguments.get("city", "Rome") in ("Rome", "Oslo")
    assert num_ended > 8


def test_requests_take_tags_in_place_of_a_schema() -> None:
    assert Request(json_schema=ONE).json_schema is ONE
