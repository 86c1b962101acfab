"""Replies by a JSON schema: the same text, law and legal tokens, whatever drafts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pilotfish.backends.scripted import LogitsFunction, ScriptedModel
from pilotfish.config import Request
from pilotfish.drafters.forced import ForcedDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.engine.round import usable
from pilotfish.errors import BackendError, ConfigError
from pilotfish.generation import TextEngine
from pilotfish.grammar import JsonGrammars
from pilotfish.protocols import Drafter
from pilotfish.sampling import Sampler, TokenHistory, gumbel_noise, noise_key
from pilotfish.types import BoolArray, Distribution, FloatArray, Proposal, SamplingSettings
from pilotfish.verify import verify_token
from support.drafters import FunctionDrafter, random_tokens
from support.engines import scripted_engine
from support.json_words import (
    CLOSING,
    END,
    OTHER_END,
    PIECES,
    SCHEMA,
    is_valid,
    json_tokenizer,
    text_of,
)
from support.text_engines import text_engine

VOCAB = len(PIECES)
GRAMMARS = JsonGrammars(json_tokenizer())
ENDS = {END, OTHER_END}
LIKED = [PIECES.index(piece) for piece in (b",", b',"b":')]
WHOLE = json_tokenizer().encode('{"a":12,"b":"blue"}', parse_special=False)


def noisy(seed: int, *, favourite: int | None = None) -> LogitsFunction:
    """Return rows of noise that let numbers end, and that like one token best of all."""

    @functools.cache
    def logits(prefix: tuple[int, ...]) -> FloatArray:
        row = np.random.default_rng([seed, *prefix[-3:]]).standard_normal(VOCAB) * 2
        row[LIKED] += 2.0
        if favourite is not None:
            row[favourite] += 30.0
        return row.astype(np.float32)

    return logits


TARGET = noisy(5)


def self_drafter() -> Drafter:
    draft = ScriptedModel(TARGET, vocab_size=VOCAB)
    return ModelDrafter(draft, vocab_size=VOCAB, min_survival=0.0)


DRAFTS: dict[str, Callable[[], Drafter]] = {
    "plain": NoDrafter,
    "self": self_drafter,
    "never": lambda: FunctionDrafter(lambda view, budget: [CLOSING] * budget),
    "random": lambda: random_tokens(VOCAB),
    "forced": lambda: ForcedDrafter(NoDrafter()),
    "forced or self": lambda: ForcedDrafter(self_drafter()),
}


def engine_of(draft: str, number: int = 4, logits: LogitsFunction = TARGET) -> TextEngine:
    return text_engine(logits, words=json_tokenizer(), drafter=DRAFTS[draft](), num_drafts=number)


def options(run: int, **others: Any) -> dict[str, Any]:
    """Return the options of a run: greedy ones and sampled ones by turns."""
    common = {"raw": True, "json_schema": SCHEMA, "max_tokens": 80, "seed": run}
    return {**common, "temperature": float(run % 2), **others}


def prompt(run: int) -> str:
    return "abderlu0123456789,:{}"[run % 21]


@functools.cache
def plain_ids(run: int) -> list[int]:
    return engine_of("plain").generate(prompt(run), **options(run)).token_ids


def legal_ids(allowed: BoolArray) -> set[int]:
    return set(np.flatnonzero(allowed).tolist())


@pytest.mark.parametrize("number", [1, 4, 8])
@pytest.mark.parametrize("draft", ["self", "never", "random", "forced", "forced or self"])
def test_every_reply_is_valid_and_that_of_plain_decoding(draft: str, number: int) -> None:
    engine = engine_of(draft, number)
    num_accepted = num_ended = 0
    num_runs = 20 if "forced" in draft else 100
    for run in range(num_runs):
        reply = engine.generate(prompt(run), **options(run))
        assert reply.token_ids == plain_ids(run)
        assert reply.finish_reason == "length" or is_valid(reply.text)
        num_ended += reply.finish_reason == "stop"
        num_accepted += reply.stats.accepted
    assert num_ended >= 0.95 * num_runs
    assert (num_accepted > 0) == (draft != "never")


def test_the_replies_of_the_runs_differ() -> None:
    assert len({tuple(plain_ids(run)) for run in range(100)}) > 50


@pytest.mark.parametrize("draft", ["self", "never", "random", "forced or self"])
def test_after_each_round_the_legal_tokens_are_those_of_plain_decoding(draft: str) -> None:
    engine = engine_of(draft)
    for run in range(10):
        request = Request.from_options(options(run))
        grammar = engine.prepare_grammar(request)
        session = engine.open(engine.prompt_ids(prompt(run), request), request, grammar).session
        while not engine.engine.read(session):
            pass
        assert session.constraint is not None
        while not session.done:
            engine.engine.step([session])
            expected = GRAMMARS.compiled(SCHEMA).constraint().allowed(session.output_ids)
            assert legal_ids(session.constraint.allowed(session.output_ids)) == legal_ids(expected)
        assert session.output_ids == plain_ids(run)


@pytest.mark.parametrize("end", sorted(ENDS))
def test_after_the_closing_brace_only_an_end_follows_even_with_drafts_left(end: int) -> None:
    # drafts know the text by heart and go on after it
    beyond = [*WHOLE, CLOSING, end, WHOLE[0], WHOLE[1]]
    drafter = FunctionDrafter(
        lambda view, budget: beyond[view.num_output_tokens : view.num_output_tokens + budget]
    )

    def logits(prefix: tuple[int, ...]) -> FloatArray:
        row = np.zeros(VOCAB, dtype=np.float32)
        row[(*WHOLE, end)[min(len(prefix) - 1, len(WHOLE))]] = 5.0
        row[CLOSING] = 9.0  # it would rather write this, always
        return row

    for number in (1, 4, len(beyond)):
        engine = text_engine(logits, words=json_tokenizer(), drafter=drafter, num_drafts=number)
        reply = engine.generate("a", **options(0))
        assert reply.token_ids == [*WHOLE, end]
        assert (reply.finish_reason, reply.text) == ("stop", '{"a":12,"b":"blue"}')


@pytest.mark.parametrize("verify_rule", ["match", "token"])
@pytest.mark.parametrize("draft", ["self", "random", "forced or self"])
def test_both_rules_keep_to_the_schema(verify_rule: str, draft: str) -> None:
    target = ScriptedModel(TARGET, vocab_size=VOCAB)
    engine = scripted_engine(drafter=DRAFTS[draft](), target=target, verify_rule=verify_rule)
    for run in range(40):
        session = engine.start(
            [3 + run % 20],
            settings=SamplingSettings(temperature=1.0),
            seed=run,
            max_tokens=80,
            end_ids=json_tokenizer().end_ids,
            constraint=GRAMMARS.compiled(SCHEMA).constraint(),
        )
        for _ in engine.run(session):
            pass
        assert session.drafting_error is None
        assert session.output_ids[-1] in ENDS
        assert is_valid(text_of(session.output_ids))


class Late:
    """A constraint whose mask is that of the row before: a mistake."""

    def __init__(self) -> None:
        self._right = GRAMMARS.compiled(SCHEMA).constraint()

    def allowed(self, output_ids: Sequence[int]) -> BoolArray:
        return self._right.allowed(output_ids[:-1])

    def num_legal(self, output_ids: Sequence[int], draft_ids: Sequence[int]) -> int:
        return len(draft_ids)

    def forced(self, output_ids: Sequence[int]) -> tuple[int, ...]:
        return ()


def test_a_mask_of_the_wrong_row_would_be_found() -> None:
    engine = scripted_engine(target=ScriptedModel(TARGET, vocab_size=VOCAB))
    session = engine.start([5], seed=1, end_ids=json_tokenizer().end_ids, constraint=Late())
    with pytest.raises(BackendError, match="not what its schema asks"):
        for _ in engine.run(session):
            pass
    assert not is_valid(text_of(session.output_ids))


SETTINGS = [
    SamplingSettings(temperature=0.7),
    SamplingSettings(temperature=1.0, logit_bias={7: 1.5}, presence_penalty=0.5),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("num_allowed", [1, 3, 40, 390])
def test_what_is_left_keeps_its_law_renormalised(
    settings: SamplingSettings, num_allowed: int
) -> None:
    generator = np.random.default_rng(num_allowed)
    for _ in range(20):
        row = (3 * generator.standard_normal(400)).astype(np.float32)
        allowed = np.zeros(400, dtype=bool)
        allowed[generator.choice(400, num_allowed, replace=False)] = True
        free, bound = samplers(settings, allowed)
        history = TokenHistory([1, 2, 7], num_prompt_tokens=2)
        whole, law = free.law(row, history), bound.law(row, history)
        expected = np.where(allowed, dense(whole, 400), 0)
        np.testing.assert_allclose(dense(law, 400), expected / expected.sum(), atol=1e-12)
        # and the choice is the best of them under the noise that belongs to each
        scores = np.log(dense(whole, 400)) + gumbel_noise(noise_key(3, 3), np.arange(400))
        assert bound.choose(row, history) == np.argmax(np.where(allowed, scores, -np.inf))


class Fixed:
    """Allows the same tokens always."""

    def __init__(self, allowed: BoolArray) -> None:
        self._allowed = allowed

    def allowed(self, output_ids: Sequence[int]) -> BoolArray:
        return self._allowed

    def num_legal(self, output_ids: Sequence[int], draft_ids: Sequence[int]) -> int:
        wrong = (place for place, token in enumerate(draft_ids) if not self._allowed[token])
        return next(wrong, len(draft_ids))

    def forced(self, output_ids: Sequence[int]) -> tuple[int, ...]:
        return ()


def samplers(settings: SamplingSettings, allowed: BoolArray) -> tuple[Sampler, Sampler]:
    return Sampler(settings, 3, frozenset()), Sampler(settings, 3, frozenset(), Fixed(allowed))


def dense(law: Distribution, size: int) -> FloatArray:
    whole = np.zeros(size)
    whole[law.ids] = law.probs
    return whole


def legal(session: Any, proposal: Proposal) -> Proposal:
    return usable(session, proposal, vocab_size=6)


@pytest.mark.parametrize("keep", [legal, lambda session, proposal: cut(proposal)])
def test_drawn_drafts_that_are_not_legal_do_not_bend_the_law(keep: Any) -> None:
    """Exact, over every draft: the target's masked law comes out, but not where an illegal draft is
    dropped for what it is."""
    generator = np.random.default_rng(9)
    size = 6
    target_law = Distribution.dense(np.array([0.5, 0.3, 0.2, 0.0, 0.0, 0.0]))
    draft_law = Distribution.dense(generator.dirichlet(np.ones(size)))
    emitted = np.zeros(size)
    for token, chance in enumerate(draft_law.probs):
        proposal = keep(Bound(), Proposal((token,), "model", (draft_law,)))
        emitted += chance * first_token_law(proposal, target_law, size)
    is_exact = np.allclose(emitted, target_law.probs, atol=1e-12)
    assert is_exact == (keep is legal)


class Bound:
    """As much of a session as `usable` looks at: the first three tokens are legal."""

    constraint = Fixed(np.arange(6) < 3)
    output_ids: Sequence[int] = ()


def cut(proposal: Proposal) -> Proposal:
    return proposal.truncated(Bound.constraint.num_legal((), proposal.token_ids))


def first_token_law(proposal: Proposal, target_law: Distribution, size: int) -> FloatArray:
    """Return the law of the first token the token rule emits, both ways a draft may go."""
    law = np.zeros(size)
    for is_accepted in (True, False):
        path = Path(is_accepted)
        verdict = verify_token(
            proposal, target_law=lambda _: target_law, accept=path.accept, draw=path.draw
        )
        if not proposal.token_ids:
            return dense(path.residual, size)
        if verdict.num_accepted:
            law[proposal.token_ids[0]] += path.chance
        else:
            law += (1 - path.chance) * dense(path.residual, size)
    return law


class Path:
    """One way a draft may go, with its chance and the law of the token that is drawn."""

    def __init__(self, is_accepted: bool) -> None:
        self.is_accepted = is_accepted
        self.chance = 0.0

    def accept(self, index: int, chance: float) -> bool:
        self.chance = min(1.0, chance)
        return self.is_accepted

    def draw(self, index: int, law: Distribution) -> int:
        self.residual = law
        return 0


def test_logprobs_are_those_of_the_model_before_the_mask() -> None:
    reply = engine_of("plain", logits=noisy(5, favourite=CLOSING)).generate(
        "a", **options(0, logprobs=2)
    )
    output = json_tokenizer().encode("a", parse_special=False)
    for token in reply.tokens:
        row = noisy(5, favourite=CLOSING)(tuple(output)).astype(np.float64)
        raw = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(raw[token.token_id], abs=1e-5)
        assert token.logprobs.top[0][0] == CLOSING
        output.append(token.token_id)


def test_a_reply_that_must_end_ends_however_short_and_one_that_may_go_on_does() -> None:
    engine = engine_of("forced or self")
    word = engine.generate("a", **options(0, json_schema={"const": "red"}, min_tokens=30))
    assert (word.text, word.finish_reason) == ('"red"', "stop")
    short = engine.generate("a", **options(0, json_schema={"type": "integer"}, min_tokens=0))
    long = engine.generate("a", **options(0, json_schema={"type": "integer"}, min_tokens=20))
    assert len(short.token_ids) < 20 < len(long.token_ids)


def test_stop_strings_and_the_limit_cut_the_text_as_ever() -> None:
    for draft in ("plain", "forced or self", "random"):
        engine = engine_of(draft)
        stopped = engine.generate("a", **options(0, stop='"b"'))
        assert stopped.finish_reason == "stop"
        assert stopped.text.startswith('{"a":')
        assert stopped.text.endswith(",")
        cut_off = engine.generate("a", **options(0, max_tokens=2))
        assert (cut_off.finish_reason, len(cut_off.token_ids)) == ("length", 2)
        assert not is_valid(cut_off.text)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ruling_out_all_that_may_follow_is_an_error(draft: str, temperature: float) -> None:
    numbers = tuple(
        place for place, piece in enumerate(PIECES) if piece.strip(b"-0123456789") == b""
    )
    with pytest.raises(ConfigError, match="no token is left") as error:
        engine_of(draft).generate("a", **options(0, temperature=temperature, banned_tokens=numbers))
    assert error.value.hint
