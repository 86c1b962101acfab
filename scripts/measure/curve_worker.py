#!/usr/bin/env python
"""Run timed passes of one engine on command: the other end of `curve.py` and `busy_neighbour.py`.

Commands are JSON objects, one a line, on standard input; each gets one line back:

    {"do": "prompt", "tokens": 512}                 seconds of reading a prompt in one pass
    {"do": "fill", "tokens": 256}                   reads a context that later passes stand on
    {"do": "pass", "width": 4, "repeats": 3}        seconds of each pass over that many tokens
    {"do": "read", "repeats": 3}                    seconds of reading all weights, and their bytes

Engines: those of `yardsticks.py`, and `ik`, the package ik-llama-cpp-python. This file needs no
other package of ours for `ik`, so that it can run in an environment of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

CONTEXT_ROOM = 64


def token_ids(count: int, first: int = 0) -> list[int]:
    """Return ids that every vocabulary has; which they are does not matter to the time."""
    return [1000 + 7919 * (first + i) % 30000 for i in range(count)]


class BackendEngine:
    """One of our backends with one sequence."""

    def __init__(self, name: str, path: Path, *, context_size: int, threads: int) -> None:
        """Load the file."""
        from yardsticks import open_model

        self.model = open_model(name, path, context_size=context_size, threads=threads)
        self.cache = self.model.new_cache()

    def evaluate(self, ids: list[int], *, first_row: int) -> None:
        """Add `ids` and compute rows from `first_row` on."""
        from pilotfish.types import Segment

        self.model.forward([Segment(self.cache, ids, first_row)])

    def truncate(self, length: int) -> None:
        """Cut the sequence."""
        self.cache.truncate(length)

    def read_weights(self) -> tuple[float, int]:
        """Return the seconds of reading all weights of a pass, and their bytes."""
        # a measurement of the machine: no model offers it in public
        core = self.model._core
        return core.read_weights(), core.step_bytes


class IkEngine:
    """The library of ik-llama-cpp-python with one sequence, weights repacked."""

    def __init__(self, path: Path, *, context_size: int, threads: int) -> None:
        """Load the file."""
        from ik_llama_cpp import _ctypes_api as library

        self.library = library
        library.llama_backend_init()
        model_options = library.llama_model_default_params()
        model_options.repack_tensors = True
        model = library.llama_model_load_from_file(str(path).encode(), model_options)
        options = library.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = max(512, context_size)
        options.n_threads = options.n_threads_batch = threads
        self.context = library.llama_init_from_model(model, options)
        if not self.context:
            raise SystemExit(f"error: ik cannot load {path.name}")
        self.remove = library._lib.llama_kv_cache_seq_rm
        self.remove.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        self.batch = library.llama_batch_init(options.n_batch, 0, 1)
        self.length = 0

    def evaluate(self, ids: list[int], *, first_row: int) -> None:
        """Add `ids` and compute rows from `first_row` on."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i >= first_row
        if self.library.llama_decode(self.context, batch):
            raise SystemExit(f"error: ik fails on a pass over {len(ids)} tokens")
        self.length += len(ids)

    def truncate(self, length: int) -> None:
        """Cut the sequence."""
        self.remove(self.context, 0, length, -1)
        self.length = length


def load(engine: str, path: Path, *, context_size: int, threads: int) -> Any:
    """Return an engine with an empty sequence."""
    if engine == "ik":
        return IkEngine(path, context_size=context_size, threads=threads)
    return BackendEngine(engine, path, context_size=context_size, threads=threads)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Worker:
    """Carries out commands on one engine."""

    def __init__(self, engine: Any) -> None:
        """Take an engine whose sequence is empty."""
        self.engine = engine
        self.context = 0

    def prompt(self, *, tokens: int) -> dict[str, Any]:
        """Read a prompt of `tokens` in one pass, then forget it."""
        self.engine.truncate(0)
        ids = token_ids(tokens)
        taken = seconds(lambda: self.engine.evaluate(ids, first_row=tokens - 1))
        self.engine.truncate(0)
        return {"seconds": taken}

    def fill(self, *, tokens: int) -> dict[str, Any]:
        """Read a context of `tokens`; passes come after it."""
        self.engine.truncate(0)
        for begin in range(0, tokens, 256):
            ids = token_ids(min(256, tokens - begin), begin)
            self.engine.evaluate(ids, first_row=len(ids) - 1)
        self.context = tokens
        return {}

    def passes(self, *, width: int, repeats: int) -> dict[str, Any]:
        """Time passes over `width` tokens, all rows wanted, after one that is not counted."""
        ids, times = token_ids(width, 500), []
        for _ in range(repeats + 1):
            times.append(seconds(lambda: self.engine.evaluate(ids, first_row=0)))
            self.engine.truncate(self.context)
        return {"seconds": times[1:]}

    def read(self, *, repeats: int) -> dict[str, Any]:
        """Time reading all weights, after one reading that is not counted."""
        results = [self.engine.read_weights() for _ in range(repeats + 1)][1:]
        return {"seconds": [r[0] for r in results], "bytes": results[0][1]}

    def serve(self, commands: TextIO, replies: TextIO) -> None:
        """Answer commands until their end."""
        calls = {"prompt": self.prompt, "fill": self.fill, "pass": self.passes, "read": self.read}
        print(json.dumps({"ready": True}), file=replies, flush=True)
        for line in commands:
            command = json.loads(line)
            print(json.dumps(calls[command.pop("do")](**command)), file=replies, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine")
    parser.add_argument("path", type=Path)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    # libraries print where they like: replies keep the real standard output to themselves
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    size = args.context + CONTEXT_ROOM
    engine = load(args.engine, args.path, context_size=size, threads=args.threads)
    Worker(engine).serve(sys.stdin, replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
