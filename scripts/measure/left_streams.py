#!/usr/bin/env python
"""Leave streams of a real model early, in every way Python knows.

What must hold, or the exit code is 1: no slot is lost (the engine has one, so the next request
would be refused), the reply of a whole request in between is always the same, and memory does not
grow by more than one percent after a warm-up.

    python scripts/measure/left_streams.py qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from yardsticks import ROOT

import pilotfish

sys.path.insert(0, str(ROOT / "tests"))
from support.leaving import WAYS
from support.memory import Holdings

PROMPT = "Tell me what a pilot fish does all day."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--streams", type=int, default=210)
    options = parser.parse_args()
    texts, held = set(), []
    with pilotfish.load(options.target, draft=options.draft, kept_sequences=2) as engine:
        for number in range(options.streams):
            way = WAYS[number % len(WAYS)]
            request = {"max_tokens": 24, "seed": number, "temperature": 0.8}
            way(partial(engine.stream, PROMPT, **request))
            if (number + 1) % len(WAYS) == 0:
                texts.add(engine.generate(PROMPT, max_tokens=24).text)
                held.append(Holdings.now().resident_bytes)
                print(f"{number + 1} left, {held[-1] / 1e6:,.1f} MB, {len(texts)} text(s)")
    growth = held[-1] / held[len(held) // 4] - 1
    print(f"memory after the first quarter: {growth:+.2%}")
    return int(len(texts) != 1 or growth > 0.01)


if __name__ == "__main__":
    raise SystemExit(main())
