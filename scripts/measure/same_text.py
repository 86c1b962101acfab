#!/usr/bin/env python
"""Count where drafting changes a reply: prompts x drafters x settings on the real pair.

On the native backend, and with --strict, every reply must have the same token ids as plain decoding
(exit code 1 if one has not). Without it, llama.cpp, whose kernels change with the width of a pass,
may part from plain decoding where two tokens are almost equal: the report says how often and at
which margins.

    python scripts/measure/same_text.py --tokens 12
    python scripts/measure/same_text.py --backend llama --strict --tokens 12
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prompts import MIX

from pilotfish.build import load_model
from pilotfish.config import BACKENDS, EngineConfig, ModelConfig, Request
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.engine.session import Session
from pilotfish.generation import TextEngine
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET
from pilotfish.types import Proposal, SamplingSettings, SessionView

SETTINGS = {
    "greedy": [(SamplingSettings(logprobs=2), 0)],
    "t0.8": [(SamplingSettings(temperature=0.8), seed) for seed in (1, 2)],
    "t1-penalties": [
        (
            SamplingSettings(
                temperature=1.0,
                top_p=0.9,
                repetition_penalty=1.1,
                presence_penalty=0.2,
                frequency_penalty=0.2,
            ),
            3,
        )
    ],
}


REQUEST_IDS = itertools.count(1000)


class KnownReplyDrafter:
    """Proposes a known reply, wrong at every third token (oracle), or random tokens."""

    def __init__(self, vocab_size: int, *, oracle: bool) -> None:
        self.vocab_size = vocab_size
        self.oracle = oracle
        self.reply: Sequence[int] = ()

    def propose(self, views: Sequence[SessionView], budgets: Sequence[int]) -> list[Proposal]:
        return [self._propose(v, b) for v, b in zip(views, budgets, strict=True)]

    def _propose(self, view: SessionView, budget: int) -> Proposal:
        first = view.num_output_tokens
        if not self.oracle:
            generator = np.random.default_rng([view.seed, len(view.tokens)])
            ids = tuple(int(i) for i in generator.integers(0, self.vocab_size, budget))
            return Proposal(ids, "random")
        known = self.reply[first : first + budget]
        wrong = [
            (t + 1) % self.vocab_size if (first + i) % 3 == 2 else t for i, t in enumerate(known)
        ]
        return Proposal(tuple(wrong), "oracle")

    def forget(self, request_id: int) -> None:
        pass


def run(engine: Engine, first: Session, options: dict[str, Any]) -> Session:
    """Run one reply on the prompt that `first` has read: reading it again gives the same bits."""
    prompt = first.tokens[: first.num_prompt_tokens]
    first.cache.truncate(len(prompt) - 1)
    session = Session(
        next(REQUEST_IDS),
        prompt,
        first.cache,
        settings=options["settings"],
        seed=options["seed"],
        end_ids=options["end_ids"],
        num_tokens_left=options["max_tokens"],
    )
    while not session.done:
        engine.step([session])
    engine.drafter.forget(session.request_id)
    if session.error is not None:
        raise session.error
    return session


def margin(session: Session, index: int) -> float | None:
    """Return the gap between the two best log-probabilities of plain greedy decoding there."""
    if index >= len(session.emitted) or session.emitted[index].logprobs is None:
        return None
    top = session.emitted[index].logprobs.top
    return top[0][1] - top[1][1]


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    if list(a) == list(b):
        return None
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=DEFAULT_TARGET)
    parser.add_argument("--draft", default=DEFAULT_DRAFT)
    parser.add_argument("--backend", default="auto", choices=BACKENDS)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--tokens", type=int, default=12, help="tokens per reply")
    parser.add_argument("--prompts", type=int, default=len(MIX), help="use the first N prompts")
    parser.add_argument("--drafts", type=int, default=5, help="draft tokens per round")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="which of them")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    args = parser.parse_args()

    sides = [
        ModelConfig(reference=name, backend=args.backend, context_size=2048)
        for name in (args.target, args.draft)
    ]
    config = EngineConfig(target=sides[0], draft=sides[1])
    target = load_model(sides[0], config, strict=args.strict)
    draft = load_model(sides[1], config, as_draft=True)
    vocab_size = target.vocab_size
    oracle = KnownReplyDrafter(vocab_size, oracle=True)
    head = getattr(draft, "head", None)
    model = ModelDrafter(draft, vocab_size=vocab_size, head=head)
    drafters = {
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(),
        "model": model,
        "hybrid": HybridDrafter([SuffixDrafter(), model]),
        "random": KnownReplyDrafter(vocab_size, oracle=False),
        "oracle-3": oracle,
    }

    def engine(drafter: Any) -> Engine:
        return Engine(target=target, drafter=drafter, controller=FixedController(args.drafts))

    text = TextEngine(engine(NoDrafter()), target.tokenizer)
    result: dict[str, Any] = {"exactness": target.exactness, "replies": 0, "different": []}
    accepted = dict.fromkeys(drafters, 0)
    start = time.perf_counter()
    for number, prompt_text in enumerate(MIX[: args.prompts]):
        request = Request(raw=len(prompt_text) == 1)  # "a" alone is a one-token prompt
        prompt = text.prompt_ids(prompt_text, request)
        first = engine(NoDrafter()).start(prompt)
        for name in args.settings.split(","):
            for settings, seed in SETTINGS[name]:
                options = {
                    "settings": settings,
                    "seed": seed,
                    "max_tokens": args.tokens,
                    "end_ids": target.tokenizer.end_ids,
                }
                plain = run(engine(NoDrafter()), first, options)
                oracle.reply = plain.output_ids
                for drafter_name, drafter in drafters.items():
                    reply = run(engine(drafter), first, options)
                    result["replies"] += 1
                    accepted[drafter_name] += sum(r.num_accepted for r in reply.records)
                    if reply.drafting_error is not None:
                        raise reply.drafting_error
                    at = first_difference(plain.output_ids, reply.output_ids)
                    if at is not None:
                        result["different"].append(
                            {
                                "prompt": number,
                                "settings": name,
                                "drafter": drafter_name,
                                "at": at,
                                "margin": margin(plain, at),
                            }
                        )
        first.cache.close()
        print(
            f"prompt {number + 1}: {len(result['different'])} of {result['replies']} replies "
            f"differ, {time.perf_counter() - start:.0f} s",
            file=sys.stderr,
        )
    result["accepted_drafts"] = accepted
    result["seconds"] = time.perf_counter() - start
    text_result = json.dumps(result, indent=1)
    if args.output:
        args.output.write_text(text_result + "\n")
    print(text_result)
    must_agree = target.exactness["level"] == "bit-identical"
    return 1 if must_agree and result["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
