"""Relations that are constants: VALUES, `range`, a condition that is never true, a SELECT without FROM.

The only leaf of a logical plan is the scan of a table, so a constant is built on one: an aggregate over no row of the
table always has one row (the law of global aggregates), and this row is projected or expanded into the constant's rows.
The table is the first that the query mentions; a query without any table cannot be a view.
"""

from __future__ import annotations

from viewkeeper.errors import Unsupported
from viewkeeper.model import types
from viewkeeper.model.schema import Column
from viewkeeper.model.types import Type
from viewkeeper.plan.catalyst.expressions import FALSE, MAX_CONSTANTS, literal_value, null_literal
from viewkeeper.plan.catalyst.raw_tree import Jvm, RawExpr, RawNode
from viewkeeper.plan.catalyst.resolved_node import ExprIds, Reader, ResolvedNode
from viewkeeper.plan.catalyst.session import COLUMN_KEY, TABLE_KEY
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Node


def read_local(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read VALUES, and other relations that the optimiser has folded to rows."""
    outputs: list[RawExpr] = raw.exprs.get("output", [])
    data = raw.jvm_object.data()
    _refuse_large(int(data.length()))
    jvm_types = [o.jvm_object.dataType() for o in outputs]
    rows = []
    for index in range(data.length()):
        row = data.apply(index)
        values = (None if row.isNullAt(i) else row.get(i, t) for i, t in enumerate(jvm_types))
        rows.append(tuple(_literal(v, o.type) for v, o in zip(values, outputs, strict=True)))
    return _constant_relation(reader, raw.jvm, tuple(o.id for o in outputs), [o.type for o in outputs], rows)


def read_range(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read `range(…)`."""
    (output,) = raw.exprs["output"]
    numbers = range(int(raw.fields["start"]), int(raw.fields["end"]), int(raw.fields["step"]))
    _refuse_large(len(numbers))
    return _constant_relation(
        reader, raw.jvm, (output.id,), [types.BIGINT], [(_literal(n, types.BIGINT),) for n in numbers]
    )


def read_one_row(reader: Reader, raw: RawNode) -> ResolvedNode:
    """Read the row of a SELECT without FROM."""
    node = _one_row_node(reader, raw.jvm)
    return ResolvedNode(node, (None,) * len(node.columns))


def _refuse_large(row_count: int) -> None:
    if row_count > MAX_CONSTANTS:
        raise Unsupported(f"A constant relation of {row_count} rows is too large.", hint="Put the rows into a table.")


def _literal(value: object, type_: Type) -> Expr:
    return Expr("literal", type_, value=literal_value(value, type_), nullable=value is None)


def _constant_relation(
    reader: Reader, jvm: Jvm, ids: ExprIds, column_types: list[Type], rows: list[tuple[Expr, ...]]
) -> ResolvedNode:
    if not rows:
        empty = nodes.Filter(_scan(reader, jvm), FALSE)
        return reader.project(ResolvedNode(empty, (None,)), zip(ids, map(null_literal, column_types), strict=True))
    base = _one_row_node(reader, jvm)
    if not ids:  # only the number of rows matters
        rows = [(Expr("literal", types.BOOLEAN, value=True, nullable=False),) for _ in rows]
        ids, column_types = (None,), [types.BOOLEAN]
    if len(rows) == 1:
        return reader.project(ResolvedNode(base, (None,)), zip(ids, rows[0], strict=True))
    nullable = [any(e.nullable for e in column) for column in zip(*rows, strict=True)]
    output = reader.new_columns(Column("", t, n) for t, n in zip(column_types, nullable, strict=True))
    return ResolvedNode(nodes.Expand(base, tuple(rows), output), ids)


def _one_row_node(reader: Reader, jvm: Jvm) -> Node:
    empty = nodes.Filter(_scan(reader, jvm), FALSE)
    one = Expr("literal", types.INT, value=1, nullable=False)
    return nodes.Aggregate(empty, (), (Call(reader.new_name(), "Count", (one,), types.BIGINT, nullable=False),))


def _scan(reader: Reader, jvm: Jvm) -> nodes.Scan:
    """Return a scan of one column of the first table that the query mentions."""
    leaves = reader.analysed_plan.collectLeaves()
    for index in range(leaves.length()):
        for column in jvm.read_expressions(leaves.apply(index).output()):
            if TABLE_KEY in column.metadata:
                (column_,) = reader.new_columns([Column("", column.type, column.nullable)])
                return nodes.Scan(int(column.metadata[TABLE_KEY]), ((column_, str(column.metadata[COLUMN_KEY])),))
    raise Unsupported("The query's FROM reads no table.", hint="A view needs at least one table in its FROM.")
