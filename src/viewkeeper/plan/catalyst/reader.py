"""Catalyst's optimised plan as our nodes: one reading a node class, in the visible table `READERS`.

Each reading gives a `Relation`: our node, and the expression id of each of its columns. Ids repeat where Spark
inlines a common table expression twice, so a column's name is given where the column is made (a scan, a projection,
a call), numbered in that order: the same query always gives the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model.schema import Column
from viewkeeper.plan import nodes
from viewkeeper.plan.catalyst.expressions import (
    FALSE,
    TRUE,
    Scope,
    call_parameters,
    conjunction,
    conjuncts,
)
from viewkeeper.plan.catalyst.session import COLUMN, TABLE
from viewkeeper.plan.catalyst.tree import RawExpr, RawNode
from viewkeeper.plan.nodes import Call, Expr, Named, Node, column


@dataclass(frozen=True)
class Relation:
    """A node, and the expression id of each of its columns (None: no expression refers to it)."""

    node: Node
    ids: tuple[int | None, ...]

    @property
    def columns(self) -> dict[int, Column]:
        return {i: c for i, c in zip(self.ids, self.node.columns, strict=True) if i is not None}


@dataclass
class Reader:
    """Reads one plan; gives out column names."""

    count: int = 0
    scalars: dict[str, Any] = field(default_factory=dict)

    def fresh(self) -> str:
        self.count += 1
        return f"c{self.count - 1}"

    def read(self, raw: RawNode) -> Relation:
        if raw.op not in READERS:
            raise Unsupported(f"{raw.op} is not supported.", hint=f"Supported: {', '.join(sorted(READERS))}.")
        return READERS[raw.op](self, raw)

    def renamed(
        self, columns: Iterable[tuple[Column, int | None]]
    ) -> tuple[tuple[Column, ...], tuple[int | None, ...]]:
        """New names for columns that a node makes."""
        pairs = [(Column(self.fresh(), c.type, c.nullable), i) for c, i in columns]
        return tuple(c for c, _ in pairs), tuple(i for _, i in pairs)


def read_scan(reader: Reader, raw: RawNode) -> Relation:
    outputs: list[RawExpr] = raw.exprs["output"]
    if not outputs or any(TABLE not in o.metadata for o in outputs):
        raise Unsupported("The query reads something that is not a table or view of this database.")
    columns, ids = reader.renamed((Column("", o.type, o.nullable), o.id) for o in outputs)
    fields = tuple((c, str(o.metadata[COLUMN])) for c, o in zip(columns, outputs, strict=True))
    return Relation(nodes.Scan(int(outputs[0].metadata[TABLE]), fields), ids)


def read_filter(reader: Reader, raw: RawNode) -> Relation:
    child = reader.read(raw.children[0])
    condition = conjunction(conjuncts(Scope(child.columns).read(raw.exprs["condition"])))
    return child if condition is None else Relation(nodes.Filter(child.node, condition), child.ids)


def read_project(reader: Reader, raw: RawNode) -> Relation:
    child = reader.read(raw.children[0])
    return project(reader, child, raw.exprs.get("projectList", []), Scope(child.columns))


def project(reader: Reader, child: Relation, exprs: list[RawExpr], scope: Scope) -> Relation:
    if not exprs:  # only the number of rows matters; the columns do no harm
        return child
    return _projected(reader, child, [(e.id, scope.read(e)) for e in exprs])


def _projected(reader: Reader, child: Relation, exprs: list[tuple[int | None, Expr]]) -> Relation:
    """A projection in which a column that only passes through keeps its name."""
    named: list[Named] = []
    taken: set[str] = set()
    for _, expr in exprs:
        name = str(expr.value) if expr.op == "column" and expr.value not in taken else reader.fresh()
        taken.add(name)
        named.append(Named(name, expr))
    if tuple(n.column for n in named) == child.node.columns and all(n.expr.op == "column" for n in named):
        return Relation(child.node, tuple(i for i, _ in exprs))
    return Relation(nodes.Project(child.node, tuple(named)), tuple(i for i, _ in exprs))


_JOINS = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
}


def read_join(reader: Reader, raw: RawNode) -> Relation:
    left, right = (reader.read(c) for c in raw.children)
    scope = Scope({**left.columns, **right.columns})
    condition = conjunction(conjuncts(scope.read(raw.exprs["condition"]))) if "condition" in raw.exprs else None
    kind: Mapping[str, Any] = raw.fields["joinType"]
    if "exists" in kind:
        exists, id_ = reader.fresh(), int(kind["exists"][0]["exprId"]["id"])
        return Relation(nodes.Join("existence", left.node, right.node, condition, exists), (*left.ids, id_))
    name = str(kind.get("object", kind.get("product-class"))).rsplit(".", 1)[-1].rstrip("$")
    if name not in _JOINS:
        raise Unsupported(f"A {name} join is not supported.", hint=f"Supported: {', '.join(_JOINS)}, ExistenceJoin.")
    how = _JOINS[name]
    ids = left.ids if how in ("semi", "anti") else (*left.ids, *right.ids)
    return Relation(nodes.Join(how, left.node, right.node, condition), ids)


def read_aggregate(reader: Reader, raw: RawNode) -> Relation:
    """GROUP BY: keys and calls in one node, what is computed from them in a projection above."""
    child = reader.read(raw.children[0])
    inner = Scope(child.columns)
    keys: dict[Expr, Named] = {}
    for key in raw.exprs.get("groupingExpressions", []):
        expr = inner.read(key)
        if expr not in keys:
            keys[expr] = Named(str(expr.value) if expr.op == "column" else reader.fresh(), expr)
    calls: dict[tuple[Any, ...], Call] = {}

    def above(e: RawExpr) -> Expr | None:
        if e.op == "AggregateExpression":
            call = read_call(inner, e)
            known = calls.setdefault(call, Call(reader.fresh(), *call))
            return column(known.name, known.type, known.nullable)
        if e.op in ("Alias", "Literal") or any(a.op == "AggregateExpression" for a in e.walk()):
            return None
        key = keys.get(inner.read(e))
        return column(key.name, key.expr.type, key.expr.nullable) if key else None

    results = raw.exprs.get("aggregateExpressions", [])
    exprs = [(e.id, Scope({}, above).read(e)) for e in results]
    node = nodes.Aggregate(child.node, tuple(keys.values()), tuple(calls.values()))
    return _projected(reader, Relation(node, (None,) * len(node.columns)), exprs)


def read_call(scope: Scope, raw: RawExpr) -> tuple[Any, ...]:
    """The fields of a Call but for its name, from an AggregateExpression."""
    function, *filters = raw.args
    args = tuple(scope.read(a) for a in function.args)
    condition = scope.read(filters[0]) if filters else None
    value = call_parameters(function) or None
    return (function.op, args, raw.type, bool(raw.fields["isDistinct"]), condition, value, raw.nullable)


def read_union(reader: Reader, raw: RawNode) -> Relation:
    inputs = []
    for child in raw.children:
        relation = reader.read(child)
        inputs.append(exactly(reader, relation, child.output))
    columns = [
        Column("", parts[0].type, any(p.nullable for p in parts))
        for parts in zip(*(i.node.columns for i in inputs), strict=True)
    ]
    ids = raw.output or (None,) * len(columns)
    output, _ = reader.renamed(zip(columns, ids, strict=True))
    return Relation(nodes.Union(tuple(i.node for i in inputs), output), ids)


def exactly(reader: Reader, relation: Relation, ids: tuple[int, ...]) -> Relation:
    """The relation with these columns and no others, in this order; without any: one constant column."""
    if relation.ids == ids:
        return relation
    if not ids:
        return Relation(nodes.Project(relation.node, (Named(reader.fresh(), TRUE),)), (None,))
    known = relation.columns
    exprs: list[tuple[int | None, Expr]] = [(i, column(known[i].name, known[i].type, known[i].nullable)) for i in ids]
    return _projected(reader, relation, exprs)


def read_sort(reader: Reader, raw: RawNode) -> Relation:
    child = reader.read(raw.children[0])
    if not raw.fields["global"]:
        return child
    scope = Scope(child.columns)
    return Relation(nodes.Sort(child.node, tuple(scope.order(o) for o in raw.exprs["order"])), child.ids)


def read_limit(reader: Reader, raw: RawNode) -> Relation:
    child = reader.read(raw.children[0])
    return Relation(nodes.Limit(child.node, int(raw.exprs["limitExpr"].fields["value"])), child.ids)


def read_child(reader: Reader, raw: RawNode) -> Relation:
    """Nodes that say how to run a plan, not what it gives."""
    return reader.read(raw.children[0])


READERS: dict[str, Callable[[Reader, RawNode], Relation]] = {
    "LogicalRDD": read_scan,
    "Filter": read_filter,
    "Project": read_project,
    "Join": read_join,
    "Aggregate": read_aggregate,
    "Union": read_union,
    "Sort": read_sort,
    "GlobalLimit": read_limit,
    "LocalLimit": read_child,
    "RepartitionByExpression": read_child,
    "Repartition": read_child,
    "RebalancePartitions": read_child,
    "SubqueryAlias": read_child,
}

__all__ = ["FALSE", "READERS", "Reader", "Relation", "exactly"]
