"""Prune columns: from the root down, each node keeps only the columns that the nodes above it need.

Spark leaves all columns in the scan of an RDD and prunes with a projection above; reading subqueries adds further
columns. After pruning, a scan names exactly the columns that are read, and a projection that only repeats its child's
columns is dropped. A scan of which no column is used (`count(*)`) keeps one key column, so that its rows can be
counted. Below a LIMIT or a window no column is dropped, because all columns break ties there.

A sort has an effect only at the root, below a LIMIT, or below an aggregate that depends on the order of its input;
elsewhere it is dropped. Finally, columns are renumbered without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from viewkeeper.errors import Defect
from viewkeeper.model.schema import Column, Table
from viewkeeper.plan.catalyst.resolved_node import column_reference, strip_projections
from viewkeeper.plan.logical import nodes
from viewkeeper.plan.logical.nodes import Call, Expr, Named, Node, Order

ColumnNames = frozenset[str]


def prune_columns(root: Node, tables: Iterable[Table]) -> Node:
    """Return the plan without unused columns, with its columns renumbered."""
    keys = {t.id: t.key[0].column if t.key else t.columns[0].name for t in tables}
    node = _ColumnPruner(keys).select_exactly(root, [c.name for c in root.columns], is_ordered=True)
    _assert_closed(node)
    return _renumber_columns(node)


@dataclass(frozen=True)
class _ColumnPruner:
    """`fallback_columns`: for each table the column to keep if none is used."""

    fallback_columns: Mapping[int, str]

    def select_exactly(self, node: Node, names: list[str], is_ordered: bool = False) -> Node:
        """Return the node with exactly these columns, in this order."""
        node = self.prune(node, frozenset(names), is_ordered)
        columns = {c.name: c for c in node.columns}
        if list(columns) == names:
            return node
        return nodes.Project(
            strip_projections(node), tuple(Named(name, column_reference(columns[name])) for name in names)
        )

    def prune(self, node: Node, needed: ColumnNames, is_ordered: bool = False) -> Node:
        """Return the node with at least the needed columns; `is_ordered`: the order of its rows affects the result."""
        match node:
            case nodes.Scan(table, found):
                kept_fields = tuple(f for f in found if f[0].name in needed)
                kept_fields = (
                    kept_fields
                    or tuple(f for f in found if f[1].lower() == self.fallback_columns[table].lower())
                    or found[:1]
                )
                return replace(node, fields=kept_fields)
            case nodes.Filter(child, condition):
                return replace(node, child=self.prune(child, needed | condition.columns(), is_ordered))
            case nodes.Project(child, exprs):
                return self._prune_project(child, tuple(n for n in exprs if n.name in needed), is_ordered)
            case nodes.Join(_, left, right, condition):
                needed |= used_columns(condition)
                return replace(node, left=self.prune(left, needed), right=self.prune(right, needed))
            case nodes.Aggregate(child, keys, calls):
                calls = tuple(c for c in calls if c.name in needed) or (() if keys else calls[:1])
                sensitive = any(c.function in ORDER_SENSITIVE for c in calls)
                return nodes.Aggregate(self.prune(child, used_columns((keys, calls)), sensitive), keys, calls)
            case nodes.Union(inputs, output):
                indexes = _column_indexes(output, needed)
                names = [[i.columns[p].name for p in indexes] for i in inputs]
                kept_inputs = tuple(self.select_exactly(i, n) for i, n in zip(inputs, names, strict=True))
                return nodes.Union(kept_inputs, tuple(output[p] for p in indexes))
            case nodes.Sort(child, order):
                child = self.prune(child, needed | used_columns(order), is_ordered)
                return nodes.Sort(child, order) if is_ordered else child
            case nodes.Limit(child, _, _):
                return replace(node, child=self.prune(child, _column_names(child), is_ordered=True))
            case nodes.Window(child, _, _, calls):
                calls = tuple(c for c in calls if c.name in needed)
                if not calls:
                    return self.prune(child, needed)
                return replace(node, child=self.prune(child, _column_names(child)), calls=calls)
            case nodes.Expand(child, projections, output):
                indexes = _column_indexes(output, needed)
                rows = tuple(tuple(row[p] for p in indexes) for row in projections)
                return nodes.Expand(self.prune(child, used_columns(rows)), rows, tuple(output[p] for p in indexes))
            case nodes.Generate(child, generator, _, kept_columns, _):
                kept_columns = tuple(c for c in kept_columns if c.name in needed)
                below = generator.columns() | {c.name for c in kept_columns}
                return replace(node, child=self.prune(child, below), child_columns=kept_columns)
        raise Defect(f"Nothing is known of the columns of a {node.kind}.")

    def _prune_project(self, child: Node, exprs: tuple[Named, ...], is_ordered: bool) -> Node:
        child = self.prune(child, used_columns(exprs), is_ordered)
        if not exprs:
            return child
        passed = {n.name for n in exprs if n.expr.op == "column" and n.expr.value == n.name}
        if len(passed) == len(exprs) and passed == _column_names(child):
            return child
        return nodes.Project(strip_projections(child), exprs)


ORDER_SENSITIVE = frozenset({"First", "Last", "CollectList", "CollectSet", "ListAgg", "Mode", "MaxBy", "MinBy"})
"""Aggregates whose result may depend on the order of their input."""


def used_columns(value: Any) -> ColumnNames:
    """Return every column that occurs in expressions, calls and orders."""
    return frozenset(_iter_used_columns(value))


def _iter_used_columns(value: Any) -> Iterator[str]:
    if isinstance(value, Expr):
        yield from value.columns()
    elif isinstance(value, (Named, Order)):
        yield from value.expr.columns()
    elif isinstance(value, Call):
        yield from _iter_used_columns((value.args, value.filter, value.value))
    elif isinstance(value, tuple):
        for part in value:
            yield from _iter_used_columns(part)


def _column_names(node: Node) -> ColumnNames:
    return frozenset(c.name for c in node.columns)


def _column_indexes(output: tuple[Column, ...], needed: ColumnNames) -> list[int]:
    """Return the indexes of the needed columns, and at least one."""
    return [i for i, c in enumerate(output) if c.name in needed] or [0]


def _assert_closed(root: Node) -> None:
    """Assert that every node uses only columns that its children provide."""
    for node in root.walk():
        provided = {c.name for child in node.children for c in child.columns}
        values = tuple(getattr(node, f.name) for f in fields(node))
        missing = used_columns(tuple(v for v in values if not isinstance(v, Node))) - provided
        if missing:
            raise Defect(f"A {node.kind} uses {sorted(missing)}, which nothing below it gives.")


def _renumber_columns(root: Node) -> Node:
    used = {c.name for node in root.walk() for c in node.columns}
    names = {name: f"c{i}" for i, name in enumerate(sorted(used, key=lambda n: int(n[1:])))}
    renamed: Node = _rename_columns(root, names)
    return renamed


def _rename_columns(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Expr):
        args = tuple(_rename_columns(a, names) for a in value.args)
        return replace(value, args=args, value=names[value.value] if value.op == "column" else value.value)
    if isinstance(value, (Column, Named, Call)):
        renamed = {f.name: _rename_columns(getattr(value, f.name), names) for f in fields(value) if f.name != "name"}
        return type(value)(name=names[value.name], **renamed)
    if isinstance(value, nodes.Join) and value.existence_column is not None:
        value = replace(value, existence_column=names[value.existence_column])
    if isinstance(value, (Node, Order)):
        return replace(value, **{f.name: _rename_columns(getattr(value, f.name), names) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(_rename_columns(v, names) for v in value)
    return value
