"""The batch executor: runs step 2 of a batch in either lane, with a DuckDB pool and an open state.

The maintainer has one executor for its batches. A view that is backfilled while batches go on has an executor of its
own, over the state of one published batch. Runs are immutable, so the two executors do not interfere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from viewkeeper import expressions
from viewkeeper.capture.changes import Capture, is_one_call
from viewkeeper.errors import Contradiction
from viewkeeper.model.schema import Table
from viewkeeper.operators.kinds import Input
from viewkeeper.operators.operator import Operator
from viewkeeper.plan.dataflow.dataflow import Dataflow, slot_names
from viewkeeper.plan.dataflow.shared_paths import shared_variant
from viewkeeper.plan.dataflow.sharing_hints import SharingHints
from viewkeeper.resources.duckdb_pool import DuckDBPool
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.resources.process_budget import process_budget
from viewkeeper.runtime.batch_work import BatchResult, BatchWork, LocalExecutor
from viewkeeper.runtime.context import PortDelta
from viewkeeper.runtime.cost_model import (
    DRIVER,
    OUT_OF_MEMORY_ERRORS,
    LaneChoice,
    LaneCostModel,
    check_lane,
    out_of_memory_error,
)
from viewkeeper.runtime.error_attribution import Contradicted, broken_views
from viewkeeper.runtime.inputs import InputSource, LogRange, MemoryRows
from viewkeeper.runtime.operator_errors import PROCESS_FAULTS, OperatorError, attribute_errors
from viewkeeper.runtime.spark.placement import is_driver_sized
from viewkeeper.state.open_state import OpenState
from viewkeeper.store.contract.store import CaptureMark, PendingChanges, Store

if TYPE_CHECKING:
    from viewkeeper.runtime.spark.jobs import SentDataflows
    from viewkeeper.runtime.spark.pipelined_commit import PipelinedCommit
    from viewkeeper.runtime.spark.scheduler import SparkEnvironment

_NO_HINTS = SharingHints()


@dataclass(frozen=True)
class ExecutorResources:
    """Resources for the work on one database: its store, the Spark session, threads, and a memory budget."""

    store: Store
    spark: Callable[[], Any]
    durable: bool
    threads: int
    memory: MemoryBudget
    lane_costs: LaneCostModel

    @property
    def background_memory(self) -> MemoryBudget:
        """The memory budget of work that runs at the same time as the batches."""
        return self.memory.divide(2)

    def create_executor(self, state: OpenState, memory: MemoryBudget | None = None) -> BatchExecutor:
        return BatchExecutor(
            self.store,
            state,
            self.spark,
            durable=self.durable,
            threads=self.threads,
            memory=memory or self.memory,
            lane_costs=self.lane_costs,
        )


class BatchExecutor:
    """Runs batches' operators over `state`. `spark` returns the session when the Spark lane needs it."""

    def __init__(
        self,
        store: Store,
        state: OpenState,
        spark: Callable[[], Any],
        *,
        durable: bool = True,
        threads: int,
        memory: MemoryBudget | None = None,
        lane_costs: LaneCostModel | None = None,
    ) -> None:
        self.store = store
        self.state = state
        self.spark = spark
        self.durable = durable
        self.memory = (memory or MemoryBudget(process_budget())).with_spill_directory(state.directory)
        self.pool = DuckDBPool(threads, self.memory, expressions.register_functions)
        self.capture = Capture(store, self.pool, self.memory, state.arrangement)
        self._lane_costs = lane_costs
        self.local_executor = LocalExecutor(state, self.pool, self.memory, durable)
        self._sent_dataflows: SentDataflows | None = None

    def close(self) -> None:
        self.local_executor.close()
        self.pool.close()
        self.memory.close()

    @property
    def statements(self) -> PreparedStatements:
        return self.pool.primary

    def choose_lane(self, requested: str, rows: int, work_kind: str = "batch") -> LaneChoice:
        """Choose the lane for this number of changed or loaded rows."""
        if self._lane_costs is not None:
            return self._lane_costs.choose(requested, rows, work_kind)
        return LaneChoice(DRIVER if check_lane(requested) == "auto" else requested, "it works beside the batches")

    def observe(self, choice: LaneChoice, rows: int, seconds: float, work_kind: str = "batch") -> None:
        """Record how long the work took in the chosen lane."""
        if self._lane_costs is not None:
            self._lane_costs.observe(choice.lane, rows, seconds, work_kind)

    @contextmanager
    def distribute_capture(self, lane: str) -> Iterator[None]:
        """In the Spark lane, run the reads of capture as a Spark stage if the store can divide them."""
        if lane == "spark" and not self.store.capabilities.before_images:
            from viewkeeper.runtime.spark.jobs import spark_parallel_map

            self.store.set_parallel_map(spark_parallel_map(self.spark()))
        try:
            yield
        finally:
            self.store.set_parallel_map(None)

    def capture_inputs(
        self,
        lane: str,
        dataflow: Dataflow,
        after: int,
        cut: int,
        all_pending: PendingChanges,
        capture_marks: Mapping[int, CaptureMark],
    ) -> tuple[dict[str, InputSource], dict[int, CaptureMark]]:
        """Return the changes of each table as inputs, and the capture marks at `cut`.

        Changes are read here, or in the Spark lane by its tasks if a table has many. `all_pending` are the pending
        changes of all tables; `capture_marks` are those at `after`.
        """
        log_ranges = {}
        if lane == "spark" and self.store.can_partition_changes and self.store.capabilities.before_images:
            for table, columns in dataflow.used_columns.items():
                pending = all_pending.for_table(table) or self.store.pending(after, [table])
                names = tuple(c.name for c in columns)
                has_several_calls = not is_one_call(pending, cut)
                log_range = LogRange(
                    self.store.url, dataflow.tables[table], names, after, cut, pending.rows, has_several_calls
                )
                if pending.calls and not is_driver_sized(log_range):
                    log_ranges[table] = log_range
        driver_tables = [table_id for table_id in dataflow.used_columns if table_id not in log_ranges]
        deltas, new_marks = self.capture.read_changes(dataflow, after, cut, capture_marks, driver_tables, all_pending)
        return memory_inputs(deltas) | {
            Input(table_id).id: log_range for table_id, log_range in log_ranges.items()
        }, new_marks

    def run(
        self,
        number: int,
        lane: str,
        dataflow: Dataflow,
        active: frozenset[str],
        inputs: Mapping[str, InputSource],
        names: Mapping[int, str],
        new_operators: frozenset[str] = frozenset(),
        keep_slots: frozenset[str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        hints: SharingHints = _NO_HINTS,
        target_tables: Mapping[int, Table] | None = None,
        pipelined_commit: PipelinedCommit | None = None,
    ) -> BatchResult:
        """Run step 2 of a batch.

        A batch runs the variant of the dataflow in which views share paths, as far as `hints` allow it. If a shared
        operator fails, the batch runs again without sharing, so that the error can be attributed to one view.

        `new_operators` have no state yet. If `keep_slots` is set, new runs of other slots are dropped. `progress` is
        called with the number of operators (tasks on Spark) that have run, and the number of all. `target_tables` are
        tables of views whose deltas Spark tasks resolve to upserts; `pipelined_commit` may begin the commit with the
        first tasks' upserts.
        """
        arguments = (active, inputs, names, new_operators, keep_slots, progress, target_tables or {}, pipelined_commit)
        if new_operators or active != dataflow.batch_operators:
            return self._run_variant(number, lane, dataflow, None, hints, *arguments)
        changed_tables = {dataflow.operators[name].input_table for name, source in inputs.items() if source.count != 0}
        variant = shared_variant(dataflow, frozenset(table for table in changed_tables if table is not None), hints)
        try:
            return self._run_variant(number, lane, dataflow, variant, hints, *arguments)
        except _VariantFailure:
            return self._run_variant(number, lane, dataflow, None, hints, *arguments)

    def _run_variant(
        self,
        number: int,
        lane: str,
        dataflow: Dataflow,
        variant: Dataflow | None,
        hints: SharingHints,
        active: frozenset[str],
        inputs: Mapping[str, InputSource],
        names: Mapping[int, str],
        new_operators: frozenset[str],
        keep_slots: frozenset[str] | None,
        progress: Callable[[int, int], None] | None,
        target_tables: Mapping[int, Table],
        pipelined_commit: PipelinedCommit | None,
    ) -> BatchResult:
        on_error = partial(_views_error, dataflow, names)
        seeds = self._seeds(dataflow, new_operators, on_error)
        if lane == "spark":
            from viewkeeper.plan.catalyst import translate_jvm_errors
            from viewkeeper.runtime.spark.scheduler import run_on_spark
            from viewkeeper.runtime.spark.upsert_tasks import ViewTarget

            view_names = [names.get(view, "a new view") for view in dataflow.views]
            targets = {
                v: ViewTarget(table, dataflow.sink(v).id) for v, table in target_tables.items() if v in dataflow.views
            }
            arguments = (
                number,
                dataflow,
                active,
                inputs,
                seeds,
                view_names,
                on_error,
                variant,
                targets,
                progress,
                pipelined_commit,
            )
            with translate_jvm_errors():
                result = run_on_spark(self._spark_environment(dataflow, new_operators), *arguments)
            entries = [e for e in result.entries if keep_slots is None or e.slot in keep_slots]
            return BatchResult(result.deltas, lambda: entries, result.changes)
        return self.local_executor.run(
            BatchWork(
                number, dataflow, variant, hints, active, inputs, new_operators, keep_slots, seeds, on_error, progress
            )
        )

    def _seeds(
        self, dataflow: Dataflow, new_operators: frozenset[str], on_error: Callable[[Operator, Exception], Exception]
    ) -> list[PortDelta]:
        """Return the rows that operators put into their ports at their first load, whatever their input is."""
        seeds: list[PortDelta] = []
        for operator in (dataflow.operators[name] for name in new_operators):
            try:
                with attribute_errors(operator.id):
                    seeds += [(operator.id, *seed) for seed in operator.seed(self.statements)]
            except OperatorError as failure:
                raise on_error(operator, failure) from failure
        return seeds

    def _spark_environment(self, dataflow: Dataflow, new_operators: frozenset[str]) -> SparkEnvironment:
        from viewkeeper.runtime.spark.jobs import SentDataflows
        from viewkeeper.runtime.spark.scheduler import SparkEnvironment
        from viewkeeper.runtime.spark.sessions import is_single_machine, reachability_check

        hidden_slots = frozenset(s for name in new_operators for s in slot_names(dataflow.operators[name]))
        session = self.spark()
        if self._sent_dataflows is None:
            self._sent_dataflows = SentDataflows()
        return SparkEnvironment(
            session,
            self._sent_dataflows,
            self.store.url,
            {s: r for s, r in self.state.manifest.runs.items() if s not in hidden_slots},
            str(self.state.directory),
            self.durable,
            is_single_machine(session, self.store),
            self.statements,
            self.memory,
            self.pool.size,
            reachability_check(session, self.store),
        )


class _VariantFailure(Exception):
    """An operator that several views share failed; the batch runs again without sharing."""


def memory_inputs(deltas: Mapping[str, pa.Table]) -> dict[str, InputSource]:
    return {name: MemoryRows(delta) for name, delta in deltas.items()}


def _views_error(dataflow: Dataflow, names: Mapping[int, str], operator: Operator, error: Exception) -> Exception:
    """Return the operator's error or contradiction with the views that it stops; a process fault unchanged."""
    if operator.retires_operators and not isinstance(error, PROCESS_FAULTS):
        return _VariantFailure()
    if isinstance(error, OperatorError):
        return broken_views(dataflow, names, error)
    views = dataflow.views_of(operator.id)
    view_names = ", ".join(sorted(names.get(v, "the new view") for v in views))
    if isinstance(error, OUT_OF_MEMORY_ERRORS):
        return out_of_memory_error(f"the {operator.kind} of {view_names}")
    return Contradicted(views, f"{view_names}: {error.message}") if isinstance(error, Contradiction) else error
