"""FamilyCells: the aggregate of a join with the members of a family, computed without the join.

A family joins the rows of its template's path with its parameters. Both sides change, and the join is bilinear:

    Δ(D ⋈ P) = ΔD ⋈ Pᵒˡᵈ + Dⁿᵉʷ ⋈ ΔP

Only sums of the joined rows are needed, and sums are linear. So rows are first added up by what a member can
distinguish (the group's keys and the values in the template's conditions). These sums are the state, and they are
*recomposed* to sums by member and group (`family`). A new member is computed from these sums, without reading the
tables.

    port 0  rows ──prepare──▶ vectors by (group, values)           ─▶ slot 0, additive
    port 1  members: parameters, and the bounds computed from them ─▶ slot 1, a multiset
    output  vectors by (member, group), which an `Aggregate` adds up; also a seed for each member that has a row over
            no input
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
"""Changed rows of a batch for which EXPLAIN estimates the cost of each method."""

_PIECE_ROWS = 1 << 21
"""Rows of state that are recomposed at a time when members are added or deleted."""


@dataclass(frozen=True)
class RangeCondition:
    """`value` of a row compared with `bound` of a member."""

    value: str
    operator: str
    bound: str


@dataclass(frozen=True)
class FamilyCells(FamilyOperator):
    """The keys of `spec` are the group's keys (the first `group_width`) and the values in the conditions.

    `members` outputs the parameters `p0`, `p1`, …, the bounds, and the conditions on the member alone
    (`member_conditions`). `other_conditions` are no ranges and compare columns of both sides. `has_seed_rows`: a member
    has a row of its own, also over no input.
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
        """The keys of its output: the parameters and the group's keys."""
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
        """Pre-aggregate the rows. All vectors go to one task, because a member may need any of them."""
        if port == 1:
            yield from super().route_to_ports(statements, port, delta)
        elif delta.num_rows:
            accumulators = accumulator_layout(self.spec).accumulators
            vectors = statements.run(
                sql.vectors_sql(self.spec, accumulators, False), rows=with_raw_columns(delta, accumulators)
            )
            if vectors.num_rows:
                hash_index = vectors.column_names.index(HASH)
                hashes = one_chunk(vectors.column(HASH)).to_numpy() >> _GATHER_SHIFT
                yield 0, vectors.set_column(hash_index, HASH, pa.array(hashes))

    def compact(self, statements: PreparedStatements, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        delta = pa.concat_tables(deltas)
        if port == 1:
            return consolidate(statements, delta.combine_chunks())
        return statements.run(
            addition_sql(delta.schema, accumulator_layout(self.spec).additive_columns, keep_zero=False), delta=delta
        )

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[pa.Table]:
        rows, member_state = context.state(self)
        new_rows = concat_deltas(ports[0]) if ports[0] else None
        if new_rows is not None and len(ports[0]) > 1:
            new_rows = self.compact(context.statements, 0, [new_rows])
        if new_rows is not None and member_state.runs:
            yield from self._recompose_members(
                context.statements, new_rows, self._read_members(context.statements, member_state)
            )
        changed_members = None
        if ports[1]:
            changed_members = consolidate(context.statements, combine_deltas(ports[1]))
            parts = [*(run.rows for run in rows.runs), *([] if new_rows is None else [new_rows])]
            for part in parts:
                for start in range(0, part.num_rows, _PIECE_ROWS):
                    yield from self._recompose_members(
                        context.statements, part.slice(start, _PIECE_ROWS), changed_members
                    )
            if self.has_seed_rows:
                yield self._seed_vectors(changed_members)
        context.emit_runs(
            self, [Run(_EMPTY_ROWS) if t is None else arrange(t.combine_chunks()) for t in (new_rows, changed_members)]
        )

    def merge_runs(self, statements: PreparedStatements, slot: int, runs: Sequence[Run]) -> Run:
        return (
            merge(statements, runs, accumulator_layout(self.spec).additive_columns)
            if slot == 0
            else merge(statements, runs)
        )

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        rows, member_state = states
        if not member_state.runs:
            return _vector_schema(self.columns).empty_table()
        members = self._read_members(statements, member_state)
        pieces = [piece for run in rows.runs for piece in self._recompose_members(statements, run.rows, members)]
        pieces += [self._seed_vectors(members)] if self.has_seed_rows else []
        return pa.concat_tables(pieces) if pieces else _vector_schema(self.columns).empty_table()

    def _read_members(self, statements: PreparedStatements, state: Arrangement) -> pa.Table:
        names = [c.name for c in self.members[0].columns]
        return consolidate(statements, state.rows(names))

    def _seed_vectors(self, members: pa.Table) -> pa.Table:
        """Return for each member a vector that counts one row and adds nothing else."""
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
        """Yield the vectors of every member and group that have rows in common, in pieces."""
        members = members.combine_chunks()
        for name in self.member_conditions:
            members = members.filter(members.column(name))
        if not members.num_rows or not rows.num_rows:
            return
        rows = rows.combine_chunks()
        axes = self._build_axes(statements, rows, members)
        is_needed = np.ones(rows.num_rows, np.bool_)
        for axis in axes:
            is_needed &= axis.row_buckets >= 0
        row_ids = np.flatnonzero(is_needed)
        if not len(row_ids):
            return
        signatures = [s for axis in axes for s in axis.member_signature] or [np.zeros(members.num_rows, np.int64)]
        _, representatives, signature_of = np.unique(
            np.stack(signatures, 1), axis=0, return_index=True, return_inverse=True
        )
        order = np.argsort(signature_of, kind="stable")  # members with the same signature become adjacent
        member_offsets = np.searchsorted(signature_of[order], np.arange(len(representatives)))
        member_counts = np.diff(np.append(member_offsets, len(order)))
        if not axes:
            axes = [BitmapAxis(np.zeros(rows.num_rows, np.int64), np.ones((1, 1), np.bool_), np.zeros(1, np.int64))]
        axes = [axis.select_members(representatives).select_rows(row_ids) for axis in axes]
        if len(row_ids) < rows.num_rows:
            rows = rows.take(pa.array(row_ids))
        group_columns = [rows.column(k.name) for k in self.spec.keys[: self.group_width]]
        group_columns += [rows.column("¤b")] if accumulator_layout(self.spec).bucketed_accumulators else []
        group, first = (
            number_tuples(group_columns) if group_columns else (np.zeros(len(row_ids), np.int64), np.zeros(1, np.int64))
        )
        addends = split_addends(rows, accumulator_layout(self.spec).additive_columns)
        weight = weights_of(members)
        for member, group_index, sums in recompose(group, len(first), axes, addends.parts):
            copies = member_counts[member]
            if (copies != 1).any():
                repeated = np.repeat(np.arange(len(member)), copies)
                offset = np.arange(len(repeated)) - np.repeat(np.cumsum(copies) - copies, copies)
                member_rows = order[member_offsets[member[repeated]] + offset]
                group_index, sums = group_index[repeated], [s[repeated] for s in sums]
            else:
                member_rows = order[member_offsets[member]]
            yield self._build_vectors(
                rows, members, first[group_index], member_rows, addends.combine(sums, weight[member_rows])
            )

    def _build_vectors(
        self, rows: pa.Table, members: pa.Table, row_positions: Ints, member_positions: Ints, sums: Sequence[pa.Array]
    ) -> pa.Table:
        parameters = self.members[0].columns[: self.parameter_count]
        arrays = {c.name: one_chunk(members.column(c.name)).take(pa.array(member_positions)) for c in parameters}
        group_columns = [k.name for k in self.spec.keys[: self.group_width]] + (
            ["¤b"] if accumulator_layout(self.spec).bucketed_accumulators else []
        )
        arrays |= {name: one_chunk(rows.column(name)).take(pa.array(row_positions)) for name in group_columns}
        arrays |= dict(zip(accumulator_layout(self.spec).additive_columns, sums, strict=True))
        arrays[WEIGHT] = pa.array(np.ones(len(member_positions), np.int64))
        schema = _vector_schema(self.columns)
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _build_axes(self, statements: PreparedStatements, rows: pa.Table, members: pa.Table) -> list[Axis]:
        by_value: dict[str, list[tuple[str, Any]]] = {}
        for condition in self.ranges:
            bound = members.column(condition.bound)
            by_value.setdefault(condition.value, []).append((condition.operator, bound))
        axes: list[Axis] = [build_range_axis(rows.column(value), pairs) for value, pairs in by_value.items()]
        return [*axes, *(_build_bitmap_axis(statements, residual, rows, members) for residual in self.other_conditions)]

    def describe(self, context: ExplainContext) -> str:
        conditions = [f"{c.value} {_OPERATOR_SYMBOLS[c.operator]} {c.bound}" for c in self.ranges]
        rest = f" and {len(self.other_conditions)} other conditions" if self.other_conditions else ""
        names = [k.name for k in self.spec.keys]
        return (
            f"cells of a family by ({', '.join(names[: self.group_width])}) "
            f"and ({', '.join(names[self.group_width :])}), members where {' and '.join(conditions) or 'true'}{rest}"
        )

    def reason(self, context: ExplainContext) -> str:
        """Return the reason, with the estimated cost of each method to compute members; each batch uses the
        cheapest."""
        explanation = "all members are made from one set of sums: their number costs what is written, not what is read"
        rows, members = context.sizes.get(f"{self.id}/0", (0, 0))[0], context.member_counts.get(self.id, 0)
        if not members:
            return explanation
        bounds = Counter(c.value for c in self.ranges)
        sizes = [min(count * members, rows) + 1 for count in bounds.values()]
        groups = max(1, rows // max(1, prod(sizes))) if self.group_width else 1
        costs = estimate_costs(
            _EXPLAINED_ROWS,
            groups,
            sizes,
            not self.other_conditions,
            members,
            len(accumulator_layout(self.spec).additive_columns),
        )
        cost_by_method = {method: getattr(costs, method) for method in RECOMPOSE_METHODS} | {
            "a view for each": SEPARATE_VIEW_COST * members
        }
        methods = ", ".join(
            f"{method} {_format_duration(nanoseconds)}"
            for method, nanoseconds in sorted(cost_by_method.items(), key=lambda w: w[1])
            if nanoseconds < inf
        )
        return f"{explanation}; {members:,} members, for {_EXPLAINED_ROWS:,} changed rows about: {methods}"

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
    """Return the columns of a vector beside its keys, in the order of `sql.vectors_sql`."""
    plan = accumulator_layout(spec)
    columns = [Column("¤n", types.BIGINT, False)]
    for accumulator in plan.plain_accumulators:
        kind = types.BIGINT if accumulator.is_count else _INT128_TYPE
        columns += [Column(name, kind, False) for name in accumulator.columns]
    if plan.bucketed_accumulators:
        columns += [Column("¤b", types.INT, False), Column("¤x", _INT128_TYPE, False)]
    return tuple(columns)


def _format_duration(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e9:,.1f} s" if nanoseconds >= 1e9 else f"{nanoseconds / 1e6:,.1f} ms"


def _vector_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([*((c.name, types.arrow(c.type)) for c in columns), (WEIGHT, pa.int64())])


def _build_bitmap_axis(
    statements: PreparedStatements, condition: Expr, rows: pa.Table, members: pa.Table
) -> BitmapAxis:
    """Return the axis of a condition that is no range: it is evaluated once for each pair of distinct value tuples of
    both sides."""
    names = condition.columns()
    sides = []
    for table in (rows, members):
        used_columns = sorted(names & set(table.column_names))
        if used_columns:
            code, first = number_tuples([table.column(n) for n in used_columns])
        else:
            code, first = np.zeros(table.num_rows, np.int64), np.zeros(1, np.int64)
        sides.append((code, table.select(used_columns).take(pa.array(first)), len(first)))
    (bucket, values, size), (kind, tuples, kinds) = sides
    numbered = [t.append_column(n, pa.array(np.arange(c))) for t, n, c in ((values, "¤i", size), (tuples, "¤j", kinds))]
    matching = statements.run(f"SELECT ¤i, ¤j FROM v, t WHERE {where_sql((condition,))}", v=numbered[0], t=numbered[1])
    matches = np.zeros((size, kinds), np.bool_)
    matches[matching.column("¤i").to_numpy(), matching.column("¤j").to_numpy()] = True
    is_needed: Flags = np.logical_or.reduce(matches, axis=1)
    return BitmapAxis(np.where(is_needed[bucket], bucket, -1), matches, kind)
