"""An expression that may fail as a value that never does, and whether it would have.

    tried(a * b)               = try_multiply(a', b'), which fails where a and b are there and it is NULL
    tried(f(x))                = f(x'),               which fails where x does
    tried(CASE WHEN c THEN x)  = CASE WHEN c THEN x', which fails where c holds and x does

Whether a row fails is then a value like any other: rows can be counted by it, and a count is a sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from viewkeeper import expressions
from viewkeeper.model import types
from viewkeeper.plan.nodes import Expr

_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply"})
_NO = Expr("literal", types.BOOLEAN, value=False, nullable=False)


class Tried(NamedTuple):
    value: Expr
    """NULL where it fails, else as it was."""
    fails: Expr


def tried(expr: Expr) -> Tried | None:
    """None if it cannot be said so: what fails is no such arithmetic, or an argument among several."""
    if not expressions.can_raise(expr):
        return Tried(expr, _NO)
    if expr.op in ("If", "CaseWhen"):
        return _chosen(expr)
    inside = [tried(a) for a in expr.args]
    args = [one for one in inside if one is not None]
    if len(args) < len(inside):
        return None
    value = replace(expr, args=tuple(a.value for a in args), nullable=True)
    if expr.op in _ARITHMETIC or (expr.op == "Divide" and types.is_float(expr.type)):
        mode = ("TRY", *expr.value[1:]) if isinstance(expr.value, tuple) else "TRY"
        value = replace(value, value=mode)
        first, second = args[::-1] if expr.op == "Divide" else args  # Spark looks at a divisor first
        there = _is("IsNotNull", first.value)
        own = _and(_and(there, _is("IsNotNull", second.value)), _is("IsNull", value))
        return Tried(value, _or(first.fails, _or(_and(there, second.fails), own)))
    if len(args) == 1 and not any(part is expr for part in expressions.failing(expr)):
        return Tried(value, args[0].fails)
    return None


def reason_of(exprs: Iterable[Expr]) -> str:
    """What is said of rows on which one of these fails."""
    parts = [part for expr in exprs for part in expressions.failing(expr)]
    if parts and all(types.decimal_digits(p.type) for p in parts):
        return "NUMERIC_VALUE_OUT_OF_RANGE: A number does not fit its decimal type."
    if parts and all(p.op == "Divide" for p in parts):
        return "DIVIDE_BY_ZERO: Division by zero."
    return "ARITHMETIC_OVERFLOW: What is summed does not fit its type, or is divided by zero."


def _chosen(expr: Expr) -> Tried | None:
    """One of several, by conditions that do not fail themselves."""
    tests = range(1) if expr.op == "If" else range(0, len(expr.args) // 2 * 2, 2)
    values, fails = list(expr.args), list(expr.args)
    for i, arg in enumerate(expr.args):
        one = tried(arg)
        if one is None or (i in tests and one.fails != _NO):
            return None
        if i not in tests:
            values[i], fails[i] = one
    if expr.op == "CaseWhen" and len(fails) % 2 == 0:
        fails.append(_NO)
    return Tried(
        replace(expr, args=tuple(values), nullable=True),
        Expr(expr.op, types.BOOLEAN, tuple(fails), value=expr.value, nullable=False),
    )


def _is(op: str, expr: Expr) -> Expr:
    return Expr(op, types.BOOLEAN, (expr,), nullable=False)


def _and(one: Expr, other: Expr) -> Expr:
    return _NO if _NO in (one, other) else Expr("And", types.BOOLEAN, (one, other), nullable=False)


def _or(one: Expr, other: Expr) -> Expr:
    if _NO in (one, other):
        return other if one == _NO else one
    return Expr("Or", types.BOOLEAN, (one, other), nullable=False)
