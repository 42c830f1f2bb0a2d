"""Read Catalyst's optimised plan into the logical plan: one function for each node class, in the table `NODE_READERS`.

Nodes that affect execution but not the result are dropped: repartitioning, local sorts, `LocalLimit` (a hint that Spark
pushes below joins and unions; the `GlobalLimit` above decides) and `WindowGroupLimit` (the filter on the rank stays
above the window).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.plan.catalyst.aggregates import read_aggregate, read_window
from viewkeeper.plan.catalyst.constant_relations import read_local, read_one_row, read_range
from viewkeeper.plan.catalyst.expressions import conjunction, conjuncts, scala_name
from viewkeeper.plan.catalyst.raw_tree import RawExpr, RawNode
from viewkeeper.plan.catalyst.resolved_node import Reader, ResolvedNode
from viewkeeper.plan.catalyst.session import COLUMN_KEY, TABLE_KEY
from viewkeeper.plan.catalyst.subqueries import ScalarSubqueries, read_single_join
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Expr, Node


def read_scan(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read the scan of a registered table, which its columns' metadata identifies."""
    outputs: list[RawExpr] = raw.exprs.get("output", [])
    if not outputs or any(TABLE_KEY not in o.metadata for o in outputs):
        raise Unsupported("The query reads something that is not a table or view of this database.")
    columns = reader.new_columns(Column("", o.type, o.nullable) for o in outputs)
    fields = tuple((c, str(o.metadata[COLUMN_KEY])) for c, o in zip(columns, outputs, strict=True))
    return ResolvedNode(nodes.Scan(int(outputs[0].metadata[TABLE_KEY]), fields), tuple(o.id for o in outputs))


def read_filter(reader: Reader, raw: RawNode) -> ResolvedNode:
    child = reader.read(raw.children[0])
    scalars = ScalarSubqueries(reader)
    condition = conjunction(conjuncts(scalars.scope(child.columns).read(raw.exprs["condition"])))
    if condition is None:
        return child
    filtered = ResolvedNode(nodes.Filter(scalars.cross_join(child.node), condition), (*child.ids, *scalars.ids))
    return reader.select_exactly(filtered, child.ids)


def read_project(reader: Reader, raw: RawNode) -> ResolvedNode:
    child = reader.read(raw.children[0])
    exprs: list[RawExpr] = raw.exprs.get("projectList", [])
    if not exprs:  # only the number of rows matters, and additional columns do no harm
        return child
    scalars = ScalarSubqueries(reader)
    scope = scalars.scope(child.columns)
    read = [(e.id, scope.read(e)) for e in exprs]
    if isinstance(child.node, nodes.Project) and any(n.expr.op == "CreateArray" for n in child.node.exprs):
        below = child.node.child
        child_exprs = {n.name: n.expr for n in child.node.exprs}
        read = [(i, _inline_array_items(e, child_exprs)) for i, e in read]
        child = ResolvedNode(below, (None,) * len(below.columns))
    return reader.project(ResolvedNode(scalars.cross_join(child.node), (*child.ids, *scalars.ids)), read)


def _inline_array_items(expr: Expr, array_exprs: Mapping[str, Expr]) -> Expr:
    """Replace items of array constructors in the child by the items themselves: PIVOT uses its arrays only for that."""
    if expr.op == "column":
        return array_exprs.get(str(expr.value), expr)
    args = tuple(_inline_array_items(a, array_exprs) for a in expr.args)
    if expr.op == "GetArrayItem" and args[0].op == "CreateArray" and args[1].op == "literal":
        index = args[1].value
        if index is not None and 0 <= index < len(args[0].args):
            return args[0].args[int(index)]
    return replace(expr, args=args)


_JOINS = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
}


def read_join(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read a join, or a correlated subquery that Spark has turned into one."""
    kind: Mapping[str, Any] = raw.fields["joinType"]
    name = scala_name(kind)
    left, right = (reader.read(c) for c in raw.children)
    scalars = ScalarSubqueries(reader)
    scope = scalars.scope({**left.columns, **right.columns})
    condition = conjunction(conjuncts(scope.read(raw.exprs["condition"]))) if "condition" in raw.exprs else None
    wide = ResolvedNode(scalars.cross_join(left.node), (*left.ids, *scalars.ids))
    if name == "ExistenceJoin":
        exists, id_ = reader.new_name(), int(kind["exists"][0]["exprId"]["id"])
        joined = ResolvedNode(nodes.Join("existence", wide.node, right.node, condition, exists), (*wide.ids, id_))
        return reader.select_exactly(joined, (*left.ids, id_)) if scalars.ids else joined
    if name == "LeftSingle":
        return read_single_join(reader, wide, right, condition)
    if name not in _JOINS:
        raise Unsupported(f"A {name} join is not supported.", hint=f"Supported: {', '.join(_JOINS)}.")
    join_type = _JOINS[name]
    right_ids = () if join_type in ("semi", "anti") else right.ids
    joined = ResolvedNode(nodes.Join(join_type, wide.node, right.node, condition), (*wide.ids, *right_ids))
    return reader.select_exactly(joined, (*left.ids, *right_ids)) if scalars.ids else joined


def read_union(reader: Reader, raw: RawNode) -> ResolvedNode:
    inputs = [reader.select_exactly(reader.read(child), child.output) for child in raw.children]
    columns = [
        Column("", parts[0].type, any(p.nullable for p in parts))
        for parts in zip(*(i.node.columns for i in inputs), strict=True)
    ]
    output = reader.new_columns(columns)
    return ResolvedNode(nodes.Union(tuple(i.node for i in inputs), output), raw.output or (None,) * len(output))


def read_sort(reader: Reader, raw: RawNode) -> ResolvedNode:
    child = reader.read(raw.children[0])
    if not raw.fields["global"]:
        return child
    scalars = ScalarSubqueries(reader)
    scope = scalars.scope(child.columns)
    order = tuple(scope.read_order(o) for o in raw.exprs["order"])
    return reader.select_exactly(
        ResolvedNode(nodes.Sort(scalars.cross_join(child.node), order), (*child.ids, *scalars.ids)), child.ids
    )


def read_limit(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read LIMIT, OFFSET or both: Spark writes LIMIT n OFFSET m as GlobalLimit n over Offset m."""
    count, offset, below = None, 0, raw
    if below.op == "GlobalLimit":
        count, below = _constant_int(below.exprs["limitExpr"]), _skip_local_limits(below.children[0])
    if below.op == "Offset":
        offset, below = _constant_int(below.exprs["offsetExpr"]), _skip_local_limits(below.children[0])
    child = reader.read(below)
    return ResolvedNode(_push_limit(child.node, count, offset), child.ids)


def _skip_local_limits(raw: RawNode) -> RawNode:
    return _skip_local_limits(raw.children[0]) if raw.op == "LocalLimit" else raw


def _constant_int(raw: RawExpr) -> int:
    if raw.op != "Literal":
        raise Unsupported("LIMIT and OFFSET need a constant.")
    return int(raw.fields["value"])


def _push_limit(node: Node, count: int | None, offset: int) -> Node:
    """Push the limit below projections, so that it is directly above the sort that orders its input."""
    if isinstance(node, nodes.Project) and _is_sorted(node):
        return replace(node, child=_push_limit(node.child, count, offset))
    return nodes.Limit(node, count, offset)


def _is_sorted(node: Node) -> bool:
    return isinstance(node, nodes.Sort) or (isinstance(node, nodes.Project) and _is_sorted(node.child))


def read_expand(reader: Reader, raw: RawNode) -> ResolvedNode:
    child = reader.read(raw.children[0])
    scalars = ScalarSubqueries(reader)
    scope = scalars.scope(child.columns)
    projections = tuple(tuple(scope.read(e) for e in row) for row in raw.exprs["projections"])
    columns = [
        Column("", next((e.type for e in column if e.type != types.VOID), types.VOID), any(e.nullable for e in column))
        for column in zip(*projections, strict=True)
    ]
    node = nodes.Expand(scalars.cross_join(child.node), projections, reader.new_columns(columns))
    return ResolvedNode(node, tuple(e.id for e in raw.exprs["output"]))


def read_generate(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read a table function, such as `explode`."""
    child = reader.read(raw.children[0])
    generator = (
        ScalarSubqueries(reader, forbidden_place="in a table function")
        .scope(child.columns)
        .read(raw.exprs["generator"])
    )
    dropped = {int(i) for i in raw.jvm_object.unrequiredChildIndex().mkString(" ").split()}
    carried = [i for index, i in enumerate(raw.children[0].output) if index not in dropped]
    generated: list[RawExpr] = raw.exprs.get("generatorOutput", [])
    outer = bool(raw.fields["outer"])
    output = reader.new_columns(Column("", e.type, e.nullable or outer) for e in generated)
    node = nodes.Generate(child.node, generator, outer, tuple(child.columns[i] for i in carried), output)
    return ResolvedNode(node, (*carried, *(e.id for e in generated)))


def read_child(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read the child of a node that does not change its rows."""
    return reader.read(raw.children[0])


NODE_READERS = {
    "LogicalRDD": read_scan,
    "LocalRelation": read_local,
    "OneRowRelation": read_one_row,
    "Range": read_range,
    "Filter": read_filter,
    "Project": read_project,
    "Join": read_join,
    "Aggregate": read_aggregate,
    "Union": read_union,
    "Sort": read_sort,
    "GlobalLimit": read_limit,
    "Offset": read_limit,
    "Window": read_window,
    "Expand": read_expand,
    "Generate": read_generate,
    "LocalLimit": read_child,
    "WindowGroupLimit": read_child,
    "Repartition": read_child,
    "RepartitionByExpression": read_child,
    "RebalancePartitions": read_child,
    "SubqueryAlias": read_child,
    "View": read_child,
}
