"""Synchronous views: maintained inside the write transaction, or the write call is refused.

    Δ of the call  ─▶  the view's operators, over their keyed state  ─▶  Δ of the view, Δ of the keyed state

The law is that of a batch: old is the state before the call, new is old + Δ. Only the place of the state differs: it is
stored by key in the store, and changed in the transaction that writes the rows (`operators.keyed_state`). A view is
therefore correct after every write call, by any process, with or without a maintainer. If the view cannot be maintained
(a sum overflows, a division by zero), the call raises an error before anything is written.

Only operators that need no other rows than their input and their keyed state can be maintained in this way: filters,
projections, and aggregates.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.errors import EvaluationError, Unsupported
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.encoding.rows import decode_plain_row
from viewkeeper.model.schema import Table
from viewkeeper.operators.aggregation.encoded_sums import EncodedChanges, VectorAggregate
from viewkeeper.operators.aggregation.row_groups import (
    RowAggregate,
    RowChange,
    RowValues,
    StateRowReader,
    ViewOutput,
    apply_to_linear_view,
    compile_view_output,
)
from viewkeeper.operators.aggregation.row_sums import CachedRowReader, EncodedRowAggregate, RowRewrites
from viewkeeper.operators.chunked_execution import combine_deltas
from viewkeeper.operators.keyed_state import StateRows, add_run_to_rows, fetch_state
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import Operator, slot_names
from viewkeeper.plan.dataflow.cache import synchronous_dataflow
from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.resources.process_budget import process_budget
from viewkeeper.runtime.context import LocalContext, PortDelta
from viewkeeper.runtime.inputs import InputSource, MemoryRows
from viewkeeper.runtime.local.scheduler import run_operators
from viewkeeper.runtime.operator_errors import attribute_errors
from viewkeeper.runtime.upserts import resolve_upserts
from viewkeeper.state.run import Arrangement
from viewkeeper.store.contract.commits import ViewChange
from viewkeeper.store.contract.write_observer import WriteReads

_MAX_PLANS = 256
"""Plans that a process caches."""


@dataclass(frozen=True)
class SynchronousPlan:
    """A view's own dataflow; `state_tables` are the tables of its keyed state, by operator (sources first) and slot."""

    view: Table
    dataflow: Dataflow
    active: frozenset[str]
    state_tables: Mapping[str, Sequence[tuple[Table, ...]]]

    @property
    def tables(self) -> tuple[int, ...]:
        return tuple(sorted(self.dataflow.used_columns))

    @cached_property
    def row_path(self) -> RowPath | None:
        """The row-at-a-time path for small writes: at most one aggregate, then the view's output.

        None if the view needs more.
        """
        segments = self.dataflow.sink(self.view.id).source
        source = self.dataflow.operators[segments[0].source]
        output = compile_view_output(self.view, [source.without_overflow_checks(segment) for segment in segments])
        if output is None or source.input_table is not None:
            return None if output is None else RowPath(None, output)
        aggregate = source.build_row_aggregate(self.state_tables.get(source.id, ()))
        input_tables = {self.dataflow.operators[s.source].input_table for s in source.segments()}
        return None if aggregate is None or None in input_tables else RowPath(aggregate, output)


@dataclass(frozen=True)
class RowPath:
    """Row-at-a-time maintenance of a view for small writes, without SQL statements."""

    aggregate: RowAggregate | None
    output: ViewOutput

    def compute_changes(
        self, before: Sequence[RowValues], after: Sequence[RowValues], reader: StateRowReader
    ) -> list[RowChange] | None:
        if self.aggregate is None:
            return apply_to_linear_view(self.output, before, after)
        result = self.aggregate.apply(before, after, reader, self.output.identifying_columns)
        if result is None:
            return None
        state_changes, groups_before, groups_after = result
        return [*state_changes, *apply_to_linear_view(self.output, groups_before, groups_after)]

    @cached_property
    def encoded_aggregate(self) -> EncodedRowAggregate | None:
        """A faster path for small writes: sums on encoded rows. None if the view does not support it."""
        return None if self.aggregate is None else self.aggregate.build_encoded_row_aggregate(self.output)

    @cached_property
    def vector_aggregate(self) -> VectorAggregate | None:
        """The vectorised path for large writes. None if the view does not support it; then the operators run."""
        return None if self.aggregate is None else self.aggregate.build_vector_aggregate(self.output)


def plan_synchronous(catalog: Catalog, view: View, state_ids: Sequence[int] | None = None) -> SynchronousPlan:
    """Return a view's plan, with these ids for the tables of its keyed state.

    Raises Unsupported with the reason if the view cannot be maintained in a write.
    """
    dataflow = synchronous_dataflow(catalog, view)
    active = dataflow.upstream([dataflow.sink(view.table.id).id])
    stateful: dict[str, Sequence[tuple[Table, ...]]] = {}
    free_ids = iter(state_ids if state_ids is not None else range(1 << 30))
    for name in dataflow.sort_operators(active):
        operator = dataflow.operators[name]
        if not operator.can_run_in_write:
            raise Unsupported(
                f"{view.table.name} cannot be synchronous: it needs rows beside those of the write ({operator.kind}).",
                hint="Synchronous views filter, project and aggregate (count, sum, avg, min, max, DISTINCT); leave"
                " sync out, and batches keep it.",
            )
        if operator.keyed_state:
            stateful[name] = [
                tuple(layout.build_table(next(free_ids)) for layout in slot) for slot in operator.keyed_state
            ]
    return SynchronousPlan(view.table, dataflow, frozenset(active), stateful)


class SynchronousViews:
    """The write observer of one process: its DuckDB connection, and the cached plans of synchronous views."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process_id = 0
        self._statements: PreparedStatements | None = None
        self._memory = MemoryBudget(process_budget())
        self._plans: dict[int, tuple[View, Sequence[Table | None], SynchronousPlan]] = {}

    def columns(self, catalog: Catalog, view: View, table: int) -> Sequence[str]:
        return [c.name for c in self._plan_of(catalog, view).dataflow.used_columns[table]]

    def apply_deltas(
        self, catalog: Catalog, view: View, deltas: Mapping[int, pa.Table], reads: WriteReads
    ) -> list[ViewChange]:
        inputs: dict[str, InputSource] = {Input(table).id: MemoryRows(delta) for table, delta in deltas.items()}
        with self._lock:
            try:
                return self._run_operators(self._plan_of(catalog, view), view, inputs, reads, self._memory)
            except Exception as error:
                cause = expressions.translate_error(error)
                if cause is None:
                    raise
                raise EvaluationError(
                    f"{view.table.name} is synchronous and cannot follow this write, which is refused: {cause.message}",
                    hint="Nothing was written. Correct the rows, or drop the view.",
                ) from error

    def apply_rows(
        self, catalog: Catalog, view: View, table: int, images: Sequence[tuple[bytes, bytes]], reads: StateRowReader
    ) -> list[RowChange] | None:
        row_path = self._plan_of(catalog, view).row_path
        if row_path is None:
            return None
        rows = catalog.tables_by_id[table].internal
        before = [decode_plain_row(rows, old_row) for old_row, _ in images if old_row]
        return row_path.compute_changes(
            before, [decode_plain_row(rows, new_row) for _, new_row in images if new_row], reads
        )

    def apply_row_sums(
        self,
        catalog: Catalog,
        view: View,
        table: int,
        before: Sequence[bytes],
        after: Sequence[bytes],
        reads: CachedRowReader,
    ) -> list[RowRewrites] | None:
        row_path = self._plan_of(catalog, view).row_path
        aggregate = None if row_path is None else row_path.encoded_aggregate
        return (
            None if aggregate is None else aggregate.apply(catalog.tables_by_id[table].internal, before, after, reads)
        )

    def apply_vector_sums(
        self, catalog: Catalog, view: View, table: int, delta: Callable[[Sequence[str]], pa.Table], reads: WriteReads
    ) -> list[EncodedChanges] | None:
        row_path = self._plan_of(catalog, view).row_path
        aggregate = None if row_path is None else row_path.vector_aggregate
        return None if aggregate is None else aggregate.apply(delta(self.columns(catalog, view, table)), reads)

    def backfill(
        self, catalog: Catalog, view: View, tables: Mapping[int, pa.Table], memory: MemoryBudget
    ) -> list[ViewChange]:
        """Compute the rows of a view and of its keyed state; the input is whole tables as deltas from empty ones."""
        inputs: dict[str, InputSource] = {Input(table).id: MemoryRows(delta) for table, delta in tables.items()}
        with self._lock:
            try:
                return self._run_operators(self._plan_of(catalog, view), view, inputs, _EMPTY_READS, memory)
            except Exception as error:
                cause = expressions.translate_error(error)
                if cause is None:
                    raise
                raise EvaluationError(f"{view.table.name}: {cause.message}") from error

    def _run_operators(
        self,
        plan: SynchronousPlan,
        view: View,
        inputs: Mapping[str, InputSource],
        reads: WriteReads,
        memory: MemoryBudget,
    ) -> list[ViewChange]:
        statements = self.statements
        context = _WriteContext(statements, plan.dataflow, lambda _: Arrangement(), plan.active, memory)
        context.state_tables, context.reads = plan.state_tables, reads
        seeds: list[PortDelta] = []
        for operator in (plan.dataflow.operators[n] for n in plan.active) if reads is _EMPTY_READS else ():
            with attribute_errors(operator.id):
                seeds += [(operator.id, *seed) for seed in operator.seed(statements)]
        deltas = run_operators(context, inputs, seeds).get(view.table.id, [])
        with attribute_errors(plan.dataflow.sink(view.table.id).id):
            rows = resolve_upserts(statements, _WriteRowCounts(reads), view.table, deltas, memory)
        return [*([rows] if isinstance(rows, ViewChange) else []), *context.state_changes()]

    def _plan_of(self, catalog: Catalog, view: View) -> SynchronousPlan:
        """Return the view's plan; it is cached until the view's plan or one of its tables changes."""
        if view.synchronous_state is None:
            raise Unsupported(f"{view.table.name} is not synchronous.")
        tables = [catalog.tables_by_id.get(table) for table in view.synchronous_state.table_ids]
        cached = self._plans.get(id(view.plan))
        if cached is None or cached[0].plan is not view.plan or cached[1] != tables:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            cached = self._plans[id(view.plan)] = (
                view,
                tables,
                plan_synchronous(catalog, view, view.synchronous_state.state_table_ids),
            )
        return cached[2]

    @property
    def statements(self) -> PreparedStatements:
        """This process's DuckDB connection; a forked child cannot use its parent's."""
        if self._statements is None or self._process_id != os.getpid():
            self._statements, self._process_id = (
                PreparedStatements(expressions.register_functions, threads=1),
                os.getpid(),
            )
        return self._statements


@dataclass
class _WriteContext(LocalContext):
    """Execution context in a write call: before an operator runs, the keyed state of the touched groups is read."""

    state_tables: Mapping[str, Sequence[tuple[Table, ...]]] = field(default_factory=dict)
    reads: WriteReads | None = None
    fetched_state: dict[str, StateRows] = field(default_factory=dict)

    def run(self, operator: Operator, ports: Sequence[Sequence[pa.Table]]) -> Iterator[pa.Table]:
        if operator.id in self.state_tables and self.reads is not None:
            touched = combine_deltas(ports[0])
            slots = zip(slot_names(operator), operator.keyed_state, self.state_tables[operator.id], ports, strict=True)
            for slot, layouts, tables, arrived in slots if touched is not None else ():
                self.fetched_state[slot] = fetch_state(self.reads, layouts, tables, arrived, touched)
        yield from super().run(operator, ports)

    def state(self, operator: Operator) -> list[Arrangement]:
        return [self.fetched_state[slot].state for slot in slot_names(operator)]

    def state_changes(self) -> Iterator[ViewChange]:
        """Yield the operators' new runs as changes of the keyed state's tables."""
        for name, tables in self.state_tables.items():
            operator = self.dataflow.operators[name]
            for slot, layouts, slot_tables in zip(slot_names(operator), operator.keyed_state, tables, strict=True):
                if (run := self.new_runs.get(slot)) is not None:
                    for layout, table in zip(layouts, slot_tables, strict=True):
                        yield ViewChange(table, *add_run_to_rows(layout, table, self.fetched_state[slot].rows, run))


class _EmptyReads:
    """Reads of an empty store, for backfills."""

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        return table.arrow.empty_table()

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        return table.arrow.empty_table()


_EMPTY_READS = _EmptyReads()


class _WriteRowCounts:
    """Reads the stored counts of a bag's rows inside the write transaction."""

    def __init__(self, reads: WriteReads) -> None:
        self._reads = reads

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._reads.find(table, encode_keys(table, keys))
