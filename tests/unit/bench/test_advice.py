"""Advice: what is chosen, what would change it, how other engines call it, and why."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pilotfish.accounting.cost_curve import CostCurve, PairCosts
from pilotfish.bench import flags
from pilotfish.bench.advice import (
    CEILINGS,
    Advice,
    acceptance,
    advise,
    best_drafter,
    better_drafts,
    draft_model_advice,
    last_that_holds,
    oracle_speedup,
    smallest_good,
)
from pilotfish.bench.findings import speedup_text
from pilotfish.bench.flags import Draftable, engine_flags
from pilotfish.bench.prediction import PredictedReply, Prediction, Predictor
from pilotfish.bench.reasons import headline, many_sessions, reasons
from pilotfish.bench.recording import Recording
from pilotfish.bench.runner import Mode
from support.scripted_pair import STAIRCASE, WIDEST

DRAFT = CostCurve.flat(0.12, row_seconds=0.004, widest=WIDEST)


def predicted(mode: str, *ratios: float, reading: float = 0.0) -> Prediction:
    """Return a prediction of these speedups, one a reply; `reading` is the draft model's."""
    replies = tuple(
        PredictedReply(
            category="chat" if index % 2 else "story",
            num_tokens=100,
            plain_seconds=100.0,
            seconds=100.0 / ratio,
            plain_total_seconds=110.0,
            total_seconds=100.0 / ratio + 10.0 + reading,
            num_rounds=50,
            num_drafted=80,
            num_accepted=50,
        )
        for index, ratio in enumerate(ratios)
    )
    return Prediction(mode=mode, replies=replies)


def recordings(*, right: float = 0.9, repeats: bool = True, number: int = 4) -> list[Recording]:
    """Return replies of 60 tokens, with a draft model that is right so often, and knows where."""
    found = []
    for seed in range(number):
        generator = np.random.default_rng(seed)
        alphabet = 12 if repeats else 10**9
        reply = generator.integers(10, alphabet + 10, 60).tolist()
        if repeats:
            reply = reply[:15] * 4
        is_right = generator.random(60) < right
        found.append(
            Recording(
                id=f"reply {seed}",
                category="chat" if seed % 2 else "story",
                prompt=tuple(generator.integers(10, alphabet + 10, 40).tolist()),
                reply=tuple(reply),
                draft=tuple(t if ok else 5 for t, ok in zip(reply, is_right.tolist(), strict=True)),
                draft_probabilities=tuple(np.where(is_right, 0.93, 0.43).tolist()),
            )
        )
    return found


def predictor(replies: Sequence[Recording], **costs: Any) -> Predictor:
    values: dict[str, Any] = {"target": STAIRCASE, "draft": DRAFT} | costs
    return Predictor(replies, PairCosts(**values), backend="native")


def test_auto_is_chosen_unless_another_is_clearly_faster() -> None:
    auto = predicted("auto", 2.0, 2.0, 2.0, 2.0)
    assert best_drafter({"auto": auto, "suffix": predicted("suffix", 1.9, 1.9, 1.9, 1.9)}) == "auto"
    better = predicted("suffix", 2.3, 2.3, 2.3, 2.3)
    assert best_drafter({"auto": auto, "suffix": better}) == "suffix"
    by_chance = predicted("suffix", 3.5, 1.9, 1.8, 1.9)
    assert best_drafter({"auto": auto, "suffix": by_chance}) == "auto"
    single = {"auto": predicted("auto", 2.0), "suffix": predicted("suffix", 2.3)}
    assert best_drafter(single) == "auto", "one reply is no proof"


def test_whole_requests_decide_not_decoding_alone() -> None:
    slow_start = predicted("auto", 2.0, 2.0, 2.0, 2.0, reading=20.0)
    text = predicted("suffix", 1.9, 1.9, 1.9, 1.9)
    assert best_drafter({"auto": slow_start, "suffix": text}) == "suffix"


def test_nothing_is_advised_where_nothing_saves_a_percent() -> None:
    names = ("auto", "suffix", "model")
    assert best_drafter({name: predicted(name, 1.005, 1.0) for name in names}) == "none"
    assert best_drafter({name: predicted(name, 0.9, 0.8) for name in names}) == "none"


def test_the_smallest_number_within_a_percent_of_the_best_is_taken() -> None:
    assert smallest_good({1: 1.5, 3: 1.99, 7: 2.0, 31: 2.005}) == 3
    assert smallest_good({1: 1.5, 3: 1.97, 7: 2.0}) == 7
    assert smallest_good({4: 1.0}) == 4


@pytest.mark.parametrize("edge", [0.1, 0.35, 0.99])
def test_bisection_finds_where_a_condition_ends(edge: float) -> None:
    found = last_that_holds(lambda value: value <= edge, 0.0, 1.0)
    assert found is not None
    assert found <= edge < found + 1 / 2**6 + 1e-12


def test_bisection_at_its_ends() -> None:
    assert last_that_holds(lambda value: False, 0.0, 1.0) is None
    assert last_that_holds(lambda value: True, 0.0, 1.0) == 1.0


def test_better_drafts_are_right_in_more_places_and_always_the_same() -> None:
    replies = recordings(right=0.6)
    now = acceptance(replies)
    assert 0.5 < now < 0.7
    assert better_drafts(replies, 0.0) == replies
    assert acceptance(better_drafts(replies, 1.0)) == 1.0
    half = better_drafts(replies, 0.5)
    assert half == better_drafts(replies, 0.5)
    assert acceptance(half) == pytest.approx(now + 0.5 * (1 - now), abs=0.08)
    more = better_drafts(replies, 0.8)
    for some, many, before in zip(half, more, replies, strict=True):
        mended = [a != b for a, b in zip(some.draft, before.draft, strict=True)]
        also = [a != b for a, b in zip(many.draft, before.draft, strict=True)]
        assert all(b for a, b in zip(mended, also, strict=True) if a)
        assert some.reply == before.reply
    sure = {p for one in half for p, a, b in zip(
        one.draft_probabilities, one.draft, one.reply, strict=True) if a == b}  # fmt: skip
    assert max(sure) == pytest.approx(0.93)


def test_an_oracle_fills_the_best_pass() -> None:
    replies = recordings()
    flat = PairCosts(target=CostCurve.flat(1.0, widest=WIDEST))
    assert oracle_speedup(replies, flat) == pytest.approx(32.0)
    # four tokens for a step; five to eight for 1.4; ... 32 for 1 + 7 * 0.4
    assert oracle_speedup(replies, PairCosts(target=STAIRCASE)) == pytest.approx(32 / 3.8)
    steep = PairCosts(target=CostCurve.flat(1.0, row_seconds=1.0))
    assert oracle_speedup(replies, steep) == pytest.approx(1.0)
    short = [replace(replies[0], reply=(1, 2, 3), draft=(), draft_probabilities=())]
    assert oracle_speedup(short, flat) == pytest.approx(3.0)


@pytest.mark.parametrize("price", [0.12, 0.9])
def test_the_price_at_which_a_draft_model_pays_is_between_paying_and_not(price: float) -> None:
    found = predictor(
        recordings(repeats=False), draft=CostCurve.flat(price, row_seconds=0.004, widest=WIDEST)
    )
    without = found.predict(Mode("suffix"))
    advice = draft_model_advice(found, without=without)
    assert advice.cost_ratio == pytest.approx(price)
    assert advice.pays == (price < 0.5)
    assert advice.acceptance == pytest.approx(0.9, abs=0.06)
    dearest = advice.would_pay_at_cost_ratio
    assert dearest is not None
    assert (dearest > price) == advice.pays

    def total(factor: float) -> float:
        both = found.predict(Mode("auto"), draft_factor=factor)
        return both.total_speedup().geomean / without.total_speedup().geomean

    assert total(dearest / price) >= 1.01 > total(1.25 * dearest / price)


def test_a_draft_model_that_is_mostly_wrong_would_pay_if_it_were_right() -> None:
    found = predictor(recordings(repeats=False, right=0.1))
    advice = draft_model_advice(found, without=found.predict(Mode("suffix")))
    needed = advice.would_pay_at_acceptance
    assert not advice.pays
    assert needed is not None
    assert advice.acceptance < needed < 1.0
    better = better_drafts(found.recordings, (needed - 0.1) / 0.9 + 0.1)
    gain = found.predict(Mode("auto"), recordings=better).total_speedup().geomean
    assert gain > 1.01


def test_where_a_row_costs_a_step_no_draft_model_pays_at_any_price() -> None:
    found = predictor(
        recordings(repeats=False), target=CostCurve.flat(1.0, row_seconds=1.0, widest=WIDEST)
    )
    advice = draft_model_advice(found, without=found.predict(Mode("suffix")))
    assert not advice.pays
    assert advice.would_pay_at_cost_ratio is None
    assert advice.would_pay_at_acceptance is None


def advised(replies: Sequence[Recording], *, has_draft: bool = True, **costs: Any) -> Advice:
    return advise(predictor(replies, **costs), has_draft=has_draft, draft_name="draft.gguf")


FIELDS = {
    *("drafter", "num_speculative_tokens", "speedup", "total_speedup", "by_category", "modes"),
    *("prediction", "oracle_speedup", "draft_model", "flags", "flag_notes"),
}


def test_advice_is_plain_values_with_the_documented_fields() -> None:
    document = json.loads(json.dumps(advised(recordings()).to_dict(), allow_nan=False))
    assert document.keys() == FIELDS
    assert document["drafter"] in ("auto", "suffix", "model")
    assert document["num_speculative_tokens"] in CEILINGS
    assert document["speedup"].keys() == {"expected", "low", "high"}
    low, expected, high = (document["speedup"][name] for name in ("low", "expected", "high"))
    assert low <= expected <= high <= document["oracle_speedup"]
    assert document["by_category"].keys() == {"chat", "story"}
    assert {"auto", "suffix", "model"} < document["modes"].keys()
    assert document["prediction"].keys() == document["modes"].keys()
    assert document["flags"].keys() == set(flags.ENGINES)
    assert document["draft_model"]["pays"] is True


def test_without_a_draft_model_nothing_is_said_of_one() -> None:
    found = advised(recordings(), has_draft=False, draft=None)
    assert found.draft_model is None
    assert not any(name.startswith("model") for name in found.predictions)
    assert not any("draft model" in sentence for sentence in reasons(found))


def test_text_that_repeats_nothing_is_best_left_alone() -> None:
    found = advised(recordings(repeats=False), has_draft=False, draft=None)
    assert (found.drafter, found.number, found.chosen) == ("none", 0, None)
    document = found.to_dict()
    assert document["speedup"] == {"expected": 1.0, "low": 1.0, "high": 1.0}
    assert document["flags"] == dict.fromkeys(flags.ENGINES, "")
    assert headline(found).startswith("Use --drafter none: ")


def test_the_ceiling_is_no_longer_than_what_pays() -> None:
    replies = recordings(right=0.0)
    cheap = advised(replies, has_draft=False, draft=None, target=CostCurve.flat(1.0, widest=WIDEST))
    steps = advised(replies, has_draft=False, draft=None)
    dear = advised(
        replies,
        has_draft=False,
        draft=None,
        target=CostCurve.from_ratios({1: 1.0, 2: 1.1, 3: 1.2, 4: 4.0, 5: 8.0, 64: 99.0}),
    )
    assert cheap.number >= steps.number > dear.number
    assert dear.number == 2


TEXT = Draftable(text=7)
MODEL = Draftable(text=0, model=3, draft_name="small one.gguf", least_chance=0.456)
BOTH = Draftable(text=7, model=3, draft_name="d.gguf", prefers_text=False, least_chance=0.5)


def words(found: Draftable, engine: str) -> list[str]:
    return shlex.split(engine_flags(found)[engine].flags)


def test_llama_server_drafts_from_the_text_by_the_model_or_both() -> None:
    assert words(TEXT, "llama-server") == [
        "--spec-type", "ngram-map-k",
        "--spec-ngram-map-k-size-n", "3", "--spec-ngram-map-k-size-m", "7",
    ]  # fmt: skip
    assert words(MODEL, "llama-server") == [
        "--spec-type", "draft-simple", "--spec-draft-model", "small one.gguf",
        "--spec-draft-n-max", "3", "--spec-draft-n-min", "0", "--spec-draft-p-min", "0.46",
    ]  # fmt: skip
    both = words(BOTH, "llama-server")
    assert both[:2] == ["--spec-type", "draft-simple,ngram-map-k"]
    assert {"--spec-draft-n-max", "--spec-ngram-map-k-size-m"} < set(both)


def test_vllm_gets_one_json_document() -> None:
    option, value = words(TEXT, "vllm")
    assert option == "--speculative-config"
    assert json.loads(value) == {"method": "suffix", "num_speculative_tokens": 7}
    assert json.loads(words(MODEL, "vllm")[1]) == {
        "method": "draft_model",
        "model": "small one.gguf",
        "num_speculative_tokens": 3,
    }
    assert json.loads(words(BOTH, "vllm")[1])["method"] == "draft_model"


def test_sglang_counts_the_pending_token_too() -> None:
    assert words(TEXT, "sglang")[:4] == [
        "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8",
    ]  # fmt: skip
    model = words(BOTH, "sglang")
    assert model[model.index("--speculative-num-steps") + 1] == "3"
    assert model[model.index("--speculative-num-draft-tokens") + 1] == "4"


@pytest.mark.parametrize("found", [TEXT, MODEL, BOTH, Draftable(text=0)])
def test_what_does_not_carry_over_is_one_line_for_each_engine(found: Draftable) -> None:
    for one in engine_flags(found).values():
        assert one.note
        assert "\n" not in one.note + one.flags


def test_reasons_name_losses_first() -> None:
    base = advised(recordings())
    predictions = {
        "auto": predicted("auto", 1.5, 0.8, 1.6, 0.9),
        "suffix": predicted("suffix", 0.9, 0.8, 0.9, 0.9),
        "model": predicted("model", 1.05, 1.05, 1.05, 1.05, reading=20.0),
    }
    found = replace(base, predictions=predictions, chosen=predictions["auto"])
    sentences = reasons(found)
    assert sentences[0].startswith("suffix would lose time: 0.87x")
    assert sentences[1].startswith("model would lose time over whole requests")
    assert sentences[2].startswith("Chat is expected to lose, 0.85x")
    assert sentences[3].startswith("Only 4 replies were looked at")
    assert all("\n" not in sentence for sentence in sentences)


def test_reasons_say_what_would_make_the_draft_model_pay() -> None:
    pays = reasons(advised(recordings(repeats=False)))
    assert any(sentence.startswith("The draft model pays: ") for sentence in pays)
    dear = advised(
        recordings(repeats=False), draft=CostCurve.flat(0.9, row_seconds=0.004, widest=WIDEST)
    )
    (sentence,) = [one for one in reasons(dear) if one.startswith("It would pay if a token cost")]
    assert "(now 0.90)" in sentence
    hopeless = advised(
        recordings(repeats=False), target=CostCurve.flat(1.0, row_seconds=1.0, widest=WIDEST)
    )
    assert any("next to nothing" in sentence for sentence in reasons(hopeless))


def test_reasons_name_the_conditions_under_which_they_hold() -> None:
    found = advised(recordings())
    greedy, sampled = reasons(found), reasons(found, temperature=0.7)
    assert any("ask again with --temperature" in sentence for sentence in greedy)
    assert any(sentence.startswith("This holds for temperature 0.7") for sentence in sampled)
    assert any("8 requests at once" in sentence for sentence in greedy)
    assert f"{found.oracle:.2f}x" in greedy[-1]


def test_a_row_is_dearer_in_a_shared_pass() -> None:
    curve = CostCurve.from_ratios({1: 1.0, 2: 1.05, 8: 2.0, 16: 3.2})
    assert "probability above 0.60 to pay, alone above 0.05" in many_sessions(curve)
    assert many_sessions(CostCurve.from_ratios({1: 1.0, 8: 2.0})) == ""


def test_the_headline_is_the_options_and_what_they_bring() -> None:
    found = advised(recordings())
    assert f"--drafter {found.drafter} --num-speculative-tokens {found.number}" in headline(found)
    assert found.chosen is not None
    assert speedup_text(found.chosen.speedup().to_dict()) in headline(found)
