"""Bounds of numbers, moved to where the compiler holds them exactly: inward, where they move.

The compiler keeps numbers as doubles, of which there is not one for each whole number beyond 2**53,
and writes bounds out digit by digit, as whole numbers of 64 bits and the places behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

from pilotfish.errors import ConfigError
from pilotfish.grammar.keywords import ENFORCED

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LARGEST_MULTIPLE = 65_535
# decimals of so many digits and places are read exactly
_DIGITS = 15
_PLACES = 22
# beyond it some whole numbers are no doubles
_WHOLE_DOUBLES = 2**53
_LARGEST_WHOLE = 2**63 - 1
# the next double below
_LARGEST = 2**63 - 1024
# from here on the compiler has to know the other bound, too
_WIDE = 10**18

# no reply has as many characters or entries
_MOST_COUNTED = 2**31

Number = int | float


def has_whole_numbers(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema says of itself that its numbers are whole."""
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    return "integer" in types and "number" not in types


def with_counts(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose counts are whole numbers that the compiler takes, 3 for 3.0."""
    result = dict(schema)
    for name, count in schema.items():
        if name not in ENFORCED or not ENFORCED[name].counts:
            continue
        is_count = isinstance(count, Number) and not isinstance(count, bool)
        if not is_count or count < 0 or count % 1:
            raise ConfigError(f"{name} must be a whole number, 0 or more")
        result[name] = int(count)
        if count > _MOST_COUNTED and name.startswith("min"):
            raise ConfigError(f"{name} is more than any reply has")
        if count > _MOST_COUNTED:
            del result[name]
    return result


def with_exact_bounds(schema: Mapping[str, Any], *, is_whole: bool) -> dict[str, Any]:
    """Return a schema whose bounds are held to the last number; `is_whole` if whole numbers are all
    the numbers that satisfy it. Raises ConfigError for bounds that cannot be held."""
    result = {name: value for name, value in schema.items() if name not in BOUNDS}
    given = _numeric({name: schema[name] for name in BOUNDS if name in schema})
    if not given:
        return result
    bounds = _whole(given) if is_whole else _doubles(given)
    lows = [bound for name, bound in bounds.items() if name.endswith("inimum")]
    highs = [bound for name, bound in bounds.items() if name.endswith("aximum")]
    if any(low > _LARGEST for low in lows) or any(high < -_LARGEST for high in highs):
        raise ConfigError("bounds beyond 2**63 are not enforced", hint="ask for it as text")
    if not highs and any(low >= _WIDE for low in lows):
        bounds["maximum"] = _LARGEST_WHOLE if is_whole else _LARGEST
    if not lows and any(high <= -_WIDE for high in highs):
        bounds["minimum"] = -_LARGEST
    if lows and highs and max(lows) > min(highs) and _leave_room(given):
        raise ConfigError("its bounds are too close to each other to be enforced")
    return {**result, **bounds}


def _leave_room(given: Mapping[str, Number]) -> bool:
    lows = [bound for name, bound in given.items() if name.endswith("inimum")]
    highs = [bound for name, bound in given.items() if name.endswith("aximum")]
    return max(lows) <= min(highs)


def _numeric(given: dict[str, Any]) -> dict[str, Number]:
    """Return bounds as numbers; older schemas have a switch that makes the other one exclusive."""
    for side in ("minimum", "maximum"):
        switch = f"exclusive{side.capitalize()}"
        if given.get(switch) is True and side in given:
            given[switch] = given.pop(side)
        elif isinstance(given.get(switch), bool):
            del given[switch]
    for name, bound in given.items():
        if isinstance(bound, bool) or not isinstance(bound, Number):
            raise ConfigError(f"{name} must be a number")
    return given


def _whole(given: Mapping[str, Number]) -> dict[str, Number]:
    """Return bounds of whole numbers, both inclusive, that are doubles or the largest there is."""
    lows = [
        *(math.ceil(given[name]) for name in ("minimum",) if name in given),
        *(math.floor(given[name]) + 1 for name in ("exclusiveMinimum",) if name in given),
    ]
    highs = [
        *(math.floor(given[name]) for name in ("maximum",) if name in given),
        *(math.ceil(given[name]) - 1 for name in ("exclusiveMaximum",) if name in given),
    ]
    bounds: dict[str, Number] = {}
    if lows:
        low = max(lows)
        bounds["minimum"] = low if low > _LARGEST else max(int(_above(low)), -_LARGEST)
    if highs:
        high = min(highs)
        # the compiler takes what is beyond for the largest
        high = min(high, _LARGEST_WHOLE)
        is_as_it_was = high == _LARGEST_WHOLE or high < -_LARGEST
        bounds["maximum"] = high if is_as_it_was else int(_below(high))
    return bounds


def _doubles(given: Mapping[str, Number]) -> dict[str, Number]:
    """Return bounds that the compiler reads as they are, as exclusive as they were."""
    bounds: dict[str, Number] = {}
    for name, bound in given.items():
        is_low = name.endswith("inimum")
        moved = _inward(bound, is_low)
        if name.startswith("exclusive") and _WHOLE_DOUBLES <= abs(moved) <= _LARGEST:
            # another part may ask for whole numbers, and one more is no double
            moved = int(math.nextafter(moved, math.inf if is_low else -math.inf))
        limited = max(moved, -_LARGEST) if is_low else min(moved, _LARGEST)
        # one that was moved is inside already
        plain = name if limited == bound else name.removeprefix("exclusive").lower()
        earlier = bounds.get(plain, limited)
        bounds[plain] = max(earlier, limited) if is_low else min(earlier, limited)
    return bounds


def _inward(bound: Number, is_low: bool) -> Number:
    """Return the next number inside a bound that is a whole double, or of few digits."""
    exact = Decimal(repr(bound))
    rounding = ROUND_CEILING if is_low else ROUND_FLOOR
    if exact != exact.to_integral_value():
        exact = Context(prec=_DIGITS, rounding=rounding).plus(exact)
        if _num_places(exact) > _PLACES:
            exact = exact.quantize(Decimal(1).scaleb(-_PLACES), rounding=rounding)
    if exact != exact.to_integral_value():
        return float(exact)
    double = _above(int(exact)) if is_low else _below(int(exact))
    return int(double) if math.isfinite(double) else double


def _above(number: Number) -> float:
    """Return the smallest double that is no smaller."""
    return -_below(-number)


def _below(number: Number) -> float:
    """Return the largest double that is no larger."""
    try:
        double = float(number)
    except OverflowError:
        return -math.inf if number < 0 else math.nextafter(math.inf, 0)
    return math.nextafter(double, -math.inf) if double > number else double


def _num_places(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def check_multiple(step: object) -> None:
    """Raise ConfigError for a `multipleOf` that the compiler would take for another number, or
    that would take it long."""
    if isinstance(step, bool) or not isinstance(step, Number) or step <= 0:
        raise ConfigError("multipleOf must be a number above 0")
    # as the compiler makes a whole number of it
    whole, num_places = float(min(step, 2 * LARGEST_MULTIPLE)), 0
    while whole % 1 and num_places < _PLACES:
        whole, num_places = whole * 10, num_places + 1
    is_exact = Fraction(whole) == Fraction(repr(step)) * 10**num_places
    if not is_exact or whole > LARGEST_MULTIPLE:
        hint = f"take one of few digits, {LARGEST_MULTIPLE:,} at most"
        raise ConfigError(f"multipleOf {step!r:.40} is not enforced", hint=hint)


def check_multiples_together(schema: object) -> None:
    """Raise ConfigError if the steps in a schema, where several hold at once, could have a common
    one that the compiler's integers of 32 bits have no room for."""
    steps = {Fraction(repr(step)) for step in _steps_in(schema)}
    if len(steps) < 2:
        return
    unit = 10 ** max(_num_places(Decimal(repr(float(step)))) for step in steps)
    whole = [int(step * unit) for step in steps]
    if math.lcm(*whole) * max(whole) >= 2**32:
        hint = "take fewer of them, or of fewer digits"
        raise ConfigError("its values of multipleOf are not enforced together", hint=hint)


def _steps_in(schema: object) -> Iterator[Number]:
    if isinstance(schema, dict):
        step = schema.get("multipleOf")
        if isinstance(step, Number):
            yield step
    if isinstance(schema, dict | list):
        for part in schema.values() if isinstance(schema, dict) else schema:
            yield from _steps_in(part)


def has_wide_number(value: object) -> bool:
    """Return whether a JSON value holds a number that the compiler would take for another one, or
    that its integers of 64 bits have no room for: it ends the process then."""
    if isinstance(value, dict):
        return any(map(has_wide_number, value.values()))
    if isinstance(value, list):
        return any(map(has_wide_number, value))
    if isinstance(value, bool) or not isinstance(value, Number):
        return False
    return abs(value) > _LARGEST or _inward(value, is_low=True) != value
