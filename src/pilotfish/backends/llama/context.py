"""One llama.cpp context: run a flat batch, cut a sequence, free everything."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotfish.backends.llama.batch import FlatBatch, LogitsWindow
from pilotfish.backends.llama.library import forget_errors, load_library, logged_error
from pilotfish.backends.llama.loading import (
    LoadedFile,
    LoadOptions,
    open_context,
    with_context_size,
)
from pilotfish.backends.llama.placement import PASS_PLACEMENT
from pilotfish.backends.llama.tokenizer import count_real_tokens
from pilotfish.errors import BackendError

_REASONS = {1: "no free place in the cache", 2: "interrupted"}


class LlamaContext:
    """A model in memory together with one context; owns both.

    Nothing here checks arguments: callers hand in ids, positions and sequences that are in range,
    since llama.cpp ends the process on many of those that are not.
    """

    def __init__(self, loaded: LoadedFile, options: LoadOptions) -> None:
        library = load_library()
        self.loaded = loaded
        self.options = with_context_size(loaded, options)
        self.vocab_size = count_real_tokens(loaded.vocab)
        self._handle = open_context(loaded, self.options)
        # frees at garbage collection or at exit too, and does so once
        self._finalizer = weakref.finalize(self, _free, self._handle, loaded)
        self._memory = library.llama_get_memory(self._handle)
        self._decode = library.llama_decode
        self._get_logits = library.llama_get_logits
        self._remove = library.llama_memory_seq_rm
        self.max_rows = min(options.max_rows, options.batch_size)
        self.no_rows = np.zeros((0, self.vocab_size), dtype=np.float32)
        self.pass_seconds = 0.0
        self.batch = FlatBatch(options.batch_size)
        self._window = LogitsWindow(
            capacity=max(self.max_rows, options.max_sessions),
            vocab_size=self.vocab_size,
            padded_vocab_size=loaded.padded_vocab_size,
        )
        self._reserve_rows()

    @property
    def is_open(self) -> bool:
        """Return whether the context still exists."""
        return self._finalizer.alive

    def close(self) -> None:
        """Free the context and the model; closing twice does nothing."""
        self._finalizer()

    def run(self) -> NDArray[np.float32]:
        """Evaluate `batch`; return its rows [num_rows, vocab_size] in batch order, a view.

        The view is overwritten by the next run. Raises BackendError when llama.cpp fails; the
        cache may then hold part of the batch, and the caller cuts it back.
        """
        batch = self.batch
        start = time.perf_counter()
        with PASS_PLACEMENT:
            code = self._decode(self._handle, batch.struct)
        if code:
            reason = _REASONS.get(code) or logged_error() or "no reason given"
            forget_errors()
            raise BackendError(f"llama.cpp failed on {batch.num_tokens} tokens: {reason}")
        self.pass_seconds = time.perf_counter() - start
        if not batch.num_rows:
            return self.no_rows
        return self._window.rows(self._get_logits(self._handle))[: batch.num_rows]

    def run_one(
        self, token_ids: Sequence[int], *, position: int, sequence: int, first_row: int = 0
    ) -> NDArray[np.float32]:
        """Evaluate tokens of one sequence alone; see `run`."""
        self.batch.clear()
        self.batch.append(token_ids, position=position, sequence=sequence, first_row=first_row)
        return self.run()

    def truncate(self, sequence: int, length: int) -> bool:
        """Cut a sequence to `length` tokens; return False when the model cannot forget."""
        return bool(self._remove(self._memory, sequence, length, -1))

    def copy(self, source: int, sequence: int) -> None:
        """Make the empty `sequence` a copy of `source`."""
        load_library().llama_memory_seq_cp(self._memory, source, sequence, -1, -1)

    def _reserve_rows(self) -> None:
        # llama.cpp frees and reallocates the buffer of rows when a pass wants more than any before
        # it, under the feet of views already handed out. A pass that is interrupted before its
        # first operation makes it allocate for the most rows we will ever ask for.
        library = load_library()
        interrupt = library.ggml_abort_callback(lambda _: True)
        library.llama_set_abort_callback(self._handle, interrupt, None)
        try:
            self.run_one([0] * self.max_rows, position=0, sequence=0)
        except BackendError:
            self.truncate(0, 0)
        finally:
            library.llama_set_abort_callback(self._handle, library.ggml_abort_callback(0), None)
        self.truncate(0, 0)


def _free(context: Any, loaded: LoadedFile) -> None:
    load_library().llama_free(context)
    loaded.close()
