"""Which rows of a base table matter: those that pass the comparisons which every reader of the table makes.

A filter is linear, so it may run anywhere between the store and its operator. What all segments over a table's changes
compare with constants can therefore be asked of the store when it scans the table, and the table's image then holds
only such rows:

    image = σ(R)        Δ = rows now − image rows of the same keys        σ(Δ) is the change of σ(R)

A key that had no selected row is not in the image; its old row, had it been known, would be filtered away by everybody.
"""

from __future__ import annotations

from collections.abc import Iterable

from viewkeeper.model.filtered_table import Comparison
from viewkeeper.plan.logical.nodes import Expr

_OPERATORS = {"EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def sort_comparisons(comparisons: Iterable[Expr]) -> tuple[Expr, ...]:
    """In an order of their own: what is stored is called after them."""
    return tuple(sorted(comparisons, key=lambda e: str(e.to_json())))


def read_comparison(expr: Expr) -> Comparison | None:
    """The comparison of a column with constants that an expression is, if it is one."""
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
