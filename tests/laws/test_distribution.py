"""The engine's token rule against exactly known laws: few seeded statistical tests.

Each check states its false-alarm rate, has a null control (plain sampling must pass) and a
mutant that must fail at the same level.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from pilotfish.backends.scripted import ScriptedModel
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.sampling import Stream, row_law
from pilotfish.types import Distribution, DraftWish, Proposal, SamplingSettings
from support.drafters import random_tokens
from support.engines import finish, scripted_engine
from support.partial_head import PartialHead, PartialModel

ALARM = 1e-6
TARGET = {
    0: (0.5, 0.3, 0.1, 0.1),
    1: (0.1, 0.6, 0.2, 0.1),
    2: (0.25, 0.25, 0.25, 0.25),
    3: (0.05, 0.05, 0.1, 0.8),
}
DRAFT = {
    0: (0.4, 0.3, 0.2, 0.1),
    1: (0.5, 0.2, 0.2, 0.1),
    2: (0.7, 0.1, 0.1, 0.1),
    3: (0.25, 0.25, 0.25, 0.25),
}


def logits(table: dict[int, tuple[float, ...]]):  # type: ignore[no-untyped-def]
    rows = {token: np.log(np.array(probs, dtype=np.float32)) for token, probs in table.items()}
    return lambda prefix: rows[prefix[-1]]


def joint_law(settings: SamplingSettings) -> np.ndarray:
    """The exact joint law [64] of three tokens after token 0."""
    laws = np.zeros((4, 4))
    for token, row in ((t, logits(TARGET)((t,))) for t in range(4)):
        law = row_law(row, settings)
        laws[token, law.ids] = law.probs
    cells = itertools.product(range(4), repeat=3)
    return np.array([laws[0, a] * laws[a, b] * laws[b, c] for a, b, c in cells])


def p_value(engine, settings, runs, **options) -> float:  # type: ignore[no-untyped-def]
    options = {"settings": settings, "max_tokens": 3, **options}
    counts = np.zeros(64)
    for seed in range(runs):
        a, b, c = finish(engine, (0,), seed=seed, **options).output_ids
        counts[16 * a + 4 * b + c] += 1
    expected = joint_law(settings) * runs
    assert counts[expected == 0].sum() == 0, "a token outside the filters was emitted"
    enough = expected >= 5
    seen, wanted = counts[enough], expected[enough]
    if (~enough).any() and expected[~enough].sum() > 0:
        seen = np.append(seen, counts[~enough].sum())
        wanted = np.append(wanted, expected[~enough].sum())
    return float(stats.chisquare(seen, wanted).pvalue) if len(seen) > 1 else 1.0


def engine_with(drafter, *, rule: str = "token", number: int = 3):  # type: ignore[no-untyped-def]
    target = ScriptedModel(logits(TARGET), vocab_size=4, max_sessions=10**9)
    return scripted_engine(target=target, drafter=drafter, num_drafts=number, verify_rule=rule)


def model_drafter() -> ModelDrafter:
    draft = ScriptedModel(logits(DRAFT), vocab_size=4, max_sessions=10**9)
    return ModelDrafter(draft, vocab_size=4, min_survival=0.1)


def partial_drafter() -> ModelDrafter:
    """Return a drafter that lacks a token the target has."""
    draft = ScriptedModel(logits(DRAFT), vocab_size=4, max_sessions=10**9)
    head = PartialHead([2, 0, 3], room=0)
    return ModelDrafter(PartialModel(draft, head), vocab_size=4, min_survival=0.1, head=head)


SETTINGS = [
    SamplingSettings(temperature=1.0),
    SamplingSettings(temperature=0.3, top_k=2),
    SamplingSettings(temperature=2.0, top_p=0.7),
    SamplingSettings(temperature=1.0, min_p=0.3),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("number", [1, 3])
def test_token_rule_gives_the_targets_joint_law(settings: SamplingSettings, number: int) -> None:
    engine = engine_with(model_drafter(), number=number)
    assert p_value(engine, settings, runs=900) > ALARM


@pytest.mark.parametrize("settings", SETTINGS[::3])
def test_token_rule_with_drafts_from_a_part_of_the_vocabulary(settings: SamplingSettings) -> None:
    assert p_value(engine_with(partial_drafter()), settings, runs=900) > ALARM


@pytest.mark.parametrize("settings", SETTINGS[:2])
def test_token_rule_with_deterministic_drafts(settings: SamplingSettings) -> None:
    assert p_value(engine_with(random_tokens(4)), settings, runs=900) > ALARM


@pytest.mark.parametrize("prediction", [(1, 1, 2), (0, 3, 3)])
def test_token_rule_with_a_predicted_reply(prediction: tuple[int, ...]) -> None:
    engine = engine_with(PredictionDrafter(min_probability=0.0))
    settings, wish = SamplingSettings(temperature=1.0), DraftWish(prediction=prediction)
    assert p_value(engine, settings, runs=900, wish=wish) > ALARM


def test_plain_sampling_is_the_null_control() -> None:
    settings = SamplingSettings(temperature=1.0)
    for rule in ("token", "match"):
        assert p_value(engine_with(NoDrafter(), rule=rule), settings, runs=900) > ALARM


class SoftLawDrafter(ModelDrafter):
    """The mutant: draws with the filters, hands on the raw law."""

    def _choose(self, draft, row, history):  # type: ignore[no-untyped-def]
        token = super()._choose(draft, row, history)
        draft.laws[-1] = row_law(row, SamplingSettings(temperature=1.0))
        return token


def test_the_check_rejects_a_law_the_token_was_not_drawn_from() -> None:
    draft = ScriptedModel(logits(DRAFT), vocab_size=4, max_sessions=10**9)
    mutant = SoftLawDrafter(draft, vocab_size=4, min_survival=0.0)
    settings = SamplingSettings(temperature=1.0, top_k=2)
    assert p_value(engine_with(mutant), settings, runs=900) < ALARM


# of a first token: what is left after a rejection are three tokens, each with another share of
# what the draft gave it, so that a second look at the draft's noise shows
SKEWED_TARGET = (0.1, 0.5, 0.03, 0.37)
SKEWED_DRAFT = (0.08, 0.29, 0.62, 0.01)


def p_value_of_corrections(runs: int = 2_000) -> float:
    rows = [np.log(np.array(law, dtype=np.float32)) for law in (SKEWED_TARGET, SKEWED_DRAFT)]
    target, draft = (
        ScriptedModel(lambda prefix, row=row: row, vocab_size=4, max_sessions=10**9) for row in rows
    )
    drafter = ModelDrafter(draft, vocab_size=4, min_survival=0.0)
    engine = scripted_engine(target=target, drafter=drafter, num_drafts=1, verify_rule="token")
    settings, counts = SamplingSettings(temperature=1.0), np.zeros(4)
    for seed in range(runs):
        session = finish(engine, (0,), settings=settings, seed=seed, max_tokens=2)
        counts[session.output_ids[0]] += 1
    return float(stats.chisquare(counts, np.array(SKEWED_TARGET) * runs).pvalue)


def test_a_correction_does_not_depend_on_how_the_draft_was_drawn() -> None:
    assert p_value_of_corrections() > ALARM


def test_the_check_rejects_a_correction_with_the_noise_of_the_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = {stream.name: stream for stream in Stream} | {"CORRECTION": Stream.DRAFT}
    monkeypatch.setattr("pilotfish.engine.session.Stream", SimpleNamespace(**streams))
    assert p_value_of_corrections() < ALARM


def test_filtered_tokens_never_occur_at_any_kind_of_position() -> None:
    """Accepted, correction and bonus tokens all obey min-p; a uniform drafter proposes the rest."""
    row = np.log(np.array([0.60, 0.25, 0.10, 0.05], dtype=np.float32))
    counts = {"accepted": np.zeros(4), "correction": np.zeros(4), "bonus": np.zeros(4)}
    settings = SamplingSettings(temperature=1.0, min_p=0.3)
    for rule in ("token", "match"):
        target = ScriptedModel(lambda prefix: row, vocab_size=4, max_sessions=10**9)
        engine = scripted_engine(
            target=target, drafter=random_tokens(4), num_drafts=2, verify_rule=rule
        )
        for seed in range(6):
            session = finish(engine, (0,), settings=settings, seed=seed, max_tokens=500)
            tokens = iter(session.output_ids)
            for record in session.records:
                for _ in range(record.num_accepted):
                    counts["accepted"][next(tokens)] += 1
                if record.num_emitted > record.num_accepted:
                    full = record.num_accepted == record.num_drafted
                    counts["bonus" if full else "correction"][next(tokens)] += 1
    for kind in counts.values():
        assert kind[2:].sum() == 0
        assert kind[:2].min() > 20
    total = sum(counts.values())[:2]
    law = np.array([0.60, 0.25]) / 0.85
    assert stats.chisquare(total, law * total.sum()).pvalue > ALARM


def test_no_word_is_dropped_after_a_rejection() -> None:
    """A chain in which each token has two legal successors: no illegal pair, ever."""
    table = {0: (0, 0.5, 0.5, 0), 1: (0, 0, 0.5, 0.5), 2: (0.5, 0, 0, 0.5), 3: (0.5, 0.5, 0, 0)}
    with np.errstate(divide="ignore"):
        rows = {t: np.log(np.array(p, dtype=np.float32)) for t, p in table.items()}
    pairs = np.zeros((4, 4))
    for rule in ("token", "match"):
        target = ScriptedModel(lambda prefix: rows[prefix[-1]], vocab_size=4)
        engine = scripted_engine(target=target, drafter=random_tokens(4), verify_rule=rule)
        settings = SamplingSettings(temperature=1.0)
        session = finish(engine, (0,), settings=settings, max_tokens=1_200)
        for before, after in itertools.pairwise(session.tokens):
            pairs[before, after] += 1
    for before, probs in table.items():
        legal = np.array(probs) > 0
        assert pairs[before, ~legal].sum() == 0
        share = pairs[before, legal] / pairs[before].sum()
        np.testing.assert_allclose(share, 0.5, atol=0.09)


def test_known_wrong_answers_of_soft_argmax_drafts() -> None:
    """p = (.6, .4), draft (.8, .2): the reply is (.6, .4) whether the draft draws or takes the
    largest; soft q for an argmax draft would give (.75, .25)."""
    from pilotfish.verify import acceptance_probability, residual_distribution

    target = Distribution.dense(np.array([0.6, 0.4]))
    argmax = Proposal((0,), "ngram").law(0)
    chance = acceptance_probability(target, argmax, 0)
    rest = residual_distribution(target, argmax)
    assert chance == pytest.approx(0.6)
    assert rest.ids.tolist() == [1]
    assert rest.probs.tolist() == [1.0]
