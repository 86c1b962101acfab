"""Runs a random procedure through every outcome of its draws, with exact weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
V = TypeVar("V")


class Branches:
    """Answers each draw with one of its outcomes; `enumerate_runs` goes through all of them."""

    def __init__(self, path: Sequence[int]) -> None:
        self.path = list(path)
        self.sizes: list[int] = []
        self.weight = 1.0

    def draw(self, outcomes: Sequence[tuple[V, float]]) -> V:
        possible = [(value, weight) for value, weight in outcomes if weight > 0]
        depth = len(self.sizes)
        self.sizes.append(len(possible))
        if depth == len(self.path):
            self.path.append(0)
        value, weight = possible[self.path[depth]]
        self.weight *= weight
        return value


def enumerate_runs(run: Callable[[Branches], T]) -> Iterator[tuple[T, float]]:
    """Yield (result, probability) for every path through `run`."""
    path: list[int] = []
    while True:
        branches = Branches(path)
        result = run(branches)
        yield result, branches.weight
        path = branches.path[: len(branches.sizes)]
        while path and path[-1] + 1 == branches.sizes[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1
