"""Find sets of columns that are proven unique in a plan's output: the candidates for a view's key.

A base table's primary key is unique. Filters, sorts and windows keep it; a projection keeps it if it passes the columns
through. An inner join has the keys of both sides together, or one side's alone if the other side is joined by its own
key. A GROUP BY has its keys. Columns that a join equates can replace each other.
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
"""Maximum number of candidates at each node: more than any known query needs, and a bound on the work."""


def unique_keys(node: Node, tables: Mapping[int, Table]) -> list[ColumnKey]:
    """Return sets of plan columns each of which is unique in the node's output, the preferred first."""
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
            parameter_keys = unique_keys(node.parameters, tables)
            return [(*a, *b) for a in parameter_keys for b in unique_keys(node.child, tables)]
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
    # At most one right row matches a left one if the whole key of the right side is equated, and vice versa.
    if node.join_type in ("inner", "left") and any(set(k) <= right_equated for k in right):
        found += left
    if node.join_type in ("inner", "right") and any(set(k) <= left_equated for k in left):
        found += right
    both = [(*a, *(c for c in b if c not in a)) for a in left for b in right]
    if node.join_type == "full":
        # A row without a match has NULLs for the other side's key, so two such rows differ only if their own key is not
        # NULL. The keys of two inputs of one row each, `()`, are therefore no key of their full join.
        non_null = {c.name for c in (*node.left.columns, *node.right.columns) if not c.nullable}
        both = [key for key in both if non_null.intersection(key)]
    found += both
    if node.join_type == "inner":
        for key in list(found):
            for a, b in pairs:
                old, new = (a, b) if a in key else (b, a)
                if old in key:
                    found.append(tuple(dict.fromkeys(new if c == old else c for c in key)))
    return list(dict.fromkeys(found))[:_MAX_CANDIDATES]


def _equal_columns(node: Join) -> list[tuple[str, str]]:
    """Return the pairs (left column, right column) that the condition equates."""
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
