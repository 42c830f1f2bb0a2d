"""Synchronous views: a write call takes its views with it, or is refused with them.

    Δ of the call  ─▶  the view's operators, over the shelves of their state  ─▶  Δ of the view, Δ of the shelves

The law is that of a batch: old is what the state shows before the call, new is old + Δ. Only where the state lies is
another: in the store, by key, in the transaction that writes the rows (`operators.shelves`). So a view is right after
every single call, whoever wrote, and whether or not anybody maintains; and a change that it cannot follow (a sum that
overflows, a division by zero) is an error before anything is written.

What can be kept so are operators that need no other rows than those that arrive and those on their shelves: filters,
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
"""Flows that a process remembers."""


@dataclass(frozen=True)
class SynchronousPlan:
    """A view's flow by itself: its operators, sources first, and the tables of each one's shelves, by slot."""

    view: Table
    dataflow: Dataflow
    active: frozenset[str]
    state_tables: Mapping[str, Sequence[tuple[Table, ...]]]

    @property
    def tables(self) -> tuple[int, ...]:
        return tuple(sorted(self.dataflow.used_columns))

    @cached_property
    def row_path(self) -> RowPath | None:
        """How few rows go through it without a statement: the view's end, and one aggregate before it at most."""
        segments = self.dataflow.sink(self.view.id).source
        source = self.dataflow.operators[segments[0].source]
        end = compile_view_output(self.view, [source.without_overflow_checks(segment) for segment in segments])
        if end is None or source.input_table is not None:
            return None if end is None else RowPath(None, end)
        groups = source.build_row_aggregate(self.state_tables.get(source.id, ()))
        fed = {self.dataflow.operators[s.source].input_table for s in source.segments()}
        return None if groups is None or None in fed else RowPath(groups, end)


@dataclass(frozen=True)
class RowPath:
    """The way of few rows through a view."""

    aggregate: RowAggregate | None
    output: ViewOutput

    def compute_changes(
        self, before: Sequence[RowValues], after: Sequence[RowValues], reader: StateRowReader
    ) -> list[RowChange] | None:
        if self.aggregate is None:
            return apply_to_linear_view(self.output, before, after)
        found = self.aggregate.apply(before, after, reader, self.output.identifying_columns)
        if found is None:
            return None
        state, was, now = found
        return [*state, *apply_to_linear_view(self.output, was, now)]

    @cached_property
    def encoded_aggregate(self) -> EncodedRowAggregate | None:
        """The shorter way of few rows through a view of sums."""
        return None if self.aggregate is None else self.aggregate.build_encoded_row_aggregate(self.output)

    @cached_property
    def vector_aggregate(self) -> VectorAggregate | None:
        """The way of many rows, if there is one beside that of the operators."""
        return None if self.aggregate is None else self.aggregate.build_vector_aggregate(self.output)


def plan_synchronous(catalog: Catalog, view: View, state_ids: Sequence[int] | None = None) -> SynchronousPlan:
    """The flow of a view, its state under these numbers. Unsupported, with the reason, if no write can keep it."""
    flow = synchronous_dataflow(catalog, view)
    active = flow.upstream([flow.sink(view.table.id).id])
    stateful: dict[str, Sequence[tuple[Table, ...]]] = {}
    left = iter(state_ids if state_ids is not None else range(1 << 30))
    for name in flow.sort_operators(active):
        operator = flow.operators[name]
        if not operator.can_run_in_write:
            raise Unsupported(
                f"{view.table.name} cannot be synchronous: it needs rows beside those of the write ({operator.kind}).",
                hint="Synchronous views filter, project and aggregate (count, sum, avg, min, max, DISTINCT); leave"
                " sync out, and batches keep it.",
            )
        if operator.keyed_state:
            stateful[name] = [tuple(shelf.build_table(next(left)) for shelf in slot) for slot in operator.keyed_state]
    return SynchronousPlan(view.table, flow, frozenset(active), stateful)


class SynchronousViews:
    """Of one process: its DuckDB, and the flows of the views that it has met."""

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
        given: dict[str, InputSource] = {Input(table).id: MemoryRows(delta) for table, delta in deltas.items()}
        with self._lock:
            try:
                return self._run_operators(self._plan_of(catalog, view), view, given, reads, self._memory)
            except Exception as error:
                found = expressions.translate_error(error)
                if found is None:
                    raise
                raise EvaluationError(
                    f"{view.table.name} is synchronous and cannot follow this write, which is refused: {found.message}",
                    hint="Nothing was written. Correct the rows, or drop the view.",
                ) from error

    def apply_rows(
        self, catalog: Catalog, view: View, table: int, images: Sequence[tuple[bytes, bytes]], reads: StateRowReader
    ) -> list[RowChange] | None:
        few = self._plan_of(catalog, view).row_path
        if few is None:
            return None
        rows = catalog.tables_by_id[table].internal
        before = [decode_plain_row(rows, was) for was, _ in images if was]
        return few.compute_changes(before, [decode_plain_row(rows, now) for _, now in images if now], reads)

    def apply_row_sums(
        self,
        catalog: Catalog,
        view: View,
        table: int,
        before: Sequence[bytes],
        after: Sequence[bytes],
        reads: CachedRowReader,
    ) -> list[RowRewrites] | None:
        few = self._plan_of(catalog, view).row_path
        tally = None if few is None else few.encoded_aggregate
        return None if tally is None else tally.apply(catalog.tables_by_id[table].internal, before, after, reads)

    def apply_vector_sums(
        self, catalog: Catalog, view: View, table: int, delta: Callable[[Sequence[str]], pa.Table], reads: WriteReads
    ) -> list[EncodedChanges] | None:
        few = self._plan_of(catalog, view).row_path
        sums = None if few is None else few.vector_aggregate
        return None if sums is None else sums.apply(delta(self.columns(catalog, view, table)), reads)

    def backfill(
        self, catalog: Catalog, view: View, tables: Mapping[int, pa.Table], memory: MemoryBudget
    ) -> list[ViewChange]:
        """The rows of a view and of its state, from whole tables as deltas from nothing."""
        given: dict[str, InputSource] = {Input(table).id: MemoryRows(delta) for table, delta in tables.items()}
        with self._lock:
            try:
                return self._run_operators(self._plan_of(catalog, view), view, given, _EMPTY_READS, memory)
            except Exception as error:
                found = expressions.translate_error(error)
                if found is None:
                    raise
                raise EvaluationError(f"{view.table.name}: {found.message}") from error

    def _run_operators(
        self,
        plan: SynchronousPlan,
        view: View,
        inputs: Mapping[str, InputSource],
        reads: WriteReads,
        memory: MemoryBudget,
    ) -> list[ViewChange]:
        duck = self.statements
        site = _WriteContext(duck, plan.dataflow, lambda _: Arrangement(), plan.active, memory)
        site.state_tables, site.reads = plan.state_tables, reads
        seeds: list[PortDelta] = []
        for operator in (plan.dataflow.operators[n] for n in plan.active) if reads is _EMPTY_READS else ():
            with attribute_errors(operator.id):
                seeds += [(operator.id, *fed) for fed in operator.seed(duck)]
        reached = run_operators(site, inputs, seeds).get(view.table.id, [])
        with attribute_errors(plan.dataflow.sink(view.table.id).id):
            rows = resolve_upserts(duck, _WriteRowCounts(reads), view.table, reached, memory)
        return [*([rows] if isinstance(rows, ViewChange) else []), *site.state_changes()]

    def _plan_of(self, catalog: Catalog, view: View) -> SynchronousPlan:
        """Worked out once for a view and its tables as they are."""
        if view.synchronous_state is None:
            raise Unsupported(f"{view.table.name} is not synchronous.")
        tables = [catalog.tables_by_id.get(table) for table in view.synchronous_state.table_ids]
        known = self._plans.get(id(view.plan))
        if known is None or known[0].plan is not view.plan or known[1] != tables:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            known = self._plans[id(view.plan)] = (
                view,
                tables,
                plan_synchronous(catalog, view, view.synchronous_state.state_table_ids),
            )
        return known[2]

    @property
    def statements(self) -> PreparedStatements:
        """A forked child cannot use its parent's."""
        if self._statements is None or self._process_id != os.getpid():
            self._statements, self._process_id = (
                PreparedStatements(expressions.register_functions, threads=1),
                os.getpid(),
            )
        return self._statements


@dataclass
class _WriteContext(LocalContext):
    """Operators within a write call: before one runs, what it may need of its state is read from its shelves."""

    state_tables: Mapping[str, Sequence[tuple[Table, ...]]] = field(default_factory=dict)
    reads: WriteReads | None = None
    fetched_state: dict[str, StateRows] = field(default_factory=dict)

    def run(self, operator: Operator, ports: Sequence[Sequence[pa.Table]]) -> Iterator[pa.Table]:
        if operator.id in self.state_tables and self.reads is not None:
            touched = combine_deltas(ports[0])
            lying = zip(slot_names(operator), operator.keyed_state, self.state_tables[operator.id], ports, strict=True)
            for slot, shelves, tables, arrived in lying if touched is not None else ():
                self.fetched_state[slot] = fetch_state(self.reads, shelves, tables, arrived, touched)
        yield from super().run(operator, ports)

    def state(self, operator: Operator) -> list[Arrangement]:
        return [self.fetched_state[slot].state for slot in slot_names(operator)]

    def state_changes(self) -> Iterator[ViewChange]:
        """What the operators have added, as changes of their shelves."""
        for name, tables in self.state_tables.items():
            operator = self.dataflow.operators[name]
            for slot, shelves, own in zip(slot_names(operator), operator.keyed_state, tables, strict=True):
                if (run := self.new_runs.get(slot)) is not None:
                    for shelf, table in zip(shelves, own, strict=True):
                        yield ViewChange(table, *add_run_to_rows(shelf, table, self.fetched_state[slot].rows, run))


class _EmptyReads:
    """A store without rows."""

    def find(self, table: Table, keys: pa.BinaryArray) -> pa.Table:
        return table.arrow.empty_table()

    def range(self, table: Table, start: bytes | None, stop: bytes | None, limit: int | None) -> pa.Table:
        return table.arrow.empty_table()


_EMPTY_READS = _EmptyReads()


class _WriteRowCounts:
    """The rows of the store for who counts a bag's."""

    def __init__(self, reads: WriteReads) -> None:
        self._reads = reads

    def get_rows(self, table: Table, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._reads.find(table, encode_keys(table, keys))
