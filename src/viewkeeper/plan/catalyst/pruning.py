"""Scans read only the columns that the plan uses.

Spark leaves all columns in the scan of an RDD and prunes with a projection above it. Here a scan names exactly what is
read; a projection that then gives just its child's columns is dropped. A scan of which nothing is used (`count(*)`)
keeps one key column, so that it still has rows to count. Then the columns are numbered again, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from viewkeeper.model.schema import Column, Table
from viewkeeper.plan import nodes
from viewkeeper.plan.nodes import Call, Expr, Named, Node, Order

N = TypeVar("N", bound=Node)


def pruned(root: Node, tables: Mapping[str, Table]) -> Node:
    used = {c.name for c in root.columns}
    for node in root.walk():
        used |= set(_references(node))
    keys = {t.id: t.key[0].column if t.key else t.columns[0].name for t in tables.values()}
    return _renumbered(_prune(root, used, keys))


def _references(node: Node) -> Iterator[str]:
    """Every column that a node's own expressions use, or that it takes by position."""
    if isinstance(node, nodes.Union):
        for child in node.inputs:
            yield from (c.name for c in child.columns)
    if isinstance(node, nodes.Generate):
        yield from (c.name for c in node.kept)
    for field in fields(node):
        yield from _used(getattr(node, field.name))


def _used(value: Any) -> Iterator[str]:
    if isinstance(value, Expr):
        yield from value.columns()
    elif isinstance(value, (Named, Order)):
        yield from value.expr.columns()
    elif isinstance(value, Call):
        yield from _used((value.args, value.filter, value.value))
    elif isinstance(value, tuple):
        for part in value:
            yield from _used(part)


def _prune(node: Node, used: set[str], keys: Mapping[int, str]) -> Node:
    if isinstance(node, nodes.Scan):
        kept = tuple(f for f in node.fields if f[0].name in used)
        if not kept:
            kept = tuple(f for f in node.fields if f[1].lower() == keys[node.table].lower())
        return replace(node, fields=kept or node.fields[:1])
    node = _with_children(node, lambda child: _prune(child, used, keys))
    if isinstance(node, nodes.Project) and _is_identity(node):
        return node.child
    return node


def _is_identity(node: nodes.Project) -> bool:
    return tuple(_passed(n) for n in node.exprs) == node.child.columns


def _passed(named: Named) -> Column | None:
    return named.column if named.expr.op == "column" and named.expr.value == named.name else None


def _with_children(node: N, change: Any) -> N:
    changes: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Node):
            changes[field.name] = change(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Node):
            changes[field.name] = tuple(change(v) for v in value)
    return replace(node, **changes)


def _renumbered(root: Node) -> Node:
    found = {name for node in root.walk() for name in (*(c.name for c in node.columns), *_references(node))}
    names = {name: f"c{i}" for i, name in enumerate(sorted(found, key=lambda n: int(n[1:])))}
    renamed: Node = _renamed(root, names)
    return renamed


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Expr):
        args = tuple(_renamed(a, names) for a in value.args)
        return replace(value, args=args, value=names[value.value] if value.op == "column" else value.value)
    if isinstance(value, (Column, Named, Call)):
        renamed = {f.name: _renamed(getattr(value, f.name), names) for f in fields(value) if f.name != "name"}
        return type(value)(name=names[value.name], **renamed)
    if isinstance(value, nodes.Join) and value.exists is not None:
        value = replace(value, exists=names[value.exists])
    if isinstance(value, (Node, Order)):
        return replace(value, **{f.name: _renamed(getattr(value, f.name), names) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(_renamed(v, names) for v in value)
    return value
