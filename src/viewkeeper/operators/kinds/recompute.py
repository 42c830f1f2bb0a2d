"""Recompute: per-key recomputation, which runs the view's SQL on the new rows of the changed keys.

The output of a key is a function of the rows of that key:

    affected = the hashes in the delta
    Δoutput  = sql(new rows of the affected hashes) − rows emitted for the affected hashes

The emitted rows are stored and not computed again from the old rows: with ties, `row_number` and LIMIT are no functions
of the bag, and only rows that were emitted can be deleted. The unit is the hash: a slice may have the rows of two keys
whose hashes collide, and then both are computed and both are compared.

SQL sees each row as often as its weight says (at most `max_copies` times, for a top-k that can show no more); negative
weights are an error. Its inputs are the tables `input0`, `input1`, … with `¤h`, and it outputs `¤h` with each row. If
the SQL checks if a group has another value, sums give the same result without it (`exists_other_value_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Contradiction
from viewkeeper.model import types
from viewkeeper.model.delta import empty_delta, with_weight
from viewkeeper.model.names import FIRST_ROW_INDEX, HASH, ROW_INDEX, quoted
from viewkeeper.model.schema import WEIGHT, Column
from viewkeeper.operators.aggregation.window_float_sums import (
    FloatFrameSum,
    add_frame_sums,
    frame_end_column,
    frame_start_column,
)
from viewkeeper.operators.chunked_execution import estimate_read_bytes, run_step_by_ranges
from viewkeeper.operators.description import ExplainContext, OperatorDescription
from viewkeeper.operators.exists_other_value_step import find_other_value_query, run_other_value_step
from viewkeeper.operators.operator import ExecutionContext, Operator, Ports
from viewkeeper.operators.segment import OMITTED_IF_EMPTY, Segment
from viewkeeper.operators.table_slices import TableSlices
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.hash_index import Hashes
from viewkeeper.state.run import Arrangement, distinct_hashes, weights_of

NO_SHARED_ROWS: Mapping[int, Callable[[Hashes], pa.Table]] = {}


@dataclass(frozen=True)
class Recompute(Operator):
    """`sql` reads `input0`, `input1`, …, one for each port, with rows repeated by weight.

    State: each input by key, and the emitted rows. An input that is a base table is read from a shared table image
    (`shared_images`) through its segment. `kind_reason` says, for EXPLAIN, why no cheaper kind is possible.
    """

    inputs: tuple[tuple[Segment, ...], ...]
    shared_images: tuple[str | None, ...]
    sql: str
    output_columns: tuple[Column, ...]
    kind_reason: str
    max_copies: int | None = None
    frame_sums: tuple[FloatFrameSum, ...] = field(default=(), metadata={OMITTED_IF_EMPTY: True})
    kind: ClassVar[str] = "recompute"
    stateful: ClassVar[bool] = True
    has_joint_ports: ClassVar[bool] = True

    @property
    def ports(self) -> tuple[tuple[Segment, ...], ...]:
        return self.inputs

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.output_columns

    @property
    def slot_count(self) -> int:
        return self.shared_images.count(None) + 1

    @property
    def new_state_lookups(self) -> tuple[str, ...]:
        return tuple(s for s in self.shared_images if s is not None)

    @property
    def lookup_columns(self) -> Mapping[str, frozenset[str]]:
        columns: dict[str, frozenset[str]] = {}
        for port, shared in zip(self.inputs, self.shared_images, strict=True):
            if shared is not None:
                columns[shared] = columns.get(shared, frozenset()) | port[0].used_columns()
        return columns

    @property
    def key(self) -> tuple[str, ...]:
        return self.inputs[0][0].key or ()

    def run(self, context: ExecutionContext, ports: Ports) -> Iterator[pa.Table]:
        slices = TableSlices(context, self)
        shared = {
            port: partial(slices.read_port_rows, port)
            for port, table in enumerate(self.shared_images)
            if table is not None
        }
        state, query = context.state(self), find_other_value_query(self)
        input_tables = [table for tables in ports for table in tables]
        covering_hashes = (
            None if query is None or not input_tables else slices.find_covering_hashes(distinct_hashes(*input_tables))
        )
        read_states = [context.new(f"{a}/0") for a in self.lookup_columns] if covering_hashes is None else []
        read_bytes = estimate_read_bytes(context, [*state, *read_states], ports) if self.key else 0

        def step(rows: list[pa.Table | None]) -> tuple[pa.Table, list[pa.Table]]:
            is_whole = sum(r.num_rows for r in rows if r is not None) == sum(t.num_rows for t in input_tables)
            covering = covering_hashes if is_whole else None
            result = (
                None
                if query is None
                else run_other_value_step(context.statements, self, query, state, rows, slices, covering)
            )
            return run_recompute_step(context.statements, self, state, rows, shared) if result is None else result

        return run_step_by_ranges(context, self, ports, step, read_bytes)

    def seed(self, statements: PreparedStatements) -> Iterator[tuple[int, pa.Table]]:
        """Without keys all rows are one slice, which is computed also over no rows."""
        if not self.key:
            yield 0, empty_delta(self.inputs[0][0].columns)

    def full(self, statements: PreparedStatements, states: Sequence[Arrangement]) -> pa.Table:
        """Return all emitted rows that were not deleted."""
        if not states[-1].runs:
            return empty_delta(self.output_columns).drop_columns([HASH])
        return consolidate(statements, states[-1].rows([c.name for c in self.output_columns]))

    @property
    def unproven_part(self) -> str:
        return self.kind_reason

    def dry_run(self, statements: PreparedStatements) -> None:
        rows = [empty_delta(port[0].columns).drop_columns([WEIGHT]) for port in self.inputs]
        statements.run(_typed_sql(self), **{f"input{i}": r for i, r in enumerate(rows)})

    def describe(self, context: ExplainContext) -> str:
        return f"recompute by ({', '.join(self.key)}): {self.kind_reason}"

    def reason(self, context: ExplainContext) -> str:
        if not self.key:
            return "no key to divide the rows by: every change computes all of them anew, so the cost follows the data"
        return "no law gives the change of the result from the change of the rows: the changed keys are computed anew"

    def box_description(self, context: ExplainContext) -> OperatorDescription:
        return OperatorDescription(
            "recompute", (self.kind_reason,), key=tuple(context.describe_output(self.inputs[0][0], k) for k in self.key)
        )


def run_recompute_step(
    statements: PreparedStatements,
    operator: Recompute,
    states: Sequence[Arrangement],
    deltas: Sequence[pa.Table | None],
    shared_rows: Mapping[int, Callable[[Hashes], pa.Table]] = NO_SHARED_ROWS,
) -> tuple[pa.Table, list[pa.Table]]:
    """Return the output's delta, and what to add to each state: the inputs' in order, then the emitted rows'.

    `states` are the inputs' arrangements and, last, the emitted rows'. A delta may be None: nothing arrived at that
    port. Without keys all rows are one slice with hash 0, which is computed also over no rows.

    `shared_rows` reads, for a port over a shared image, the consolidated new rows of some hashes. Such a port has no
    state here, and its delta only provides the hashes.
    """
    *inputs, emitted = states
    changes = [
        empty_delta(port[0].columns) if delta is None else delta if i in shared_rows else consolidate(statements, delta)
        for i, (delta, port) in enumerate(zip(deltas, operator.inputs, strict=True))
    ]
    affected = distinct_hashes(*changes) if operator.inputs[0][0].key else np.zeros(1, np.uint64)
    if not len(affected):
        empty = empty_delta(operator.output_columns)
        return empty.drop_columns([HASH]), [*(c for i, c in enumerate(changes) if i not in shared_rows), empty]
    own_states = iter(inputs)
    rows = [
        shared_rows[i](affected) if i in shared_rows else _read_new_rows(statements, next(own_states), change, affected)
        for i, change in enumerate(changes)
    ]
    new = [_repeat_by_weight(r, operator) for r in rows]
    added = [c for i, c in enumerate(changes) if i not in shared_rows]
    computed = statements.run(_typed_sql(operator), **{f"input{i}": rows for i, rows in enumerate(new)})
    output = with_weight(add_frame_sums(computed, operator.frame_sums) if operator.frame_sums else computed, 1)
    if emitted.runs:
        output = pa.concat_tables([output, _negate_weights(emitted.slice(affected).select(output.column_names))])
    difference = consolidate(statements, output)
    return difference.drop_columns([HASH]), [*added, difference]


def _read_new_rows(statements: PreparedStatements, state: Arrangement, change: pa.Table, affected: Hashes) -> pa.Table:
    """Return the rows of the affected hashes after the change, consolidated."""
    if not state.runs:
        return change
    return consolidate(statements, pa.concat_tables([state.slice(affected).select(change.column_names), change]))


def _repeat_by_weight(rows: pa.Table, operator: Recompute) -> pa.Table:
    """Return each row as often as its weight, at most `max_copies` times."""
    weights = weights_of(rows)
    if (weights < 0).any():
        raise Contradiction("A slice holds fewer than no copies of a row.")
    rows = rows.drop_columns([WEIGHT])
    if not (weights > 1).any():
        return rows
    copies = weights if operator.max_copies is None else np.minimum(weights, operator.max_copies)
    return rows.take(pa.array(np.repeat(np.arange(len(copies)), copies)))


@lru_cache(maxsize=1024)
def _typed_sql(operator: Recompute) -> str:
    selected = [f"{quoted(c.name)}::{types.duckdb(c.type)} AS {quoted(c.name)}" for c in operator.output_columns]
    if operator.frame_sums:
        frame_columns = (
            ROW_INDEX,
            FIRST_ROW_INDEX,
            *(n for f in operator.frame_sums for n in (frame_start_column(f), frame_end_column(f))),
        )
        selected += [f"{n}::BIGINT AS {n}" for n in frame_columns]
    columns = ", ".join(selected)
    return f"SELECT {columns}{', ' if columns else ''}{HASH}::UBIGINT AS {HASH} FROM ({operator.sql})"


def _negate_weights(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(WEIGHT), WEIGHT, pa.array(-weights_of(rows)))
