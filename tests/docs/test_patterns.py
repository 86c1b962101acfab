"""Regular expressions over what others write take steps in proportion to the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import pilotfish
from support.regex_steps import TooManySteps, endless_nodes, hostile_texts, num_steps

ROOT = Path(pilotfish.__file__).parent
FEW, MANY = 6, 24
# four times the text: four times the steps and a little, where it would be sixteen times or more
MOST_GROWTH, SPARE_STEPS = 6, 60
# they see texts of our own making
OWN_TEXTS = {"bench.charts"}
# made of one character each, which `re` takes as a set
BUILT = {"text.special"}
ANCHORED = {"match", "fullmatch"}


class Pattern(NamedTuple):
    """A regular expression of the source; `anchored` if it is tried at the beginning only."""

    module: str
    line: int
    text: str
    flags: int
    anchored: bool


def calls_of_re(tree: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "re" and node.func.attr != "escape":
                yield node


def flags_of(call: ast.Call) -> int:
    named = [node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)]
    return sum({flag for flag in re.RegexFlag if flag.name in named})


def methods_of(tree: ast.Module, compiled: ast.Call) -> set[str]:
    """Return by which methods a module uses a pattern that it keeps under a name."""
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value is compiled
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    }


def patterns() -> Iterator[Pattern]:
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        for call in calls_of_re(tree):
            assert isinstance(call.func, ast.Attribute)
            text = call.args[0]
            if not isinstance(text, ast.Constant):
                assert module in BUILT, f"{module}: a pattern that nobody can read"
                continue
            name = call.func.attr
            methods = methods_of(tree, call) if name == "compile" else {name}
            assert methods, f"{module}: {text.value} is used where this test cannot see it"
            yield Pattern(module, call.lineno, text.value, flags_of(call), methods <= ANCHORED)


PATTERNS = [one for one in patterns() if one.module not in OWN_TEXTS]
REPEATING = [one for one in PATTERNS if endless_nodes(one.text, one.flags)]


def worst(pattern: str, flags: int = 0, *, anchored: bool = False) -> str | None:
    """Return a text for which the steps grow faster than it does, or None if there is none."""
    for beginning, repeated, end in hostile_texts(pattern, flags):
        few, many = (beginning + repeated * number + end for number in (FEW, MANY))
        steps = num_steps(pattern, flags, few, anchored=anchored, limit=10**6)
        limit = MOST_GROWTH * steps + SPARE_STEPS
        try:
            num_steps(pattern, flags, many, anchored=anchored, limit=limit)
        except TooManySteps:
            return many
    return None


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\[(?:\\.|[^\]])*\]", r"\s*```(?:json)?\s*(.*?)\s*```\s*", r"(a+)+b", r"(a|a)*b"),
        *(r"\s+$", r"<a>.*?</a>", r"\[(?:\\.|[^\]\\])*\]", r"a*a*b", r"(?:x|y|xy)+z"),
    ],
)  # fmt: skip
def test_a_pattern_whose_steps_outgrow_its_text_is_found(pattern: str) -> None:
    assert worst(pattern, re.DOTALL) is not None


def test_the_patterns_of_the_source_are_seen() -> None:
    assert len(PATTERNS) > 12
    assert len(REPEATING) > 5


@pytest.mark.parametrize("pattern", REPEATING, ids=lambda one: f"{one.module}:{one.line}")
def test_steps_grow_no_faster_than_the_text(pattern: Pattern) -> None:
    assert worst(pattern.text, pattern.flags, anchored=pattern.anchored) is None
