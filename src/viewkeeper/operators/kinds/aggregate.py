"""Aggregate: groups are a vector space, so the new state of a group is the old one plus the delta's.

    rows ──prepare──▶ port 0: one vector a group (`¤n` = Σ weights, counts, exact sums)     ─▶ state, added up by group
                 └──▶ port i: (group, value, `¤w`) for an argument of Min, Max or DISTINCT  ─▶ state, a multiset
    step:  old = Σ state,  new = old + Δ,  emit −read(old) +read(new) for each touched group where they differ

A group exists while `¤n` > 0. Without keys there is always one row after the first load, also over no rows: its seed is
a vector of zeros. Sums of doubles are further rows of port 0: `¤b` is the accumulator and bucket, `¤x` the integer
(`exact_float_sum`); on the vectors' own rows `¤b` is −1.

DISTINCT counts a value when its weight leaves or reaches zero. These transitions are rows with weight ±1 and are added
up by the same accumulators. The values port of an argument that is used only with DISTINCT is arranged by group and
value (the top 16 bits of the hash are the group's and partition the rows), so only the touched values are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import Contradiction, Defect, EvaluationError
from viewkeeper.expressions.tree import Expr
from viewkeeper.model import types
from viewkeeper.model.arrow_buffers import equal_bits, one_chunk, take_array
from viewkeeper.model.int128 import Int128Array
from viewkeeper.model.names import HASH
from viewkeeper.model.schema import WEIGHT, Column, Table
from viewkeeper.operators.aggregation import (
    extremes,
    finish,
    keyed_state,
    preaggregate,
    row_groups,
    shared_measures,
    sql,
)
from viewkeeper.operators.aggregation.groups import sum_touched_groups
from viewkeeper.operators.aggregation.shared_measures import SharedMeasure
from viewkeeper.operators.aggregation.spec import (
    EXTREME_FUNCTIONS,
    AccumulatorLayout,
    AggregateSpec,
    accumulator_layout,
    with_raw_columns,
)
from viewkeeper.operators.chunked_execution import estimate_read_bytes, run_step_by_ranges
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.keyed_state import KeyedStateLayout
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import OMITTED_IF_EMPTY, Segment
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidation_sql
from viewkeeper.state.run import Arrangement, Run, addition_sql, distinct_hashes, merge


@dataclass(frozen=True)
class Aggregate(Operator):
    """State: the vectors by group, and a multiset of values for each argument of Min, Max or DISTINCT."""

    source: tuple[Segment, ...]
    spec: AggregateSpec
    port_count: int
    is_shared: bool = field(default=False, metadata={OMITTED_IF_EMPTY: True})
    """Whether views with different measures share it; then output columns flag overflows (`shared_measures`)."""
    kind: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True
    can_compact: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return (self.source,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return _output_columns(self.spec, self.is_shared)

    @cached_property
    def aggregation_input_id(self) -> str | None:
        return shared_measures.aggregation_input_id(self.source, self.spec)

    @cached_property
    def shared_measures(self) -> Mapping[str, SharedMeasure]:
        return shared_measures.shared_measures(self.source, self.spec)

    def with_measures(self, measures: Sequence[SharedMeasure]) -> Aggregate:
        source, spec = shared_measures.build_shared_aggregate(self.source, self.spec, measures)
        return Aggregate(source, spec, count_ports(spec), is_shared=True)

    @property
    def grouping_columns(self) -> tuple[str, ...]:
        return self.key_columns

    @property
    def display_key(self) -> tuple[str, ...]:
        return self.key_columns

    def without_overflow_checks(self, segment: Segment) -> Segment:
        return shared_measures.without_overflow_checks(self.spec, segment) if self.is_shared else segment

    @property
    def slot_count(self) -> int:
        return self.port_count

    @property
    def arity(self) -> int:
        """One port for partial sums, and one for the values of each counted argument: rows are pre-aggregated before
        the exchange."""
        return self.port_count

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(k.name for k in self.spec.keys)

    def route_to_ports(
        self, statements: PreparedStatements, port: int, delta: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        """Pre-aggregate the rows of a piece. A group may have vectors from several pieces. `FamilyCells` outputs
        vectors, which are passed on unchanged."""
        if "¤n" in delta.column_names:
            yield from ((0, rows) for rows in (delta.drop_columns([WEIGHT]),) if rows.num_rows)
        elif delta.num_rows:
            yield from self._prepare_deltas(statements, delta)

    def run(self, context: ExecutionContext, ports: Ports) -> Iterable[pa.Table]:
        state = context.state(self)
        plan = accumulator_layout(self.spec)
        is_single_row = not plan.value_arguments and not plan.bucketed_accumulators
        read_bytes = estimate_read_bytes(context, state, ports, is_single_row=is_single_row) if self.spec.keys else 0
        return run_step_by_ranges(
            context,
            self,
            ports,
            lambda deltas: run_aggregate_step(context.statements, self.spec, state, deltas, self.is_shared),
            read_bytes,
        )

    @property
    def keyed_state(self) -> tuple[tuple[KeyedStateLayout, ...], ...]:
        return keyed_state.aggregate_layouts(self.spec)

    def build_row_aggregate(self, state_tables: Sequence[Sequence[Table]]) -> row_groups.RowAggregate | None:
        return row_groups.compile_row_aggregate(self.spec, self.source, state_tables)

    def compact(self, statements: PreparedStatements, port: int, deltas: Sequence[pa.Table]) -> pa.Table:
        return compact_deltas(statements, self.spec, port, deltas)

    def merge_runs(self, statements: PreparedStatements, slot: int, runs: Sequence[Run]) -> Run:
        return merge_state_runs(statements, self.spec, slot, runs)

    def seed(self, statements: PreparedStatements) -> Iterator[tuple[int, pa.Table]]:
        """Without keys there is a row also over no input rows."""
        if not self.spec.keys:
            rows = [pa.field(c.name, types.arrow(c.type)) for c in self.source[0].columns]
            yield from self._prepare_deltas(statements, pa.schema([*rows, pa.field(WEIGHT, pa.int64())]).empty_table())

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        return full_output(statements, self.spec, states, self.is_shared)

    def describe(self, context: ExplainContext) -> str:
        calls = [
            f"{m.function}({'DISTINCT ' if m.distinct else ''}{m.argument or '*'}) AS {m.name}"
            for m in self.spec.measures
        ]
        return f"aggregate by ({', '.join(self.key_columns)}): {', '.join(calls) or 'distinct rows'}"

    def reason(self, context: ExplainContext) -> str:
        values = [m for m in self.spec.measures if m.distinct or m.function in EXTREME_FUNCTIONS]
        prefix = f"the {len(self.spec.measures)} measures of several views in one state: " if self.is_shared else ""
        if values:
            calls = sorted({"DISTINCT" if m.distinct else m.function.lower() for m in values})
            description = f"{prefix}keeps each group's values with their counts"
            return f"{description}: {', '.join(calls)} cannot be taken back from a sum"
        if not self.spec.measures:
            return "one row a group: its count"
        return f"{prefix}sums and counts, one row a group: a change is added or subtracted"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        source = self.source[0]
        calls = tuple(
            f"{m.function.lower()}({'distinct ' if m.distinct else ''}"
            f"{context.describe_output(source, m.argument) if m.argument else '*'})"
            for m in self.spec.measures
        )
        return OperatorDescription(
            "aggregate",
            calls or ("distinct rows",),
            key=tuple(context.describe_output(source, k) for k in self.key_columns),
        )

    def column_texts(self, expr_text: Callable[[str, Expr], str]) -> Mapping[str, str]:
        texts = super().column_texts(expr_text)
        calls = {m.name: f"{m.function.lower()}({texts.get(m.argument or '', '*')})" for m in self.spec.measures}
        return {**texts, **calls}

    def _prepare_deltas(self, statements: PreparedStatements, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        return ((i, table) for i, table in enumerate(prepare_deltas(statements, self.spec, rows)) if table.num_rows)


def count_ports(spec: AggregateSpec) -> int:
    """Return how many deltas `prepare_deltas` returns: the vectors, and the values of each argument of Min, Max or
    DISTINCT."""
    return 1 + len(accumulator_layout(spec).value_arguments)


def prepare_deltas(statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table) -> list[pa.Table]:
    """Return one delta for each port, from rows with key columns, argument columns and `¤w`."""
    plan = accumulator_layout(spec)
    vectors = _build_vectors(statements, spec, rows, is_distinct=False)
    return [vectors, *(statements.run(sql.values_sql(spec, argument), rows=rows) for argument in plan.value_arguments)]


def run_aggregate_step(
    statements: PreparedStatements,
    spec: AggregateSpec,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    is_shared: bool = False,
) -> tuple[pa.Table, list[pa.Table]]:
    """Return the output's delta, and what to add to the state of each port. With `is_shared`, overflows raise no error.

    A delta may have several vectors of one group, from several tasks. A values port may be None if nothing arrived
    there.
    """
    plan = accumulator_layout(spec)
    vectors = deltas[0]
    if vectors is None:
        raise Defect("An aggregate was given no vectors.")
    added, distinct_changes = [vectors], []
    for i, argument in enumerate(plan.value_arguments, start=1):
        delta = deltas[i]
        change = _empty_values(spec, argument) if delta is None else extremes.sort_by_value(statements, delta, argument)
        added.append(change)
        if argument in plan.distinct_arguments:
            distinct_changes.append(_distinct_changes(statements, spec, argument, states[i], change))
    if distinct_changes:
        # One statement for all arguments: each row has a value of one argument; the NULLs of the others add nothing.
        all_changes = pa.concat_tables(distinct_changes, promote_options="default").combine_chunks()
        vectors = pa.concat_tables([vectors, _build_vectors(statements, spec, all_changes, is_distinct=True)])
    output = _output_delta(statements, spec, states, [vectors, *added[1:]], is_shared)
    added[0] = _drop_zero_vectors(vectors, plan, has_seed=not spec.keys and not states[0].num_rows)
    return output, added


def full_output(
    statements: PreparedStatements, spec: AggregateSpec, states: Sequence[Arrangement], is_shared: bool = False
) -> pa.Table:
    """Return the whole output: what a step from nothing to the present state emits."""
    plan = accumulator_layout(spec)
    if not states[0].runs:
        return _output_schema(spec, is_shared).empty_table()
    vectors = states[0].rows()
    values = [
        extremes.sort_by_value(statements, states[i].rows(), argument)
        if states[i].runs
        else _empty_values(spec, argument)
        for i, argument in enumerate(plan.value_arguments, start=1)
    ]
    empty = [Arrangement()] * len(states)
    return _output_delta(statements, spec, empty, [vectors, *values], is_shared)


def merge_state_runs(statements: PreparedStatements, spec: AggregateSpec, port: int, runs: Sequence[Run]) -> Run:
    """Return the runs of one port as one. Vectors add up, and empty groups are dropped, except the global one; values
    are consolidated."""
    plan = accumulator_layout(spec)
    if port == 0:
        return merge(statements, runs, plan.additive_columns, keep_zero=not spec.keys)
    return merge(statements, runs, order=[plan.value_arguments[port - 1]])


def compact_deltas(
    statements: PreparedStatements, spec: AggregateSpec, port: int, deltas: Sequence[pa.Table]
) -> pa.Table:
    """Return the deltas of many pieces at a port as one, with one row for each group or value.

    Vectors of zeros are kept, because they mark their group as touched.
    """
    plan = accumulator_layout(spec)
    delta = pa.concat_tables(deltas)
    if port == 0:
        return statements.run(addition_sql(delta.schema, plan.additive_columns, keep_zero=True), delta=delta)
    return statements.run(consolidation_sql(delta.schema), delta=delta)


def _build_vectors(
    statements: PreparedStatements, spec: AggregateSpec, rows: pa.Table, *, is_distinct: bool
) -> pa.Table:
    """Return the rows' vectors, for the plain accumulators or for those that count each value once."""
    if not is_distinct and (vectors := preaggregate.preaggregate(statements, spec, rows)) is not None:
        return vectors
    accumulators = tuple(a for a in accumulator_layout(spec).accumulators if a.distinct == is_distinct)
    return statements.run(sql.vectors_sql(spec, accumulators, is_distinct), rows=with_raw_columns(rows, accumulators))


def _distinct_changes(
    statements: PreparedStatements, spec: AggregateSpec, argument: str, state: Arrangement, change: pa.Table
) -> pa.Table:
    """Return the values that appeared in their group or disappeared from it, with weight 1 or −1."""
    old = state.slice(distinct_hashes(change)) if state.runs else change.slice(0, 0)
    return statements.run(sql.distinct_changes_sql(spec, argument), old=old.select(change.column_names), delta=change)


def _output_delta(
    statements: PreparedStatements,
    spec: AggregateSpec,
    states: Sequence[Arrangement],
    changes: Sequence[pa.Table],
    is_shared: bool,
) -> pa.Table:
    """Return −read(old) +read(old + change) where they differ. Extremes are read from the values' states and
    changes."""
    plan = accumulator_layout(spec)
    groups = sum_touched_groups(statements, spec, plan, states[0], changes[0])
    count = groups.count
    if (groups.totals.row_counts < 0).any():
        raise Contradiction(f"A group of {[k.name for k in spec.keys]} has fewer than no rows.")
    exists = groups.totals.row_counts > 0
    if not spec.keys:
        exists = np.concatenate([groups.in_old_state, np.ones(count, np.bool_)])
    extremes_by_argument = {
        argument: extremes.find_extremes(statements, spec, argument, states[i], changes[i], groups.keys)
        for i, argument in enumerate(plan.value_arguments, start=1)
        if argument in plan.extreme_arguments
    }
    changed = exists[:count] != exists[count:]
    columns, overflow_flags = [], []
    for measure in spec.measures:
        if measure.function in EXTREME_FUNCTIONS and measure.argument is not None:
            column = pa.concat_arrays(
                [extremes_by_argument[measure.argument][measure.function, side] for side in ("old", "new")]
            )
        else:
            column, overflow = finish.read_measure(measure, groups.totals)
            if is_shared and overflow is not None:
                changed |= overflow[:count] != overflow[count:]
                overflow_flags.append(pa.array(overflow))
            elif overflow is not None and (overflow & exists)[count:].any():
                raise EvaluationError(shared_measures.overflow_text(measure))
        changed |= _is_different(column.slice(0, count), column.slice(count))
        columns.append(column)
    deleted, inserted = np.flatnonzero(exists[:count] & changed), np.flatnonzero(exists[count:] & changed)
    key_rows, value_rows = (
        pa.array(np.concatenate([deleted, inserted])),
        pa.array(np.concatenate([deleted, inserted + count])),
    )
    weights = np.ones(len(value_rows), np.int64)
    weights[: len(deleted)] = -1
    key_columns = [take_array(one_chunk(groups.keys.column(k.name)), key_rows) for k in spec.keys]
    measure_columns = [take_array(column, value_rows) for column in (*columns, *overflow_flags)]
    return pa.Table.from_arrays(
        [*key_columns, *measure_columns, pa.array(weights)], schema=_output_schema(spec, is_shared)
    )


def _is_different(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two columns are distinct: NULL equals NULL and NaN equals NaN."""
    if not pa.types.is_floating(left.type) and (is_equal := equal_bits(left, right)) is not None:
        return ~is_equal
    unequal = pc.not_equal(left, right)
    if pa.types.is_floating(left.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    if unequal.null_count:
        unequal = pc.coalesce(unequal, pc.xor(pc.is_null(left), pc.is_null(right)))
    flags: npt.NDArray[np.bool_] = unequal.to_numpy(zero_copy_only=False)
    return flags


def _drop_zero_vectors(vectors: pa.Table, layout: AccumulatorLayout, *, has_seed: bool) -> pa.Table:
    """Drop vectors that add nothing, except the seed, which marks that the global row exists."""
    if has_seed or not vectors.num_rows:
        return vectors
    is_nonzero = np.zeros(vectors.num_rows, np.bool_)
    for name in layout.additive_columns:
        column = one_chunk(vectors.column(name))
        if pa.types.is_decimal(column.type):
            value = Int128Array.from_decimals(column)
            is_nonzero |= (value.low != 0) | (value.high != 0)
        else:
            is_nonzero |= column.to_numpy() != 0
        if is_nonzero.all():
            return vectors
    return vectors.filter(pa.array(is_nonzero))


def _empty_values(spec: AggregateSpec, argument: str) -> pa.Table:
    kind = next(m.argument_type for m in spec.measures if m.argument == argument)
    if kind is None:
        raise Defect(f"{argument} is the argument of no measure.")
    keys = [(k.name, types.arrow(k.type)) for k in spec.keys]
    return pa.schema([*keys, (argument, types.arrow(kind)), (WEIGHT, pa.int64()), (HASH, pa.uint64())]).empty_table()


def _output_columns(spec: AggregateSpec, is_shared: bool) -> tuple[Column, ...]:
    checked = [m for m in spec.measures if is_shared and shared_measures.can_overflow(m)]
    flags = (Column(shared_measures.overflow_column(m.name), types.BOOLEAN, nullable=False) for m in checked)
    return (*spec.keys, *(m.column for m in spec.measures), *flags)


@lru_cache(maxsize=1024)
def _output_schema(spec: AggregateSpec, is_shared: bool) -> pa.Schema:
    columns = _output_columns(spec, is_shared)
    return pa.schema([*((c.name, types.arrow(c.type)) for c in columns), (WEIGHT, pa.int64())])
