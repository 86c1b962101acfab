#!/usr/bin/env python
"""Ask the real pair for JSON by three schemas: is it valid, is it plain decoding's, does it pay?

Each run asks the same thing twice, plainly and with drafts, in turn. Exit code 1 if a finished
reply is not valid or, on a backend whose rows do not depend on the pass, differs from plain
decoding.

    python scripts/measure/structured.py --runs 100
    python scripts/measure/structured.py --runs 10 --drafter suffix --draft none --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs

import pilotfish
from pilotfish.config import DRAFTERS
from pilotfish.generation import Reply, TextEngine
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET


def record(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0, "maximum": 100_000}
SCHEMAS = {
    "label": (
        record(language={"type": "string"}, tone={"enum": ["friendly", "neutral", "angry"]}),
        "Say in which language and tone this is written: {}, what have you done?",
    ),
    "person": (
        record(
            name=TEXT,
            year_of_birth=NUMBER,
            languages={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 4},
            married={"type": "boolean"},
        ),
        "Invent a sailor called {}.",
    ),
    "order": (
        record(
            customer=record(name=TEXT, city=TEXT),
            items={
                "type": "array",
                "items": record(product=TEXT, quantity=NUMBER, price=NUMBER),
                "minItems": 2,
                "maxItems": 3,
            },
            paid={"type": "boolean"},
        ),
        "Invent an order that {} placed in a shop for fishing gear.",
    ),
}
NAMES = (
    "Ada", "Bruno", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ivo", "Jana", "Kofi",
    "Lena", "Mateo", "Nora", "Otto", "Pia", "Quentin", "Rosa", "Sven", "Tara",
)  # fmt: skip


@dataclass
class Counts:
    """What the runs of one schema at one temperature gave."""

    runs: int = 0
    ended: int = 0
    valid: int = 0
    same: int = 0
    tokens: int = 0
    plain_seconds: float = 0.0
    seconds: float = 0.0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)

    def add(self, plain: Reply, reply: Reply, schema: dict[str, Any]) -> None:
        """Count one run."""
        ended = reply.finish_reason == "stop"
        self.runs += 1
        self.ended += ended
        self.valid += ended and is_valid(reply.text, schema)
        self.same += reply.token_ids == plain.token_ids
        self.tokens += len(reply.token_ids)
        self.plain_seconds += plain.stats.decode_seconds
        self.seconds += reply.stats.decode_seconds
        for source, figures in reply.stats.by_drafter.items():
            self.drafted[source] += figures.drafted
            self.accepted[source] += figures.accepted

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON values."""
        return {**vars(self), "speedup": self.plain_seconds / self.seconds}


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Return whether a text is JSON that satisfies a schema."""
    try:
        return bool(jsonschema_rs.is_valid(schema, json.loads(text)))
    except ValueError:
        return False


def measure(engine: TextEngine, name: str, temperature: float, arguments: Any) -> Counts:
    """Return the counts of all runs of one schema at one temperature."""
    schema, prompt = SCHEMAS[name]
    counts = Counts()
    for run in range(arguments.runs):
        options: dict[str, Any] = {
            "json_schema": schema,
            "system": "Answer with JSON only.",
            "temperature": temperature,
            "seed": run,
            "max_tokens": arguments.tokens,
        }
        words = prompt.format(f"{NAMES[run % len(NAMES)]} {run // len(NAMES) or ''}".strip())
        plain, reply = (
            engine.generate(words, drafter=drafter, **options)
            for drafter in ("none", arguments.drafter)
        )
        counts.add(plain, reply, schema)
    return counts


def row(name: str, temperature: float, counts: Counts) -> str:
    """Return the counts as a line of the table."""
    drafts = ", ".join(
        f"{source} {counts.accepted[source]}/{counts.drafted[source]}" for source in counts.drafted
    )
    ratio = counts.plain_seconds / counts.seconds
    return (
        f"{name:8} {temperature:4.1f} {counts.runs:5} {counts.ended:6} {counts.valid:6} "
        f"{counts.same:5} {counts.tokens:7} {ratio:8.2f}  {drafts}"
    )


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--tokens", type=int, default=250, metavar="N", help="default: 250")
    parser.add_argument("--drafter", default="auto", choices=DRAFTERS, help="default: auto")
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="REF")
    parser.add_argument("--draft", default=DEFAULT_DRAFT, metavar="REF", help="or none")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run all schemas at both temperatures; print the table."""
    arguments = parsed(argv)
    draft = None if arguments.draft == "none" else arguments.draft
    results: dict[str, dict[str, Any]] = {}
    failed = False
    with pilotfish.load(
        arguments.target, draft=draft, backend=arguments.backend, context_size=1024
    ) as engine:
        exact = engine.facts.exactness.get("level") == "bit-identical"
        if not arguments.json:
            print("schema      T  runs  ended  valid  same  tokens  speedup  accepted/drafted")
        for name in SCHEMAS:
            for temperature in (0.0, 1.0):
                counts = measure(engine, name, temperature, arguments)
                results[f"{name} {temperature}"] = counts.to_dict()
                failed |= counts.valid < counts.ended or (exact and counts.same < counts.runs)
                if not arguments.json:
                    print(row(name, temperature, counts), flush=True)
    if arguments.json:
        print(json.dumps({"exact": exact, "runs": results}, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
