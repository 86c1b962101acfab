"""The verification rules by hand: which rows are asked for, with which draws, and what is left."""

from __future__ import annotations

import numpy as np
import pytest

from pilotfish.types import Distribution, Proposal, StopReason
from pilotfish.verify import (
    acceptance_probability,
    clip_to_stop,
    residual_distribution,
    verify_match,
    verify_token,
)


@pytest.mark.parametrize(
    ("drafted", "choices", "accepted", "token"),
    [
        ([], [4], 0, 4),
        ([5], [5, 6], 1, 6),
        ([5], [7], 0, 7),
        ([5, 6, 7], [5, 6, 7, 8], 3, 8),
        ([5, 6, 7], [5, 6, 9], 2, 9),
        # what would agree after a difference does not count
        ([5, 6, 7], [4], 0, 4),
    ],
)
def test_a_draft_stands_while_it_is_what_the_sampler_chooses(
    drafted: list[int], choices: list[int], accepted: int, token: int
) -> None:
    asked: list[int] = []

    def choose(index: int) -> int:
        asked.append(index)
        return choices[index]

    verdict = verify_match(Proposal(tuple(drafted), "model"), choose)
    assert (verdict.num_accepted, verdict.next_token) == (accepted, token)
    # rows after the first difference are never looked at
    assert asked == list(range(accepted + 1))


def law(*probs: float) -> Distribution:
    return Distribution.dense(np.array(probs))


@pytest.mark.parametrize(
    ("target", "draft", "chance"),
    [
        (0.3, 0.6, 0.5),
        (0.6, 0.3, 1.0),
        (0.4, 0.4, 1.0),
        (0.4, 0.0, 1.0),
        (0.0, 0.4, 0.0),
        # neither would say it
        (0.0, 0.0, 0.0),
    ],
)
def test_the_chance_of_a_draft_token_is_the_ratio_of_the_laws_at_most_one(
    target: float, draft: float, chance: float
) -> None:
    laws = law(target, 1 - target), law(draft, 1 - draft)
    assert acceptance_probability(*laws, 0) == pytest.approx(chance)


def test_the_residual_is_what_the_target_has_beyond_the_draft() -> None:
    rest = residual_distribution(law(0.5, 0.25, 0.25), law(0.25, 0.125, 0.625))
    assert rest.ids.tolist() == [0, 1]
    np.testing.assert_allclose(rest.probs, [2 / 3, 1 / 3])
    # where the two are the same, nothing is left and a rejection has no weight
    same = law(0.5, 0.25, 0.25)
    assert residual_distribution(same, law(0.5, 0.25, 0.25)) is same


class Draws:
    """What the token rule asks for, in order; drafts before `rejected` are accepted."""

    def __init__(self, rejected: int) -> None:
        self.rejected = rejected
        self.asked: list[object] = []
        self.targets = [law(0.5, 0.5, 0.0), law(0.125, 0.5, 0.375), law(0.0, 0.5, 0.5)]

    def target_law(self, index: int) -> Distribution:
        self.asked.append(("row", index))
        return self.targets[index]

    def accept(self, index: int, chance: float) -> bool:
        self.asked.append(("accept", index, chance))
        return index != self.rejected

    def draw(self, index: int, law: Distribution) -> int:
        self.asked.append(("draw", index, law.ids.tolist(), law.probs.tolist()))
        return 7 + index


@pytest.mark.parametrize(
    ("rejected", "accepted", "asked"),
    [
        (0, 0, [("row", 0), ("accept", 0, 1.0), ("draw", 0, [1], [1.0])]),
        (
            1,
            1,
            [
                *[("row", 0), ("accept", 0, 1.0), ("row", 1), ("accept", 1, 0.5)],
                ("draw", 1, [0, 2], [0.25, 0.75]),
            ],
        ),
        (
            2,
            2,
            [
                *[("row", 0), ("accept", 0, 1.0), ("row", 1), ("accept", 1, 0.5)],
                *[("row", 2), ("draw", 2, [0, 1, 2], [0.0, 0.5, 0.5])],
            ],
        ),
    ],
)
def test_the_token_rule_asks_for_each_row_and_draw_once_and_in_order(
    rejected: int, accepted: int, asked: list[object]
) -> None:
    laws = (law(0.5, 0.0, 0.5), law(0.0, 1.0, 0.0))
    draws = Draws(rejected)
    verdict = verify_token(
        Proposal((0, 1), "model", laws),
        target_law=draws.target_law,
        accept=draws.accept,
        draw=draws.draw,
    )
    assert (verdict.num_accepted, verdict.next_token) == (accepted, 7 + accepted)
    assert draws.asked == asked


@pytest.mark.parametrize(
    ("tokens", "left", "completed_by", "kept", "reason"),
    [
        ([1, 2, 3], 9, None, [1, 2, 3], None),
        ([1, 2, 3], 4, None, [1, 2, 3], None),
        ([1, 2, 3], 3, None, [1, 2, 3], StopReason.LENGTH),
        ([1, 2, 3], 2, None, [1, 2], StopReason.LENGTH),
        ([1, 2, 3], 1, None, [1], StopReason.LENGTH),
        # an end token at the limit is an end
        ([1, 0, 3], 2, None, [1, 0], StopReason.STOP),
        ([1, 0, 3], 9, None, [1, 0], StopReason.STOP),
        ([1, 2, 0], 2, None, [1, 2], StopReason.LENGTH),
        ([0], 1, None, [0], StopReason.STOP),
        ([1, 2, 3], 9, 2, [1, 2], StopReason.STOP),
        ([1, 2, 3], 2, 2, [1, 2], StopReason.STOP),
        ([1, 2, 3], 1, 2, [1], StopReason.LENGTH),
        # the detector sees an end token, too
        ([0, 2], 9, 0, [0], StopReason.STOP),
    ],
)
def test_a_round_is_cut_once_after_the_first_token_that_ends_the_reply(
    tokens: list[int],
    left: int,
    completed_by: int | None,
    kept: list[int],
    reason: StopReason | None,
) -> None:
    seen: list[int] = []

    def completes_stop(token: int) -> bool:
        seen.append(token)
        return token == completed_by

    clip = clip_to_stop(
        tokens,
        end_ids=frozenset({0}),
        num_tokens_left=left,
        completes_stop=completes_stop,
    )
    assert (clip.tokens, clip.reason) == (kept, reason)
    # each kept token once, and nothing after the cut
    assert seen == kept
