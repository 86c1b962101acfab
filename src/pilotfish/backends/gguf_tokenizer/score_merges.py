"""Tokens with scores: neighbours whose joint text scores best become one token, bytes the rest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from pilotfish.backends.gguf_tokenizer.vocabulary import Vocabulary, read_numbers, utf8
from pilotfish.errors import BackendError
from pilotfish.gguf import GgufHeader
from pilotfish.gguf.cursor import fail

BLANK = "▁"
_KEPT_CHARACTERS = 64
_KEPT_PIECES = 1 << 14


def score_bytes(text: str) -> bytes:
    """Return the bytes an ordinary token stands for."""
    return utf8(text.replace(BLANK, " "))


def score_encoder(header: GgufHeader, vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """Return a function from text to ids; ModelFileError when the scores do not fit the tokens."""
    size = len(vocabulary.texts)
    values = read_numbers(header, "scores", size, kinds="fi")
    scores = [0.0] * size if values is None else values.tolist()
    if any(map(math.isnan, scores)):
        fail(header.path, "is damaged: a token's score is not a number")
    return _ScoreMerges(vocabulary, scores).encode


class _ScoreMerges:
    """Merges by score, in pieces that no token can span."""

    def __init__(self, vocabulary: Vocabulary, scores: list[float]) -> None:
        self._ids = vocabulary.ids
        # the best comes first in a heap
        self._costs = {text: -scores[i] for i, text in enumerate(vocabulary.texts)}
        self._neighbours = {pair for text in vocabulary.texts for pair in pairwise(text)}
        self._kept_ids = lru_cache(maxsize=_KEPT_PIECES)(self._piece_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; BackendError for a byte that has no token."""
        ids: list[int] = []
        for piece in self._pieces(text.replace(" ", BLANK)):
            kept = len(piece) <= _KEPT_CHARACTERS
            ids += self._kept_ids(piece) if kept else self._piece_ids(piece)
        return ids

    def _pieces(self, text: str) -> list[str]:
        """Cut where two characters meet that meet in no token: nothing merges across."""
        neighbours = self._neighbours
        ends = [i for i, pair in enumerate(pairwise(text), 1) if pair not in neighbours]
        return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]

    def _piece_ids(self, piece: str) -> list[int]:
        ids: list[int] = []
        for symbol in _merged(piece, self._costs):
            if (token_id := self._ids.get(symbol)) is not None:
                ids.append(token_id)
            else:
                ids += map(self._byte_id, symbol.encode())
        return ids

    def _byte_id(self, byte: int) -> int:
        ids = self._ids
        token_id = ids.get(f"<0x{byte:02X}>", ids.get(chr(byte)) if byte < 128 else None)
        if token_id is None:
            raise BackendError(f"the tokenizer has no token for the byte {byte:#04x}")
        return token_id


def _merged(piece: str, costs: dict[str, float]) -> list[str]:
    """Return the symbols of `piece`: at each step the cheapest pair merges, of equals the first."""
    symbols = list(piece)
    before = list(range(-1, len(symbols) - 1))
    after = list(range(1, len(symbols) + 1))
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < len(symbols):
            text = symbols[left] + symbols[right]
            if (cost := costs.get(text)) is not None:
                heapq.heappush(queue, (cost, left, right, text))

    for left in range(len(symbols) - 1):
        offer(left, left + 1)
    while queue:
        _, left, right, text = heapq.heappop(queue)
        # one of the two has merged since; merged symbols are empty
        if not symbols[right] or symbols[left] + symbols[right] != text:
            continue
        symbols[left], symbols[right] = text, ""
        after[left] = after[right]
        if after[left] < len(symbols):
            before[after[left]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [symbol for symbol in symbols if symbol]
