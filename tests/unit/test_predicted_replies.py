"""Predictions from Python: text and token ids, what they count as, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.accounting.decisions import speculation_dict
from pilotfish.config import Request
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.errors import ConfigError, PilotfishError, PromptError
from pilotfish.generation import TextEngine
from pilotfish.types import DraftWish
from support.text_engines import START, reply_logits, text_engine, tokenizer

PROMPT = "go"
TEXT = "def total(total): return total\n"
CONTROL = "<|start|>"


def engine_that_says(text: str, *, num_drafts: int = 8, **model: Any) -> TextEngine:
    words = tokenizer(b"total")
    ids = words.encode(text, parse_special=False)
    logits = reply_logits(ids, vocab_size=words.vocab_size, num_prompt_tokens=len(PROMPT))
    return text_engine(
        logits, words=words, drafter=PredictionDrafter(), num_drafts=num_drafts, **model
    )


def test_text_and_its_token_ids_predict_alike() -> None:
    engine = engine_that_says(TEXT)
    plain = engine.generate(PROMPT, raw=True)
    by_text = engine.generate(PROMPT, raw=True, prediction=TEXT)
    by_ids = engine.generate(PROMPT, raw=True, prediction=plain.token_ids)
    assert plain.text == by_text.text == by_ids.text == TEXT
    assert by_text.usage == by_ids.usage
    assert by_text.stats.rounds == by_ids.stats.rounds < plain.stats.rounds / 3


def test_the_drafts_of_a_prediction_are_counted_as_accepted_and_rejected() -> None:
    engine = engine_that_says(TEXT)
    plain, reply = (engine.generate(PROMPT, raw=True, prediction=p) for p in (None, TEXT))
    assert (plain.usage.accepted_prediction_tokens, plain.usage.rejected_prediction_tokens) == (
        0,
        0,
    )
    drafted = reply.stats.by_drafter["prediction"]
    assert reply.usage.accepted_prediction_tokens == drafted.accepted > 10
    assert reply.usage.rejected_prediction_tokens == drafted.drafted - drafted.accepted
    assert sum(token.origin == "prediction" for token in reply.tokens) == drafted.accepted
    details = reply.to_dict()["usage"]["completion_tokens_details"]
    assert details == {
        "accepted_prediction_tokens": drafted.accepted,
        "rejected_prediction_tokens": drafted.drafted - drafted.accepted,
    }
    assert reply.usage.completion_tokens == plain.usage.completion_tokens
    wrong = engine.generate(PROMPT, raw=True, prediction="xyz" * 20).usage
    assert wrong.accepted_prediction_tokens == 0 < wrong.rejected_prediction_tokens


def test_the_text_of_a_control_token_is_ordinary_text() -> None:
    engine = engine_that_says(f"a{CONTROL}b{CONTROL}c")
    request = engine.tokenized(Request(prediction=CONTROL))
    assert request.prediction is not None
    assert START not in request.wish.prediction
    reply = engine.generate(PROMPT, raw=True, prediction=f"a{CONTROL}b{CONTROL}c")
    assert reply.text == f"a{CONTROL}b{CONTROL}c"
    assert reply.usage.accepted_prediction_tokens > len(CONTROL)


def test_no_more_of_it_is_kept_than_the_context_holds() -> None:
    engine = engine_that_says(TEXT, context_size=64)
    reply = engine.generate(PROMPT, raw=True, prediction=TEXT + "x" * 100_000)
    assert reply.text == TEXT
    assert len(engine.tokenized(Request(prediction="x" * 100_000)).wish.prediction) == 64


def test_no_prediction_and_an_empty_one_change_nothing() -> None:
    engine = engine_that_says(TEXT)
    for nothing in (None, "", [], ()):
        assert engine.generate(PROMPT, raw=True, prediction=nothing).stats.drafted == 0
    assert Request().wish == DraftWish()


def test_several_replies_share_a_prediction() -> None:
    engine = engine_that_says(TEXT, max_sessions=2)
    replies = engine.generate_batch([PROMPT, PROMPT], raw=True, prediction=TEXT)
    assert [reply.text for reply in replies] == [TEXT, TEXT]
    assert all(reply.usage.accepted_prediction_tokens > 10 for reply in replies)


@pytest.mark.parametrize(
    ("prediction", "error", "words"),
    [
        (3, ConfigError, "prediction must be text or a list of token ids"),
        ({"type": "content"}, ConfigError, "prediction must be text or a list of token ids"),
        (["a"], ConfigError, "prediction must be text or a list of token ids"),
        ([1.5], ConfigError, "prediction must be text or a list of token ids"),
        ([True], ConfigError, "prediction must be text or a list of token ids"),
        ([5, 99_999], PromptError, "prediction: token id 99999 is outside the vocabulary"),
        ([-1], PromptError, "prediction: token id -1 is outside the vocabulary"),
        ("a\ud800", PromptError, "the prediction is not valid text: lone surrogate U\\+D800"),
    ],
)
def test_what_is_no_prediction_is_refused_before_a_place_is_taken(
    prediction: Any, error: type[PilotfishError], words: str
) -> None:
    engine = engine_that_says(TEXT)
    with pytest.raises(error, match=words):
        engine.generate(PROMPT, raw=True, prediction=prediction)
    assert engine.generate(PROMPT, raw=True).text == TEXT


def test_who_asks_for_drafts_of_a_prediction_must_give_one() -> None:
    with pytest.raises(ConfigError, match="drafter is prediction, and there is no prediction"):
        Request(drafter="prediction")
    assert Request(drafter="prediction", prediction="").wish == DraftWish(drafter="prediction")


def test_a_prediction_that_nobody_drafts_from_is_told() -> None:
    wish = DraftWish(prediction=(1, 2))
    for drafters, told in ((("suffix",), True), (("prediction", "suffix"), False), ((), False)):
        reason = speculation_dict([], on=True, reason="fixed", drafters=drafters, wish=wish)[
            "reason"
        ]
        assert reason == "fixed" + "; the engine drafts from no predictions" * told
