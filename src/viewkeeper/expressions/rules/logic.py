"""Comparison, AND, OR and conditional expressions, with Spark's order of evaluation.

Spark evaluates AND and OR from left to right and stops when the result is known; CASE, IF and COALESCE evaluate only
the arguments that they need. DuckDB evaluates the operands of AND and OR in any order, and may hoist arguments of
COALESCE that occur twice; it does not reorder CASE. So where an operand that Spark may skip can fail, a CASE controls
its evaluation:

    a AND b   →   CASE WHEN a IS FALSE THEN FALSE ELSE (a AND b) END
    a OR b    →   CASE WHEN a THEN TRUE ELSE (a OR b) END

In the ELSE branch every operand but the last was evaluated before, so evaluating it again cannot fail.
"""

from __future__ import annotations

from collections.abc import Callable

from viewkeeper.expressions.rules.rule import DuckDBWriter, Texts
from viewkeeper.expressions.rules.structs import sortable
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.types import Family

Test = Callable[[Expr], bool]


def operands(expr: Expr) -> list[Expr]:
    """Return the operands of a chain of the same AND or OR, in order, without recursion (chains can be long)."""
    result: list[Expr] = []
    todo = [expr]
    while todo:
        e = todo.pop()
        if e.op == expr.op:
            todo.extend(reversed(e.args))
        else:
            result.append(e)
    return result


def chain(op: str, exprs: list[Expr], texts: Texts, can_raise: Test) -> str:
    """Return AND or OR of `exprs`: with a CASE up to the last operand that can fail, plain if none can."""
    connective, stop = (" AND ", "{} IS FALSE THEN FALSE") if op == "And" else (" OR ", "{} THEN TRUE")
    failing = [i for i, e in enumerate(exprs) if can_raise(e)]
    if not failing:
        return "(" + connective.join(texts) + ")"
    last = max(failing[-1], 1)
    heads = " ".join("WHEN " + stop.format(t) for t in texts[:last])
    undecided = [t for e, t in zip(exprs[:last], texts, strict=False) if e.nullable]
    rest = connective.join([*undecided, *texts[last:]])
    return f"(CASE {heads} ELSE ({rest}) END)"


def compare(operator: str) -> DuckDBWriter:
    return lambda _, a: f"({a[0]} {operator} {a[1]})"


def order(operator: str) -> DuckDBWriter:
    """Return the writer of an order comparison; structs and arrays need a sortable form."""

    def write(expr: Expr, args: Texts) -> str:
        left, right = (sortable(args[side], expr.args[side].type) for side in (0, 1))
        return f"({left} {operator} {right})"

    return write


def case_when(expr: Expr, args: Texts) -> str:
    pairs = "".join(f" WHEN {args[i]} THEN {args[i + 1]}" for i in range(0, len(args) - 1, 2))
    otherwise = f" ELSE {args[-1]}" if len(args) % 2 else ""
    return f"(CASE{pairs}{otherwise} END)"


def coalesce(expr: Expr, args: Texts) -> str:
    return f"coalesce({', '.join(args)})"


def guarded_coalesce(args: Texts) -> str:
    """Return a COALESCE with arguments that can fail."""
    *heads, last = args
    tests = "".join(f" WHEN {a} IS NOT NULL THEN {a}" for a in heads)
    return f"(CASE{tests} ELSE {last} END)" if heads else last


def in_list(expr: Expr, args: Texts) -> str:
    return f"({args[0]} IN ({', '.join(args[1:])}))" if len(args) > 1 else "FALSE"


def guarded_in(args: Texts) -> str:
    """Return x IN (…) with items that can fail: Spark stops at the first equal one, and evaluates none if x is NULL."""
    value, *items = args
    tests = "".join(f" WHEN {value} = {item} THEN TRUE" for item in items[:-1])
    any_equal = " OR ".join(f"({value} = {item})" for item in items)
    return f"(CASE WHEN {value} IS NULL THEN NULL{tests} ELSE ({any_equal}) END)"


def refuse_nested_extreme(expr: Expr) -> str | None:
    return f"GREATEST or LEAST of a {expr.type.kind.value.upper()}" if expr.type.family is Family.NESTED else None


def extreme(comparison: str) -> DuckDBWriter:
    """Return the writer of GREATEST or LEAST, which skip NULLs, order NaN last, and keep the first of equal values
    (0.0 and -0.0)."""

    def write(expr: Expr, args: Texts) -> str:
        if not types.is_float(expr.type):
            return f"{'greatest' if comparison == '>' else 'least'}({', '.join(args)})"
        best = args[0]
        for other in args[1:]:
            best = f"(CASE WHEN {best} IS NULL OR {other} {comparison} {best} THEN {other} ELSE {best} END)"
        return best

    return write
