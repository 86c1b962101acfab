"""Predicted replies, right and wrong: the same text with any of them, long drafts where the
prediction is followed, and next to nothing lost where it is not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pilotfish import build
from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.backends.scripted import FakeClock, ScriptedCosts, ScriptedModel, random_logits
from pilotfish.config import SpeculationConfig
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.reasons import PREDICTION_PAYS, TEXT_PAYS
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.types import DraftWish, FloatArray, Proposal, SessionView
from support.controlled import CURVES, controlled, plain_reply, progress
from support.drafters import FunctionDrafter
from support.engines import SETTINGS, VOCAB, finish, scripted_engine
from support.json_words import SCHEMA, json_tokenizer
from support.text_engines import END, text_engine, tokenizer

# rows that cost next to nothing: whatever is offered is tried
CHEAP = PairCosts(target=CostCurve.flat(1.0, row_seconds=1e-4), overhead_seconds=1e-3)
PROMPT = (1, 2, 3, 1, 2)
ENDS = frozenset({0})

# what a client may expect, made from what the reply will be
PREDICTIONS: dict[str, Callable[[Sequence[int]], Sequence[int]]] = {
    "right": lambda reply: reply,
    "changed": lambda reply: [*reply[:9], 5, 5, *reply[12:30], *reply[36:]],
    "wrong": lambda reply: [(token + 1) % VOCAB for token in reply],
    "shuffled": lambda reply: np.random.default_rng(2).permutation(reply).tolist(),
    "empty": lambda reply: (),
    "enormous": lambda reply: [*np.random.default_rng(3).integers(0, VOCAB, 20_000), *reply],
    "one token": lambda reply: [3] * 5_000,
    "full of ends": lambda reply: [token for one in reply for token in (one, 0)],
    "no tokens of ours": lambda reply: [VOCAB + 7, *reply[:5], 1 << 40, *reply[5:]],
}


@functools.cache
def references(settings: str, end_ids: frozenset[int]) -> list[list[int]]:
    options = {"settings": SETTINGS[settings], "end_ids": end_ids, "max_tokens": 60}
    return [
        finish(scripted_engine(), PROMPT, seed=seed, **options).output_ids for seed in (7, 8, 9)
    ]


def engine_of(controller: str, *, rule: str = "match", drafter: str = "auto") -> Engine:
    speculation = SpeculationConfig(
        controller=controller, drafter=drafter, num_speculative_tokens=8, verify=rule
    )
    clock = FakeClock()
    target = ScriptedModel(
        random_logits(VOCAB, seed=0),
        vocab_size=VOCAB,
        clock=clock,
        costs=ScriptedCosts(cost_of=CHEAP.target.at),
    )
    parts = build.make_parts(target, None, speculation, backend="native", costs=lambda: CHEAP)
    return Engine(
        target=target, drafter=parts[0], controller=parts[1], verify_rule=rule, clock=clock
    )


def predicted(kind: str, reply: Sequence[int]) -> DraftWish:
    return DraftWish(prediction=tuple(int(token) for token in PREDICTIONS[kind](reply)))


def sources(session: Session) -> set[str]:
    return {record.source for record in session.records if record.num_drafted}


@pytest.mark.parametrize("kind", PREDICTIONS)
@pytest.mark.parametrize("settings", list(SETTINGS))
@pytest.mark.parametrize("controller", ["auto", "fixed"])
def test_the_text_is_the_same_with_any_prediction(
    controller: str, settings: str, kind: str
) -> None:
    options = {"settings": SETTINGS[settings], "end_ids": ENDS, "max_tokens": 60}
    # the token rule gives the same tokens where there is one choice, the same law elsewhere
    for rule in ("match", "token") if settings == "greedy" else ("match",):
        engine = engine_of(controller, rule=rule)
        for seed, reply in zip((7, 8, 9), references(settings, ENDS), strict=True):
            session = finish(engine, PROMPT, seed=seed, wish=predicted(kind, reply), **options)
            assert session.output_ids == reply
            # a token that the model does not have takes the drafts, and nothing else
            assert (session.drafting_error is None) or kind == "no tokens of ours"
            if kind == "right" and len(reply) > 1:
                assert "prediction" in sources(session)


@pytest.mark.parametrize("settings", list(SETTINGS))
@pytest.mark.parametrize("controller", ["auto", "fixed"])
def test_sessions_with_predictions_of_all_kinds_leave_each_other_alone(
    controller: str, settings: str
) -> None:
    options = {"settings": SETTINGS[settings], "max_tokens": 60}
    reply = references(settings, frozenset())[0]
    wishes = [predicted(kind, reply) for kind in PREDICTIONS]
    engine = engine_of(controller)
    sessions = [engine.start(PROMPT, seed=7, wish=wish, **options) for wish in wishes]
    engine.run_together(sessions)
    assert [session.output_ids for session in sessions] == [reply] * len(wishes)
    right, nothing = sessions[0], sessions[list(PREDICTIONS).index("empty")]
    assert "prediction" in sources(right)
    assert "prediction" not in sources(nothing)
    assert len(right.records) < len(nothing.records)


@pytest.mark.parametrize("controller", ["auto", "fixed"])
def test_a_request_has_only_the_drafts_it_asks_for(controller: str) -> None:
    reply = references("greedy", frozenset())[0]
    for drafter, allowed in (
        ("none", set()),
        ("suffix", {"suffix"}),
        ("prediction", {"prediction"}),
    ):
        wish = DraftWish(drafter=drafter, prediction=tuple(reply))
        session = finish(engine_of(controller), PROMPT, max_tokens=60, wish=wish)
        assert session.output_ids == reply
        assert sources(session) == allowed
    wish = DraftWish(prediction=tuple(reply))
    for drafter, allowed in (("suffix", {"suffix"}), ("prediction", {"prediction"})):
        engine = engine_of(controller, drafter=drafter)
        assert sources(finish(engine, PROMPT, max_tokens=60, wish=wish)) == allowed
    # and what it may not have says so
    wish = DraftWish(num_speculative_tokens=2, prediction=tuple(reply))
    session = finish(engine_of(controller), PROMPT, max_tokens=60, wish=wish)
    assert max(record.num_drafted for record in session.records) == 2


def test_a_stop_text_inside_a_predicted_block_ends_the_reply_there() -> None:
    words, text = tokenizer(), "one two three four"
    for number in range(1, 20):
        for stop in ("o t", "thr", "e f", "r"):
            logits = reply_of(text)
            plain = text_engine(logits, words=words).generate("go", raw=True, stop=stop)
            drafted = text_engine(
                logits, words=words, drafter=PredictionDrafter(), num_drafts=number
            ).generate("go", raw=True, stop=stop, prediction=text + " five")
            assert drafted.text == plain.text == text[: text.index(stop)]
            assert drafted.token_ids == plain.token_ids
            assert drafted.usage.accepted_prediction_tokens <= drafted.usage.completion_tokens


def reply_of(text: str):  # type: ignore[no-untyped-def]
    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        row = np.zeros(258, dtype=np.float32)
        index = len(prefix) - len("go")
        row[text.encode()[index] if 0 <= index < len(text) else END] = 9.0
        return row

    return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_kept_with_any_prediction(temperature: float) -> None:
    words = json_tokenizer()
    logits = random_logits(words.vocab_size, seed=4, memory=3)
    options = {"raw": True, "json_schema": SCHEMA, "max_tokens": 80, "temperature": temperature}
    texts = ['{"a":12,"b":"blue"}', '{"a": 345, "b": "red"}', "abba", "]]]", ""]
    plain = text_engine(logits, words=words)
    drafted = text_engine(logits, words=words, drafter=PredictionDrafter())
    num_accepted = 0
    for seed in range(6):
        reference = plain.generate("a", seed=seed, **options)
        for prediction in (*texts, reference.text):
            reply = drafted.generate("a", seed=seed, prediction=prediction, **options)
            assert reply.token_ids == reference.token_ids
            num_accepted += reply.usage.accepted_prediction_tokens
    assert num_accepted > 0


# --- what it is worth


def edited(reply: Sequence[int], gap: int) -> tuple[int, ...]:
    """Return a prediction that every `gap` tokens has one of its own."""
    return tuple((one + 1) % 32 if i % gap == gap - 1 else one for i, one in enumerate(reply))


@pytest.mark.parametrize("curve", CURVES)
def test_a_prediction_that_is_followed_is_worth_long_drafts(curve: str) -> None:
    reply = plain_reply(300)
    pair = controlled(
        curve=CURVES[curve], prediction=PredictionDrafter(), num_speculative_tokens=31
    )
    session = pair.reply(max_tokens=300, wish=DraftWish(prediction=tuple(reply)))
    assert session.output_ids == reply
    longest = max(record.num_drafted for record in session.records)
    _, seconds = progress(session)[-1]
    # 15 drafts fill four groups of rows
    assert longest >= {"flat": 31, "staircase": 15, "linear": 8}[curve]
    assert seconds <= 300 / {"flat": 15, "staircase": 4, "linear": 3}[curve]
    drafted = [record for record in session.records if record.num_drafted]
    assert {record.reason for record in drafted} == {PREDICTION_PAYS}
    assert {token.origin for token in session.emitted} == {"prediction", "target"}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("kind", ["wrong", "shuffled", "seldom right", "right at first"])
def test_a_wrong_prediction_costs_no_more_than_the_guard_allows(curve: str, kind: str) -> None:
    reply = plain_reply(400)
    prediction = {
        "wrong": [(token + 1) % 32 for token in reply],
        "shuffled": np.random.default_rng(1).permutation(reply).tolist(),
        "seldom right": edited(reply, 2),
        "right at first": [*reply[:100], *reply[:300]],
    }[kind]
    pair = controlled(
        curve=CURVES[curve], prediction=PredictionDrafter(), num_speculative_tokens=31
    )
    for _ in range(3):  # what one request taught does not cost the next
        session = pair.reply(max_tokens=400, wish=DraftWish(prediction=tuple(prediction)))
        assert session.output_ids == reply
        for num_tokens, seconds in progress(session):
            assert seconds <= 1.02 * num_tokens + 6 + 1e-6


def test_the_better_of_two_offers_is_taken() -> None:
    """A prediction that keeps being wrong leaves the text its drafts, and the other way round."""
    reply = plain_reply(300)
    start = 3

    def knows(view: SessionView, budget: int) -> list[int]:
        return reply[len(view.tokens) - start :][:budget]

    def errs(view: SessionView, budget: int) -> list[int]:
        return [(token + 1) % 32 for token in knows(view, budget)]

    curve = CURVES["staircase"]
    wrong = DraftWish(prediction=tuple((token + 1) % 32 for token in reply))
    right = DraftWish(prediction=tuple(reply))
    for text, wish, expected in ((knows, wrong, TEXT_PAYS), (errs, right, PREDICTION_PAYS)):
        pair = controlled(
            curve=curve,
            text=FunctionDrafter(text, "suffix"),
            prediction=PredictionDrafter(min_probability=0.0),
        )
        session = pair.reply(max_tokens=300, wish=wish)
        assert session.output_ids == reply
        _, seconds = progress(session)[-1]
        assert seconds <= 300 / 3
        late = [record.reason for record in session.records[20:] if record.num_drafted]
        assert set(late) == {expected}


class Copying(FunctionDrafter):
    """Copies a text that the reply follows, and is as sure of the places where it does not."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(lambda view, budget: text[len(view.tokens) - 3 :][:budget], "suffix")

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        return [
            replace(proposal, probabilities=(0.99,) * len(proposal.token_ids))
            for proposal in super().propose(views, budgets)
        ]


def test_a_copy_that_knows_of_no_change_does_not_displace_a_prediction_that_does() -> None:
    old, new = 7, 20
    text = [one for one in plain_reply(500) if one != new]
    changed = [new if one == old else one for one in text]
    curve = CURVES["staircase"]

    def logits(prefix: tuple[int, ...]) -> FloatArray:
        row = np.zeros(32, dtype=np.float32)
        row[changed[min(len(prefix) - 3, len(changed) - 1)]] = 9.0
        return row

    def seconds(copies: Copying | None) -> float:
        clock, costs = FakeClock(), ScriptedCosts(cost_of=curve.at)
        target = ScriptedModel(logits, vocab_size=32, clock=clock, costs=costs)
        controller = CostAwareController(
            PairCosts(target=curve), text=copies, prediction=PredictionDrafter()
        )
        engine = Engine(target=target, drafter=controller, controller=controller, clock=clock)
        wish = DraftWish(prediction=tuple(text))
        session = finish(engine, max_tokens=len(changed), wish=wish)
        assert session.output_ids == changed
        return progress(session)[-1][1]

    assert seconds(Copying(text)) <= 1.02 * seconds(None)


def test_requests_without_a_prediction_learn_nothing_from_those_with_one() -> None:
    one = controlled(curve=CURVES["staircase"], prediction=PredictionDrafter())
    before = one.controller._experience.averages.tokens.value(0.0)
    for _ in range(3):
        one.reply(max_tokens=100, wish=DraftWish(prediction=tuple(plain_reply(100))))
    assert one.controller._experience.averages.tokens.value(0.0) == before
    assert len(one.controller._experiences) == 2, "one for all predictions, whatever they say"
