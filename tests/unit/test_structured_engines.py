"""Replies by a JSON schema from engines put together as a loaded pair's are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pilotfish.backends.scripted import random_logits
from pilotfish.bench.runner import Mode
from pilotfish.config import DRAFTERS, Request
from pilotfish.errors import ConfigError, PilotfishError
from pilotfish.generation import TextEngine
from support.scripted_pair import VOCAB, ScriptedPair

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}
OPTIONS: dict[str, Any] = {"raw": True, "json_schema": SCHEMA, "seed": 1}


def engine_of(drafter: str, num_drafts: int | None) -> TextEngine:
    return ScriptedPair(logits=random_logits(VOCAB, seed=3)).engine(Mode(drafter, num_drafts))


@pytest.mark.parametrize("num_drafts", [None, 6])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_forced_text_is_drafted_by_every_engine_that_drafts_for_every_request_that_may(
    drafter: str, num_drafts: int | None
) -> None:
    with engine_of(drafter, num_drafts) as engine:
        plain = engine.generate("a", **OPTIONS, drafter="none")
        assert json.loads(plain.text).keys() == {"colour", "sure"}
        assert plain.stats.drafted == 0
        for asked in ("auto", "suffix", "ngram", "model"):
            reply = engine.generate("a", **OPTIONS, drafter=asked)
            assert reply.token_ids == plain.token_ids
            forced = reply.stats.by_drafter.get("forced")
            assert (forced is None) == (drafter == "none")
            if forced is not None:
                assert forced.accepted == forced.drafted > 0
        free = engine.generate("a", raw=True, max_tokens=20)
        assert "forced" not in free.stats.by_drafter


def test_the_controller_says_that_the_grammar_left_no_choice() -> None:
    with engine_of("auto", None) as engine:
        reply = engine.generate("a", **OPTIONS)
        decisions = reply.stats.speculation["decisions"]
        forced = reply.stats.by_drafter["forced"]
        assert decisions["the grammar leaves no choice of text"] == forced.rounds


def test_requests_with_and_without_a_schema_run_together() -> None:
    with engine_of("auto", None) as engine:
        requests = [Request.from_options({**OPTIONS, "json_schema": s}) for s in (None, SCHEMA)]
        alone = [
            engine.generate("a", **{**OPTIONS, "json_schema": s, "max_tokens": 60})
            for s in (None, SCHEMA)
        ]
        running = []
        for request in requests:
            prompt = engine.prompt_ids("a", request)
            one = engine.open(prompt, request, engine.prepare_grammar(request))
            while not engine.engine.read(one.session):
                pass
            running.append(one.session)
        engine.engine.run_together(running)
        for session, reply in zip(running, alone, strict=True):
            assert session.output_ids[:60] == reply.token_ids


def test_a_schema_that_cannot_be_used_is_refused_before_anything_is_opened() -> None:
    with engine_of("auto", None) as engine:
        request = Request(json_schema={"not": {}}, raw=True)
        for refused in (
            lambda: engine.prepare_grammar(request),
            lambda: engine.generate("a", raw=True, json_schema={"not": {}}),
        ):
            with pytest.raises(ConfigError, match="not is not enforced"):
                refused()
        with pytest.raises(PilotfishError, match="no grammar"):
            engine.open([97], request)
        assert engine.engine.target.open_caches == set()  # type: ignore[attr-defined]
        engine.prepare_grammar(Request())
