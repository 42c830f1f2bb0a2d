"""Scalar subqueries: a value that is one row of another plan.

A Filter that contains a subquery would not be linear. Therefore the subquery becomes a relation of exactly one row,
which is cross-joined with the node's input, and the expression reads its column:

    Filter(x > (SELECT avg(y) FROM t))  ─▶  Filter(x > c7, Join(inner, input, one row [c7]))

A global aggregate has exactly one row. Any other plan becomes the input of one: `max(value)` of at most one row is that
row's value, and NULL if there is none; if more rows are possible, a count beside it raises Spark's error. Subqueries
that Spark merged into one struct become plain columns of one shared relation. Spark turns EXISTS without correlation
into a LIMIT 1 over constants; it is read as a count instead, which needs no LIMIT.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Kind
from viewkeeper.plan.catalyst.expressions import Scope, SpecialReader, conjuncts, connect, null_literal, raise_error
from viewkeeper.plan.catalyst.raw_tree import RawExpr, RawNode
from viewkeeper.plan.catalyst.resolved_node import ExprIds, Reader, ResolvedNode, column_reference
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node

SUBQUERY = "ScalarSubquery"
_TOO_MANY_ROWS = Expr(
    "literal",
    types.STRING,
    value="SCALAR_SUBQUERY_TOO_MANY_ROWS: more than one row returned by a subquery used as an expression",
    nullable=False,
)
_ONE = Expr("literal", types.INT, value=1, nullable=False)
_ONE_LONG = Expr("literal", types.BIGINT, value=1, nullable=False)


@dataclass
class ScalarSubqueries:
    """The scalar subqueries in one node's expressions; `forbidden_place` names a place where they are refused."""

    reader: Reader
    forbidden_place: str = ""
    relations: dict[str, ResolvedNode] = field(default_factory=dict)

    def scope(self, columns: Mapping[int, Column], special: SpecialReader = lambda _: None) -> Scope:
        def read(raw: RawExpr) -> Expr | None:
            if raw.op == SUBQUERY:
                return column_reference(self._relation(raw).node.columns[0])
            if raw.op == "GetStructField" and raw.args[0].op == SUBQUERY:
                relation = self._relation(raw.args[0])
                if relation.node.columns[0].type.kind is not Kind.STRUCT or len(relation.node.columns) > 1:
                    return column_reference(relation.node.columns[int(raw.fields["ordinal"])])
            return special(raw)

        return Scope(columns, read)

    def cross_join(self, node: Node) -> Node:
        """Return the node cross-joined with every one-row relation."""
        for relation in self.relations.values():
            node = nodes.Join("inner", node, relation.node, None)
        return node

    @property
    def ids(self) -> ExprIds:
        return tuple(None for relation in self.relations.values() for _ in relation.node.columns)

    def _relation(self, raw: RawExpr) -> ResolvedNode:
        if self.forbidden_place:
            raise Unsupported(
                f"A scalar subquery {self.forbidden_place} is not supported.", hint="Compute it in a join instead."
            )
        plan_key = json.dumps(raw.fields["plan"])
        if plan_key not in self.relations:
            if raw.args:
                raise Unsupported("A correlated subquery that Spark cannot turn into a join is not supported.")
            self.relations[plan_key] = _one_row_relation(self.reader, raw)
        return self.relations[plan_key]


def _one_row_relation(reader: Reader, raw: RawExpr) -> ResolvedNode:
    plan = raw.jvm.read_plan(raw.jvm_object.plan())
    if (inner := _match_existence(plan)) is not None:
        return _existence_relation(reader, *inner)
    relation = _subquery_relation(reader, plan)
    if _is_one_row(plan):
        return relation
    limit = plan.jvm_object.maxRows()
    at_most_one = bool(limit.isDefined()) and int(limit.get()) <= 1
    return _enforce_one_row(reader, relation, at_most_one)


def _subquery_relation(reader: Reader, plan: RawNode) -> ResolvedNode:
    """Read the subquery's plan; for a merged one, with the struct's fields as columns."""
    exprs: list[RawExpr] = plan.exprs.get("projectList", [])
    struct = exprs[0].args[0] if len(exprs) == 1 and exprs[0].args else None
    if plan.op == "Project" and struct is not None and struct.op == "CreateNamedStruct":
        child = reader.read(plan.children[0])
        scope = Scope(child.columns)
        return reader.project(child, [(None, scope.read(value)) for value in struct.args[1::2]])
    relation = reader.select_exactly(reader.read(plan), plan.output)
    return ResolvedNode(relation.node, (None,) * len(relation.ids))


def _is_one_row(plan: RawNode) -> bool:
    if plan.op == "Project":
        return _is_one_row(plan.children[0])
    return plan.op == "OneRowRelation" or (plan.op == "Aggregate" and not plan.exprs.get("groupingExpressions"))


def _enforce_one_row(reader: Reader, relation: ResolvedNode, at_most_one: bool) -> ResolvedNode:
    values = [
        Call(reader.new_name(), "Max", (column_reference(c),), c.type, nullable=True) for c in relation.node.columns
    ]
    if at_most_one:
        return ResolvedNode(nodes.Aggregate(relation.node, (), tuple(values)), (None,) * len(values))
    count = Call(reader.new_name(), "Count", (_ONE,), types.BIGINT, nullable=False)
    node = nodes.Aggregate(relation.node, (), (*values, count))
    checked = [(None, _raise_if_several(count, call)) for call in values]
    return reader.project(ResolvedNode(node, (None,) * len(node.columns)), checked)


def _raise_if_several(count: Call, value: Call) -> Expr:
    is_several = Expr("GreaterThan", types.BOOLEAN, (column_reference(count.column), _ONE_LONG), None, count.nullable)
    return Expr(
        "If",
        value.type,
        (is_several, raise_error(_TOO_MANY_ROWS, value.type), column_reference(value.column)),
        None,
        True,
    )


def _match_existence(plan: RawNode) -> tuple[RawNode, RawExpr] | None:
    """Return (rows, constant) of `LIMIT 1` over a projection to one constant; None for any other plan."""
    if plan.op != "GlobalLimit" or plan.exprs["limitExpr"].fields.get("value") != "1":
        return None
    below = plan.children[0]
    while below.op == "LocalLimit":
        below = below.children[0]
    exprs: list[RawExpr] = below.exprs.get("projectList", [])
    if below.op != "Project" or len(exprs) != 1 or exprs[0].op != "Alias" or exprs[0].args[0].op != "Literal":
        return None
    return below.children[0], exprs[0].args[0]


def _existence_relation(reader: Reader, rows: RawNode, constant: RawExpr) -> ResolvedNode:
    child = reader.read(rows)
    count = Call(reader.new_name(), "Count", (_ONE,), types.BIGINT, nullable=False)
    node = nodes.Aggregate(child.node, (), (count,))
    value = Scope({}).read(constant)
    zero = Expr("literal", types.BIGINT, value=0, nullable=False)
    has_rows = Expr("GreaterThan", types.BOOLEAN, (column_reference(count.column), zero), None, False)
    exists = Expr("If", value.type, (has_rows, value, null_literal(value.type)), None, True)
    return reader.project(ResolvedNode(node, (None,)), [(None, exists)])


def read_single_join(reader: Reader, left: ResolvedNode, right: ResolvedNode, condition: Expr | None) -> ResolvedNode:
    """Read a left outer join that fails on more than one match: a correlated subquery without an aggregate.

    The right side is grouped by its side of the equalities, with a count. The error is raised above the join, and so
    only for groups that have a match.
    """
    right_columns = {c.name for c in right.node.columns}
    keys: dict[Expr, Named] = {}
    parts = []
    for part in conjuncts(condition):
        sides = [a for a in part.args if a.columns() and a.columns() <= right_columns]
        if (
            part.op not in ("EqualTo", "EqualNullSafe")
            or len(sides) != 1
            or part.args[0].columns() & part.args[1].columns()
        ):
            raise Unsupported(
                "A correlated scalar subquery without an aggregate must compare with = only.",
                hint="Put max() or another aggregate around its value.",
            )
        key = keys.setdefault(sides[0], Named(reader.new_name(), sides[0]))
        args = tuple(column_reference(key.column) if a == sides[0] else a for a in part.args)
        parts.append(Expr(part.op, part.type, args, part.value, part.nullable))
    values = {c.name: Call(reader.new_name(), "Max", (column_reference(c),), c.type) for c in right.node.columns}
    count = Call(reader.new_name(), "Count", (_ONE,), types.BIGINT, nullable=False)
    grouped = nodes.Aggregate(right.node, tuple(keys.values()), (*values.values(), count))
    joined = nodes.Join("left", left.node, grouped, connect("And", parts) if parts else None)
    outer = {c.name: c for c in joined.columns}
    counted = Call(count.name, count.function, count.args, count.type)
    exprs = [(i, column_reference(outer[c.name])) for i, c in zip(left.ids, left.node.columns, strict=True)]
    exprs += [
        (i, _raise_if_several(counted, values[c.name])) for i, c in zip(right.ids, right.node.columns, strict=True)
    ]
    return reader.project(ResolvedNode(joined, (None,) * len(joined.columns)), exprs)
