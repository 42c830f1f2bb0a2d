"""Rounding, powers, logarithms, trigonometry, bits.

Java's arithmetic is IEEE 754; Spark adds NULL rules: the logarithm of a number that is not positive is NULL. Results of
functions for which no standard defines the rounding (`exp`, `ln`, `sin`, `pow` …) come from the C library here and from
Java's library in Spark, and may differ in the last bit.
"""

from __future__ import annotations

from viewkeeper.expressions.rules import text_parsing
from viewkeeper.expressions.rules.decimals import MAX_DIGITS, digits, scaled, unscaled
from viewkeeper.expressions.rules.rule import DuckDBWriter, Texts, constant, duckdb_type
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types

_NAN = "CAST('NaN' AS DOUBLE)"


def floor_or_ceil(function: str) -> DuckDBWriter:
    """Return the writer of FLOOR or CEIL: of a double as a checked BIGINT, with NaN as 0; of a decimal with scale 0."""

    def write(expr: Expr, args: Texts) -> str:
        x = args[0]
        if not types.is_float(expr.args[0].type):
            return f"{function}({x})" if types.decimal_digits(expr.args[0].type) else x
        return f"(CASE WHEN isnan({x}) THEN 0 ELSE CAST({function}({x}) AS BIGINT) END)"

    return write


def floor_or_ceil_raises(expr: Expr) -> bool:
    return types.is_float(expr.args[0].type)


def floor_or_ceil_to(direction: int) -> DuckDBWriter:
    """Return the writer of floor(x, n) or ceil(x, n) of a decimal."""

    def write(expr: Expr, args: Texts) -> str:
        p, s = digits(expr.args[0])
        places = int(constant(expr.args[1]))
        n, unit = unscaled(args[0], p, s), 10 ** max(s - places, 0)
        correction = f"CAST({n} % {unit} {'<' if direction < 0 else '>'} 0 AS INTEGER)"
        steps = f"({n} // {unit} {'-' if direction < 0 else '+'} {correction})"
        return _from_units(expr, steps, places, s)

    return write


def round_(even: bool) -> DuckDBWriter:
    """Return the writer of ROUND (half up) or BROUND (half to even), by type."""

    def write(expr: Expr, args: Texts) -> str:
        places = int(constant(expr.args[1]))
        type_ = expr.args[0].type
        if types.decimal_digits(type_):
            p, s = digits(expr.args[0])
            return _from_units(expr, _round_to_unit(unscaled(args[0], p, s), 10 ** max(s - places, 0), even), places, s)
        if types.is_integer(type_):
            if places >= 0:
                return args[0]
            unit: int = 10**-places
            return f"({_round_to_unit(f'CAST({args[0]} AS HUGEINT)', unit, even)} * {unit})" if unit < 10**20 else "0"
        return _round_float(expr, args[0], places, even)

    return write


def _round_float(expr: Expr, x: str, places: int, even: bool) -> str:
    """Round as Spark does: round the shortest decimal text of the double, then return the nearest double.

    From 10^15 on, a double has no digits after the point.
    """
    wide = f"CAST({x} AS DOUBLE)"
    number = text_parsing.decimal(f"CAST({wide} AS VARCHAR)", types.decimal(MAX_DIGITS, 20), null_on_error=False)
    steps = _round_to_unit(unscaled(number, MAX_DIGITS, 20), 10 ** max(20 - places, 0), even)
    exact = scaled(steps, MAX_DIGITS, max(places, 0)) if places >= 0 else f"({steps} * CAST({10**-places} AS HUGEINT))"
    rounded = f"CAST(CAST({exact} AS VARCHAR) AS {duckdb_type(expr.type)})"
    return f"(CASE WHEN abs({wide}) < 1e15 THEN {rounded} ELSE {x} END)"


def refuse_round(expr: Expr) -> str | None:
    places = constant(expr.args[1])
    if places is None:
        return "rounding to a number of places that is not a constant"
    if types.is_float(expr.args[0].type) and not 0 <= places <= 20:
        return "rounding a float to fewer than 0 or more than 20 places"
    if not -30 <= places <= MAX_DIGITS:
        return f"rounding to {places} places"
    return None


def refuse_floor_or_ceil_to(expr: Expr) -> str | None:
    if not types.decimal_digits(expr.args[0].type):
        return f"{expr.op} of a number that is not a decimal"
    return refuse_round(expr)


def round_raises(expr: Expr) -> bool:
    """Return whether rounding can fail: rounding up may need one digit more than the type has."""
    type_, places = expr.args[0].type, constant(expr.args[1])
    if types.decimal_digits(type_):
        (p, s), (q, t) = digits(expr.args[0]), digits(expr)
        return q - t < p - s + (places is None or places < s)
    return types.is_integer(type_) and places is not None and places < 0


def _from_units(expr: Expr, units: str, places: int, s: int) -> str:
    """Return the decimal of `units` times 10^-places (10^-s if that is finer), in the result's type."""
    p, t = digits(expr)
    places = min(places, s)
    return scaled(f"({units} * CAST({10 ** (t - places)} AS HUGEINT))" if t > places else units, p, t)


def _round_to_unit(n: str, unit: int, even: bool) -> str:
    """Return the HUGEINT `n` in whole units, with halves rounded away from zero or to even."""
    if unit == 1:
        return n
    quotient, remainder = f"({n} // {unit})", f"abs({n} % {unit})"
    rounds_up = f"{remainder} >= {unit - unit // 2}"
    if even:
        rounds_up = f"({remainder} > {unit // 2} OR {remainder} = {unit // 2} AND {quotient} % 2 <> 0)"
    return f"({quotient} + CASE WHEN {rounds_up} THEN sign({n}) ELSE 0 END)"


def logarithm(text: str) -> DuckDBWriter:
    """Return the writer of a logarithm: NULL for a number that is not positive."""
    return lambda _, args: f"(CASE WHEN {args[0]} > 0 THEN {text.format(*args)} END)"


def logarithm_to(expr: Expr, args: Texts) -> str:
    """Write log(base, x). Spark evaluates x even if the base has no logarithm."""
    base, x = args
    return f"(CASE WHEN {x} > 0 THEN CASE WHEN {base} > 0 THEN ln({x}) / ln({base}) END END)"


def power(expr: Expr, args: Texts) -> str:
    """Write pow. Java returns NaN for 1^NaN and (±1)^±∞, where C returns 1."""
    x, y = args
    is_nan = f"(isnan({y}) OR abs({x}) = 1 AND isinf({y}))"
    return f"(CASE WHEN {x} IS NOT NULL AND {is_nan} THEN {_NAN} ELSE pow({x}, {y}) END)"


def signum(expr: Expr, args: Texts) -> str:
    return f"(CASE WHEN {args[0]} = 0 OR isnan({args[0]}) THEN {args[0]} ELSE sign({args[0]}) END)"


def shift_left(expr: Expr, args: Texts) -> str:
    return _wrap_bits(f"(CAST({args[0]} AS HUGEINT) * {_power_of_two(expr, args[1])})", _bit_width(expr))


def shift_right(expr: Expr, args: Texts) -> str:
    x, unit = f"CAST({args[0]} AS HUGEINT)", _power_of_two(expr, args[1])
    return f"({x} // {unit} - CAST({x} % {unit} < 0 AS INTEGER))"


def shift_right_unsigned(expr: Expr, args: Texts) -> str:
    bits = _bit_width(expr)
    unsigned = f"(CAST({args[0]} AS HUGEINT) + CASE WHEN {args[0]} < 0 THEN {2**bits} ELSE 0 END)"
    return _wrap_bits(f"({unsigned} // {_power_of_two(expr, args[1])})", bits)


def _bit_width(expr: Expr) -> int:
    return types.bit_width(expr.args[0].type)


def _power_of_two(expr: Expr, n: str) -> str:
    """Return 2^n, with n modulo the width, as in Java."""
    return f"CAST(pow(2, {n} & {_bit_width(expr) - 1}) AS HUGEINT)"


def _wrap_bits(text: str, bits: int) -> str:
    return f"(({text} % {2**bits} + {2**bits + 2 ** (bits - 1)}) % {2**bits} - {2 ** (bits - 1)})"
