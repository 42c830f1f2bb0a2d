"""Arithmetic on integers and floats; `decimals` handles decimals.

In ANSI mode an integer result that does not fit its width is an error, and so is division by zero, also for floats.
DuckDB's `+ - *` check the width of their operands, which is the width of Spark's result, and `//` and `%` raise on a
zero divisor. Differences are written out: float division by zero returns Infinity in DuckDB, and `min % -1` overflows.

`bounds` limits the values of an integer expression, so that for example `year(d) + 1` is known never to fail.
"""

from __future__ import annotations

from viewkeeper.expressions.rules import decimals
from viewkeeper.expressions.rules.rule import DuckDBWriter, Texts, constant, duckdb_type, fail, is_try
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types

DIVISION_BY_ZERO = fail("DIVIDE_BY_ZERO", "Division by zero.")


def infix(operator: str) -> DuckDBWriter:
    """Return the writer of +, - or * on two operands of one type (or on two decimals)."""

    def write(expr: Expr, args: Texts) -> str:
        if types.decimal_digits(expr.type):
            return _wrap_try(expr, decimals.infix(operator, expr, args))
        return _wrap_try(expr, f"({args[0]} {operator} {args[1]})")

    return write


def infix_raises(expr: Expr) -> bool:
    if is_try(expr) or types.is_float(expr.type):
        return False
    if types.decimal_digits(expr.type):
        return decimals.infix_raises(expr)
    return not _is_in_range(expr, _result_bounds(expr))


def divide(expr: Expr, args: Texts) -> str:
    if types.decimal_digits(expr.type):
        return decimals.divide(expr, args)
    return _check_zero(expr, args, f"{args[0]} / {args[1]}")


def divide_raises(expr: Expr) -> bool:
    if is_try(expr):
        return False
    return _can_be_zero(expr.args[1]) or (bool(types.decimal_digits(expr.type)) and decimals.quotient_overflows(expr))


def integral_divide(expr: Expr, args: Texts) -> str:
    if types.decimal_digits(expr.args[0].type):
        return decimals.integral_divide(expr, args)
    return _wrap_try(expr, f"({args[0]} // {args[1]})")


def integral_divide_raises(expr: Expr) -> bool:
    if is_try(expr):
        return False
    divisor = expr.args[1]
    if types.decimal_digits(divisor.type):
        return _can_be_zero(divisor) or decimals.integral_divide_raises(expr)
    return _can_be_zero(divisor) or constant(divisor) == -1


def remainder(expr: Expr, args: Texts) -> str:
    if types.decimal_digits(expr.type):
        return decimals.remainder(expr, args)
    if types.is_float(expr.type):
        return _check_zero(expr, args, f"{args[0]} % {args[1]}")
    return _wrap_try(expr, _integer_remainder(expr, args))


def _integer_remainder(expr: Expr, args: Texts) -> str:
    a, b = args
    if constant(expr.args[1]) not in (None, -1):
        return f"({a} % {b})"
    return f"(CASE WHEN {b} = -1 AND {a} IS NOT NULL THEN 0 ELSE {a} % {b} END)"


def pmod(expr: Expr, args: Texts) -> str:
    """Write `r < 0 ? (r + n) % n : r` with Java's wrapping addition."""
    if types.decimal_digits(expr.type):
        return decimals.pmod(expr, args)
    b = args[1]
    remainder_sql = remainder(expr, args)
    if types.is_float(expr.type):
        return f"(CASE WHEN {remainder_sql} < 0 THEN ({remainder_sql} + {b}) % {b} ELSE {remainder_sql} END)"
    bits = types.bit_width(expr.type)
    total = f"(CAST({remainder_sql} AS HUGEINT) + {b})"
    if bits >= 32:
        wrapped = f"(CASE WHEN {total} < {-(2 ** (bits - 1))} THEN {total} + {2**bits} ELSE {total} END)"
    else:
        wrapped = total
    return f"(CASE WHEN {remainder_sql} < 0 THEN {wrapped} % {b} ELSE {remainder_sql} END)"


def remainder_raises(expr: Expr) -> bool:
    if is_try(expr):
        return False
    return _can_be_zero(expr.args[1]) or (bool(types.decimal_digits(expr.type)) and decimals.remainder_raises(expr))


def pmod_raises(expr: Expr) -> bool:
    return remainder_raises(expr) or bool(types.decimal_digits(expr.type))


def negate(expr: Expr, args: Texts) -> str:
    if types.decimal_digits(expr.type):
        return decimals.negate(expr, args)
    return f"(-{args[0]})" if types.is_float(expr.type) else f"(CAST(0 AS {duckdb_type(expr.type)}) - {args[0]})"


def magnitude(expr: Expr, args: Texts) -> str:
    return decimals.magnitude(expr, args) if types.decimal_digits(expr.type) else f"abs({args[0]})"


def negate_raises(expr: Expr) -> bool:
    if types.decimal_digits(expr.type):
        return decimals.negate_raises(expr)
    low, _ = bounds(expr.args[0])
    return types.is_integer(expr.type) and low == -(2 ** (types.bit_width(expr.type) - 1))


def bounds(expr: Expr) -> tuple[int, int]:
    """Return the least and the greatest value of an integer expression, as far as its form determines them."""
    if not types.is_integer(expr.type):
        return (0, 0)
    half = 2 ** (types.bit_width(expr.type) - 1)
    full = (-half, half - 1)
    if expr.op == "literal":
        return full if expr.value is None else (int(expr.value), int(expr.value))
    if expr.op in _FIELD_BOUNDS:
        return _FIELD_BOUNDS[expr.op]
    if expr.op == "Cast" and types.is_integer(expr.args[0].type):
        inner = bounds(expr.args[0])
        return inner if _is_in_range(expr, inner) else full
    if expr.op in ("Add", "Subtract", "Multiply"):
        result = _result_bounds(expr)
        return result if _is_in_range(expr, result) else full
    return full


_FIELD_BOUNDS = {
    "Year": (-6_000_000, 6_000_000),
    "Quarter": (1, 4),
    "Month": (1, 12),
    "DayOfMonth": (1, 31),
    "DayOfWeek": (1, 7),
    "WeekDay": (0, 6),
    "DayOfYear": (1, 366),
    "WeekOfYear": (1, 53),
    "Hour": (0, 23),
    "Minute": (0, 59),
    "Second": (0, 59),
}


def _result_bounds(expr: Expr) -> tuple[int, int]:
    (a, b), (c, d) = bounds(expr.args[0]), bounds(expr.args[1])
    if expr.op == "Add":
        return a + c, b + d
    if expr.op == "Subtract":
        return a - d, b - c
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)


def _is_in_range(expr: Expr, interval: tuple[int, int]) -> bool:
    half: int = 2 ** ((types.bit_width(expr.type) if types.is_integer(expr.type) else 64) - 1)
    return interval[0] >= -half and interval[1] < half


def _can_be_zero(expr: Expr) -> bool:
    value = constant(expr)
    return value is None or float(value) == 0


def _check_zero(expr: Expr, args: Texts, text: str) -> str:
    if not _can_be_zero(expr.args[1]):
        return f"({text})"
    bad = "NULL" if is_try(expr) else DIVISION_BY_ZERO
    return f"(CASE WHEN {args[1]} = 0 AND {args[0]} IS NOT NULL THEN {bad} ELSE {text} END)"


def _wrap_try(expr: Expr, text: str) -> str:
    return f"TRY({text})" if is_try(expr) else text
