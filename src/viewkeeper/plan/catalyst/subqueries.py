"""Scalar subqueries: a value that is one row of another plan.

A Filter with a subquery in it would not be linear. So the subquery becomes a relation of exactly one row, the node's
input is crossed with it, and the expression reads its column:

    Filter(x > (SELECT avg(y) FROM t))  ─▶  Filter(x > c7, Join(inner, input, one row [c7]))

A global aggregate has one row by itself. Any other plan is put under one: `max(value)` of at most one row is that row's
value and NULL for none, and where more rows are possible a count beside it raises Spark's error. Subqueries that Spark
merged into one struct become plain columns of one shared relation. EXISTS without correlation reaches us as a LIMIT 1
over constants; it is counted instead, which needs no LIMIT.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Kind
from viewkeeper.plan.catalyst.expressions import Scope, Special, conjuncts, connected, null, raising
from viewkeeper.plan.catalyst.raw_tree import RawExpr, RawNode
from viewkeeper.plan.catalyst.resolved_node import Ids, Reader, Relation, reference
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node

SUBQUERY = "ScalarSubquery"
_TOO_MANY = Expr(
    "literal",
    types.STRING,
    value="SCALAR_SUBQUERY_TOO_MANY_ROWS: more than one row returned by a subquery used as an expression",
    nullable=False,
)
_ONE = Expr("literal", types.INT, value=1, nullable=False)
_ONE_LONG = Expr("literal", types.BIGINT, value=1, nullable=False)


@dataclass
class Scalars:
    """The subqueries met in one node's expressions; `refuse` says where there must be none."""

    reader: Reader
    refuse: str = ""
    found: dict[str, Relation] = field(default_factory=dict)

    def scope(self, columns: Mapping[int, Column], special: Special = lambda _: None) -> Scope:
        def read(raw: RawExpr) -> Expr | None:
            if raw.op == SUBQUERY:
                return reference(self._relation(raw).node.columns[0])
            if raw.op == "GetStructField" and raw.args[0].op == SUBQUERY:
                relation = self._relation(raw.args[0])
                if relation.node.columns[0].type.kind is not Kind.STRUCT or len(relation.node.columns) > 1:
                    return reference(relation.node.columns[int(raw.fields["ordinal"])])
            return special(raw)

        return Scope(columns, read)

    def joined(self, node: Node) -> Node:
        """The node crossed with every one-row relation."""
        for relation in self.found.values():
            node = nodes.Join("inner", node, relation.node, None)
        return node

    @property
    def ids(self) -> Ids:
        return tuple(None for relation in self.found.values() for _ in relation.node.columns)

    def _relation(self, raw: RawExpr) -> Relation:
        if self.refuse:
            raise Unsupported(
                f"A scalar subquery {self.refuse} is not supported.", hint="Compute it in a join instead."
            )
        same = json.dumps(raw.fields["plan"])
        if same not in self.found:
            if raw.args:
                raise Unsupported("A correlated subquery that Spark cannot turn into a join is not supported.")
            self.found[same] = _one_row(self.reader, raw)
        return self.found[same]


def _one_row(reader: Reader, raw: RawExpr) -> Relation:
    plan = raw.jvm.plan(raw.live.plan())
    if (inner := _existence(plan)) is not None:
        return _counted(reader, *inner)
    relation = _plain(reader, plan)
    if _is_one_row(plan):
        return relation
    limit = plan.live.maxRows()
    at_most_one = bool(limit.isDefined()) and int(limit.get()) <= 1
    return _guarded(reader, relation, at_most_one)


def _plain(reader: Reader, plan: RawNode) -> Relation:
    """The subquery's plan; of a merged one, the struct's fields as columns."""
    exprs: list[RawExpr] = plan.exprs.get("projectList", [])
    struct = exprs[0].args[0] if len(exprs) == 1 and exprs[0].args else None
    if plan.op == "Project" and struct is not None and struct.op == "CreateNamedStruct":
        child = reader.read(plan.children[0])
        scope = Scope(child.columns)
        return reader.projected(child, [(None, scope.read(value)) for value in struct.args[1::2]])
    relation = reader.exactly(reader.read(plan), plan.output)
    return Relation(relation.node, (None,) * len(relation.ids))


def _is_one_row(plan: RawNode) -> bool:
    if plan.op == "Project":
        return _is_one_row(plan.children[0])
    return plan.op == "OneRowRelation" or (plan.op == "Aggregate" and not plan.exprs.get("groupingExpressions"))


def _guarded(reader: Reader, relation: Relation, at_most_one: bool) -> Relation:
    values = [Call(reader.fresh(), "Max", (reference(c),), c.type, nullable=True) for c in relation.node.columns]
    if at_most_one:
        return Relation(nodes.Aggregate(relation.node, (), tuple(values)), (None,) * len(values))
    count = Call(reader.fresh(), "Count", (_ONE,), types.BIGINT, nullable=False)
    node = nodes.Aggregate(relation.node, (), (*values, count))
    checked = [(None, _unless_many(count, call)) for call in values]
    return reader.projected(Relation(node, (None,) * len(node.columns)), checked)


def _unless_many(count: Call, value: Call) -> Expr:
    many = Expr("GreaterThan", types.BOOLEAN, (reference(count.column), _ONE_LONG), None, count.nullable)
    return Expr("If", value.type, (many, raising(_TOO_MANY, value.type), reference(value.column)), None, True)


def _existence(plan: RawNode) -> tuple[RawNode, RawExpr] | None:
    """(rows, constant) of `LIMIT 1` over a projection to one constant; None for any other plan."""
    if plan.op != "GlobalLimit" or plan.exprs["limitExpr"].fields.get("value") != "1":
        return None
    below = plan.children[0]
    while below.op == "LocalLimit":
        below = below.children[0]
    exprs: list[RawExpr] = below.exprs.get("projectList", [])
    if below.op != "Project" or len(exprs) != 1 or exprs[0].op != "Alias" or exprs[0].args[0].op != "Literal":
        return None
    return below.children[0], exprs[0].args[0]


def _counted(reader: Reader, rows: RawNode, constant: RawExpr) -> Relation:
    child = reader.read(rows)
    count = Call(reader.fresh(), "Count", (_ONE,), types.BIGINT, nullable=False)
    node = nodes.Aggregate(child.node, (), (count,))
    value = Scope({}).read(constant)
    zero = Expr("literal", types.BIGINT, value=0, nullable=False)
    some = Expr("GreaterThan", types.BOOLEAN, (reference(count.column), zero), None, False)
    exists = Expr("If", value.type, (some, value, null(value.type)), None, True)
    return reader.projected(Relation(node, (None,)), [(None, exists)])


def read_single_join(reader: Reader, left: Relation, right: Relation, condition: Expr | None) -> Relation:
    """A left outer join in which more than one match is an error: a correlated subquery without an aggregate.

    The right side is grouped by its side of the equalities, with a count; the error is raised above the join, so only
    for groups that are matched.
    """
    own = {c.name for c in right.node.columns}
    keys: dict[Expr, Named] = {}
    parts = []
    for part in conjuncts(condition):
        sides = [a for a in part.args if a.columns() and a.columns() <= own]
        if (
            part.op not in ("EqualTo", "EqualNullSafe")
            or len(sides) != 1
            or part.args[0].columns() & part.args[1].columns()
        ):
            raise Unsupported(
                "A correlated scalar subquery without an aggregate must compare with = only.",
                hint="Put max() or another aggregate around its value.",
            )
        key = keys.setdefault(sides[0], Named(reader.fresh(), sides[0]))
        args = tuple(reference(key.column) if a == sides[0] else a for a in part.args)
        parts.append(Expr(part.op, part.type, args, part.value, part.nullable))
    values = {c.name: Call(reader.fresh(), "Max", (reference(c),), c.type) for c in right.node.columns}
    count = Call(reader.fresh(), "Count", (_ONE,), types.BIGINT, nullable=False)
    grouped = nodes.Aggregate(right.node, tuple(keys.values()), (*values.values(), count))
    joined = nodes.Join("left", left.node, grouped, connected("And", parts) if parts else None)
    outer = {c.name: c for c in joined.columns}
    counted = Call(count.name, count.function, count.args, count.type)
    exprs = [(i, reference(outer[c.name])) for i, c in zip(left.ids, left.node.columns, strict=True)]
    exprs += [(i, _unless_many(counted, values[c.name])) for i, c in zip(right.ids, right.node.columns, strict=True)]
    return reader.projected(Relation(joined, (None,) * len(joined.columns)), exprs)
