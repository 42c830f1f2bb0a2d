"""Sums below joins: where all that is summed comes from one relation, its rows are added up before they are joined.

    γ g: sum(x), count(*) (R ⋈ S)   =   γ g: sum(s), sum(n) ( γ k: s = sum(x), n = count(*) (R)  ⋈  S )

`k` is what the join and the groups need of R. A row of the inner sum joins as each of the rows that it stands for
would, so sums and counts multiply with the rows they meet (GraphIVM 5.2: a join graph of pre-aggregated tuples). The
join keeps one row a key of R instead of all its rows, and a change of S meets one.

It is a rewriting of the plan when a view is made, and is stored with it: what runs knows nothing of it. It is done
where the same numbers come out: counts, and sums of decimals and of integers that have room for what is in between.
Doubles are not split, since only their whole sum is rounded once; neither is DISTINCT, nor what can raise (rows that
join nothing would be looked at), nor a relation behind an outer join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from viewkeeper.expressions.backends.text import expr_text
from viewkeeper.model.schema import Table
from viewkeeper.model.types import Family, Kind
from viewkeeper.plan.compile.branch import can_any_raise, column_reference, conjunction, substitute
from viewkeeper.plan.compile.join_tree import flatten
from viewkeeper.plan.logical.nodes import (
    Aggregate,
    Call,
    Consolidation,
    Expr,
    Filter,
    Join,
    Named,
    Node,
    Project,
    Query,
    Scan,
)
from viewkeeper.plan.logical.unique_keys import unique_keys
from viewkeeper.plan.rules.join_keys import KeyProjection

PRESUM_MODES = ("none", "auto", "always")
DEFAULT_PRESUM = "auto"
_MIN_ROWS_PER_KEY = 16.0
"""Rows to a key from which they are added up first. Below, what is saved is not worth that other views, which look the
same rows up, do not share it."""
_MIN_TABLE_ROWS = 10_000
"""Rows of a table from which it is a question."""

_SMALL_INTEGERS = frozenset({Kind.TINYINT, Kind.SMALLINT, Kind.INT})
_SPARE_DIGITS = 6
"""Digits that a sum must have more than what is summed: a million of the greatest values to a key. (Spark adds ten, up
to 38 in all; its own partial sums, task by task, overflow no later.)"""
_UNSUITABLE_KEYS = (Family.FLOAT, Family.NESTED, Family.OTHER)
"""Groups of these have one of several values that are equal."""


@dataclass(frozen=True)
class PreAggregation:
    """One relation of a join that could be summed first: how large it is, and how many rows it has to a key."""

    relation: int
    size: float
    rows_per_key: float

    @property
    def is_worthwhile(self) -> bool:
        return self.size >= _MIN_TABLE_ROWS and self.rows_per_key >= _MIN_ROWS_PER_KEY


def preaggregate(query: Query, tables: Mapping[int, Table], sizes: Mapping[int, int], mode: str) -> Query:
    """The query with sums below its joins, where they can be and, unless `mode` is always, where that pays."""
    if mode == "none":
        return query
    found = replace(query, root=_rewrite(query.root, tables, sizes, mode))
    if mode != "always":  # rows that the query looks up elsewhere too are kept anyway, and their lookups are shared
        scanned = Counter(node.table for node in query.root.walk() if isinstance(node, Scan))
        if any(scanned[scan.table] > 1 for scan, _ in find_preaggregated(found.root)):
            return query
    return found


def _rewrite(node: Node, tables: Mapping[int, Table], sizes: Mapping[int, int], mode: str) -> Node:
    def seen(value: Any) -> Any:
        if isinstance(value, Node):
            return _rewrite(value, tables, sizes, mode)
        if isinstance(value, tuple) and any(isinstance(v, Node) for v in value):
            return tuple(map(seen, value))
        return value

    node = replace(node, **{f.name: seen(getattr(node, f.name)) for f in fields(node)})
    if not isinstance(node, Aggregate) or not flatten(node.child).is_join:
        return node
    return _PreAggregator(node, tables, sizes).rewrite(mode) or node


class _PreAggregator:
    """An aggregate over inner joins, taken apart."""

    def __init__(self, node: Aggregate, tables: Mapping[int, Table], sizes: Mapping[int, int]) -> None:
        self.aggregate, self.tables, self.sizes = node, tables, sizes
        flat = flatten(node.child)
        self.inputs, columns = [source.node for source in flat.inputs], flat.columns
        self.owner = {c.name: i for i, child in enumerate(self.inputs) for c in child.columns}
        self.keys = [Named(k.name, substitute(k.expr, columns)) for k in node.keys]
        self.calls = [_resolve_call(call, columns) for call in node.calls]
        self.conditions = flat.conditions

    def rewrite(self, mode: str) -> Node | None:
        if not self.calls or not all(map(_is_splittable, self.calls)) or can_any_raise(self.conditions):
            return None
        if any(isinstance(n, (KeyProjection, Consolidation)) for child in self.inputs for n in child.walk()):
            return None  # keys that can raise are made when a row comes: such a join is not taken apart
        summed = [e for call in self.calls for e in (*call.args, *([call.filter] if call.filter is not None else []))]
        owners = {self.owner[name] for e in summed for name in e.columns()}
        if len(owners) > 1 or can_any_raise(summed):
            return None
        found = [self._estimate(i) for i in (owners or range(len(self.inputs)))]
        best = max((p for p in found if p is not None), key=lambda p: p.rows_per_key, default=None)
        if best is None or (mode != "always" and not best.is_worthwhile):
            return None
        return self._build_plan(best.relation)

    def _estimate(self, relation: int) -> PreAggregation | None:
        child = self.inputs[relation]
        scan = _find_scan(child)
        inner = self._inner_keys(relation)
        if scan is None or not inner or any(n.expr.type.family in _UNSUITABLE_KEYS for n in inner):
            return None  # (without a key, a sum over nothing has a row)
        names = {n.expr.value for n in inner if n.expr.op == "column"}
        if any(set(key) <= names for key in unique_keys(child, self.tables)):
            return None
        size, groups = float(self.sizes.get(scan.table, 0)), 1.0
        for named in inner:
            groups *= self._estimate_distinct(relation, named.expr, size)
        return PreAggregation(relation, size, size / max(1.0, min(groups, size)))

    def _estimate_distinct(self, relation: int, expr: Expr, size: float) -> float:
        """The number of values of a key: the size of the table whose key it refers to, or a tenth of its own."""
        for condition in self.conditions:
            if condition.op not in ("EqualTo", "EqualNullSafe") or expr not in condition.args:
                continue
            for other in (a for a in condition.args if a.op == "column" and self.owner[a.value] != relation):
                referred = self.inputs[self.owner[other.value]]
                scan = _find_scan(referred)
                if scan is not None and (other.value,) in unique_keys(referred, self.tables):
                    return float(self.sizes.get(scan.table, 0))
        return size / 10

    def _inner_keys(self, relation: int) -> list[Named]:
        """What is needed of a relation beside its sums: columns that conditions with others compare, and groups."""
        whole = {k.expr: Named(f"{k.name}p", k.expr) for k in self.keys if self._is_own_group_key(k.expr, relation)}
        exprs = [*self._join_conditions(relation), *(k.expr for k in self.keys if k.expr not in whole)]
        columns = {e.value: e for expr in exprs for e in expr.walk() if e.op == "column"}
        plain = [Named(name, e) for name, e in columns.items() if self.owner[name] == relation]
        return [*plain, *whole.values()]

    def _is_own_group_key(self, expr: Expr, relation: int) -> bool:
        """Whether a group's key can be made of the relation's rows, before they are joined."""
        return expr.op != "column" and self._has_only_columns_of(expr, relation) and not can_any_raise([expr])

    def _has_only_columns_of(self, expr: Expr, relation: int) -> bool:
        return bool(expr.columns()) and all(self.owner[name] == relation for name in expr.columns())

    def _local_conditions(self, relation: int) -> list[Expr]:
        return [c for c in self.conditions if self._has_only_columns_of(c, relation) and not can_any_raise([c])]

    def _join_conditions(self, relation: int) -> list[Expr]:
        local = self._local_conditions(relation)
        return [c for c in self.conditions if c not in local]

    def _build_plan(self, relation: int) -> Node:
        """The plan with one relation summed first. Its columns are those of the aggregate."""
        condition = conjunction(self._local_conditions(relation))
        child = self.inputs[relation] if condition is None else Filter(self.inputs[relation], condition)
        inner = self._inner_keys(relation)
        below = Aggregate(child, tuple(inner), tuple(replace(c, name=f"{c.name}p") for c in self.calls))
        inputs = [*self.inputs]
        inputs[relation] = below
        joined = inputs[0]
        for other in inputs[1:]:
            joined = Join("inner", joined, other, None)
        if (across := conjunction(self._join_conditions(relation))) is not None:
            joined = Filter(joined, across)
        made = {n.expr: column_reference(n.column) for n in inner}
        keys = [Named(k.name, made.get(k.expr, k.expr)) for k in self.keys]
        sums = [_outer_sum(c, f"{c.name}q") for c in self.calls]
        above = Aggregate(joined, tuple(keys), tuple(sums))
        shown = [Named(c.name, column_reference(c)) for c in above.columns[: len(keys)]]
        shown += [Named(c.name, _original_result(c, s)) for c, s in zip(self.calls, sums, strict=True)]
        return Project(above, tuple(shown))


def find_preaggregated(root: Node) -> Iterator[tuple[Scan, Aggregate]]:
    """The relations of a plan that are summed below a join, with their sums."""
    for above in root.walk():
        if not isinstance(above, Aggregate) or not (flat := flatten(above.child)).is_join:
            continue
        summed = {a.value for call in above.calls for a in call.args}
        for below in (source.node for source in flat.inputs):
            scan = _find_scan(below.child) if isinstance(below, Aggregate) else None
            if isinstance(below, Aggregate) and scan is not None and summed == {c.name for c in below.calls}:
                yield scan, below


def describe_preaggregation(root: Node, names: Mapping[int, str]) -> list[str]:
    """The lines of EXPLAIN about sums below joins."""
    lines = []
    for scan, below in find_preaggregated(root):
        keys = ", ".join(expr_text(substitute(k.expr, _stored_columns(scan, k.expr))) for k in below.keys)
        lines.append(f"presum: {names[scan.table]} is summed by ({keys}) before it is joined")
    return lines


def _stored_columns(scan: Scan, expr: Expr) -> Mapping[str, Expr]:
    """Plan columns under the names that the table has for them, as far as it is the table that has them."""
    stored = {c.name: name for c, name in scan.fields}
    columns = (e for e in expr.walk() if e.op == "column")
    return {e.value: replace(e, value=stored.get(e.value, e.value)) for e in columns}


def _resolve_call(call: Call, columns: Mapping[str, Expr]) -> Call:
    condition = None if call.filter is None else substitute(call.filter, columns)
    return replace(call, args=tuple(substitute(a, columns) for a in call.args), filter=condition)


def _is_splittable(call: Call) -> bool:
    """Whether sums of its sums are its sum, to the last digit and error."""
    if call.distinct or (call.value not in (None, ()) and "TRY" in str(call.value)):
        return False
    if call.function == "Count":
        return True
    if call.function != "Sum":
        return False
    kind = call.args[0].type
    if kind.kind is Kind.DECIMAL:
        return call.type.precision - kind.precision >= _SPARE_DIGITS
    return kind.kind in _SMALL_INTEGERS


def _outer_sum(call: Call, name: str) -> Call:
    """The sum of what was summed or counted first."""
    part = Expr("column", call.type, value=f"{call.name}p", nullable=call.nullable)
    if call.function == "Count":
        return Call(name, "Sum", (part,), call.type)
    return replace(call, name=name, args=(part,), filter=None)


def _original_result(call: Call, total: Call) -> Expr:
    """What a call gave: over nothing a count is 0, where a sum is NULL."""
    found = Expr("column", total.type, value=total.name, nullable=total.nullable)
    if call.function != "Count":
        return found
    zero = Expr("literal", call.type, value=0, nullable=False)
    return Expr("Coalesce", call.type, (found, zero), nullable=False)


def _find_scan(node: Node) -> Scan | None:
    """The base table or view that a relation is, seen through its own conditions and columns."""
    while isinstance(node, (Filter, Project)):
        node = node.child
    return node if isinstance(node, Scan) else None
