"""`suffix` of a completion: the gap between two texts is filled by the model's own marks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from support.api import COMPLETION, ask, parrot_engine, post, said, served, tokenizer

# the parrot repeats what a prompt says before "|"
BEFORE, AFTER, FILL = 1, 2, 3


@pytest.fixture(scope="module")
def app() -> Iterator[FastAPI]:
    words = tokenizer()
    words.fill_ids = (BEFORE, AFTER, FILL)
    with served(parrot_engine(words=words)) as app:
        yield app


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]])
def test_the_model_sees_both_texts_between_its_marks(app: FastAPI, prompt: object) -> None:
    document = post(app, COMPLETION, prompt=prompt, suffix="c|", temperature=0)
    assert document["usage"]["prompt_tokens"] == len([BEFORE, *b"ab", AFTER, *b"c|", FILL])
    # the last mark counts as the first token it has said
    assert said(document) == bytes([*b"ab", AFTER, *b"c"]).decode()
    # a control text in code stays text
    document = post(app, COMPLETION, prompt=prompt, suffix="<|end|>", temperature=0)
    assert document["usage"]["prompt_tokens"] == 3 + len("ab<|end|>")


def test_an_empty_suffix_asks_for_nothing(app: FastAPI) -> None:
    for suffix in ("", None):
        assert said(post(app, COMPLETION, prompt="ab|", suffix=suffix, temperature=0)) == "ab"


def test_a_model_without_marks_says_so() -> None:
    with served() as app:
        answer = ask(app, "POST", COMPLETION, json={"prompt": "a", "suffix": "b"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "suffix")
    assert "mark a gap" in error["message"]
