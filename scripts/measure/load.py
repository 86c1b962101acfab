#!/usr/bin/env python
"""Measure a server under load: requests one by one and many at once, with drafts and without.

The same requests (our own prompts, or a file as `pilotfish bench` takes it; greedy and sampled,
replies of mixed lengths) are asked in four modes, in every round once each:

    one-none   one after the other, drafter none        one-auto   the same, drafter auto
    many-none  --streams at once, drafter none          many-auto  the same, drafter auto

Each cell has a server of its own, started for it and warmed by one other request, so that nothing
is drafted from replies of an earlier cell; it keeps no prompts. With --url all cells ask one
server, and what `auto` then drafts from earlier replies measures nothing: the report says so.
What is behind `--` goes to `pilotfish serve`. The exit code is 1 where a request failed, or where a
reply was not the same in all modes, as it must be on the native backend.

    python scripts/measure/load.py --streams 8 --requests 24 --rounds 3 -- --backend native
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from serving import LONGEST_REPLY, Answer, ask, finish, server_at, split_options

from pilotfish.bench.statistics import spread
from pilotfish.bench.workload import in_turns, load_workload

MODES = {
    "one-none": (False, "none"),
    "one-auto": (False, "auto"),
    "many-none": (True, "none"),
    "many-auto": (True, "auto"),
}
# tokens a second of the first over those of the second
RATIOS = {
    "drafting, one at a time": ("one-auto", "one-none"),
    "drafting, many at once": ("many-auto", "many-none"),
    "many at once, without drafts": ("many-none", "one-none"),
    "many at once, drafting": ("many-auto", "one-auto"),
    "both together": ("many-auto", "one-none"),
}
TEMPERATURES = (0.0, 0.7)
WARM_UP = {
    "messages": [{"role": "user", "content": "Count from one to thirty."}],
    "max_tokens": 24,
    "temperature": 0,
}


def requests_of(workload: str, number: int, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Return the bodies of the requests: kinds of prompts, lengths and temperatures in turns."""
    prompts = in_turns(load_workload(workload).prompts)
    bodies = []
    for index, prompt in zip(range(number), itertools.cycle(prompts), strict=False):
        content = prompt.content
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        bodies.append(
            {
                "messages": list(messages),
                "max_tokens": lengths[index % len(lengths)],
                "temperature": TEMPERATURES[index // len(lengths) % len(TEMPERATURES)],
                "seed": index,
            }
        )
    return bodies


async def run_cell(
    url: str, bodies: Sequence[Mapping[str, Any]], *, drafter: str, streams: int
) -> tuple[list[Answer], dict[str, Any]]:
    """Ask everything, `streams` at once; return the answers in order, and the figures."""
    wish = {"speculation": {"drafter": drafter, "report": True}}
    answers: list[Answer] = [Answer() for _ in bodies]
    waiting = iter(enumerate(bodies))
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=url, timeout=LONGEST_REPLY, limits=limits) as client:
        warm = await ask(client, {**WARM_UP, **wish})
        if warm.error is not None:
            raise SystemExit(f"error: the first request failed: {warm.error}")

        async def work() -> None:
            for index, body in waiting:
                answers[index] = await ask(client, {**body, **wish})

        start, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(streams)))
        wall_seconds = time.perf_counter() - start
        client_share = (time.process_time() - used) / wall_seconds
    return answers, figures(answers, wall_seconds) | {"client_processor_share": client_share}


def figures(answers: Sequence[Answer], wall_seconds: float) -> dict[str, Any]:
    """Return what one cell says of itself."""
    num_tokens = sum(answer.num_completion_tokens for answer in answers)
    stats = [answer.stats for answer in answers if answer.stats]
    estimates = [one["plain_seconds_estimate"] for one in stats]
    drafted = sum(one["drafted"] for one in stats)
    return {
        "wall_seconds": wall_seconds,
        "tokens": num_tokens,
        "tokens_per_second": num_tokens / wall_seconds,
        "first_token_seconds": middle_and_tail([a.marks[0] for a in answers if a.marks]),
        "gap_seconds": middle_and_tail([gap for answer in answers for gap in answer.gaps]),
        "request_seconds": middle_and_tail([answer.seconds for answer in answers]),
        "acceptance_rate": sum(one["accepted"] for one in stats) / drafted if drafted else None,
        "decode_seconds": sum(one["decode_seconds"] for one in stats),
        "plain_seconds_estimate": None if None in estimates else sum(estimates),
        "failed": [answer.error for answer in answers if answer.error is not None],
    }


def middle_and_tail(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return the median and what 95 % stay below."""
    if not seconds:
        return None
    middle, tail = np.percentile(seconds, [50, 95])
    return {"median": float(middle), "p95": float(tail)}


def same_text(by_mode: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """Return how many requests had the same reply in all modes, and the numbers of the others."""
    replies = zip(*by_mode.values(), strict=True)
    differing = [i for i, each in enumerate(replies) if any(a.what != each[0].what for a in each)]
    number = len(next(iter(by_mode.values())))
    return {"same": number - len(differing), "of": number, "differing": differing}


def ratios(cells: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the ratios of tokens a second: the least, the middle and the largest of the rounds."""
    result = {}
    for name, (ours, theirs) in RATIOS.items():
        if ours in cells and theirs in cells:
            pairs = zip(cells[ours], cells[theirs], strict=True)
            values = spread([a["tokens_per_second"] / b["tokens_per_second"] for a, b in pairs])
            result[name] = None if values is None else values.to_dict()
    return result


def estimate_over_measured(cells: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[float | None]:
    """Return, for each round, what plain decoding was estimated to take over what it took."""
    pairs = zip(cells.get("one-auto", ()), cells.get("one-none", ()), strict=False)
    return [
        drafted["plain_seconds_estimate"]
        and drafted["plain_seconds_estimate"] / plain["decode_seconds"]
        for drafted, plain in pairs
    ]


def measure(args: argparse.Namespace, options: Sequence[str]) -> dict[str, Any]:
    """Return the report of all rounds."""
    lengths = [int(length) for length in args.max_tokens.split(",")]
    bodies = requests_of(args.workload, args.requests, lengths)
    modes = args.modes.split(",")
    cells: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    texts = []
    for number in range(args.rounds):
        answers = {}
        # another mode comes first each time: what drifts meets all alike
        shift = number % len(modes)
        for mode in [*modes[shift:], *modes[:shift]]:
            many, drafter = MODES[mode]
            with server_at(args.url, options) as (url, server):
                cell = run_cell(url, bodies, drafter=drafter, streams=args.streams if many else 1)
                answers[mode], found = asyncio.run(cell)
                if server is not None:
                    found["server_peak_bytes"] = server.memory_bytes("VmHWM")
                    found["server_processor_seconds"] = server.processor_seconds()
            cells[mode].append(found)
            print(line(number, mode, found), file=sys.stderr)
        texts.append(same_text(answers))
    prompts = {str(body["messages"]) for body in bodies}
    return {
        "streams": args.streams,
        "requests": args.requests,
        # replies to a prompt that comes again are drafted from its first one
        "repeated_prompts": len(bodies) - len(prompts),
        "max_tokens": lengths,
        "server": "one for all cells: drafts come from earlier replies"
        if args.url
        else "one a cell",
        "server_options": list(options),
        "ratios": ratios(cells),
        "same_text": texts,
        "plain_estimate_over_measured": estimate_over_measured(cells),
        "modes": cells,
    }


def line(number: int, mode: str, found: Mapping[str, Any]) -> str:
    """Return one cell for people."""
    first, gap = found["first_token_seconds"], found["gap_seconds"]
    waits = (
        ""
        if first is None or gap is None
        else (
            f"  first token {1e3 * first['median']:.0f} / {1e3 * first['p95']:.0f} ms"
            f"  gap {1e3 * gap['median']:.0f} / {1e3 * gap['p95']:.0f} ms"
        )
    )
    return (
        f"round {number + 1}  {mode:9}  {found['tokens']} tokens in {found['wall_seconds']:.1f} s: "
        f"{found['tokens_per_second']:.1f}/s{waits}"
        f"  client {100 * found['client_processor_share']:.0f} % of a core"
        f"{'  FAILED ' + str(len(found['failed'])) if found['failed'] else ''}"
    )


def main() -> int:
    own, options = split_options(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", default="32,64,96,128", help="lengths, taken in turns")
    parser.add_argument("--workload", default="own", help="a JSONL file, as for pilotfish bench")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--url", help="a running server, in place of one of our own for each cell")
    parser.add_argument("--json", type=Path, help="write the result there, too")
    args = parser.parse_args(own)
    own_options = ["--max-sessions", str(args.streams), "--kept-sequences", "0", *options]
    report = measure(args, own_options)
    finish(report, args.json)
    failed = any(cell["failed"] for cells in report["modes"].values() for cell in cells)
    return int(failed or any(one["differing"] for one in report["same_text"]))


if __name__ == "__main__":
    sys.exit(main())
