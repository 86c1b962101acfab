"""Who can draft, and what is missing, is told wherever the server is asked."""

from __future__ import annotations

import pytest

from pilotfish.generation import Facts
from support.api import CHAT, COMPLETION, ask, chat, parrot_engine, served

BODIES = {CHAT: chat("hi"), COMPLETION: {"prompt": "ab|"}}


@pytest.mark.parametrize("path", BODIES)
def test_a_drafter_that_is_not_loaded_is_refused_and_those_that_are_named(path: str) -> None:
    engine = parrot_engine()
    engine.facts = Facts(speculation_on=True, drafters=("suffix",))
    with served(engine) as app:
        answers = {
            name: ask(app, "POST", path, json=BODIES[path] | {"speculation": {"drafter": name}})
            for name in ("auto", "none", "suffix", "ngram", "model")
        }
        models = ask(app, "GET", "/v1/models").json()["data"][0]
    assert [answer.status_code for answer in answers.values()] == [200, 200, 200, 400, 400]
    error = answers["ngram"].json()["error"]
    assert error["param"] == "speculation.drafter"
    assert "drafter ngram is not loaded: there is suffix" in error["message"]
    assert models["speculation"]["drafters"] == ["suffix"]
