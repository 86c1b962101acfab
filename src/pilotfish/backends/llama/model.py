"""LlamaModel: a GGUF model that scores several new tokens of several sequences in one pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from weakref import WeakValueDictionary

from pilotfish.backends.exclusive import Exclusive
from pilotfish.backends.facts import ModelFacts
from pilotfish.backends.llama.cache import LlamaCache
from pilotfish.backends.llama.context import LlamaContext
from pilotfish.backends.llama.evaluate import evaluate_alone, evaluate_together
from pilotfish.backends.llama.facts import read_facts
from pilotfish.backends.llama.library import load_library
from pilotfish.backends.llama.loading import (
    LoadOptions,
    context_bytes,
    load_file,
)
from pilotfish.backends.llama.self_check_store import describe, load_report, save_report
from pilotfish.backends.llama.slow_pass import SlowPassDetector
from pilotfish.backends.llama.strict import DEFAULT_WIDTHS, WidthCheck, WidthReport
from pilotfish.backends.llama.tokenizer import LlamaTokenizer
from pilotfish.backends.machine import default_threads
from pilotfish.backends.segments import check_prefix, check_segments
from pilotfish.backends.self_check import sample_text
from pilotfish.errors import (
    BackendError,
    CacheNotTruncatable,
    ConfigError,
    NoFreeSlot,
    StrictUnavailable,
)
from pilotfish.types import FloatArray, Segment

_LOG = logging.getLogger("pilotfish")
_SPARE_CELLS = 32
_MAX_ROWS = 64


class LlamaModel:
    """A GGUF model on llama.cpp; satisfies `protocols.TargetModel`.

    One thread at a time: a second one gets a BackendError. Use it as a context manager, or call
    `close`. `notices` collects sentences for the user (each is logged once, too).
    """

    def __init__(
        self,
        path: str | Path,
        *,
        context_size: int | None = None,
        max_sessions: int = 1,
        threads: int | None = None,
        batch_size: int = 512,
        cache_type: str = "f16",
        flash_attention: bool = False,
        repack: bool = True,
        shared_cells: bool = False,
        strict: bool = False,
        strict_widths: Sequence[int] = DEFAULT_WIDTHS,
    ) -> None:
        """Load the file and allocate the caches.

        context_size     tokens one sequence may hold; None: as trained, at most 4096
        max_sessions     sequences that may be open at once
        threads          None: the physical cores given to this process
        batch_size       tokens in one llama.cpp pass; longer calls take several
        cache_type       f32, f16; q8_0 and q4_0 need flash_attention
        repack           let llama.cpp lay weights out anew for its fastest kernels
        shared_cells     one pool of cells for all sequences: ragged passes then read the weights
                         once, but every row attends over the cells of all sequences
        strict           keep to pass widths that give the same bits (self-checked, cached)
        strict_widths    the widths the self-check tries, each at most 32

        Raises ModelFileError, ModelError, NotEnoughMemory, StrictUnavailable, ConfigError or
        MissingExtra.
        """
        self.notices: list[str] = []
        self._widths: tuple[int, ...] = ()
        self._report: WidthReport | None = None
        options = LoadOptions(
            context_size=_checked_size(context_size),
            max_sessions=max_sessions,
            threads=default_threads() if threads is None else threads,
            batch_size=batch_size,
            max_rows=_MAX_ROWS,
            cache_type=cache_type,
            flash_attention=flash_attention,
            repack=repack,
            shared_cells=shared_cells,
            spare_cells=_SPARE_CELLS,
        )
        self._context = _open(Path(path), options)
        self._exclusive = Exclusive(self._context)
        loaded, options = self._context.loaded, self._context.options
        self._facts = read_facts(
            loaded,
            vocabulary=self._context.vocab_size,
            options=options,
            context_bytes=context_bytes(loaded, options),
        )
        self._tokenizer = LlamaTokenizer(loaded, vocab_size=self._context.vocab_size)
        # not a list of free ones: a cache dropped without being closed is not in it
        self._open_caches: WeakValueDictionary[int, LlamaCache] = WeakValueDictionary()
        self._slow_passes = SlowPassDetector(self._facts.weight_bytes, threads=options.threads)
        if strict:
            self._keep_to_widths(options, strict_widths)

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens: the length of every row."""
        return self._context.vocab_size

    @property
    def padded_vocab_size(self) -> int:
        """Return the number of rows of the head, padding included."""
        return self._context.loaded.padded_vocab_size

    @property
    def context_size(self) -> int:
        """Return the largest number of tokens one sequence may hold."""
        return self._context.options.context_size

    @property
    def max_width(self) -> int:
        """Return the largest number of rows one session may ask for in one pass."""
        return self._widths[-1] if self._widths else self._context.options.batch_size

    @property
    def can_truncate(self) -> bool:
        """Return whether caches can discard tokens; recurrent and hybrid models cannot."""
        if not self._context.is_open:
            raise BackendError("the model was closed")
        library, model = load_library(), self._context.loaded.model
        recurrent = library.llama_model_is_recurrent(model)
        return not (recurrent or library.llama_model_is_hybrid(model))

    @property
    def exactness(self) -> dict[str, Any]:
        """Return what is known about the rows' bits, in the form of the JSON output."""
        if self._report is None:
            return {
                "level": "in distribution",
                "checked_widths": [],
                "strict_width": None,
                "reason": "passes of different widths use different kernels; strict mode is off",
            }
        return {
            "level": "bit-identical",
            "checked_widths": list(self._widths),
            "strict_width": self._widths[0],
            "reason": self._report.reason,
        }

    @property
    def width_report(self) -> WidthReport | None:
        """Return what the strict self-check found, or None when strict mode is off."""
        return self._report

    @property
    def facts(self) -> ModelFacts:
        """Return what the loaded object says about itself."""
        return self._facts

    @property
    def tokenizer(self) -> LlamaTokenizer:
        """Return the file's tokenizer."""
        return self._tokenizer

    def new_cache(self) -> LlamaCache:
        """Return an empty cache; raises BackendError when all places are taken."""
        with self._exclusive:
            return self._take_place()

    def copy_prefix(self, cache: LlamaCache, length: int) -> LlamaCache:
        """Return a new cache with the first `length` tokens; callers use `cache.prefix`."""
        with self._exclusive:
            self._check_cache(cache)
            check_prefix(length, len(cache))
            copy = self._take_place()
            try:
                # streams of cells are copied whole, and cut afterwards
                self._context.copy(cache.sequence, copy.sequence)
                copy.set_length(len(cache))
                self._cut(copy, length)
            except BaseException:
                self._give_back(copy)
                raise
            return copy

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        """Evaluate the segments and return float32 logits [num_rows, vocab_size] for each.

        The arrays are views that the next call overwrites and `close` frees; copy what you keep.
        On BackendError every cache is as it was before the call.
        """
        with self._exclusive:
            self._check(segments)
            begun = [len(segment.cache) for segment in segments]
            try:
                return self._evaluate(segments)
            except BackendError:
                for segment, length in zip(segments, begun, strict=True):
                    self._cut(cast(LlamaCache, segment.cache), length)
                raise

    def truncate(self, cache: LlamaCache, length: int) -> None:
        """Cut `cache` to `length` tokens; callers use `cache.truncate`."""
        with self._exclusive:
            self._check_cache(cache)
            if not 0 <= length <= len(cache):
                raise BackendError(f"cannot cut a cache of {len(cache)} tokens to {length}")
            self._cut(cache, length)

    def release(self, cache: LlamaCache) -> None:
        """Take back the place of `cache`; callers use `cache.close`."""
        if not self._context.is_open:
            return
        with self._exclusive:
            self._give_back(cache)

    def close(self) -> None:
        """Free the model and its caches; closing twice does nothing."""
        if self._context.is_open:
            with self._exclusive:
                self._tokenizer.close()
                self._context.close()

    def __enter__(self) -> LlamaModel:
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

    def _take_place(self) -> LlamaCache:
        places = self._context.options.max_sessions
        # neighbours in id share passes, so the lowest free id keeps sequences together
        sequence = next((s for s in range(places) if s not in self._open_caches), None)
        if sequence is None:
            raise NoFreeSlot(places)
        # what a cache that was dropped without being closed left there
        self._context.truncate(sequence, 0)
        cache = LlamaCache(self, sequence)
        self._open_caches[sequence] = cache
        return cache

    def _give_back(self, cache: LlamaCache) -> None:
        if self._open_caches.get(cache.sequence) is cache:
            self._context.truncate(cache.sequence, 0)
            del self._open_caches[cache.sequence]

    def _evaluate(self, segments: Sequence[Segment]) -> list[FloatArray]:
        if self._widths:
            return evaluate_alone(self._context, segments, self._widths)
        rows = evaluate_together(self._context, segments)
        if self._context.batch.num_tokens == 1:
            self._notice_slow_pass()
        return rows

    def _keep_to_widths(self, options: LoadOptions, widths: Sequence[int]) -> None:
        try:
            self._report = self._check_widths(options, widths)
        except BaseException:
            self.close()
            raise
        self._widths = self._report.strict_widths

    def _check_widths(self, options: LoadOptions, widths: Sequence[int]) -> WidthReport:
        name = self._facts.path.name
        if not self.can_truncate:
            raise StrictUnavailable(
                f"{name} keeps recurrent state: padded passes cannot be rolled back",
                hint="leave out --strict",
            )
        if not widths or not 1 <= min(widths) <= max(widths) <= min(_SPARE_CELLS, self.max_width):
            raise ConfigError(f"strict widths must be from 1 to {_SPARE_CELLS}, got {list(widths)}")
        if options.shared_cells:
            raise ConfigError("strict mode and shared_cells exclude each other")
        description = describe(self._facts.path, options, widths)
        report = load_report(description)
        if report is None:
            sample_ids = self._tokenizer.encode(sample_text(), parse_special=False)
            has_neighbour = options.max_sessions > 1
            report = WidthCheck(
                self._context, sample_ids, has_neighbour=has_neighbour, widths=widths
            ).run()
            save_report(description, report)
        if not report.strict_widths:
            raise StrictUnavailable(
                f"strict mode is not available for {name} here: {report.reason}",
                hint="leave out --strict, or use another backend",
            )
        return report

    def _notice_slow_pass(self) -> None:
        notice = self._slow_passes.observe(self._context.pass_seconds)
        if notice is not None:
            self.notices.append(notice)
            _LOG.warning(notice)

    def _check(self, segments: Sequence[Segment]) -> None:
        # llama.cpp ends the process, or reads past its tables, on an id it does not have
        check_segments(
            segments,
            check_cache=self._check_cache,
            context_size=self.context_size,
            num_ids=self.padded_vocab_size,
        )

    def _check_cache(self, cache: object) -> None:
        if not isinstance(cache, LlamaCache) or not cache.belongs_to(self):
            raise BackendError("the cache belongs to another model")
        if not cache.is_open:
            raise BackendError("the cache was closed")

    def _cut(self, cache: LlamaCache, length: int) -> None:
        if not self._context.truncate(cache.sequence, length):
            raise CacheNotTruncatable(
                f"{self._facts.path.name} keeps recurrent state and cannot discard tokens",
                hint="run it with --drafter none",
            )
        cache.set_length(length)


def _open(path: Path, options: LoadOptions) -> LlamaContext:
    loaded = load_file(path, repack=options.repack)
    try:
        return LlamaContext(loaded, options)
    except BaseException:
        loaded.close()
        raise


def _checked_size(context_size: int | None) -> int:
    if context_size is not None and context_size < 1:
        raise ConfigError(f"context_size must be 1 or more, got {context_size}")
    return context_size or 0
