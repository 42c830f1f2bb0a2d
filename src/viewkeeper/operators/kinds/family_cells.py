"""Cells: the aggregate of a join with the members of a family, without the join.

A family joins the rows of its template's path with its parameters. Both sides change, and the join is bilinear:

    Δ(D ⋈ P) = ΔD ⋈ Pᵒˡᵈ + Dⁿᵉʷ ⋈ ΔP

Of a joined row only sums are wanted, and sums are linear: so rows are added up first by what a member can tell apart
(the group's keys and the values in the template's conditions), kept so, and *recomposed* to sums by member and group
(`cells`). A member that comes is made from these sums, without the tables.

    port 0  rows ──prepare──▶ vectors by (group, values)      ─▶ state 0, additive
    port 1  members: parameters, the bounds made of them      ─▶ state 1, a multiset
    output  vectors by (member, group), which an `Aggregate` adds up; for a member itself, if it is there over nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.int128 import Flags, Ints
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.aggregation import sql
from viewkeeper.operators.aggregation.spec import AggregateSpec, accumulator_layout, with_raw_columns
from viewkeeper.operators.chunked_execution import combine_deltas, concat_deltas
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.family.axes import Axis, BitmapAxis, build_range_axis
from viewkeeper.operators.family.recompose import (
    RECOMPOSE_METHODS,
    SEPARATE_VIEW_COST,
    estimate_costs,
    recompose,
    split_addends,
)
from viewkeeper.operators.family.value_codes import number_tuples
from viewkeeper.operators.kinds.family_rows import FamilyOperator
from viewkeeper.operators.operator import ExecutionContext, Ports
from viewkeeper.operators.segment import where_sql
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement, Run, addition_sql, arrange, merge, weights_of

_GATHER_SHIFT = np.uint64(16)
_EXPLAINED_ROWS = 10_000
"""Changed rows of a batch for which EXPLAIN says what the ways take."""

_PIECE_ROWS = 1 << 21
"""Rows of state that are recomposed at a time, for members that come or go."""


@dataclass(frozen=True)
class RangeCondition:
    """`value` of a row compared with `bound` of a member."""

    value: str
    operator: str
    bound: str


@dataclass(frozen=True)
class FamilyCells(FamilyOperator):
    """`spec` has the group's keys (the first `groups` of its keys) and the values of conditions as keys.

    `members` gives the parameters `p0`, `p1`, …, the bounds, and conditions on the member alone (`alone`). `others` are
    conditions that are no ranges, over columns of both. `seeded`: a member has a row of its own, over nothing.
    """

    spec: AggregateSpec
    group_width: int
    parameter_count: int
    ranges: tuple[RangeCondition, ...]
    other_conditions: tuple[Expr, ...]
    member_conditions: tuple[str, ...]
    has_seed_rows: bool
    kind: ClassVar[str] = "family_cells"
    can_compact: ClassVar[bool] = True

    @cached_property
    def keys(self) -> tuple[Column, ...]:
        """Of what it gives: the parameters and the group's keys."""
        return (*self.members[0].columns[: self.parameter_count], *self.spec.keys[: self.group_width])

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.keys, *vector_columns(self.spec))

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.keys)

    def route_to_ports(
        self, statements: PreparedStatements, port: int, delta: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        """Rows travel added up. All meet in one place: a member may want any of them."""
        if port == 1:
            yield from super().route_to_ports(statements, port, delta)
        elif delta.num_rows:
            fed = accumulator_layout(self.spec).accumulators
            found = statements.run(sql.vectors_sql(self.spec, fed, False), rows=with_raw_columns(delta, fed))
            if found.num_rows:
                place = found.column_names.index(HASH)
                hashes = one_chunk(found.column(HASH)).to_numpy() >> _GATHER_SHIFT
                yield 0, found.set_column(place, HASH, pa.array(hashes))

    def compact(self, statements: PreparedStatements, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        whole = pa.concat_tables(deltas)
        if port == 1:
            return consolidate(statements, whole.combine_chunks())
        return statements.run(
            addition_sql(whole.schema, accumulator_layout(self.spec).additive_columns, keep_zero=False), delta=whole
        )

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[pa.Table]:
        rows, known = context.state(self)
        fresh = concat_deltas(ports[0]) if ports[0] else None
        if fresh is not None and len(ports[0]) > 1:
            fresh = self.compact(context.statements, 0, [fresh])
        if fresh is not None and known.runs:
            yield from self._recompose_members(context.statements, fresh, self._read_members(context.statements, known))
        changed = None
        if ports[1]:
            changed = consolidate(context.statements, combine_deltas(ports[1]))
            parts = [*(run.rows for run in rows.runs), *([] if fresh is None else [fresh])]
            for part in parts:
                for low in range(0, part.num_rows, _PIECE_ROWS):
                    yield from self._recompose_members(context.statements, part.slice(low, _PIECE_ROWS), changed)
            if self.has_seed_rows:
                yield self._seed_vectors(changed)
        context.emit_runs(
            self, [Run(_EMPTY_ROWS) if t is None else arrange(t.combine_chunks()) for t in (fresh, changed)]
        )

    def merge_runs(self, statements: PreparedStatements, slot: int, runs: Sequence[Run]) -> Run:
        return (
            merge(statements, runs, accumulator_layout(self.spec).additive_columns)
            if slot == 0
            else merge(statements, runs)
        )

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        rows, known = states
        if not known.runs:
            return _vector_schema(self.columns).empty_table()
        members = self._read_members(statements, known)
        found = [piece for run in rows.runs for piece in self._recompose_members(statements, run.rows, members)]
        found += [self._seed_vectors(members)] if self.has_seed_rows else []
        return pa.concat_tables(found) if found else _vector_schema(self.columns).empty_table()

    def _read_members(self, statements: PreparedStatements, state: Arrangement) -> pa.Table:
        names = [c.name for c in self.members[0].columns]
        return consolidate(statements, state.rows(names))

    def _seed_vectors(self, members: pa.Table) -> pa.Table:
        """A vector that counts one row, with nothing in it."""
        arrays = {c.name: one_chunk(members.column(c.name)) for c in self.members[0].columns[: self.parameter_count]}
        arrays["¤n"] = one_chunk(members.column(WEIGHT))
        for name, kind in ((c.name, types.arrow(c.type)) for c in self.columns):
            if name not in arrays:
                value = -1 if name == "¤b" else 0
                arrays[name] = pa.array(np.full(members.num_rows, value, np.int64)).cast(kind)
        arrays[WEIGHT] = pa.array(np.ones(members.num_rows, np.int64))
        return pa.table([arrays[f.name] for f in _vector_schema(self.columns)], schema=_vector_schema(self.columns))

    def _recompose_members(
        self, statements: PreparedStatements, rows: pa.Table, members: pa.Table
    ) -> Iterator[pa.Table]:
        """The vectors of every member and group that have rows in common, in pieces."""
        members = members.combine_chunks()
        for name in self.member_conditions:
            members = members.filter(members.column(name))
        if not members.num_rows or not rows.num_rows:
            return
        rows = rows.combine_chunks()
        axes = self._build_axes(statements, rows, members)
        wanted = np.ones(rows.num_rows, np.bool_)
        for axis in axes:
            wanted &= axis.row_buckets >= 0
        places = np.flatnonzero(wanted)
        if not len(places):
            return
        signatures = [s for axis in axes for s in axis.member_signature] or [np.zeros(members.num_rows, np.int64)]
        _, chosen, alike = np.unique(np.stack(signatures, 1), axis=0, return_index=True, return_inverse=True)
        order = np.argsort(alike, kind="stable")  # the members that are alike lie together
        begin = np.searchsorted(alike[order], np.arange(len(chosen)))
        count = np.diff(np.append(begin, len(order)))
        if not axes:
            axes = [BitmapAxis(np.zeros(rows.num_rows, np.int64), np.ones((1, 1), np.bool_), np.zeros(1, np.int64))]
        axes = [axis.select_members(chosen).select_rows(places) for axis in axes]
        if len(places) < rows.num_rows:
            rows = rows.take(pa.array(places))
        keyed = [rows.column(k.name) for k in self.spec.keys[: self.group_width]]
        keyed += [rows.column("¤b")] if accumulator_layout(self.spec).bucketed_accumulators else []
        group, first = number_tuples(keyed) if keyed else (np.zeros(len(places), np.int64), np.zeros(1, np.int64))
        added = split_addends(rows, accumulator_layout(self.spec).additive_columns)
        weight = weights_of(members)
        for member, where, sums in recompose(group, len(first), axes, added.parts):
            times = count[member]
            if (times != 1).any():
                spread = np.repeat(np.arange(len(member)), times)
                within = np.arange(len(spread)) - np.repeat(np.cumsum(times) - times, times)
                own = order[begin[member[spread]] + within]
                where, sums = where[spread], [s[spread] for s in sums]
            else:
                own = order[begin[member]]
            yield self._build_vectors(rows, members, first[where], own, added.combine(sums, weight[own]))

    def _build_vectors(
        self, rows: pa.Table, members: pa.Table, row_positions: Ints, member_positions: Ints, sums: Sequence[pa.Array]
    ) -> pa.Table:
        parameters = self.members[0].columns[: self.parameter_count]
        arrays = {c.name: one_chunk(members.column(c.name)).take(pa.array(member_positions)) for c in parameters}
        kept = [k.name for k in self.spec.keys[: self.group_width]] + (
            ["¤b"] if accumulator_layout(self.spec).bucketed_accumulators else []
        )
        arrays |= {name: one_chunk(rows.column(name)).take(pa.array(row_positions)) for name in kept}
        arrays |= dict(zip(accumulator_layout(self.spec).additive_columns, sums, strict=True))
        arrays[WEIGHT] = pa.array(np.ones(len(member_positions), np.int64))
        schema = _vector_schema(self.columns)
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _build_axes(self, statements: PreparedStatements, rows: pa.Table, members: pa.Table) -> list[Axis]:
        by_value: dict[str, list[tuple[str, Any]]] = {}
        for condition in self.ranges:
            bound = members.column(condition.bound)
            by_value.setdefault(condition.value, []).append((condition.operator, bound))
        found: list[Axis] = [build_range_axis(rows.column(value), pairs) for value, pairs in by_value.items()]
        return [*found, *(_build_bitmap_axis(statements, other, rows, members) for other in self.other_conditions)]

    def describe(self, context: ExplainContext) -> str:
        conditions = [f"{c.value} {_OPERATOR_SYMBOLS[c.operator]} {c.bound}" for c in self.ranges]
        rest = f" and {len(self.other_conditions)} other conditions" if self.other_conditions else ""
        names = [k.name for k in self.spec.keys]
        return (
            f"cells of a family by ({', '.join(names[: self.group_width])}) "
            f"and ({', '.join(names[self.group_width :])}), members where {' and '.join(conditions) or 'true'}{rest}"
        )

    def reason(self, context: ExplainContext) -> str:
        """With the ways to make members, and what each is expected to take: the cheapest is gone, batch by batch."""
        why = "all members are made from one set of sums: their number costs what is written, not what is read"
        rows, members = context.sizes.get(f"{self.id}/0", (0, 0))[0], context.member_counts.get(self.id, 0)
        if not members:
            return why
        bounds = Counter(c.value for c in self.ranges)
        sizes = [min(count * members, rows) + 1 for count in bounds.values()]
        groups = max(1, rows // max(1, prod(sizes))) if self.group_width else 1
        found = estimate_costs(
            _EXPLAINED_ROWS,
            groups,
            sizes,
            not self.other_conditions,
            members,
            len(accumulator_layout(self.spec).additive_columns),
        )
        shown = {way: getattr(found, way) for way in RECOMPOSE_METHODS} | {
            "a view for each": SEPARATE_VIEW_COST * members
        }
        ways = ", ".join(
            f"{way} {_format_duration(ns)}" for way, ns in sorted(shown.items(), key=lambda w: w[1]) if ns < inf
        )
        return f"{why}; {members:,} members, for {_EXPLAINED_ROWS:,} changed rows about: {ways}"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        source = self.rows[0]
        return OperatorDescription("cells", key=tuple(context.describe_output(source, k.name) for k in self.spec.keys))


_OPERATOR_SYMBOLS = {
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
}

_INT128_TYPE = types.decimal(38, 0)
_EMPTY_ROWS = pa.schema([(HASH, pa.uint64())]).empty_table()


def vector_columns(spec: AggregateSpec) -> tuple[Column, ...]:
    """The columns of a vector beside its keys, in the order of `aggregate_sql.vectors`."""
    plan = accumulator_layout(spec)
    found = [Column("¤n", types.BIGINT, False)]
    for accumulator in plan.plain_accumulators:
        kind = types.BIGINT if accumulator.is_count else _INT128_TYPE
        found += [Column(name, kind, False) for name in accumulator.columns]
    if plan.bucketed_accumulators:
        found += [Column("¤b", types.INT, False), Column("¤x", _INT128_TYPE, False)]
    return tuple(found)


def _format_duration(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e9:,.1f} s" if nanoseconds >= 1e9 else f"{nanoseconds / 1e6:,.1f} ms"


def _vector_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([*((c.name, types.arrow(c.type)) for c in columns), (WEIGHT, pa.int64())])


def _build_bitmap_axis(
    statements: PreparedStatements, condition: Expr, rows: pa.Table, members: pa.Table
) -> BitmapAxis:
    """A condition that is no range: tried once for each distinct tuple of values on either side."""
    names = condition.columns()
    sides = []
    for table in (rows, members):
        used = sorted(names & set(table.column_names))
        if used:
            code, first = number_tuples([table.column(n) for n in used])
        else:
            code, first = np.zeros(table.num_rows, np.int64), np.zeros(1, np.int64)
        sides.append((code, table.select(used).take(pa.array(first)), len(first)))
    (bucket, values, size), (kind, tuples, kinds) = sides
    numbers = [t.append_column(n, pa.array(np.arange(c))) for t, n, c in ((values, "¤i", size), (tuples, "¤j", kinds))]
    found = statements.run(f"SELECT ¤i, ¤j FROM v, t WHERE {where_sql((condition,))}", v=numbers[0], t=numbers[1])
    wanted = np.zeros((size, kinds), np.bool_)
    wanted[found.column("¤i").to_numpy(), found.column("¤j").to_numpy()] = True
    somebody: Flags = np.logical_or.reduce(wanted, axis=1)
    return BitmapAxis(np.where(somebody[bucket], bucket, -1), wanted, kind)
