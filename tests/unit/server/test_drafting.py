"""Who can draft, and what is missing, is told wherever the server is asked."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

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


class Breaks:
    """A drafter that never has an idea."""

    def prepare(self, view: Any) -> bool:
        return False

    def propose(self, views: Any, budgets: Any) -> Any:
        raise RuntimeError("out of ideas")

    def forget(self, request_id: int) -> None:
        pass


def metrics(app: FastAPI) -> dict[str, float]:
    lines = ask(app, "GET", "/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line[0] != "#"]
    return {name.removeprefix("pilotfish_"): float(value) for name, value in pairs}


def test_drafts_that_are_lost_show_in_reply_health_models_and_metrics() -> None:
    engine = parrot_engine(drafter=Breaks())
    engine.facts = Facts(
        speculation_on=True, speculation_reason="fixed", drafters=("suffix",), lost="no draft model"
    )
    with served(engine) as app:
        before = metrics(app)
        body = chat("hi there", n=2, speculation={"report": True})
        figures = ask(app, "POST", CHAT, json=body).json()["speculation"]
        after = metrics(app)
        described = [
            ask(app, "GET", "/health").json(),
            ask(app, "GET", "/v1/models").json()["data"][0],
        ]
    told = figures["speculation"]
    assert told["failures"] == {"out of ideas": figures["rounds"]}
    assert told["reason"] == "the drafter failed: out of ideas"
    assert before["failed_draft_rounds_total"] == 0
    assert after["failed_draft_rounds_total"] == figures["rounds"] > 0
    assert after['loaded_drafter{drafter="suffix"}'] == 1
    assert after['loaded_drafter{drafter="model"}'] == 0
    for document in described:
        assert document["notices"] == ["a drafter failed: out of ideas"]
        assert document["speculation"]["reason"] == "fixed; no draft model"
