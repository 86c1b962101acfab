"""A scripted model whose rows have entries for a part of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pilotfish.backends.scripted import ScriptedModel
from pilotfish.types import FloatArray, IdArray, Segment


class PartialHead:
    """Ids in any order, and at most `room` more."""

    def __init__(self, ids: Sequence[int], *, room: int = 100) -> None:
        self.ids: IdArray = np.array(ids, dtype=np.int64)
        self._most = len(ids) + room

    def extend(self, token_ids: Sequence[int]) -> None:
        missing = [token for token in dict.fromkeys(token_ids) if token not in self.ids]
        self.ids = np.concatenate([self.ids, missing])[: self._most].astype(np.int64)


class PartialModel(ScriptedModel):
    """Scores like a scripted model and keeps the entries of `head` only."""

    def __init__(self, model: ScriptedModel, head: PartialHead) -> None:
        self.__dict__.update(model.__dict__)
        self.head = head

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        return [rows[:, self.head.ids] for rows in super().forward(segments)]
