"""Bounds, steps and constants hold to the last digit, or are refused."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest

from pilotfish.errors import ConfigError
from pilotfish.grammar import check_schema
from pilotfish.grammar.numbers import BOUNDS, with_exact_bounds
from support.schemas import is_accepted

WHOLE = {"type": "integer"}
NUMBERS: list[Any] = [
    *(0, 1, -1, 0.5, -0.1, 0.1 + 0.2, 1e-7, 1e-300, 5e-324, 1234567890.1234567, 1e300, -1e300),
    *(2**power + step for power in (53, 54, 63, 64, 70) for step in range(-3, 4)),
    *(-(2**power) + step for power in (53, 54, 63, 64, 70) for step in range(-3, 4)),
]


def satisfies(number: Fraction, schema: dict[str, Any]) -> bool:
    return (
        ("minimum" not in schema or number >= Fraction(schema["minimum"]))
        and ("maximum" not in schema or number <= Fraction(schema["maximum"]))
        and ("exclusiveMinimum" not in schema or number > Fraction(schema["exclusiveMinimum"]))
        and ("exclusiveMaximum" not in schema or number < Fraction(schema["exclusiveMaximum"]))
    )


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("keyword", BOUNDS)
def test_a_bound_that_is_moved_lets_nothing_in(keyword: str, is_whole: bool) -> None:
    for number in NUMBERS:
        try:
            moved = with_exact_bounds({keyword: number}, is_whole=is_whole)
        except ConfigError:
            assert abs(number) > 2**63 - 2048
            continue
        for name, bound in moved.items():
            # as the compiler reads it: whole numbers as doubles, or the largest of 64 bits
            assert isinstance(bound, float) or float(bound) == bound or bound == 2**63 - 1
            if name[-6:] != keyword[-6:]:
                assert abs(number) >= 10**18
            elif name == keyword and number == bound:
                continue
            else:
                assert not name.startswith("exclusive")
                assert satisfies(Fraction(bound), {keyword: number})


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"maximum": 2**53 + 3}, [2**53 + 2], [2**53 + 4, 2**53 + 5]),
        ({"minimum": 2**53 + 1}, [2**53 + 2], [2**53, 2**53 - 1]),
        ({"exclusiveMaximum": 2**53 + 2}, [2**53], [2**53 + 2]),
        ({"minimum": 0, "maximum": 2**63 - 1}, [0, 2**63 - 1], [-1, 2**63, 2**63 + 1]),
        ({"minimum": -(2**63)}, [-(2**63) + 1024, 2**70], [-(2**63) - 1, -(2**64)]),
        ({"maximum": 2**64 - 1, "minimum": 0}, [2**63 - 1], [2**64, 2**64 + 1]),
        ({"minimum": 10**18}, [10**18, 2**63 - 1], [10**18 - 1]),
        ({"maximum": -(10**18)}, [-(10**18), -(2**63) + 1024], [1 - 10**18]),
        ({"format": "int64"}, [2**63 - 1, 0, -1], [2**63, -(2**63) - 1]),
        ({"format": "int32"}, [2**31 - 1, -(2**31)], [2**31, -(2**31) - 1]),
        ({"format": "int32", "maximum": 5}, [5, -(2**31)], [6, -(2**31) - 1]),
        ({"minimum": 5, "exclusiveMinimum": True}, [6], [5]),
        ({"minimum": 5, "exclusiveMinimum": False}, [5], [4]),
        ({"multipleOf": 7}, [0, 14], [15]),
    ],
)
def test_whole_numbers_are_held_to_the_last_one(
    schema: dict[str, Any], inside: list[int], outside: list[int]
) -> None:
    assert all(is_accepted(WHOLE | schema, str(number)) for number in inside)
    assert not any(is_accepted(WHOLE | schema, str(number)) for number in outside)


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"maximum": 0.1}, ["0.1", "-3"], ["0.10001", "0.2"]),
        ({"minimum": 1e-300}, ["0.0000000000000000000001", "1"], ["0", "-1"]),
        ({"exclusiveMinimum": 0}, ["0.001"], ["0", "-1"]),
        ({"minimum": 2**53 + 1}, [str(2**53 + 2)], [str(2**53)]),
        ({"minimum": 0, "maximum": 1e308}, ["0", str(10**18)], ["-1"]),
        ({"format": "double", "maximum": 1}, ["0.5"], ["1.5"]),
        ({"multipleOf": 0.01}, ["0.25"], ["0.255"]),
    ],
)
def test_numbers_are_held_to_their_bounds(
    schema: dict[str, Any], inside: list[str], outside: list[str]
) -> None:
    schema = {"type": "number", **schema}
    assert all(is_accepted(schema, number) for number in inside)
    assert not any(is_accepted(schema, number) for number in outside)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"const": 2**53 + 1}, "const has a number of too many digits"),
        ({"enum": [1, [{"a": 2**53 + 1}]]}, "enum has a number of too many digits"),
        ({"const": -(2**63)}, "const has a number of too many digits"),
        ({"enum": [1e300]}, "enum has a number of too many digits"),
        ({"minimum": 2**63}, r"bounds beyond 2\*\*63"),
        ({"maximum": -1e19}, r"bounds beyond 2\*\*63"),
        ({"minimum": 2**53 + 1, "maximum": 2**53 + 1}, "too close to each other"),
        ({"minimum": "5"}, "minimum must be a number"),
        ({"maximum": True}, "maximum must be a number"),
        ({"multipleOf": 0.07}, "multipleOf 0.07 is not enforced"),
        ({"multipleOf": 65_537}, "multipleOf 65537 is not enforced"),
        ({"multipleOf": 1e-300}, "multipleOf 1e-300 is not enforced"),
        ({"multipleOf": 0}, "multipleOf must be a number above 0"),
        ({"minLength": -1}, "minLength must be a whole number"),
        ({"maxItems": 1.5}, "maxItems must be a whole number"),
        ({"minItems": 2**40}, "minItems is more than any reply has"),
    ],
)
def test_numbers_that_cannot_be_held_are_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_schema(WHOLE | schema)
    with pytest.raises(ConfigError, match=f"/properties/a: .*{message}"):
        check_schema({"properties": {"a": WHOLE | schema}})


def test_steps_that_hold_together_must_have_a_common_one_of_few_digits() -> None:
    steps = [{"multipleOf": step} for step in (4001, 4003, 0.5)]
    with pytest.raises(ConfigError, match="multipleOf are not enforced together"):
        check_schema({"type": "integer", "allOf": steps})
    schema = {"type": "number", "allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.2}]}
    assert is_accepted(schema, "3")
    assert not is_accepted(schema, "2.5")


def test_bounds_hold_for_whole_numbers_that_another_part_asks_for() -> None:
    schema = {"allOf": [{"type": "integer"}, {"exclusiveMinimum": 2**53}]}
    assert is_accepted(schema, str(2**53 + 2))
    assert not is_accepted(schema, str(2**53))


def test_counts_may_be_written_with_a_point_and_be_larger_than_any_reply() -> None:
    schema = {"type": "array", "items": {"type": "null"}, "minItems": 2.0, "maxItems": 2**40}
    assert is_accepted(schema, "[null,null]")
    assert not is_accepted(schema, "[null]")


def test_no_number_ends_the_process() -> None:
    numbers = [sign * number for sign in (1, -1) for number in (2**63, 2**63 - 1, 1e19, 1e308)]
    program = f"""
from pilotfish.errors import ConfigError
from pilotfish.grammar import check_schema
for number in {numbers}:
    for keyword in ("const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        for schema in ({{}}, {{"type": "integer"}}, {{"type": "integer", "maximum": number}}):
            try:
                check_schema({{**schema, keyword: number}})
            except ConfigError:
                continue
print("alive")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr
