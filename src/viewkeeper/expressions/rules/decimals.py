"""Decimal arithmetic with Spark's result types, HALF_UP rounding, and an error when the result does not fit.

A decimal(p,s) is an integer with p digits, its *unscaled* value. Spark computes exactly and rounds once to the result's
type. DuckDB computes in 128 bits, which hold 38 digits. Therefore:

1. If the types ensure that every exact result fits 38 digits, DuckDB's own operators are used, on operands wide enough
   that DuckDB does not compute in 64 bits.
2. Otherwise a CASE decides by value: nearly all values are small enough for 128 bits, and the others go to an exact
   function of arbitrary width (`duckdb_functions`).

Division works on the unscaled values: `N // D` rounded half up, which is `(2N + |D| sign N) // 2D`.
"""

from __future__ import annotations

from viewkeeper.errors import Defect
from viewkeeper.expressions.rules.rule import Texts, fail, is_try
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.types import Type

MAX_DIGITS = 38
_JAVA_DIGITS = 34  # digits of Scala's default MathContext


def digits_of(type_: Type) -> tuple[int, int]:
    """Return precision and scale of a type that must be a decimal."""
    result = types.decimal_digits(type_)
    if result is None:
        raise Defect(f"{type_} was taken for a decimal.")
    return result


def digits(expr: Expr) -> tuple[int, int]:
    return digits_of(expr.type)


def infix(operator: str, expr: Expr, args: Texts) -> str:
    return _multiply(expr, args) if operator == "*" else _add(operator, expr, args)


def infix_raises(expr: Expr) -> bool:
    p, s = digits(expr)
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    if expr.op == "Multiply":
        need = p1 - s1 + p2 - s2 + (s < s1 + s2)
    else:
        need = max(p1 - s1, p2 - s2) + 1
    return p - s < need


def _add(operator: str, expr: Expr, args: Texts) -> str:
    p, s = digits(expr)
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    scale = max(s1, s2)
    if p <= 18:
        return f"({args[0]} {operator} {args[1]})"
    need = max(p1 - s1, p2 - s2) + scale  # digits of an operand at the common scale
    wide = [f"CAST({a} AS DECIMAL({p if s == scale else MAX_DIGITS},{scale}))" for a in args]
    plain = f"({wide[0]} {operator} {wide[1]})"
    if need < MAX_DIGITS or (need == MAX_DIGITS and s == scale):  # a sum that is too wide here is too wide in Spark
        return plain
    small = " AND ".join(
        _below_power(a, MAX_DIGITS - 1 - scale, q, t) for a, q, t in ((args[0], p1, s1), (args[1], p2, s2))
    )
    return _plain_or_exact(expr, small, plain, "add" if operator == "+" else "subtract", args)


def _multiply(expr: Expr, args: Texts) -> str:
    _, s = digits(expr)
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    wide = f"CAST({args[0]} AS DECIMAL({max(p1, 19)},{s1}))" if p1 + p2 > 18 and p1 <= 18 and p2 <= 18 else args[0]
    plain = f"({wide} * {args[1]})"
    if p1 + p2 <= MAX_DIGITS or s == s1 + s2:
        return plain
    if s1 + s2 > MAX_DIGITS:
        return _exact_sql(expr, "multiply", args)
    small = f"abs(CAST({args[0]} AS DOUBLE)) * abs(CAST({args[1]} AS DOUBLE)) < 1e{MAX_DIGITS - 1 - s1 - s2}"
    return _plain_or_exact(expr, small, plain, "multiply", args)


def divide(expr: Expr, args: Texts) -> str:
    p, s = digits(expr)
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    shift = s - s1 + s2
    n = f"({unscaled(args[0], p1, s1)} * CAST({10**shift} AS HUGEINT))"
    d = unscaled(args[1], p2, s2)
    plain = scaled(f"((2 * {n} + abs({d}) * sign({n})) // (2 * {d}))", p, s)
    tests = []
    if p1 + shift >= MAX_DIGITS:
        tests.append(_below_power(args[0], MAX_DIGITS - 1 - shift - s1, p1, s1))
    if p2 == MAX_DIGITS:
        tests.append(_below_power(args[1], MAX_DIGITS - 1 - s2, p2, s2))
    return _check_zero(
        expr, args, _plain_or_exact(expr, " AND ".join(tests), plain, "divide", args) if tests else plain
    )


def integral_divide_raises(expr: Expr) -> bool:
    (p1, s1), (_, s2) = (digits(a) for a in expr.args)
    return p1 - s1 + s2 > MAX_DIGITS


def quotient_overflows(expr: Expr) -> bool:
    p, s = digits(expr)
    (p1, s1), (_, s2) = (digits(a) for a in expr.args)
    return p - s < p1 - s1 + s2


def integral_divide(expr: Expr, args: Texts) -> str:
    """Return the integer part of the quotient; Spark keeps its lowest 64 bits and ignores the others."""
    (p1, s1), (_, s2) = (digits(a) for a in expr.args)
    if wide := _common_scale(expr, args, spare_digits=0):
        a, b = (unscaled(t, MAX_DIGITS, max(s1, s2)) for t in wide)
        quotient = f"({a} // {b})"
    else:
        quotient = f"CAST(CAST({_call_exact('quotient', args, 0)} AS DECIMAL({MAX_DIGITS},0)) AS HUGEINT)"
    if p1 - s1 + s2 > 18:
        quotient = f"(({quotient} % {2**64} + {3 * 2**63}) % {2**64} - {2**63})"
    return _check_zero(expr, args, f"CAST({quotient} AS BIGINT)")


def remainder(expr: Expr, args: Texts) -> str:
    if wide := _common_scale(expr, args, spare_digits=0):
        return _check_zero(expr, args, f"({wide[0]} % {wide[1]})")
    return _check_zero(expr, args, _exact_sql(expr, "remainder", args))


def remainder_raises(expr: Expr) -> bool:
    """Return whether the integer quotient may exceed Java's precision (`duckdb_functions._has_java_remainder`)."""
    (p1, s1), (_, s2) = (digits(a) for a in expr.args)
    return p1 - s1 + s2 > MAX_DIGITS + 1


def pmod(expr: Expr, args: Texts) -> str:
    if wide := _common_scale(expr, args, spare_digits=1):
        a, b = wide
        return _check_zero(expr, args, f"(CASE WHEN {a} % {b} < 0 THEN ({a} % {b} + {b}) % {b} ELSE {a} % {b} END)")
    return _check_zero(expr, args, _exact_sql(expr, "pmod", args))


def negate(expr: Expr, args: Texts) -> str:
    """Negate; Spark rounds to 34 digits (half even), which affects longer decimals."""
    p, s = digits(expr)
    if p <= _JAVA_DIGITS:
        return f"(-{args[0]})"
    return _plain_or_exact(
        expr, _below_power(args[0], _JAVA_DIGITS - s, p, s), f"(-{args[0]})", "negate", (args[0], args[0])
    )


def magnitude(expr: Expr, args: Texts) -> str:
    p, _ = digits(expr)
    if p <= _JAVA_DIGITS:
        return f"abs({args[0]})"
    return f"(CASE WHEN {args[0]} < 0 THEN {negate(expr, args)} ELSE {args[0]} END)"


def negate_raises(expr: Expr) -> bool:
    return digits(expr)[0] > _JAVA_DIGITS


def unscaled(text: str, p: int, s: int) -> str:
    """Return the unscaled value of a decimal(p,s) as a HUGEINT."""
    if s == 0:
        return f"CAST({text} AS HUGEINT)"
    if p + s <= MAX_DIGITS:
        return f"CAST(CAST({text} AS DECIMAL({MAX_DIGITS},{s})) * CAST({10**s} AS DECIMAL({s + 1},0)) AS HUGEINT)"
    return f"CAST(replace(CAST({text} AS VARCHAR), '.', '') AS HUGEINT)"


def scaled(text: str, p: int, s: int) -> str:
    """Return the decimal(p,s) with the HUGEINT `text` as its unscaled value."""
    if s == 0:
        return f"CAST({text} AS DECIMAL({p},0))"
    return f"CAST(CAST({text} AS DECIMAL({MAX_DIGITS},0)) * {_power_of_ten(-s, s, s)} AS DECIMAL({p},{s}))"


def _common_scale(expr: Expr, args: Texts, spare_digits: int) -> list[str] | None:
    """Return both operands at one scale, or None if that leaves no room for `spare_digits` more digits."""
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    scale = max(s1, s2)
    if max(p1 - s1, p2 - s2) + scale + spare_digits > MAX_DIGITS:
        return None
    return [f"CAST({t} AS DECIMAL({MAX_DIGITS},{scale}))" for t in args]


def _power_of_ten(exponent: int, p: int, s: int) -> str:
    text = "1" + "0" * exponent if exponent >= 0 else "0." + "0" * (-exponent - 1) + "1"
    return f"CAST('{text}' AS DECIMAL({p},{s}))"


def _below_power(text: str, exponent: int, p: int, s: int) -> str:
    """Return the test |text| < 10^exponent; if 10^exponent is below the scale, the bound is 10^-s, so that only zero
    passes."""
    if exponent >= p - s:
        return "TRUE"
    return f"abs({text}) < {_power_of_ten(max(exponent, -s), MAX_DIGITS, s)}"


def _plain_or_exact(expr: Expr, range_test: str, plain: str, operation: str, args: Texts) -> str:
    """Return `plain` for small values and NULLs, and the exact function for the others."""
    exact = _exact_sql(expr, operation, args)
    return f"(CASE WHEN ({range_test}) IS FALSE THEN {exact} ELSE {_cast_result(expr, plain)} END)"


def _exact_sql(expr: Expr, operation: str, args: Texts) -> str:
    return _cast_result(expr, _call_exact(operation, args, digits(expr)[1]))


def _call_exact(operation: str, args: Texts, scale: int) -> str:
    return f"vk_{operation}(CAST({args[0]} AS VARCHAR), CAST({args[1]} AS VARCHAR), {scale})"


def _cast_result(expr: Expr, text: str) -> str:
    return f"{'TRY_CAST' if is_try(expr) else 'CAST'}({text} AS {types.duckdb(expr.type)})"


def _check_zero(expr: Expr, args: Texts, text: str) -> str:
    bad = "NULL" if is_try(expr) else fail("DIVIDE_BY_ZERO", "Division by zero.")
    return f"(CASE WHEN {args[1]} = 0 AND {args[0]} IS NOT NULL THEN {bad} ELSE {text} END)"
