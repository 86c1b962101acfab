"""The kernels alone: `python -m pilotfish_native curve FILE` and `... check FILE`.

Exit code 0: fine; 1: bits differ; 2: wrong options or a file that cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from pilotfish_native.check import CONTEXT_SIZE, QUICK, WHOLE, check_bits
from pilotfish_native.curve import ROUNDS, WIDTHS, curve_table, measure_curve
from pilotfish_native.files import ProgramError, default_threads, open_file

_MOST_CONTEXT = 1 << 20


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ProgramError(message, hint=f"see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    try:
        options = _parser().parse_args(arguments)
        if options.command == "curve":
            return _curve(options)
        return _check(options)
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 2


def _curve(options: argparse.Namespace) -> int:
    model = open_file(
        options.file,
        threads=options.threads or default_threads(),
        instructions=options.instructions,
        context_size=options.context + max(WIDTHS),
        max_sessions=1,
    )
    result = measure_curve(
        model, context=options.context, rounds=options.rounds, progress=_progress
    )
    _progress("")
    print(json.dumps(result) if options.json else curve_table(result))
    return 0


def _check(options: argparse.Namespace) -> int:
    def open_model(threads: int) -> Any:
        return open_file(
            options.file,
            threads=threads,
            instructions=options.instructions,
            context_size=CONTEXT_SIZE,
            max_sessions=4,
        )

    result = check_bits(open_model, plan=QUICK if options.quick else WHOLE, progress=_progress)
    _progress("")
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['differing_bits']:,} differing bits in {result['cases']} cases")
        for name in result["differing_cases"]:
            print(f"  {name}")
    return 1 if result["differing_bits"] else 0


def _progress(line: str) -> None:
    """Show a line in place of the last one, where somebody can see it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m pilotfish_native", description="The kernels alone.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    curve = commands.add_parser("curve", help="seconds of a pass by its width")
    curve.add_argument("--context", type=_number(_MOST_CONTEXT), default=256, metavar="TOKENS")
    curve.add_argument("--threads", type=_number(1024), metavar="N", help="default: all processors")
    curve.add_argument("--rounds", type=_number(10_000), default=ROUNDS, metavar="N")
    check = commands.add_parser("check", help="whether rows have the same bits in every pass")
    check.add_argument("--quick", action="store_true", help="a tenth of the cases")
    for command in (curve, check):
        command.add_argument("file", metavar="FILE", help="a GGUF model")
        command.add_argument("--json", action="store_true", help="one JSON document on stdout")
        command.add_argument("--instructions", default="auto", metavar="NAME")
    return parser


def _number(most: int) -> Any:
    """Return a reader of whole numbers from 1 to `most`, for options."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
        return value

    return read


if __name__ == "__main__":
    sys.exit(main())
