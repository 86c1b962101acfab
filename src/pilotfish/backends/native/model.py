"""NativeModel: a GGUF model that scores several new tokens of several sequences in one pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from pilotfish import gguf
from pilotfish.backends.exclusive import Exclusive
from pilotfish.backends.facts import ModelFacts
from pilotfish.backends.footprint import format_bytes
from pilotfish.backends.gguf_tokenizer import GgufTokenizer
from pilotfish.backends.machine import default_threads, processor_name
from pilotfish.backends.native.cache import NativeCache
from pilotfish.backends.native.description import trained_context
from pilotfish.backends.native.head import SubsetHead, head_ids
from pilotfish.backends.native.library import library_identity, library_version
from pilotfish.backends.native.loading import (
    MAX_WIDTH,
    LoadOptions,
    default_context,
    needed_bytes,
    open_core,
    require_supported,
)
from pilotfish.backends.native.self_check import SelfCheck, kept_or_run
from pilotfish.backends.segments import check_prefix, check_segments
from pilotfish.backends.self_check import file_identity, sample_text
from pilotfish.errors import BackendError, NoFreeSlot, NotEnoughMemory
from pilotfish.gguf import GgufHeader
from pilotfish.types import FloatArray, Segment

if TYPE_CHECKING:
    from pilotfish_native import Model
    from pilotfish_native import Sequence as CoreSequence

_LOG = logging.getLogger("pilotfish")


class NativeModel:
    """A GGUF model on the native kernels; satisfies `protocols.TargetModel`.

    One thread at a time: a second one gets a BackendError. Use it as a context manager, or call
    `close`. `notices` collects sentences for the user (each is logged once, too).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        context_size: int | None = None,
        max_sessions: int = 1,
        most_cached_tokens: int = 0,
        threads: int | None = None,
        cache_type: str = "f16",
        instructions: str = "auto",
        head_size: int = 0,
        requantize: bool = False,
        header: GgufHeader | None = None,
        tokenizer: GgufTokenizer | None = None,
    ) -> None:
        """Load the file.

        context_size     tokens one sequence may hold; None: as trained, at most 4096
        max_sessions     sequences that may be open at once
        most_cached_tokens
                         what all of them together hold at most, for what is said to be needed of
                         memory, which grows with their use; 0: all contexts, full
        threads          None: the physical cores given to this process
        cache_type       f16 or f32
        instructions     auto: the fastest this processor has
        head_size        for drafts: how many tokens the head keeps, 0 is all; rows of logits then
                         have an entry for each id of `head.ids`
        requantize       for drafts: keep matrices of more than 4 bits in 4 bits
        header           what `gguf.check_file` said, where the caller has it already
        tokenizer        the file's, likewise

        Raises ModelFileError, ModelError, NotEnoughMemory, ConfigError or MissingExtra.
        """
        self.notices: list[str] = []
        header = gguf.check_file(path) if header is None else header
        require_supported(header)
        self._options = LoadOptions(
            context_size=default_context(header) if context_size is None else context_size,
            max_sessions=max_sessions,
            most_cached_tokens=most_cached_tokens,
            threads=default_threads() if threads is None else threads,
            cache_type=cache_type,
            instructions=instructions,
            head_size=head_size,
            requantize=requantize,
        )
        self._tokenizer = GgufTokenizer(header) if tokenizer is None else tokenizer
        self._vocab_size = self._tokenizer.vocab_size
        kept_ids = head_ids(self._tokenizer, head_size)
        self._core = open_core(
            header, self._options, vocab_size=self._vocab_size, head_ids=kept_ids
        )
        self._exclusive = Exclusive(self._core)
        # not a count: a cache that was refused, or dropped without being closed, is not in it
        self._open_caches: WeakSet[NativeCache] = WeakSet()
        self._head = None
        if kept_ids is not None:
            self._head = SubsetHead(kept_ids, vocab_size=self._vocab_size, add=self._extend_head)
        self._facts = _facts(header, self._core, self._options, vocabulary=self._vocab_size)
        try:
            self._self_check = self._check_rows()
        except MemoryError as error:
            self._core.close()
            raise NotEnoughMemory(f"{header.path.name} does not fit into memory") from error
        except BaseException:
            self._core.close()
            raise

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens: the length of every row of a whole head."""
        return self._vocab_size

    @property
    def head(self) -> SubsetHead | None:
        """Return which token each entry of a row belongs to, or None where it is its index."""
        return self._head

    @property
    def context_size(self) -> int:
        """Return the largest number of tokens one sequence may hold."""
        return self._options.context_size

    @property
    def max_width(self) -> int:
        """Return the largest number of rows one session may ask for in one pass."""
        return MAX_WIDTH

    @property
    def can_truncate(self) -> bool:
        """Return True: every network the core knows can discard tokens."""
        return True

    @property
    def exactness(self) -> dict[str, Any]:
        """Return what is known about the rows' bits, in the form of the JSON output."""
        return self._self_check.exactness()

    @property
    def facts(self) -> ModelFacts:
        """Return what the loaded object says about itself."""
        return self._facts

    @property
    def tokenizer(self) -> GgufTokenizer:
        """Return the file's tokenizer."""
        return self._tokenizer

    def new_cache(self) -> NativeCache:
        """Return an empty cache; raises BackendError when all places are taken."""
        with self._exclusive:
            self._require_place()
            with _errors_of_the_core():
                return self._opened(self._core.new_sequence())

    def copy_prefix(self, cache: NativeCache, length: int) -> NativeCache:
        """Return a new cache with the first `length` tokens; callers use `cache.prefix`."""
        with self._exclusive:
            self._check_cache(cache)
            check_prefix(length, len(cache))
            self._require_place()
            with _errors_of_the_core():
                return self._opened(cache.sequence.prefix(length))

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        """Evaluate the segments and return float32 logits [num_rows, vocab_size] for each.

        The arrays are views that the next call overwrites; copy what you keep. On BackendError
        every cache is as it was before the call.
        """
        with self._exclusive:
            self._check(segments)
            sequences = [cast(NativeCache, segment.cache).sequence for segment in segments]
            begun = [len(sequence) for sequence in sequences]
            try:
                with _errors_of_the_core():
                    rows = self._core.forward(
                        sequences,
                        [segment.token_ids for segment in segments],
                        [segment.first_row for segment in segments],
                    )
            except BackendError:
                for sequence, length in zip(sequences, begun, strict=True):
                    if len(sequence) > length:
                        sequence.truncate(length)
                raise
        return self._split(rows, segments)

    def truncate(self, cache: NativeCache, length: int) -> None:
        """Cut `cache` to `length` tokens; callers use `cache.truncate`."""
        with self._exclusive:
            self._check_cache(cache)
            if not 0 <= length <= len(cache):
                raise BackendError(f"cannot cut a cache of {len(cache)} tokens to {length}")
            with _errors_of_the_core():
                cache.sequence.truncate(length)

    def release(self, cache: NativeCache) -> None:
        """Take back the place of `cache`; callers use `cache.close`."""
        if self._core.is_open:
            with self._exclusive, _errors_of_the_core():
                cache.sequence.close()
                self._open_caches.discard(cache)

    def read_weights(self) -> tuple[float, int]:
        """Return the seconds of reading all weights of a pass and nothing else, and their bytes.

        Measures the machine: no pass can be faster.
        """
        with self._exclusive, _errors_of_the_core():
            return self._core.read_weights(), self._core.step_bytes

    def close(self) -> None:
        """Free the model and its caches; closing twice does nothing."""
        if self._core.is_open:
            with self._exclusive, _errors_of_the_core():
                self._core.close()

    def __enter__(self) -> NativeModel:
        """Return the model itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the model."""
        self.close()

    def _require_place(self) -> None:
        places = self._options.max_sessions
        if len(self._open_caches) >= places:
            raise NoFreeSlot(places)

    def _opened(self, sequence: CoreSequence) -> NativeCache:
        cache = NativeCache(self, sequence)
        self._open_caches.add(cache)
        return cache

    def _split(self, rows: NDArray[np.float32], segments: Sequence[Segment]) -> list[FloatArray]:
        if self._head is None:
            # rows of padding are no tokens
            rows = rows[:, : self._vocab_size]
        if len(segments) == 1:
            return [rows]
        ends = np.cumsum([segment.num_rows for segment in segments])
        return [rows[end - s.num_rows : end] for s, end in zip(segments, ends, strict=True)]

    def _check(self, segments: Sequence[Segment]) -> None:
        check_segments(
            segments,
            check_cache=self._check_cache,
            context_size=self.context_size,
            num_ids=self._vocab_size,
        )
        most = max((segment.num_rows for segment in segments), default=0)
        if most > MAX_WIDTH:
            raise BackendError(
                f"a pass holds {MAX_WIDTH} rows of a sequence, got {most}",
                hint="pass a prompt with first_row == len(token_ids)",
            )

    def _check_cache(self, cache: object) -> None:
        if not isinstance(cache, NativeCache) or not cache.belongs_to(self):
            raise BackendError("the cache belongs to another model")
        if not cache.is_open:
            raise BackendError("the cache was closed")

    def _check_rows(self) -> SelfCheck:
        sample_ids = self._tokenizer.encode(sample_text(), parse_special=False)
        options = self._options
        description = {
            "file": file_identity(self._facts.path),
            "library": library_identity(),
            "processor": processor_name(),
            "instructions": self._core.instructions,
            "threads": options.threads,
            "cache_type": options.cache_type,
            "head_size": options.head_size,
            "requantize": options.requantize,
        }
        check = kept_or_run(self._core, sample_ids, description)
        if not check.passed:
            notice = f"{self._facts.path.name}: {check.exactness()['reason']}"
            self.notices.append(notice)
            _LOG.warning(notice)
        return check

    def _extend_head(self, token_ids: NDArray[np.int32]) -> None:
        with self._exclusive, _errors_of_the_core():
            self._core.extend_head(token_ids)


@contextmanager
def _errors_of_the_core() -> Iterator[None]:
    """Turn what the core raises into BackendError, the one error callers of a model catch."""
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as error:
        raise BackendError(f"the native core failed: {error}") from error


def _facts(header: GgufHeader, core: Model, options: LoadOptions, *, vocabulary: int) -> ModelFacts:
    largest_format = next(iter(format_bytes(header)))
    parameters = header.parameter_count
    scalars = header.metadata.items()
    return ModelFacts(
        backend="native",
        path=header.path,
        description=f"{header.architecture} {parameters / 1e9:.2g}B {largest_format}",
        architecture=header.architecture,
        parameters=parameters,
        file_bytes=sum(path.stat().st_size for path in header.paths),
        weight_bytes=core.weight_bytes,
        step_bytes=core.step_bytes,
        vocabulary=vocabulary,
        padded_vocabulary=header.vocabulary_size,
        trained_context=trained_context(header),
        context_size=options.context_size,
        threads=core.threads,
        memory_bytes=needed_bytes(header, options, weight_bytes=core.weight_bytes),
        library=library_version(core.instructions),
        metadata={k: str(value) for k, value in scalars if not isinstance(value, gguf.GgufArray)},
    )
