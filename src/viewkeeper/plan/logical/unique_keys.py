"""Which columns of a plan are proven unique: what a view's key can be.

A base table's primary key is unique; filters, sorts and windows keep it; a projection keeps it if the columns pass
through; an inner join has the keys of both sides together, or one side's alone when the other is joined by its own
key; a GROUP BY has its keys. Columns that a join equates stand for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from viewkeeper.model.schema import Table
from viewkeeper.plan.compile.branch import CompiledNode, conjuncts
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Consolidation,
    Expr,
    Filter,
    Join,
    Limit,
    MemberJoin,
    Node,
    Project,
    Scan,
    Sort,
    Window,
)

ColumnKey = tuple[str, ...]

_MAX_CANDIDATES = 16
"""Candidates kept at each node: enough for any query seen, and a bound on the work."""


def unique_keys(node: Node, tables: Mapping[int, Table]) -> list[ColumnKey]:
    """Sets of plan columns each of which is unique in the node's output, the preferred first."""
    match node:
        case Scan():
            return _scan_keys(node, tables[node.table]) if node.table in tables else []
        case Filter() | Sort() | Limit() | Window() | Consolidation():
            return unique_keys(node.child, tables)
        case Project():
            return _project_keys(node, unique_keys(node.child, tables))
        case Join():
            return _join_keys(node, tables)
        case MemberJoin():
            mine = unique_keys(node.parameters, tables)
            return [(*a, *b) for a in mine for b in unique_keys(node.child, tables)]
        case Aggregate():
            return [tuple(k.name for k in node.keys)]
        case CompiledNode():
            return unique_keys(node.node, tables)
        case _:
            return []


def _scan_keys(node: Scan, table: Table) -> list[ColumnKey]:
    if table.is_bag:
        return []
    names = {stored.lower(): c.name for c, stored in node.fields}
    key = [names.get(k.column.lower()) for k in table.key]
    return [tuple(k for k in key if k is not None)] if None not in key else []


def _project_keys(node: Project, inner: list[ColumnKey]) -> list[ColumnKey]:
    passed: dict[str, str] = {}
    for named in node.exprs:
        if named.expr.op == "column":
            passed.setdefault(named.expr.value, named.name)
    return [tuple(passed[c] for c in key) for key in inner if all(c in passed for c in key)]


def _join_keys(node: Join, tables: Mapping[int, Table]) -> list[ColumnKey]:
    left = unique_keys(node.left, tables)
    if node.join_type in ("semi", "anti", "existence"):
        return left
    right = unique_keys(node.right, tables)
    pairs = _equal_columns(node)
    found: list[ColumnKey] = []
    right_equated = {b for _, b in pairs}
    left_equated = {a for a, _ in pairs}
    # At most one right row matches a left one when the right side's key is equated as a whole, and the reverse.
    if node.join_type in ("inner", "left") and any(set(k) <= right_equated for k in right):
        found += left
    if node.join_type in ("inner", "right") and any(set(k) <= left_equated for k in left):
        found += right
    both = [(*a, *(c for c in b if c not in a)) for a in left for b in right]
    if node.join_type == "full":
        # A row without a match on either side has NULLs for the other's key: two of them differ only where a key has
        # no NULL of its own. So the keys of two inputs of one row each, `()`, are no key of their full join.
        known = {c.name for c in (*node.left.columns, *node.right.columns) if not c.nullable}
        both = [key for key in both if known.intersection(key)]
    found += both
    if node.join_type == "inner":
        for key in list(found):
            for a, b in pairs:
                old, new = (a, b) if a in key else (b, a)
                if old in key:
                    found.append(tuple(dict.fromkeys(new if c == old else c for c in key)))
    return list(dict.fromkeys(found))[:_MAX_CANDIDATES]


def _equal_columns(node: Join) -> list[tuple[str, str]]:
    """Pairs (left column, right column) that the condition equates."""
    left = {c.name for c in node.left.columns}
    found = []
    for condition in conjuncts(node.condition):
        if condition.op in ("EqualTo", "EqualNullSafe") and all(_is_column(a) for a in condition.args):
            a, b = (arg.value for arg in condition.args)
            if (a in left) != (b in left):
                found.append((a, b) if a in left else (b, a))
    return found


def _is_column(expr: Expr) -> bool:
    return expr.op == "column"
