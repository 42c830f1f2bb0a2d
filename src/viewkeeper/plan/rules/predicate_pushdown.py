"""Predicate pushdown: restrict the rows of a base table to those that pass the comparisons which all its readers make.

A filter is linear, so it may run anywhere between the store and its operator. If all segments over a table's delta make
the same comparisons with constants, the store applies them when it scans the table, and the table image holds only rows
that pass:

    image = σ(R)        Δ = current rows − image rows of the same keys        σ(Δ) is the delta of σ(R)

A key without a row that passes is not in the image; every reader would have filtered its old row out anyway.
"""

from __future__ import annotations

from collections.abc import Iterable

from viewkeeper.model.filtered_table import Comparison
from viewkeeper.plan.logical.nodes import Expr

_OPERATORS = {"EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def sort_comparisons(comparisons: Iterable[Expr]) -> tuple[Expr, ...]:
    """Sort comparisons in a canonical order, because state is named after them."""
    return tuple(sorted(comparisons, key=lambda e: str(e.to_json())))


def read_comparison(expr: Expr) -> Comparison | None:
    """Return the expression as a comparison of a column with constants, else None."""
    if expr.op == "In":
        column, *values = expr.args
        return _make_comparison(column, "in", values)
    if expr.op not in _OPERATORS:
        return None
    left, right = expr.args
    if left.op == "literal":
        return _make_comparison(right, _MIRRORED[_OPERATORS[expr.op]], [left])
    return _make_comparison(left, _OPERATORS[expr.op], [right])


def _make_comparison(column: Expr, op: str, values: Iterable[Expr]) -> Comparison | None:
    constants = list(values)
    if column.op != "column" or not constants:
        return None
    if any(v.op != "literal" or v.value is None or v.type != column.type for v in constants):
        return None
    return Comparison(column.value, column.type, op, tuple(v.value for v in constants))
