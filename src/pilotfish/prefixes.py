"""The caches of sequences that run or ran lately, for sequences that begin alike.

A system prompt, the earlier turns of a chat: what one sequence has read, another need not read
again. Used for targets and for draft models alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pilotfish.errors import BackendError
from pilotfish.protocols import Cache, TargetModel
from pilotfish.types import IdArray

# taking over less than this saves nothing worth a copy
_LEAST_TOKENS = 16
_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class _Entry:
    """A cache and the tokens in it; `tokens` may be longer than the cache, and may grow.

    `most_reusable` is where the tokens end that were read as any prompt reads them.
    """

    cache: Cache
    tokens: Sequence[int] | IdArray
    most_reusable: int

    @property
    def num_reusable(self) -> int:
        return min(len(self.cache), self.most_reusable)

    def num_common(self, ids: IdArray) -> int:
        """Return how many tokens at the beginning are those of `ids` [n]."""
        length = min(self.num_reusable, len(ids))
        own = np.asarray(self.tokens[:length], dtype=np.int64)
        differing = np.flatnonzero(own != ids[:length])
        return int(differing[0]) if len(differing) else length


class PrefixPool:
    """Hands out caches of one model, with as much of the text in them as is known.

    most_sequences  ended sequences that are kept; 0 turns everything off, each cache begins empty
    most_tokens     tokens of all kept sequences together: what bounds their memory
    unit            beginnings are taken over in multiples of this. Where a row's bits depend on
                    the cut of the prompt into passes, it is the length of those passes, and only
                    what was read in whole ones is taken over, never tokens of a reply: so a reply
                    does not depend on what is kept. 1 where bits depend on nothing.
    """

    def __init__(
        self,
        model: TargetModel,
        *,
        most_sequences: int = 0,
        most_tokens: int = 1 << 20,
        unit: int = 1,
    ) -> None:
        self._model = model
        self._most_sequences = most_sequences
        self._most_tokens = most_tokens
        self._unit = unit
        self._live: dict[int, _Entry] = {}
        self._kept: OrderedDict[int, _Entry] = OrderedDict()  # longest unused first

    @property
    def unit(self) -> int:
        """Return what beginnings are taken over in multiples of, in tokens."""
        return self._unit

    def num_shared(self, num_common: int) -> int:
        """Return how many of so many common tokens a sequence takes over from another one."""
        shared = num_common // self._unit * self._unit
        return shared if self._most_sequences and shared >= _LEAST_TOKENS else 0

    @property
    def num_kept(self) -> int:
        """Return how many ended sequences are kept."""
        return len(self._kept)

    @property
    def num_kept_tokens(self) -> int:
        """Return the tokens of all kept sequences."""
        return sum(len(entry.cache) for entry in self._kept.values())

    @property
    def num_live_tokens(self) -> int:
        """Return the tokens in the caches of the sequences that run."""
        return sum(len(entry.cache) for entry in self._live.values())

    def begin(self, tokens: Sequence[int]) -> Cache:
        """Return a cache for a sequence: the longest known beginning of it is in it, its last token
        never. Raises BackendError when all places are taken by sequences that run."""
        donor, length = None, 0
        if self._most_sequences:
            donor, length = self._best(np.asarray(tokens[:-1], dtype=np.int64))
        if donor is None:
            return self._with_place(self._model.new_cache)
        return self._with_place(lambda: donor.cache.prefix(length), spared=donor)

    def watch(
        self, key: int, cache: Cache, tokens: Sequence[int], *, num_prompt_tokens: int
    ) -> None:
        """Note a sequence that begins; others may take over what it has read from now on.

        key     names it until `end`
        tokens  grows as the sequence does; its first `len(cache)` are those in the cache
        """
        whole_passes = (num_prompt_tokens - 1) // self._unit * self._unit
        self._live[key] = _Entry(cache, tokens, _NO_LIMIT if self._unit == 1 else whole_passes)

    def end(self, key: int, *, keep: bool = True) -> None:
        """End a sequence: its cache is kept, or closed. Safe to repeat."""
        entry = self._live.pop(key, None)
        if entry is None:
            return
        length = entry.num_reusable
        if not keep or not self._most_sequences or length < max(_LEAST_TOKENS, self._unit):
            entry.cache.close()
            return
        entry.cache.truncate(length)
        entry.tokens = np.asarray(entry.tokens[:length], dtype=np.int64)
        for other, kept in list(self._kept.items()):
            common = kept.num_common(entry.tokens)
            if common == length:  # known already, with more behind it
                entry.cache.close()
                self._kept.move_to_end(other)
                return
            if common == len(kept.cache):
                self._kept.pop(other).cache.close()
        self._kept[key] = entry
        self._shrink()

    def clear(self) -> None:
        """Give back the places of all kept sequences."""
        while self._kept:
            self._drop_oldest()

    def _best(self, ids: IdArray) -> tuple[_Entry | None, int]:
        best, longest = None, 0
        for key, entry in [*self._kept.items(), *self._live.items()]:
            common = entry.num_common(ids) // self._unit * self._unit
            if common > longest and common >= _LEAST_TOKENS:
                best, longest = key, common
        if best is None:
            return None, 0
        if best in self._kept:
            self._kept.move_to_end(best)
            return self._kept[best], longest
        return self._live[best], longest

    def _with_place(self, make: Callable[[], Cache], *, spared: _Entry | None = None) -> Cache:
        while True:
            try:
                return make()
            except BackendError:
                others = [key for key, entry in self._kept.items() if entry is not spared]
                if not others:
                    raise
                self._kept.pop(others[0]).cache.close()

    def _shrink(self) -> None:
        while len(self._kept) > self._most_sequences or self.num_kept_tokens > self._most_tokens:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, entry = self._kept.popitem(last=False)
        entry.cache.close()
