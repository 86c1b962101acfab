#!/usr/bin/env python
"""Measure decode speed of drafters against plain decoding, in interleaved pairs.

Every prompt is answered by every mode in each round, plain among them; the figure of a mode is the
geometric mean over prompts of plain time over its time per token, with the spread over rounds.
Only decoding counts, from the second round of a reply on: in the first a draft model reads the
prompt. Stores of past replies are empty for every reply.

A mode is a drafter and its most draft tokens per round: none, ngram, suffix, model, or hybrid
(suffix, else model). A draft model is loaded as `generate --draft` would load it.

    python scripts/measure/speed.py --modes suffix:7,model:4,hybrid:7 --set edit --rounds 3
    python scripts/measure/speed.py --modes suffix:3 --set edit --rounds 3 --backend llama
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from typing import Any

from prompts import CHATS, CODE_EDITS
from same_text import first_difference, run

from pilotfish.build import DEFAULTS, load_model
from pilotfish.config import BACKENDS, EngineConfig, ModelConfig, Request
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.generation import TextEngine
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET
from pilotfish.types import SamplingSettings

PLAIN = "none:0"


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=DEFAULT_TARGET)
    parser.add_argument("--draft", default=DEFAULT_DRAFT)
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument("--modes", default="suffix:7,model:4,hybrid:7")
    parser.add_argument("--set", choices=["edit", "chat"], default="edit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160)
    args = parser.parse_args()

    def model_config(reference: str) -> ModelConfig:
        return ModelConfig(reference=reference, context_size=2048, backend=args.backend)

    engines = EngineConfig(target=model_config(args.target))
    target = load_model(engines.target, engines)
    min_probability = DEFAULTS[target.facts.backend].text_min_probability
    wanted = args.modes.split(",")
    draft = None
    if any(mode.startswith(("model", "hybrid")) for mode in wanted):
        draft = load_model(model_config(args.draft), engines, as_draft=True)

    def drafter(kind: str) -> Any:
        suffix = SuffixDrafter(min_probability=min_probability, store_tokens=0)
        if kind in ("model", "hybrid"):
            assert draft is not None
            head = getattr(draft, "head", None)
            model = ModelDrafter(draft, vocab_size=target.vocab_size, head=head)
            return model if kind == "model" else HybridDrafter([suffix, model])
        return {"none": NoDrafter(), "ngram": NgramDrafter(), "suffix": suffix}[kind]

    def engine(mode: str) -> Engine:
        kind, _, number = mode.partition(":")
        controller = FixedController(int(number or 0))
        return Engine(target=target, drafter=drafter(kind), controller=controller)

    modes = [PLAIN, *wanted]
    text = TextEngine(engine(PLAIN), target.tokenizer)
    prompts = CODE_EDITS if args.set == "edit" else CHATS
    seconds: dict[str, list[list[float]]] = {mode: [[] for _ in prompts] for mode in modes}
    drafted, accepted, rounds, emitted = (dict.fromkeys(modes, 0) for _ in range(4))
    parted: dict[str, set[int]] = {mode: set() for mode in modes}
    for number, prompt_text in enumerate(prompts):
        first = engine(PLAIN).start(text.prompt_ids(prompt_text, Request()))
        for round_index in range(args.rounds):
            plain_ids: list[int] = []
            order = modes if round_index % 2 == 0 else [modes[0], *reversed(modes[1:])]
            for mode in order:
                session = run(
                    engine(mode),
                    first,
                    {
                        "settings": SamplingSettings(),
                        "seed": 0,
                        "max_tokens": args.tokens,
                        "end_ids": target.tokenizer.end_ids,
                    },
                )
                # the first round is left out: a draft model reads the prompt in it
                timed = session.records[1:]
                time_taken = sum(r.round_seconds for r in timed)
                seconds[mode][number].append(time_taken / sum(r.num_emitted for r in timed))
                drafted[mode] += sum(r.num_drafted for r in session.records)
                accepted[mode] += sum(r.num_accepted for r in session.records)
                rounds[mode] += len(session.records)
                emitted[mode] += len(session.output_ids)
                if mode == PLAIN:
                    plain_ids = session.output_ids
                elif first_difference(plain_ids, session.output_ids) is not None:
                    parted[mode].add(number)
        first.cache.close()
        print(f"prompt {number + 1} of {len(prompts)}", file=sys.stderr)
    report: dict[str, Any] = {
        "set": args.set,
        "backend": target.facts.backend,
        "prompts": len(prompts),
        "plain_tokens_per_second": 1 / statistics.median(t for p in seconds[PLAIN] for t in p),
        "modes": {},
    }
    for mode in wanted:
        by_round = [
            geometric_mean(
                [seconds[PLAIN][n][r] / seconds[mode][n][r] for n in range(len(prompts))]
            )
            for r in range(args.rounds)
        ]
        by_prompt = [
            statistics.median(
                plain / ours
                for plain, ours in zip(seconds[PLAIN][n], seconds[mode][n], strict=True)
            )
            for n in range(len(prompts))
        ]
        report["modes"][mode] = {
            "speedup": {
                "median": statistics.median(by_round),
                "min": min(by_round),
                "max": max(by_round),
            },
            "by_prompt": [round(value, 3) for value in by_prompt],
            "tokens_per_round": emitted[mode] / rounds[mode],
            "acceptance_rate": accepted[mode] / drafted[mode] if drafted[mode] else None,
            "prompts_that_parted": sorted(parted[mode]),
        }
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
