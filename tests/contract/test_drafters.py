"""What every drafter keeps to, whatever it drafts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.drafters.forced import ForcedDrafter
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.protocols import Drafter
from pilotfish.types import DraftWish, Proposal, SamplingSettings, SessionView
from support.partial_head import PartialHead, PartialModel

VOCAB = 12
END = 11
SONG = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3]
# of the reply after the five tokens of its prompt: a part is missing, and a part is new
PREDICTION = (1, 2, 3, 4, 9, 9, 6, 1, 2, 3, 4, 5, 1, 2, END, 3, END)
SAMPLED = SamplingSettings(temperature=0.9, top_p=0.95)


def model_drafter() -> ModelDrafter:
    model = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB, context_size=256)
    return ModelDrafter(model, vocab_size=VOCAB, min_survival=0.0)


def partial_drafter() -> ModelDrafter:
    model = ScriptedModel(random_logits(VOCAB + 2), vocab_size=VOCAB + 2, context_size=256)
    # the draft has two tokens that the target has not, and lacks some that it has
    head = PartialHead([1, 13, 2, 5, 3, 12, 7, END])
    return ModelDrafter(PartialModel(model, head), vocab_size=VOCAB, min_survival=0.0, head=head)


MAKERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
    "prediction": PredictionDrafter,
    "model": model_drafter,
    "partial": partial_drafter,
    "forced": lambda: ForcedDrafter(SuffixDrafter()),
    "hybrid": lambda: HybridDrafter([SuffixDrafter(), model_drafter()]),
}
PREDICTED = DraftWish(prediction=PREDICTION)
GIVES_LAWS = {"model", "partial"}


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    made: str = request.param
    return made


@pytest.fixture
def drafter(name: str) -> Drafter:
    return MAKERS[name]()


def view(
    tokens: Sequence[int] = SONG,
    *,
    request_id: int = 1,
    num_prompt_tokens: int = 5,
    settings: SamplingSettings = SAMPLED,
    round_index: int = 0,
    needs_laws: bool = False,
    wish: DraftWish | None = None,
) -> SessionView:
    return SessionView(
        request_id,
        tokens,
        num_prompt_tokens,
        settings,
        7,
        round_index,
        frozenset({END}),
        needs_laws,
        wish=wish or PREDICTED,
    )


def one(drafter: Drafter, wanted: SessionView, budget: int = 4) -> Proposal:
    (proposal,) = drafter.propose([wanted], [budget])
    return proposal


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 40])
def test_never_more_than_the_budget_and_only_real_tokens(drafter: Drafter, budget: int) -> None:
    for text in (SONG, SONG[:1], [END, END, END], list(range(VOCAB)) * 3):
        proposal = one(drafter, view(text, num_prompt_tokens=1), budget)
        assert len(proposal.token_ids) <= budget
        assert all(type(token) is int and 0 <= token < VOCAB for token in proposal.token_ids)
        drafter.forget(1)


def test_drafters_that_can_draft_do(name: str, drafter: Drafter) -> None:
    assert bool(one(drafter, view()).token_ids) == (name != "none")


def test_nothing_is_drafted_after_an_end_token(drafter: Drafter) -> None:
    for seed_text in (SONG, [END, 3, END, 3, END], [4, END] * 6):
        proposal = one(drafter, view(seed_text, num_prompt_tokens=2), 12)
        assert END not in proposal.token_ids[:-1]
        drafter.forget(1)


def test_a_proposal_names_its_source(name: str, drafter: Drafter) -> None:
    proposal = one(drafter, view())
    allowed = {"hybrid": {"suffix", "model"}, "partial": {"model"}, "forced": {"suffix"}}.get(
        name, {name}
    )
    assert proposal.source in allowed


def test_the_view_is_only_read(drafter: Drafter) -> None:
    tokens = list(SONG)
    one(drafter, view(tokens))
    assert tokens == SONG


def play(
    drafter: Drafter, request_id: int, script: Sequence[int], *, laws: bool = False
) -> list[Proposal]:
    """Return the proposals of a session whose reply is `script`, accepted while it agrees."""
    tokens, proposals, round_index = list(SONG[:5]), [], 0
    while len(tokens) < 5 + len(script):
        shown = view(tokens, request_id=request_id, round_index=round_index, needs_laws=laws)
        proposal = one(drafter, shown, 3)
        proposals.append(proposal)
        rest = list(script[len(tokens) - 5 :])
        agreed = 0
        while agreed < min(len(proposal.token_ids), len(rest)) and (
            proposal.token_ids[agreed] == rest[agreed]
        ):
            agreed += 1
        # the accepted tokens and the one the target chose
        tokens += rest[: agreed + 1]
        round_index += 1
    return proposals


SCRIPT = [1, 2, 3, 4, 6, 1, 2, 3, 5, 9, 1, 2, 3, 4, 6, 8, 8, 8, 2, 3, 4, 6]


def test_the_same_views_give_the_same_proposals(name: str) -> None:
    first, second = MAKERS[name](), MAKERS[name]()
    assert play(first, 1, SCRIPT) == play(second, 1, SCRIPT)


def test_it_goes_on_after_rejected_drafts_as_a_fresh_one_would(name: str, drafter: Drafter) -> None:
    """After any mixture of accepted and rejected drafts, the whole text decides."""
    play(drafter, 1, SCRIPT)
    tokens = [*SONG[:5], *SCRIPT]
    shown = view(tokens, round_index=9)
    assert one(drafter, shown, 5).token_ids == one(MAKERS[name](), shown, 5).token_ids


def test_requests_do_not_disturb_each_other(name: str) -> None:
    solo = {i: play(MAKERS[name](), i, SCRIPT[i:]) for i in (1, 2, 3)}
    shared = MAKERS[name]()
    texts = {i: list(SONG[:5]) for i in solo}
    told: dict[int, list[Proposal]] = {i: [] for i in solo}
    while running := [i for i in solo if len(texts[i]) < 5 + len(SCRIPT[i:])]:
        views = [view(texts[i], request_id=i, round_index=len(told[i])) for i in reversed(running)]
        proposals = shared.propose(views, [3] * len(views))
        assert len(proposals) == len(views)
        for i, proposal in zip(reversed(running), proposals, strict=True):
            told[i].append(proposal)
            rest = SCRIPT[i:][len(texts[i]) - 5 :]
            pairs = list(zip(proposal.token_ids, rest, strict=False))
            agreed = next((k for k, (x, y) in enumerate(pairs) if x != y), len(pairs))
            texts[i] += rest[: agreed + 1]
    assert told == solo


def test_budgets_are_kept_one_by_one(drafter: Drafter) -> None:
    views = [view(request_id=i) for i in range(4)]
    proposals = drafter.propose(views, [0, 5, 0, 1])
    assert [len(p.token_ids) for p in proposals][::2] == [0, 0]
    assert len(proposals[1].token_ids) <= 5
    assert len(proposals[3].token_ids) <= 1
    assert drafter.propose([], []) == []


def test_forgetting_is_safe_and_an_id_can_come_again(name: str, drafter: Drafter) -> None:
    drafter.forget(99)  # never seen
    one(drafter, view())
    drafter.forget(1)
    drafter.forget(1)
    other = [9, 8, 9, 8, 9]
    again = one(drafter, view(other, num_prompt_tokens=2))
    assert len(again.token_ids) <= 4
    if name not in ("suffix", "hybrid"):  # these may draft from replies of the past
        assert again == one(MAKERS[name](), view(other, num_prompt_tokens=2))


def test_laws_are_given_where_they_are_needed(name: str, drafter: Drafter) -> None:
    assert one(drafter, view()).distributions is None
    proposals = play(drafter, 2, SCRIPT, laws=True)
    for proposal in proposals:
        if proposal.source not in GIVES_LAWS:
            assert proposal.distributions is None
            continue
        assert proposal.distributions is not None
        assert len(proposal.distributions) == len(proposal.token_ids)
        for token, law in zip(proposal.token_ids, proposal.distributions, strict=True):
            np.testing.assert_allclose(law.probs.sum(), 1.0, atol=1e-12)
            assert np.all(np.diff(law.ids) > 0)
            assert law.probability(token) > 0


def test_the_draft_models_cache_is_given_back() -> None:
    model = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    drafter = HybridDrafter([NoDrafter(), ModelDrafter(model, vocab_size=VOCAB)])
    for request_id in (1, 2):
        one(drafter, view(request_id=request_id))
    assert len(model.open_caches) == 2
    for request_id in (1, 2):
        drafter.forget(request_id)
    assert not model.open_caches


NOBODY = [
    DraftWish(drafter="none", prediction=PREDICTION),
    DraftWish(num_speculative_tokens=0, prediction=PREDICTION),
]
ONLY = [
    DraftWish(drafter=one, prediction=PREDICTION)
    for one in ("suffix", "ngram", "model", "prediction")
]


@pytest.mark.parametrize("wish", [*NOBODY, *ONLY])
def test_only_whom_the_request_allows_proposes_to_it(
    name: str, drafter: Drafter, wish: DraftWish
) -> None:
    drafts_from = {"partial": {"model"}, "forced": {"suffix"}, "hybrid": {"suffix", "model"}}
    allowed = drafts_from.get(name, {name}) & ({wish.drafter} if wish not in NOBODY else set())
    views = [view(request_id=1, wish=wish), view(request_id=2)]
    for each in views:
        while drafter.prepare(each):
            pass
    narrowed, free = drafter.propose(views, [4, 4])
    assert {narrowed.source} == (allowed or {"none"})
    assert bool(narrowed.token_ids) == bool(allowed)
    assert bool(free.token_ids) == (name != "none")
    for request_id in (1, 2):
        drafter.forget(request_id)


@pytest.mark.parametrize("wish", [*NOBODY, DraftWish(drafter="suffix")])
def test_a_draft_model_that_may_not_draft_reads_nothing_and_takes_no_place(
    wish: DraftWish,
) -> None:
    model = ScriptedModel(random_logits(VOCAB), vocab_size=VOCAB)
    drafter = HybridDrafter([SuffixDrafter(), ModelDrafter(model, vocab_size=VOCAB)])
    unlike = [1, 2, 3, 4, 5]  # repeats nothing, so that the suffix has no offer
    assert not drafter.prepare(view(unlike, wish=wish))
    assert one(drafter, view(unlike, wish=wish)) == Proposal.empty()
    assert model.log.evaluations == []
    assert not model.open_caches
