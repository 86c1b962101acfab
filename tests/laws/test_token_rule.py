"""The token rule gives back the target's law: exact, by enumeration of every draw."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from pilotfish.types import Distribution, Proposal, Verdict
from pilotfish.verify import acceptance_probability, residual_distribution, verify_token
from support.enumeration import Branches, enumerate_runs

VOCAB, DRAFTED = 3, 3
Law = Callable[[tuple[int, ...]], np.ndarray]
Rule = Callable[..., Verdict]


def random_law(seed: int, *, zeros: bool) -> Law:
    """A random conditional law for every prefix; some entries are zero if asked."""

    def law(prefix: tuple[int, ...]) -> np.ndarray:
        generator = np.random.default_rng([seed, len(prefix), *prefix])
        probs = generator.dirichlet(np.ones(VOCAB))
        if zeros and generator.random() < 0.5:
            probs[generator.integers(VOCAB)] = 0.0
        return probs / probs.sum()

    return law


def one_round(
    branches: Branches,
    target: Law,
    draft: Law,
    rule: Rule,
    *,
    handed_on: Callable[[np.ndarray], np.ndarray] = lambda law: law,
    stop_before: Callable[[np.ndarray], bool] = lambda law: False,
    drop_after: Callable[[float], bool] = lambda probability: False,
) -> tuple[int, ...]:
    """Draft with every draw enumerated, verify with `rule`, return the emitted tokens."""
    tokens: list[int] = []
    laws: list[Distribution] = []
    while len(tokens) < DRAFTED:
        law = draft(tuple(tokens))
        if stop_before(law):
            break
        token = branches.draw(list(enumerate(law)))
        if drop_after(law[token]):
            break
        tokens.append(token)
        laws.append(Distribution.dense(handed_on(law)))
    proposal = Proposal(tuple(tokens), "model", tuple(laws))

    def accept(index: int, chance: float) -> bool:
        return branches.draw([(True, chance), (False, 1.0 - chance)])

    def draw(index: int, law: Distribution) -> int:
        return branches.draw(list(zip(law.ids.tolist(), law.probs.tolist(), strict=True)))

    verdict = rule(
        proposal,
        target_law=lambda i: Distribution.dense(target(tuple(tokens[:i]))),
        accept=accept,
        draw=draw,
    )
    return tuple(verdict.tokens(proposal))


def largest_error(target: Law, draft: Law, rule: Rule, **options: object) -> float:
    """Return the largest error of the joint law of DRAFTED + 1 tokens; short outputs are
    continued by the target itself."""
    joint: dict[tuple[int, ...], float] = defaultdict(float)
    for emitted, weight in enumerate_runs(lambda b: one_round(b, target, draft, rule, **options)):
        rest = DRAFTED + 1 - len(emitted)
        for tail in itertools.product(range(VOCAB), repeat=rest):
            joint[emitted + tail] += weight * chain(target, emitted + tail, len(emitted))
    return max(
        abs(joint[tokens] - chain(target, tokens, 0))
        for tokens in itertools.product(range(VOCAB), repeat=DRAFTED + 1)
    )


def chain(law: Law, tokens: tuple[int, ...], first: int) -> float:
    """Return the probability of tokens[first:] given tokens[:first]."""
    return float(np.prod([law(tokens[:i])[tokens[i]] for i in range(first, len(tokens))]))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_emitted_tokens_follow_the_target(seed: int, zeros: bool) -> None:
    target, draft = random_law(seed, zeros=zeros), random_law(seed + 100, zeros=zeros)
    assert largest_error(target, draft, verify_token) < 1e-12


def test_a_deterministic_draft_is_the_one_hot_case() -> None:
    target = random_law(1, zeros=False)

    def one_hot(prefix: tuple[int, ...]) -> np.ndarray:
        return np.eye(VOCAB)[len(prefix) % VOCAB]

    assert largest_error(target, one_hot, verify_token) < 1e-12


def test_stopping_before_a_draw_keeps_the_law() -> None:
    target, draft = random_law(2, zeros=False), random_law(102, zeros=False)
    error = largest_error(target, draft, verify_token, stop_before=lambda law: law.max() < 0.6)
    assert error < 1e-12


def test_draft_equal_to_target_is_always_accepted() -> None:
    target = random_law(3, zeros=True)
    for emitted, weight in enumerate_runs(lambda b: one_round(b, target, target, verify_token)):
        assert weight == 0 or len(emitted) == DRAFTED + 1


def test_one_position_by_arithmetic() -> None:
    rng = np.random.default_rng(20240601)
    for _ in range(200):
        target, draft = rng.dirichlet(np.ones(7), size=2)
        target[rng.integers(7)] = 0.0
        target /= target.sum()
        laws = Distribution.dense(target), Distribution.dense(draft)
        accept = np.array([acceptance_probability(*laws, token) for token in range(7)])
        rest = residual_distribution(*laws)
        emitted = draft * accept
        emitted[rest.ids] += (draft * (1 - accept)).sum() * rest.probs
        np.testing.assert_allclose(emitted, target, atol=1e-12)


def test_laws_over_different_ids() -> None:
    target = Distribution(np.array([2, 5, 9]), np.array([0.5, 0.3, 0.2]))
    draft = Distribution(np.array([1, 5]), np.array([0.4, 0.6]))
    assert acceptance_probability(target, draft, 1) == 0.0
    assert acceptance_probability(target, draft, 5) == pytest.approx(0.5)
    rest = residual_distribution(target, draft)
    assert rest.ids.tolist() == [2, 9]
    np.testing.assert_allclose(rest.probs, [5 / 7, 2 / 7])


# Mutants: each is a fault seen in other engines and must break the law by far more than rounding.


def correction_from_target(proposal, *, target_law, accept, draw):  # type: ignore[no-untyped-def]
    for index, token in enumerate(proposal.token_ids):
        chance = acceptance_probability(target_law(index), proposal.law(index), token)
        if not accept(index, chance):
            return Verdict(index, draw(index, target_law(index)))
    n = len(proposal.token_ids)
    return Verdict(n, draw(n, target_law(n)))


def accepts_with_target_probability(proposal, *, target_law, accept, draw):  # type: ignore[no-untyped-def]
    for index, token in enumerate(proposal.token_ids):
        target, draft = target_law(index), proposal.law(index)
        if not accept(index, target.probability(token)):
            return Verdict(index, draw(index, residual_distribution(target, draft)))
    n = len(proposal.token_ids)
    return Verdict(n, draw(n, target_law(n)))


def bonus_from_the_row_before(proposal, *, target_law, accept, draw):  # type: ignore[no-untyped-def]
    verdict = verify_token(proposal, target_law=target_law, accept=accept, draw=draw)
    n = len(proposal.token_ids)
    if n and verdict.num_accepted == n:
        return Verdict(n, draw(n, target_law(n - 1)))
    return verdict


def residual_one_row_late(proposal, *, target_law, accept, draw):  # type: ignore[no-untyped-def]
    for index, token in enumerate(proposal.token_ids):
        target, draft = target_law(index), proposal.law(index)
        if not accept(index, acceptance_probability(target, draft, token)):
            return Verdict(index, draw(index, residual_distribution(target_law(index + 1), draft)))
    n = len(proposal.token_ids)
    return Verdict(n, draw(n, target_law(n)))


@pytest.mark.parametrize(
    "mutant",
    [
        correction_from_target,
        accepts_with_target_probability,
        bonus_from_the_row_before,
        residual_one_row_late,
    ],
)
def test_mutant_rules_break_the_law(mutant: Rule) -> None:
    target, draft = random_law(5, zeros=False), random_law(105, zeros=False)
    assert largest_error(target, draft, mutant) > 1e-3


def test_handing_on_another_law_than_the_drawn_one_breaks_the_law() -> None:
    target, draft = random_law(5, zeros=False), random_law(105, zeros=False)

    def sharpened(law: np.ndarray) -> np.ndarray:
        return law**2 / (law**2).sum()

    assert largest_error(target, draft, verify_token, handed_on=sharpened) > 1e-3


def test_dropping_a_drawn_token_breaks_the_law() -> None:
    target, draft = random_law(5, zeros=False), random_law(105, zeros=False)
    error = largest_error(target, draft, verify_token, drop_after=lambda p: p < 0.3)
    assert error > 1e-3
