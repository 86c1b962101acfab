#!/usr/bin/env python
"""Show what thread placement does to passes while another process keeps a core busy.

Starts fresh processes in turn, without placement (OMP_PROC_BIND=false) and as pilotfish loads the
library, and prints for each the median and the slowest of its one-token passes.

    python scripts/measure/placement.py smollm2-135m --starts 12
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

PASSES = 24


def passes(reference: str) -> None:
    """Print the times of one-token passes of this process, in milliseconds, as JSON."""
    from pilotfish.backends.llama import LlamaModel
    from pilotfish.models import resolve
    from pilotfish.types import Segment

    with LlamaModel(resolve(reference), context_size=256) as model:
        cache = model.new_cache()
        model.forward([Segment(cache, list(range(100, 132)), first_row=32)])
        times = []
        for token in range(200, 200 + PASSES):
            start = time.perf_counter()
            model.forward([Segment(cache, [token])])
            times.append(1e3 * (time.perf_counter() - start))
        median, slowest = statistics.median(times), max(times)
        print(json.dumps({"median": median, "slowest": slowest, "notices": model.notices}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--starts", type=int, default=12)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        passes(args.model)
        return 0
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(args.starts):
            for mode in ("none", "ours"):
                environment = dict(os.environ)
                if mode == "none":
                    environment["OMP_PROC_BIND"] = "false"
                command = [sys.executable, __file__, args.model, "--one"]
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                print(mode, done.stdout.strip() or done.stderr.strip(), flush=True)
    finally:
        neighbour.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
