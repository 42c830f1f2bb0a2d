"""Pre-aggregation: if all summed expressions come from one relation, sum its rows before they are joined.

    γ g: sum(x), count(*) (R ⋈ S)   =   γ g: sum(s), sum(n) ( γ k: s = sum(x), n = count(*) (R)  ⋈  S )

`k` holds the columns of R that the join and the groups need. A row of the inner sum joins exactly like the rows that it
stands for, so sums and counts are multiplied with the matching rows (GraphIVM 5.2: a join graph of pre-aggregated
tuples). The join state has one row for each key of R instead of all rows of R, and a change of S finds one row.

The plan is rewritten when a view is created and stored with it; nothing at run time depends on the rule. It applies
only where the results are identical: to counts, and to sums of decimals and integers whose type has room for partial
sums. It does not apply to doubles (only their whole sum is rounded once), DISTINCT, expressions that can raise (they
would be evaluated on rows that join nothing), and relations on the optional side of an outer join.
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
"""Rows per key from which pre-aggregation is worthwhile.

Below, the saving is smaller than the loss of sharing with views that look up the same rows.
"""
_MIN_TABLE_ROWS = 10_000
"""Rows of a table from which pre-aggregation is considered."""

_SMALL_INTEGERS = frozenset({Kind.TINYINT, Kind.SMALLINT, Kind.INT})
_SPARE_DIGITS = 6
"""Digits by which a sum's type must exceed its argument's: a million of the largest values in a group.

Spark adds ten digits, up to 38 in all. Its own partial sums, task by task, overflow no later.
"""
_UNSUITABLE_KEYS = (Family.FLOAT, Family.NESTED, Family.OTHER)
"""Key types of which equal values may have several representations: a group keeps one of them."""


@dataclass(frozen=True)
class PreAggregation:
    """A relation of a join that could be summed first, its size, and its rows per key."""

    relation: int
    size: float
    rows_per_key: float

    @property
    def is_worthwhile(self) -> bool:
        return self.size >= _MIN_TABLE_ROWS and self.rows_per_key >= _MIN_ROWS_PER_KEY


def preaggregate(query: Query, tables: Mapping[int, Table], sizes: Mapping[int, int], mode: str) -> Query:
    """Return the query with pre-aggregation where it applies and, unless `mode` is `always`, where it is worthwhile."""
    if mode == "none":
        return query
    rewritten = replace(query, root=_rewrite(query.root, tables, sizes, mode))
    if mode != "always":  # a table that is scanned twice is kept in full anyway, and its lookups are shared
        scanned = Counter(node.table for node in query.root.walk() if isinstance(node, Scan))
        if any(scanned[scan.table] > 1 for scan, _ in find_preaggregated(rewritten.root)):
            return query
    return rewritten


def _rewrite(node: Node, tables: Mapping[int, Table], sizes: Mapping[int, int], mode: str) -> Node:
    def rewrite_value(value: Any) -> Any:
        if isinstance(value, Node):
            return _rewrite(value, tables, sizes, mode)
        if isinstance(value, tuple) and any(isinstance(v, Node) for v in value):
            return tuple(map(rewrite_value, value))
        return value

    node = replace(node, **{f.name: rewrite_value(getattr(node, f.name)) for f in fields(node)})
    if not isinstance(node, Aggregate) or not flatten(node.child).is_join:
        return node
    return _PreAggregator(node, tables, sizes).rewrite(mode) or node


class _PreAggregator:
    """Rewrites one aggregate over inner joins."""

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
            return None  # such a join is not flattened: a key that can raise is computed when a row is inserted
        summed = [e for call in self.calls for e in (*call.args, *([call.filter] if call.filter is not None else []))]
        owners = {self.owner[name] for e in summed for name in e.columns()}
        if len(owners) > 1 or can_any_raise(summed):
            return None
        candidates = [self._estimate(i) for i in (owners or range(len(self.inputs)))]
        best = max((p for p in candidates if p is not None), key=lambda p: p.rows_per_key, default=None)
        if best is None or (mode != "always" and not best.is_worthwhile):
            return None
        return self._build_plan(best.relation)

    def _estimate(self, relation: int) -> PreAggregation | None:
        child = self.inputs[relation]
        scan = _find_scan(child)
        inner = self._inner_keys(relation)
        if scan is None or not inner or any(n.expr.type.family in _UNSUITABLE_KEYS for n in inner):
            return None  # without keys the inner sum would have a row even over no input
        names = {n.expr.value for n in inner if n.expr.op == "column"}
        if any(set(key) <= names for key in unique_keys(child, self.tables)):
            return None
        size, groups = float(self.sizes.get(scan.table, 0)), 1.0
        for named in inner:
            groups *= self._estimate_distinct(relation, named.expr, size)
        return PreAggregation(relation, size, size / max(1.0, min(groups, size)))

    def _estimate_distinct(self, relation: int, expr: Expr, size: float) -> float:
        """Estimate the number of values of a key.

        It is the size of the table whose key it refers to, or a tenth of the rows of its own table.
        """
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
        """Return the columns that are needed beside the sums: those that join conditions compare, and group keys."""
        group_keys = {
            k.expr: Named(f"{k.name}p", k.expr) for k in self.keys if self._is_own_group_key(k.expr, relation)
        }
        exprs = [*self._join_conditions(relation), *(k.expr for k in self.keys if k.expr not in group_keys)]
        columns = {e.value: e for expr in exprs for e in expr.walk() if e.op == "column"}
        plain_columns = [Named(name, e) for name, e in columns.items() if self.owner[name] == relation]
        return [*plain_columns, *group_keys.values()]

    def _is_own_group_key(self, expr: Expr, relation: int) -> bool:
        """Whether a group key can be computed from the relation's rows before they are joined."""
        return expr.op != "column" and self._has_only_columns_of(expr, relation) and not can_any_raise([expr])

    def _has_only_columns_of(self, expr: Expr, relation: int) -> bool:
        return bool(expr.columns()) and all(self.owner[name] == relation for name in expr.columns())

    def _local_conditions(self, relation: int) -> list[Expr]:
        return [c for c in self.conditions if self._has_only_columns_of(c, relation) and not can_any_raise([c])]

    def _join_conditions(self, relation: int) -> list[Expr]:
        local = self._local_conditions(relation)
        return [c for c in self.conditions if c not in local]

    def _build_plan(self, relation: int) -> Node:
        """Return the plan with the relation summed first; its columns are those of the aggregate."""
        condition = conjunction(self._local_conditions(relation))
        child = self.inputs[relation] if condition is None else Filter(self.inputs[relation], condition)
        inner = self._inner_keys(relation)
        inner_sum = Aggregate(child, tuple(inner), tuple(replace(c, name=f"{c.name}p") for c in self.calls))
        inputs = [*self.inputs]
        inputs[relation] = inner_sum
        joined = inputs[0]
        for other in inputs[1:]:
            joined = Join("inner", joined, other, None)
        if (join_condition := conjunction(self._join_conditions(relation))) is not None:
            joined = Filter(joined, join_condition)
        key_columns = {n.expr: column_reference(n.column) for n in inner}
        keys = [Named(k.name, key_columns.get(k.expr, k.expr)) for k in self.keys]
        sums = [_outer_sum(c, f"{c.name}q") for c in self.calls]
        outer_sum = Aggregate(joined, tuple(keys), tuple(sums))
        output = [Named(c.name, column_reference(c)) for c in outer_sum.columns[: len(keys)]]
        output += [Named(c.name, _original_result(c, s)) for c, s in zip(self.calls, sums, strict=True)]
        return Project(outer_sum, tuple(output))


def find_preaggregated(root: Node) -> Iterator[tuple[Scan, Aggregate]]:
    """Return the relations of a plan that are summed below a join, with their sums."""
    for outer_sum in root.walk():
        if not isinstance(outer_sum, Aggregate) or not (flat := flatten(outer_sum.child)).is_join:
            continue
        summed = {a.value for call in outer_sum.calls for a in call.args}
        for inner_sum in (source.node for source in flat.inputs):
            scan = _find_scan(inner_sum.child) if isinstance(inner_sum, Aggregate) else None
            if isinstance(inner_sum, Aggregate) and scan is not None and summed == {c.name for c in inner_sum.calls}:
                yield scan, inner_sum


def describe_preaggregation(root: Node, names: Mapping[int, str]) -> list[str]:
    """Return the lines of EXPLAIN about pre-aggregation."""
    lines = []
    for scan, inner_sum in find_preaggregated(root):
        keys = ", ".join(expr_text(substitute(k.expr, _stored_columns(scan, k.expr))) for k in inner_sum.keys)
        lines.append(f"presum: {names[scan.table]} is summed by ({keys}) before it is joined")
    return lines


def _stored_columns(scan: Scan, expr: Expr) -> Mapping[str, Expr]:
    """Map plan columns to the columns of the scanned table; a column that is not of the scan keeps its name."""
    stored = {c.name: name for c, name in scan.fields}
    columns = (e for e in expr.walk() if e.op == "column")
    return {e.value: replace(e, value=stored.get(e.value, e.value)) for e in columns}


def _resolve_call(call: Call, columns: Mapping[str, Expr]) -> Call:
    condition = None if call.filter is None else substitute(call.filter, columns)
    return replace(call, args=tuple(substitute(a, columns) for a in call.args), filter=condition)


def _is_splittable(call: Call) -> bool:
    """Whether the sum of partial sums equals the sum, including its digits and errors."""
    if call.distinct or (call.value not in (None, ()) and "TRY" in str(call.value)):
        return False
    if call.function == "Count":
        return True
    if call.function != "Sum":
        return False
    argument_type = call.args[0].type
    if argument_type.kind is Kind.DECIMAL:
        return call.type.precision - argument_type.precision >= _SPARE_DIGITS
    return argument_type.kind in _SMALL_INTEGERS


def _outer_sum(call: Call, name: str) -> Call:
    """Return the sum over partial sums or counts."""
    part = Expr("column", call.type, value=f"{call.name}p", nullable=call.nullable)
    if call.function == "Count":
        return Call(name, "Sum", (part,), call.type)
    return replace(call, name=name, args=(part,), filter=None)


def _original_result(call: Call, total: Call) -> Expr:
    """Return the original result of a call: a count over no input is 0, but a sum over none is NULL."""
    outer_column = Expr("column", total.type, value=total.name, nullable=total.nullable)
    if call.function != "Count":
        return outer_column
    zero = Expr("literal", call.type, value=0, nullable=False)
    return Expr("Coalesce", call.type, (outer_column, zero), nullable=False)


def _find_scan(node: Node) -> Scan | None:
    """Return the base table or view scan below a relation's filters and projections, else None."""
    while isinstance(node, (Filter, Project)):
        node = node.child
    return node if isinstance(node, Scan) else None
