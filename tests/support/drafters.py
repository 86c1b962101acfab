"""Draft styles for tests: SELF, ORACLE-k, NEVER, RANDOM, and some that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pilotfish.types import Proposal, SessionView


class FunctionDrafter:
    """Proposes what a function of (view, budget) returns."""

    def __init__(
        self, function: Callable[[SessionView, int], Sequence[int]], source: str = "model"
    ):
        self.function = function
        self.source = source
        self.forgotten: list[int] = []

    def prepare(self, view: SessionView) -> bool:
        return False

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        return [
            Proposal(tuple(self.function(view, budget))[:budget], self.source)
            for view, budget in zip(views, budgets, strict=True)
        ]

    def forget(self, request_id: int) -> None:
        self.forgotten.append(request_id)


def oracle(reference: Sequence[int], *, errs_every: int = 0, vocab_size: int) -> FunctionDrafter:
    """Know the reply; be wrong at every `errs_every`-th token of it (0: never)."""

    def propose(view: SessionView, budget: int) -> list[int]:
        first = view.num_output_tokens
        return [
            (token + 1) % vocab_size if errs_every and (first + i + 1) % errs_every == 0 else token
            for i, token in enumerate(reference[first : first + budget])
        ]

    return FunctionDrafter(propose)


def never(reference: Sequence[int], *, vocab_size: int) -> FunctionDrafter:
    """Know the reply and avoid it."""
    return oracle(reference, errs_every=1, vocab_size=vocab_size)


def random_tokens(vocab_size: int, seed: int = 0) -> FunctionDrafter:
    """Propose seeded noise."""

    def propose(view: SessionView, budget: int) -> list[int]:
        generator = np.random.default_rng([seed, view.request_id, len(view.tokens)])
        return [int(token) for token in generator.integers(0, vocab_size, budget)]

    return FunctionDrafter(propose)


class RaisingDrafter(FunctionDrafter):
    """Raises in its n-th call, and always afterwards."""

    def __init__(self, after: int = 0) -> None:
        super().__init__(lambda view, budget: [0] * budget)
        self.calls = 0
        self.after = after

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        self.calls += 1
        if self.calls > self.after:
            raise RuntimeError("the drafter broke")
        return super().propose(views, budgets)
