"""Decimal arithmetic with Spark's result types, HALF_UP, and an error when the result does not fit.

A decimal(p,s) is an integer with p digits, its *unscaled* value. Spark computes exactly and rounds once to the type of
the result (division: to 38 digits after the point first). DuckDB computes in 128 bits, which hold 38 digits, so

1. where the types say that every exact result fits 38 digits, DuckDB's own operators are used, on operands wide
   enough that it does not fall back to 64 bits;
2. otherwise the values decide: a CASE takes the 128-bit way for values that are small enough (nearly all), and
   calls an exact function of any width (`functions.py`) for the others.

Division is done on the unscaled values: `N // D` rounded half up, which is `(2N + |D| sign N) // 2D`.
"""

from __future__ import annotations

from viewkeeper.model import types
from viewkeeper.plan.expressions.rule import Texts, fail, is_try
from viewkeeper.plan.nodes import Expr

MOST = 38


def digits(expr: Expr) -> tuple[int, int]:
    found = types.decimal_digits(expr.type)
    assert found is not None, expr
    return found


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
    wide = [f"CAST({a} AS DECIMAL({p if s == scale else MOST},{scale}))" for a in args]
    plain = f"({wide[0]} {operator} {wide[1]})"
    if s == scale or max(p1 - s1, p2 - s2) + scale < MOST:
        return plain
    small = " AND ".join(_below(a, MOST - 1 - scale, q, t) for a, q, t in ((args[0], p1, s1), (args[1], p2, s2)))
    return _either(expr, small, plain, "add" if operator == "+" else "subtract", args)


def _multiply(expr: Expr, args: Texts) -> str:
    _, s = digits(expr)
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    wide = f"CAST({args[0]} AS DECIMAL({max(p1, 19)},{s1}))" if 18 < p1 + p2 and p1 <= 18 and p2 <= 18 else args[0]
    plain = f"({wide} * {args[1]})"
    if p1 + p2 <= MOST or s == s1 + s2:
        return plain
    if s1 + s2 > MOST:
        return _exact(expr, "multiply", args)
    small = f"abs(CAST({args[0]} AS DOUBLE)) * abs(CAST({args[1]} AS DOUBLE)) < 1e{MOST - 1 - s1 - s2}"
    return _either(expr, small, plain, "multiply", args)


def divide(expr: Expr, args: Texts) -> str:
    p, s = digits(expr)
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    shift = s - s1 + s2
    n = f"({unscaled(args[0], p1, s1)} * CAST({10**shift} AS HUGEINT))"
    d = unscaled(args[1], p2, s2)
    plain = scaled(f"((2 * {n} + abs({d}) * sign({n})) // (2 * {d}))", p, s)
    tests = []
    if p1 + shift >= MOST:
        tests.append(_below(args[0], MOST - 1 - shift - s1, p1, s1))
    if p2 + s > MOST or p2 == MOST:
        tests.append(_below(args[1], min(MOST - s, MOST - 1) - s2, p2, s2))
    bad = "NULL" if is_try(expr) else fail("DIVIDE_BY_ZERO", "Division by zero.")
    text = _either(expr, " AND ".join(tests), plain, "divide", args) if tests else plain
    return f"(CASE WHEN {args[1]} = 0 AND {args[0]} IS NOT NULL THEN {bad} ELSE {text} END)"


def quotient_overflows(expr: Expr) -> bool:
    p, s = digits(expr)
    (p1, s1), (_, s2) = (digits(a) for a in expr.args)
    return p - s < p1 - s1 + s2


def integral_divide(expr: Expr, args: Texts) -> str:
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    scale = max(s1, s2)
    if max(p1 - s1, p2 - s2) + scale > MOST:
        return _zero_checked(expr, args, f"CAST(vk_quotient({', '.join(_texts(expr, args))}) AS BIGINT)")
    a, b = (unscaled(f"CAST({t} AS DECIMAL({MOST},{scale}))", MOST, scale) for t in args)
    return f"({a} // {b})"


def remainder(expr: Expr, args: Texts) -> str:
    (p1, s1), (p2, s2) = (digits(a) for a in expr.args)
    scale = max(s1, s2)
    if max(p1 - s1, p2 - s2) + scale > MOST:
        return _zero_checked(expr, args, _exact(expr, "remainder", args))
    a, b = (f"CAST({t} AS DECIMAL({MOST},{scale}))" for t in args)
    return _zero_checked(expr, args, f"({a} % {b})")


def unscaled(text: str, p: int, s: int) -> str:
    """The integer behind a decimal(p,s), as a HUGEINT."""
    if s == 0:
        return f"CAST({text} AS HUGEINT)"
    if p + s <= MOST:
        return f"CAST(CAST({text} AS DECIMAL({MOST},{s})) * CAST({10**s} AS DECIMAL({s + 1},0)) AS HUGEINT)"
    return f"CAST(replace(CAST({text} AS VARCHAR), '.', '') AS HUGEINT)"


def scaled(text: str, p: int, s: int) -> str:
    """The decimal(p,s) whose integer is the HUGEINT `text`."""
    if s == 0:
        return f"CAST({text} AS DECIMAL({p},0))"
    return f"CAST(CAST({text} AS DECIMAL({MOST},0)) * CAST('1e-{s}' AS DECIMAL({s},{s})) AS DECIMAL({p},{s}))"


def _below(text: str, exponent: int, p: int, s: int) -> str:
    """|text| < 10^exponent, or 10^-s if the exponent is smaller than that: then only zero is below."""
    if exponent >= p - s:
        return "TRUE"
    return f"abs({text}) < CAST('1e{max(exponent, -s)}' AS DECIMAL({MOST},{s}))"


def _either(expr: Expr, small: str, plain: str, operation: str, args: Texts) -> str:
    return f"(CASE WHEN {small} THEN {_typed(expr, plain)} ELSE {_exact(expr, operation, args)} END)"


def _exact(expr: Expr, operation: str, args: Texts) -> str:
    _, s = digits(expr)
    return _typed(expr, f"vk_{operation}({', '.join(_texts(expr, args))}, {s})")


def _texts(expr: Expr, args: Texts) -> list[str]:
    return [f"CAST({a} AS VARCHAR)" for a in args]


def _typed(expr: Expr, text: str) -> str:
    return f"CAST({text} AS {types.duckdb(expr.type)})"


def _zero_checked(expr: Expr, args: Texts, text: str) -> str:
    bad = "NULL" if is_try(expr) else fail("DIVIDE_BY_ZERO", "Division by zero.")
    return f"(CASE WHEN {args[1]} = 0 AND {args[0]} IS NOT NULL THEN {bad} ELSE {text} END)"
