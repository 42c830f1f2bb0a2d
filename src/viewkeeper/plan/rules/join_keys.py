"""Join keys that are computed from several relations, or may fail.

    L ⋈_{f(l) = g(r)} R  =  π(L, f(l) AS k) ⋈_{k = m} π(R, g(r) AS m)        and so for every kind of join

An expression that cannot fail may run wherever its columns are, so a join takes it as a key as it is. One that can
(`week - 53` overflows, in ANSI mode) must run for exactly the rows for which Spark runs it: every row of its side of
that join, whether another matches it or not, and no row that an inner join below has dropped. So it becomes a column
of its side, made when a row comes and kept with it, and the join is one on plain columns. A side that is itself a
join is then not taken apart any more: its rows are arranged by the key. The same is done for an expression over columns
of several relations, which no arrangement of one of them could have as its key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from viewkeeper.plan.compile.branch import can_any_raise, column_reference, conjunction, conjuncts
from viewkeeper.plan.logical.nodes import Expr, Filter, Join, Named, Node, Project, column


@dataclass(frozen=True)
class KeyProjection(Project):
    """A projection that stays below its join."""


def add_key_columns(join: Join) -> Join:
    """The join with each side of an equality that cannot be a key where it stands as a column of its input."""
    left, right = ({c.name for c in side.columns} for side in (join.left, join.right))
    made: dict[Expr, Named] = {}
    for equality in filter(None, map(_equality, conjuncts(join.condition))):
        for side, other in (equality.args, equality.args[::-1]):
            for names, opposite, node in ((left, right, join.left), (right, left, join.right)):
                apart = side.columns() and side.columns() <= names and other.columns() and other.columns() <= opposite
                if apart and (can_any_raise([side]) or _has_columns_of_several(node, side.columns())):
                    made.setdefault(side, Named(f"{node.columns[0].name}!key{len(made)}", side))
    if not made:
        return join
    condition = conjunction([_replace_keys(c, made) for c in conjuncts(join.condition)])
    return replace(
        join,
        left=_project_keys(join.left, made, left),
        right=_project_keys(join.right, made, right),
        condition=condition,
    )


def _equality(condition: Expr) -> Expr | None:
    """The equality that a part of a join's condition is; `(l = r) OR isnull(l = r)` is how Catalyst writes NOT IN."""
    if condition.op == "Or" and condition.args[1].op == "IsNull" and condition.args[1].args[0] == condition.args[0]:
        condition = condition.args[0]
    return condition if condition.op in ("EqualTo", "EqualNullSafe") else None


def _has_columns_of_several(node: Node, names: frozenset[str]) -> bool:
    """Whether columns of a side come from several relations that inner joins in it put together."""
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
    """A part of the condition over the new columns. Only equalities: what else compares runs for other rows."""
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
    mine = [n for expr, n in key_columns.items() if expr.columns() <= names]
    return KeyProjection(node, (*(Named(c.name, column_reference(c)) for c in node.columns), *mine)) if mine else node
