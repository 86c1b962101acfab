#!/usr/bin/env python
"""Hold the estimate of what plain decoding would have taken against what it takes.

Each prompt is answered plainly and with drafts, one right after the other; earlier replies are
forgotten in between. The estimate of the drafted reply over the measured time of the plain one is 1
where the estimate is right. What disturbs the machine between the two shows, too: the median says
more than single prompts.

    python scripts/measure/plain_estimate.py --limit 12 --max-tokens 64
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from serving import finish

import pilotfish
from pilotfish.bench.runner import clear_store
from pilotfish.bench.statistics import spread
from pilotfish.bench.workload import in_turns, own_workload
from pilotfish.generation import TextEngine
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET


def compared(engine: TextEngine, content: Any, max_tokens: int) -> dict[str, Any]:
    """Return the figures of one prompt."""
    replies = {}
    for drafter in ("none", "auto"):
        clear_store(engine)
        replies[drafter] = engine.generate(content, max_tokens=max_tokens, drafter=drafter)
    plain, drafted = replies["none"].stats, replies["auto"].stats
    estimate = drafted.plain_seconds_estimate
    assert estimate is not None, "the controller knows what passes cost"
    return {
        "tokens": plain.emitted,
        "same_text": replies["none"].token_ids == replies["auto"].token_ids,
        "plain_seconds": plain.decode_seconds,
        "estimate_seconds": estimate,
        "drafted_seconds": drafted.decode_seconds,
        "estimate_over_plain": estimate / plain.decode_seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=DEFAULT_TARGET)
    parser.add_argument("--draft", default=DEFAULT_DRAFT, help="or none")
    parser.add_argument("--limit", type=int, default=12, help="prompts of our own, in turns")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    prompts = in_turns(own_workload().prompts)[: args.limit]
    results = []
    draft = None if args.draft == "none" else args.draft
    with pilotfish.load(args.target, draft=draft) as engine:
        for prompt in prompts:
            results.append({"id": prompt.id} | compared(engine, prompt.content, args.max_tokens))
            print(f"{prompt.id}: {results[-1]['estimate_over_plain']:.3f}", file=sys.stderr)
    ratios = [one["estimate_over_plain"] for one in results]
    found = spread(ratios)
    assert found is not None, "there is at least one prompt"
    finish({"estimate_over_plain": found.to_dict(), "prompts": results}, None)
    return int(not all(one["same_text"] for one in results))


if __name__ == "__main__":
    sys.exit(main())
