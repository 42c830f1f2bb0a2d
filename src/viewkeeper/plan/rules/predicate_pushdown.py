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

_OPS = {"EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">="}
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def in_order(comparisons: Iterable[Expr]) -> tuple[Expr, ...]:
    """In an order of their own: what is stored is called after them."""
    return tuple(sorted(comparisons, key=lambda e: str(e.to_json())))


def comparison(expr: Expr) -> Comparison | None:
    """The comparison of a column with constants that an expression is, if it is one."""
    if expr.op == "In":
        column, *values = expr.args
        return _comparison(column, "in", values)
    if expr.op not in _OPS:
        return None
    left, right = expr.args
    if left.op == "literal":
        return _comparison(right, _TURNED[_OPS[expr.op]], [left])
    return _comparison(left, _OPS[expr.op], [right])


def _comparison(column: Expr, op: str, values: Iterable[Expr]) -> Comparison | None:
    constants = list(values)
    if column.op != "column" or not constants:
        return None
    if any(v.op != "literal" or v.value is None or v.type != column.type for v in constants):
        return None
    return Comparison(column.value, column.type, op, tuple(v.value for v in constants))
