"""Plant small faults in the core, one at a time, and count those that its fast tests notice.

    scripts/mutants                  all rooms
    scripts/mutants verify reply     some of them
    scripts/mutants --again choice   only what survived there the last time

A fault is a changed expression (mutmut plants them); each is tried with the tests of its room that
call the function, and stopped at the first that fails. Faults that change nothing a caller could
see are in `equivalent_mutants.toml`, each with the reason. Prints what survived and the share that
was noticed; the exit code is 1 below 95 %. Work is done below build/mutants.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
LEAST_SHARE = 0.95
# exit codes that mutmut notes: no test failed, no test calls the function; none yet, broken off
_SURVIVED = {0, 5, 33}
_UNTRIED = {None, 2, 34}
_NAME = re.compile(r"pilotfish\.(?P<module>[\w.]+)\.x(?P<function>.+)__mutmut_\d+")


# function and lines of the faults that change nothing
Equivalent: TypeAlias = set[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Room:
    """Modules of the core, and the fast tests that must notice faults in them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "verify": Room(("verify.py",), ("tests/unit/test_verify.py", "tests/laws/test_token_rule.py")),
    "noise": Room(
        ("sampling/noise.py",), ("tests/unit/sampling/test_noise.py", "tests/laws/test_sampling.py")
    ),
    "choice": Room(
        ("sampling/choice.py", "sampling/history.py"),
        ("tests/unit/sampling", "tests/laws/test_sampling.py"),
    ),
    "guard": Room(("control/guard.py",), ("tests/unit/control/test_guard.py",)),
    "reply": Room(("text/reply.py",), ("tests/unit/test_text.py", "tests/unit/test_reasoning.py")),
    "prefixes": Room(
        ("prefixes.py",), ("tests/unit/test_prefixes.py", "tests/laws/test_prefixes.py")
    ),
    "rounds": Room(
        ("engine/session.py", "engine/round.py"),
        (
            "tests/unit/engine/test_session.py",
            "tests/unit/engine/test_round.py",
            "tests/unit/engine/test_engine.py",
            "tests/unit/engine/test_prompt_logprobs.py",
        ),
    ),
    "engine": Room(("engine/engine.py",), ("tests/unit/engine", "tests/unit/test_generation.py")),
    "scheduler": Room(("engine/scheduler.py",), ("tests/unit/engine/test_scheduler.py",)),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault: what mutmut calls it, the function it is in, its lines, and whether a test
    noticed."""

    key: str
    function: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    is_noticed: bool

    def is_among(self, equivalent: Equivalent) -> bool:
        """Return whether the fault is one that changes nothing."""
        return (self.function, self.added) in equivalent

    @property
    def text(self) -> str:
        """Return the fault as it would stand in a patch."""
        lines = [f"- {line}" for line in self.removed] + [f"+ {line}" for line in self.added]
        return "\n".join([self.function, *(f"    {line}" for line in lines)])


def main(argv: Sequence[str] | None = None) -> int:
    """Try the rooms that are named, all without a name; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__.split("\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--again", action="store_true", help="only what survived the last time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.rooms if name not in ROOMS]:
        parser.error(f"there is no room {unknown[0]}; there are {', '.join(ROOMS)}")
    equivalent = _equivalent()
    noticed = total = 0
    for name in options.rooms or ROOMS:
        mutants = [
            one
            for one in _try_room(name, equivalent, jobs=options.jobs, again=options.again)
            if not one.is_among(equivalent)
        ]
        survivors = [one for one in mutants if not one.is_noticed]
        for one in survivors:
            print(one.text)
        _tell(name, len(mutants) - len(survivors), len(mutants))
        noticed += len(mutants) - len(survivors)
        total += len(mutants)
    _tell("all", noticed, total)
    return 0 if noticed >= LEAST_SHARE * total else 1


def _tell(name: str, noticed: int, total: int) -> None:
    print(
        f"{name}: {noticed} of {total} noticed, {100 * noticed / max(total, 1):.1f} %", flush=True
    )


def _equivalent() -> Equivalent:
    entries = tomllib.loads(EQUIVALENT.read_text())["mutant"]
    return {
        (entry["function"], tuple(line.split("\n"))) for entry in entries for line in entry["lines"]
    }


def _try_room(name: str, equivalent: Equivalent, *, jobs: int, again: bool) -> list[Mutant]:
    """Run mutmut on a copy of the sources and tests; return all mutants of the room."""
    room, folder = ROOMS[name], WORK / name
    if again and folder.exists():
        _forget_survivors(folder, room, equivalent)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "mutants")
    for part in ("src", "tests"):
        shutil.rmtree(folder / part, ignore_errors=True)
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "setup.cfg").write_text(_settings(room))
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(jobs)]
    with open(folder / "log", "w") as log:
        status = subprocess.call(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    mutants = list(_mutants(folder, room))
    if status or not mutants:
        tail = (folder / "log").read_text().replace("\r", "\n").splitlines()[-20:]
        raise SystemExit("\n".join([*tail, f"error: mutmut failed on {name}"]))
    return mutants


def _settings(room: Room) -> str:
    lists = {
        "source_paths": ["src"],
        "only_mutate": [f"src/pilotfish/{module}" for module in room.modules],
        "pytest_add_cli_args_test_selection": list(room.tests),
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", "not models"],
    }
    lines = ["[mutmut]"]
    for key, values in lists.items():
        lines += [f"{key} =", *(f"    {value}" for value in ["", *values])]
    return "\n".join(lines) + "\n"


def _notes(folder: Path, room: Room) -> Iterator[Path]:
    for module in room.modules:
        yield folder / "mutants" / "src" / "pilotfish" / f"{module}.meta"


def _forget_survivors(folder: Path, room: Room, equivalent: Equivalent) -> None:
    """Let mutmut try again what no test noticed; it tries what has changed in any case."""
    again = {
        one.key
        for one in _mutants(folder, room)
        if not one.is_noticed and not one.is_among(equivalent)
    }
    for path in _notes(folder, room):
        notes = json.loads(path.read_text())
        notes["exit_code_by_key"] |= dict.fromkeys(again & notes["exit_code_by_key"].keys())
        path.write_text(json.dumps(notes))


def _codes(folder: Path, room: Room) -> Iterator[tuple[str, int | None]]:
    for path in _notes(folder, room):
        yield from json.loads(path.read_text())["exit_code_by_key"].items()


def _mutants(folder: Path, room: Room) -> Iterator[Mutant]:
    """Yield the mutants of the room as mutmut wrote and judged them."""
    bodies: dict[str, dict[str, list[str]]] = {}
    for module in room.modules:
        text = (folder / "mutants" / "src" / "pilotfish" / module).read_text()
        lines = text.splitlines()
        bodies[module.removesuffix(".py").replace("/", ".")] = {
            node.name: [line.strip() for line in lines[node.lineno : node.end_lineno]]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef)
        }
    for key, code in _codes(folder, room):
        match = _NAME.fullmatch(key)
        assert match is not None, key
        module, name = match["module"], key.rpartition(".")[2]
        before = bodies[module][re.sub(r"__mutmut_\d+$", "__mutmut_orig", name)]
        removed, added = _difference(before, bodies[module][name])
        function = match["function"][1:].replace("ǁ", ".")
        is_noticed = code not in _SURVIVED | _UNTRIED
        yield Mutant(key, f"{module}.{function}", removed, added, is_noticed)


def _difference(before: list[str], after: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    lines = [line for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ ")]
    removed, added = (tuple(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    return removed, added


if __name__ == "__main__":
    sys.exit(main())
