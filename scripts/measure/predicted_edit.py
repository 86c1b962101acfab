#!/usr/bin/env python
"""Ask the real pair to rename a variable in a file: plainly, and with the file as the prediction.

Every round asks for the same reply in each way, in turn, and what its plain reply took is held
against the others of that round. Past replies are forgotten before each, since a copy of the last
one would be drafted from it. Exit code 1 if a text differs from that of plain decoding.

    python scripts/measure/predicted_edit.py
    python scripts/measure/predicted_edit.py --rounds 9 --draft none --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import pilotfish
from pilotfish.config import RequestOptions
from pilotfish.generation import Reply, TextEngine
from pilotfish.models import DEFAULT_DRAFT, DEFAULT_TARGET

FILE = '''\
import csv
import sys


def read_column(path, name):
    """Return the numbers of one column of a file."""
    with open(path, newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def summary(values):
    """Return the sum, the mean and the largest step of a list of numbers."""
    x = 0.0
    largest = 0.0
    before = None
    for value in values:
        x = x + value
        if before is not None:
            largest = max(largest, abs(value - before))
        before = value
    mean = x / len(values) if values else 0.0
    return {"sum": x, "mean": mean, "largest step": largest}


def main():
    path, name = sys.argv[1:]
    for key, value in summary(read_column(path, name)).items():
        print(f"{key}: {value:.3f}")


if __name__ == "__main__":
    main()
'''
TASK = "Rename the variable x to total. Reply with the whole file and nothing else."
PROMPT = f"{TASK}\n\n```python\n{FILE}```"
WAYS: dict[str, RequestOptions] = {
    "plain": {"drafter": "none"},
    "prediction": {"prediction": FILE},
    "prediction only": {"prediction": FILE, "drafter": "prediction"},
    "suffix only": {"drafter": "suffix"},
    "auto": {},
}


def ask(engine: TextEngine, way: str, max_tokens: int) -> Reply:
    """Return the reply, made in one of the ways."""
    engine.engine.drafter.clear()  # type: ignore[attr-defined]
    return engine.generate(PROMPT, max_tokens=max_tokens, **WAYS[way])


def measure(engine: TextEngine, rounds: int, max_tokens: int) -> dict[str, list[Reply]]:
    """Return the replies of all rounds by way; the ways take turns at being first."""
    replies: dict[str, list[Reply]] = {way: [] for way in WAYS}
    for number in range(rounds):
        ways = list(WAYS)
        first = number % len(ways)
        for way in ways[first:] + ways[:first]:
            replies[way].append(ask(engine, way, max_tokens))
    return replies


def summary(replies: dict[str, list[Reply]], way: str) -> dict[str, Any]:
    """Return what one way took against plain decoding, round by round."""
    plain, own = replies["plain"], replies[way]
    ratios = [
        ours.stats.decode_seconds and theirs.stats.decode_seconds / ours.stats.decode_seconds
        for theirs, ours in zip(plain, own, strict=True)
    ]
    return {
        "tokens": len(own[0].tokens),
        "tokens_per_round": own[-1].stats.tokens_per_round,
        "tokens_per_second": statistics.median(r.stats.tokens_per_second or 0.0 for r in own),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "same": all(r.token_ids == plain[0].token_ids for r in own),
        "drafters": {
            name: [one.accepted, one.drafted] for name, one in own[-1].stats.by_drafter.items()
        },
    }


def line(way: str, found: dict[str, Any]) -> str:
    """Return the figures of one way as a line of the table."""
    drafts = ", ".join(f"{name} {a}/{d}" for name, (a, d) in found["drafters"].items() if d)
    spread = f"({found['lowest']:.2f} to {found['highest']:.2f})"
    return (
        f"{way:16} {found['tokens']:6} {found['tokens_per_round']:6.1f} "
        f"{found['tokens_per_second']:7.1f} {found['ratio']:6.2f} {spread:16} "
        f"{'yes' if found['same'] else 'NO':5} {drafts}"
    )


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--tokens", type=int, default=400, metavar="N", help="default: 400")
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="REF")
    parser.add_argument("--draft", default=DEFAULT_DRAFT, metavar="REF", help="or none")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run all rounds; print the table."""
    arguments = parsed(argv)
    draft = None if arguments.draft == "none" else arguments.draft
    options: dict[str, Any] = {"backend": arguments.backend, "context_size": 2048}
    with pilotfish.load(arguments.target, draft=draft, kept_sequences=1, **options) as engine:
        ask(engine, "plain", 8)
        ask(engine, "prediction", 32)
        replies = measure(engine, arguments.rounds, arguments.tokens)
        text = replies["plain"][0].text
    found = {way: summary(replies, way) for way in WAYS}
    if arguments.json:
        print(json.dumps({"rounds": arguments.rounds, "text": text, "ways": found}, indent=2))
    else:
        print(
            "                 tokens  /round  per s  ratio  of rounds        same  accepted/drafted"
        )
        for way in WAYS:
            print(line(way, found[way]))
    return int(not all(one["same"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
