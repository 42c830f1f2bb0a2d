"""Compute join keys below the join if they use several relations or can raise.

    L ⋈_{f(l) = g(r)} R  =  π(L, f(l) AS k) ⋈_{k = m} π(R, g(r) AS m)        for every kind of join

An expression that cannot raise may run wherever its columns are, so a join uses it as a key directly. An expression
that can raise (`week - 53` overflows, in ANSI mode) must run for exactly the rows for which Spark runs it: every row of
its side of the join, whether it has a match or not, and no row that an inner join below has dropped. Therefore it
becomes a column of its side, computed when a row is inserted and stored with it, and the join compares plain columns. A
side that is itself a join is then not flattened: its rows are arranged by the key. The same applies to an expression
over columns of several relations, because no arrangement of one of them could have it as its key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from viewkeeper.plan.compile.branch import can_any_raise, column_reference, conjunction, conjuncts
from viewkeeper.plan.logical.nodes import Expr, Filter, Join, Named, Node, Project, column


@dataclass(frozen=True)
class KeyProjection(Project):
    """A projection that `join_tree` does not merge into the join above it."""


def add_key_columns(join: Join) -> Join:
    """Return the join with key columns in its inputs for sides of equalities that cannot be keys directly."""
    left, right = ({c.name for c in side.columns} for side in (join.left, join.right))
    key_columns: dict[Expr, Named] = {}
    for equality in filter(None, map(_equality, conjuncts(join.condition))):
        for side, other in (equality.args, equality.args[::-1]):
            for names, opposite, node in ((left, right, join.left), (right, left, join.right)):
                is_separated = (
                    side.columns() and side.columns() <= names and other.columns() and other.columns() <= opposite
                )
                if is_separated and (can_any_raise([side]) or _has_columns_of_several(node, side.columns())):
                    key_columns.setdefault(side, Named(f"{node.columns[0].name}!key{len(key_columns)}", side))
    if not key_columns:
        return join
    condition = conjunction([_replace_keys(c, key_columns) for c in conjuncts(join.condition)])
    return replace(
        join,
        left=_project_keys(join.left, key_columns, left),
        right=_project_keys(join.right, key_columns, right),
        condition=condition,
    )


def _equality(condition: Expr) -> Expr | None:
    """Return the equality in a part of a join's condition; NOT IN is written by Catalyst as `(l = r) OR
    isnull(l = r)`."""
    if condition.op == "Or" and condition.args[1].op == "IsNull" and condition.args[1].args[0] == condition.args[0]:
        condition = condition.args[0]
    return condition if condition.op in ("EqualTo", "EqualNullSafe") else None


def _has_columns_of_several(node: Node, names: frozenset[str]) -> bool:
    """Whether the columns of a side come from several relations that inner joins in the side combine."""
    match node:
        case KeyProjection():
            return False
        case Filter(child):
            return _has_columns_of_several(child, names)
        case Project(child, exprs):
            return _has_columns_of_several(
                child, frozenset().union(*(n.expr.columns() for n in exprs if n.name in names))
            )
        case Join("inner" | "semi"):
            for side in (node.left, node.right):
                if names <= {c.name for c in side.columns}:
                    return _has_columns_of_several(side, names)
            return True
    return False


def _replace_keys(condition: Expr, key_columns: dict[Expr, Named]) -> Expr:
    """Return a part of the condition over the key columns. Only equalities use them: other parts run for other rows."""
    equality = _equality(condition)
    if equality is None:
        return condition
    if equality is not condition:
        inner = _replace_keys(equality, key_columns)
        return replace(condition, args=(inner, replace(condition.args[1], args=(inner,))))
    columns = (key_columns.get(a) for a in condition.args)
    args = (
        a if n is None else column(n.name, a.type, a.nullable) for a, n in zip(condition.args, columns, strict=True)
    )
    return replace(condition, args=tuple(args))


def _project_keys(node: Node, key_columns: dict[Expr, Named], names: set[str]) -> Node:
    own_keys = [n for expr, n in key_columns.items() if expr.columns() <= names]
    return (
        KeyProjection(node, (*(Named(c.name, column_reference(c)) for c in node.columns), *own_keys))
        if own_keys
        else node
    )
