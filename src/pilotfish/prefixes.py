"""The caches of sequences that run or ran lately, for sequences that begin alike.

A system prompt, the earlier turns of a chat: what one sequence has read, another need not read
again. Used for targets and for draft models alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pilotfish.errors import BackendError
from pilotfish.protocols import Cache, TargetModel
from pilotfish.types import IdArray, common_length

# taking over less than this saves nothing worth a copy
_LEAST_TOKENS = 16
_NO_LIMIT = 1 << 62


@dataclass(slots=True, eq=False)
class _Entry:
    """A cache and the tokens in it; while the sequence runs they are its own list, which grows.

    `most_reusable` is where the tokens end that may be taken over. While the cache `is_changing` it
    may hold drafts that are no part of the text, and for good if whatever changes it is broken off.
    """

    cache: Cache
    tokens: Sequence[int] | IdArray
    most_reusable: int
    is_changing: bool = False

    @property
    def num_reusable(self) -> int:
        return 0 if self.is_changing else min(len(self.cache), len(self.tokens), self.most_reusable)

    def num_common(self, ids: IdArray) -> int:
        """Return how many tokens at the beginning are those of `ids` [n]."""
        length = min(self.num_reusable, len(ids))
        return common_length(np.asarray(self.tokens[:length], dtype=np.int64), ids)


class PrefixPool:
    """Hands out caches of one model, with as much of the text in them as is known.

    most_sequences  ended sequences that are kept; 0 turns everything off, each cache begins empty
    most_tokens     tokens of all kept sequences together: what bounds their memory
    unit            beginnings are taken over in multiples of this. Where a row's bits depend on
                    the cut of the prompt into passes, it is the length of those passes, and only
                    what was read in whole ones is taken over, never tokens of a reply: so a reply
                    does not depend on what is kept. 1 where bits depend on nothing.

    One thread at a time changes it; any may ask for its numbers.
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
        self._kept: list[_Entry] = []  # longest unused first

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
        return sum(len(entry.cache) for entry in list(self._kept))

    @property
    def num_live_tokens(self) -> int:
        """Return the tokens in the caches of the sequences that run."""
        return sum(len(entry.cache) for entry in list(self._live.values()))

    def num_known(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of a sequence that begins with `tokens` need not be read."""
        return self._best(tokens)[1]

    def begin(self, tokens: Sequence[int]) -> Cache:
        """Return a cache for a sequence: the longest known beginning of it is in it, its last token
        never. Raises BackendError when all places are taken by sequences that run."""
        donor, length = self._best(tokens)
        if donor is None:
            return self._with_place(self._model.new_cache)
        if donor in self._kept:
            self._used(donor)
        try:
            return self._with_place(lambda: donor.cache.prefix(length), spared=donor)
        except BackendError:
            if donor not in self._kept:
                raise
            # the one place left is the donor's
            self._kept.remove(donor)
            donor.cache.truncate(length)
            return donor.cache

    def watch(
        self, key: int, cache: Cache, tokens: Sequence[int], *, num_prompt_tokens: int
    ) -> None:
        """Note a sequence that begins; others may take over what it has read from now on.

        key     names it until `end`
        tokens  grows as the sequence does; its first `len(cache)` are those in the cache
        """
        whole_passes = (num_prompt_tokens - 1) // self._unit * self._unit
        self._live[key] = _Entry(cache, tokens, _NO_LIMIT if self._unit == 1 else whole_passes)

    def distrust(self, key: int) -> None:
        """Let nobody take over what a running sequence has read: a pass of it failed. It is not
        kept, either. Does nothing for a sequence that ended."""
        if (entry := self._live.get(key)) is not None:
            entry.most_reusable = 0

    @contextmanager
    def changing(self, keys: Sequence[int]) -> Iterator[None]:
        """Mark running sequences while their caches are changed.

        If the block ends by an exception, whatever it is, their caches may say something else than
        their tokens: nobody takes them over from then on, and they are not kept.
        """
        entries = [entry for key in keys if (entry := self._live.get(key)) is not None]
        for entry in entries:
            if entry.is_changing:  # an earlier change was broken off
                entry.most_reusable = 0
            entry.is_changing = True
        yield
        for entry in entries:
            entry.is_changing = False

    def is_broken_off(self, key: int) -> bool:
        """Return whether a change of a running sequence's cache did not come to its end."""
        entry = self._live.get(key)
        return entry is not None and entry.is_changing

    def end(self, key: int) -> None:
        """End a sequence: its cache is kept, or closed. Safe to repeat."""
        # from here on it is kept, closed or, where something breaks this off, dropped
        entry = self._live.pop(key, None)
        if entry is None:
            return
        length = self.num_shared(min(entry.num_reusable, self._most_tokens))
        if not length:
            entry.cache.close()
            return
        entry.cache.truncate(length)
        entry.tokens = np.array(entry.tokens[:length], dtype=np.int64)
        self._keep(entry, entry.tokens)

    def clear(self) -> None:
        """Give back the places of all kept sequences."""
        while self._kept:
            self._drop(self._kept[0])

    def _best(self, tokens: Sequence[int]) -> tuple[_Entry | None, int]:
        """Return who has the longest beginning that can be taken over, and its length."""
        best, longest = None, 0
        if self._most_sequences:
            ids = np.asarray(tokens[:-1], dtype=np.int64)
            for entry in (*self._kept, *self._live.values()):
                length = self.num_shared(entry.num_common(ids))
                if length > longest:
                    best, longest = entry, length
        return best, longest

    def _with_place(self, make: Callable[[], Cache], *, spared: _Entry | None = None) -> Cache:
        """Return what `make` returns, giving up kept sequences while there is no place for it."""
        while True:
            try:
                return make()
            except BackendError:
                oldest = next((entry for entry in self._kept if entry is not spared), None)
                if oldest is None:
                    raise
                self._drop(oldest)

    def _keep(self, entry: _Entry, ids: IdArray) -> None:
        """Keep an ended sequence with the tokens `ids` [n], and nothing twice."""
        for kept in list(self._kept):
            common = kept.num_common(ids)
            if common == len(ids):  # known already, with more behind it
                entry.cache.close()
                self._used(kept)
                return
            if common == len(kept.cache):
                self._drop(kept)
        self._kept.append(entry)
        while len(self._kept) > self._most_sequences or self.num_kept_tokens > self._most_tokens:
            self._drop(self._kept[0])

    def _used(self, entry: _Entry) -> None:
        self._kept.remove(entry)
        self._kept.append(entry)

    def _drop(self, entry: _Entry) -> None:
        self._kept.remove(entry)
        entry.cache.close()
