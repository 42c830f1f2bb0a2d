"""Nodes whose output for a key is a function of that key's rows: outer, semi and anti joins, top-k, windows.

Each becomes a `Recompute`: its inputs are arranged by the key, and when rows of a key change, the real SQL runs on the
new rows of that key and what was emitted before is subtracted. Every ORDER BY is extended with all columns of the
sort's input, so that ties fall the same way in every batch and in either lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Column
from viewkeeper.plan.branches import Branch, conjuncts, positional, raises, reference, substitute
from viewkeeper.plan.dataflow import Recompute, Segment, quoted, where_sql
from viewkeeper.plan.expressions import render
from viewkeeper.plan.nodes import Aggregate, Call, Expr, Join, Limit, Named, Node, Order, Sort, Window

if TYPE_CHECKING:
    from viewkeeper.plan.compiler import Compiler

_OUTER = {"left": "LEFT", "right": "RIGHT", "full": "FULL"}


def join(compiler: Compiler, node: Join, needed: frozenset[str]) -> list[Branch]:
    """Outer, semi, anti and existence joins: the rows of both sides with one key."""
    left_names, right_names = ({c.name for c in side.columns} for side in (node.left, node.right))
    conditions = conjuncts(node.condition)
    edges = [e for c in conditions if (e := _edge(c, left_names, right_names)) is not None]
    used = needed.union(*(c.columns() for c in conditions))
    left = [c for c in node.left.columns if c.name in used]
    right = [c for c in node.right.columns if c.name in used]
    left_port, left_key = _port(compiler, node.left, left, [e[0] for e in edges], "l")
    right_port, _ = _port(compiler, node.right, right, [e[1] for e in edges], "r")
    names = positional(left, "l") | positional(right, "r")
    columns = {name: reference(c) for name, c in names.items()}
    on = where_sql(tuple(substitute(c, columns) for c in conditions)) if conditions else "TRUE"
    output = [c for c in node.columns if c.name in needed and c.name != node.exists]
    shown = positional(output, "o")
    selected = [f"{quoted(names[c.name].name)} AS {quoted(shown[c.name].name)}" for c in output]
    matched = f"EXISTS (SELECT 1 FROM input1 WHERE {on})"
    if node.exists is not None:
        shown[node.exists] = Column("e", "boolean", nullable=False)
        selected.append(f"{matched} AS e")
    body = f"SELECT {', '.join(selected) or '1 AS one'} FROM input0"
    if node.how in _OUTER:
        body += f" {_OUTER[node.how]} JOIN input1 ON {on}"
    elif node.how != "existence":
        body += f" WHERE {'' if node.how == 'semi' else 'NOT '}{matched}"
    why = f"{node.how} join" + ("" if left_key else " without an equality: every change compares with all rows")
    operator = compiler.add(Recompute((left_port, right_port), body, tuple(shown.values()), why))
    return [Branch(operator, {name: reference(c) for name, c in shown.items()})]


def limit(compiler: Compiler, node: Limit, needed: frozenset[str]) -> list[Branch]:
    """ORDER BY … LIMIT: the first rows of all rows."""
    child = node.child
    order: tuple[Order, ...] = ()
    if isinstance(child, Sort):
        child, order = child.child, child.order
    columns = list(child.columns)
    port, _ = _port(compiler, child, columns, [], "x")
    names = positional(columns, "x")
    sql = f"SELECT {', '.join(quoted(c.name) for c in names.values())} FROM input0"
    sql += f" ORDER BY {order_sql(order, names)}"
    if node.count is not None:
        sql += f" LIMIT {node.count}"
    if node.offset:
        sql += f" OFFSET {node.offset}"
    clip = None if node.count is None else node.count + node.offset
    operator = compiler.add(Recompute((port,), sql, tuple(names.values()), "top-k over all rows", clip))
    return [Branch(operator, {name: reference(c) for name, c in names.items()})]


def window(compiler: Compiler, node: Window, needed: frozenset[str]) -> list[Branch]:
    raise Unsupported("Window functions are not supported yet.")


def aggregate(compiler: Compiler, node: Aggregate, calls: tuple[Call, ...]) -> list[Branch]:
    names = sorted({c.function for c in calls})
    raise Unsupported(f"The aggregate functions {', '.join(names)} are not supported together.")


def order_sql(order: tuple[Order, ...], names: dict[str, Column]) -> str:
    """ORDER BY, extended with every column so that the order is total."""
    columns = {name: reference(c) for name, c in names.items()}
    parts = [
        f"{render(substitute(o.expr, columns))} {'DESC' if o.descending else 'ASC'} NULLS {'LAST' if o.nulls_last else 'FIRST'}"
        for o in order
    ]
    return ", ".join([*parts, *(f"{quoted(c.name)} ASC NULLS FIRST" for c in names.values())])


def _edge(condition: Expr, left: set[str], right: set[str]) -> tuple[Expr, Expr] | None:
    """The two sides of an equality between left and right, by which rows can be brought together."""
    if condition.op not in ("EqualTo", "EqualNullSafe") or raises([condition]):
        return None
    a, b = condition.args
    if a.columns() and b.columns():
        if a.columns() <= left and b.columns() <= right:
            return a, b
        if a.columns() <= right and b.columns() <= left:
            return b, a
    return None


def _port(
    compiler: Compiler, node: Node, columns: list[Column], key: list[Expr], prefix: str
) -> tuple[tuple[Segment, ...], tuple[str, ...]]:
    """The segments that bring a node's columns, distributed by `key` (expressions over its columns)."""
    branches = compiler.compile(node, frozenset(c.name for c in columns).union(*(k.columns() for k in key)))
    names = positional(columns, prefix)
    exprs = [Named(names[c.name].name, reference(c)) for c in columns]
    exprs += [Named(f"{prefix}k{i}", k) for i, k in enumerate(key)]
    branches = compiler.settled(branches, [b.see(n.expr) for b in branches for n in exprs])
    hashed = tuple(f"{prefix}k{i}" for i in range(len(key)))
    return tuple(b.segment(exprs, hashed) for b in branches), hashed
