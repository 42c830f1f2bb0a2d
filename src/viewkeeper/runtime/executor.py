"""Where step 2 of a batch happens: a DuckDB and an open state, over which the rounds run in either lane.

The maintainer has one stage for its batches. A view that is loaded while batches go on has a stage of its own, over
the state as it was at one published batch: runs are immutable, so the two do not meet.
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
    """What a database's work has: its store, Spark where that is needed, threads, and a budget of memory."""

    store: Store
    spark: Callable[[], Any]
    durable: bool
    threads: int
    memory: MemoryBudget
    lane_costs: LaneCostModel

    @property
    def background_memory(self) -> MemoryBudget:
        """What work beside the batches may take."""
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
    """Runs rounds over `state`. `spark` gives the session when the Spark lane needs it; `memory` is its budget."""

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
        """The lane for so many changed or loaded rows."""
        if self._lane_costs is not None:
            return self._lane_costs.choose(requested, rows, work_kind)
        return LaneChoice(DRIVER if check_lane(requested) == "auto" else requested, "it works beside the batches")

    def observe(self, choice: LaneChoice, rows: int, seconds: float, work_kind: str = "batch") -> None:
        """What was chosen took so long."""
        if self._lane_costs is not None:
            self._lane_costs.observe(choice.lane, rows, seconds, work_kind)

    @contextmanager
    def distribute_capture(self, lane: str) -> Iterator[None]:
        """In the Spark lane the reads of capture are a Spark stage too, where the store can divide them."""
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
        """What happened to each table: in the driver, or, if that is much, where the lane's tasks run.

        `all_waiting`: what waits for all tables. `seen`: what had been seen up to `after`; given back: up to `upto`.
        """
        left = {}
        if lane == "spark" and self.store.can_partition_changes and self.store.capabilities.before_images:
            for table, columns in dataflow.used_columns.items():
                waiting = all_pending.for_table(table) or self.store.pending(after, [table])
                names = tuple(c.name for c in columns)
                several = not is_one_call(waiting, cut)
                found = LogRange(self.store.url, dataflow.tables[table], names, after, cut, waiting.rows, several)
                if waiting.calls and not is_driver_sized(found):
                    left[table] = found
        here = [t for t in dataflow.used_columns if t not in left]
        deltas, now = self.capture.read_changes(dataflow, after, cut, capture_marks, here, all_pending)
        return memory_inputs(deltas) | {Input(t).id: found for t, found in left.items()}, now

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
        """Step 2. `new` operators have no state yet; with `only`, runs of other slots than these are not kept.

        `told` hears how many operators have run, or tasks on Spark, and of how many. In a batch the paths of different
        views are made together, as far as these wish it. If that fails, each is made alone: then it is known whose
        error it is. `resolving`: tables of views whose deltas become puts and deletes in the lane's tasks, if it has
        several, some of them `early`.
        """
        rest = (active, inputs, names, new_operators, keep_slots, progress, target_tables or {}, pipelined_commit)
        if new_operators or active != dataflow.batch_operators:
            return self._run_variant(number, lane, dataflow, None, hints, *rest)
        changed = {dataflow.operators[name].input_table for name, g in inputs.items() if g.count != 0}
        together = shared_variant(dataflow, frozenset(t for t in changed if t is not None), hints)
        try:
            return self._run_variant(number, lane, dataflow, together, hints, *rest)
        except _VariantFailure:
            return self._run_variant(number, lane, dataflow, None, hints, *rest)

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
        fail = partial(_views_error, dataflow, names)
        seeds = self._seeds(dataflow, new_operators, fail)
        if lane == "spark":
            from viewkeeper.plan.catalyst import translate_jvm_errors
            from viewkeeper.runtime.spark.scheduler import run_on_spark
            from viewkeeper.runtime.spark.upsert_tasks import ViewTarget

            stopped = [names.get(view, "a new view") for view in dataflow.views]
            targets = {
                v: ViewTarget(table, dataflow.sink(v).id) for v, table in target_tables.items() if v in dataflow.views
            }
            how = (number, dataflow, active, inputs, seeds, stopped, fail, variant, targets, progress, pipelined_commit)
            with translate_jvm_errors():
                ran = run_on_spark(self._spark_environment(dataflow, new_operators), *how)
            entries = [e for e in ran.entries if keep_slots is None or e.slot in keep_slots]
            return BatchResult(ran.deltas, lambda: entries, ran.changes)
        return self.local_executor.run(
            BatchWork(
                number, dataflow, variant, hints, active, inputs, new_operators, keep_slots, seeds, fail, progress
            )
        )

    def _seeds(
        self, dataflow: Dataflow, new_operators: frozenset[str], on_error: Callable[[Operator, Exception], Exception]
    ) -> list[PortDelta]:
        """What operators are given at their first load, whatever their input."""
        found: list[PortDelta] = []
        for operator in (dataflow.operators[name] for name in new_operators):
            try:
                with attribute_errors(operator.id):
                    found += [(operator.id, *fed) for fed in operator.seed(self.statements)]
            except OperatorError as failed:
                raise on_error(operator, failed) from failed
        return found

    def _spark_environment(self, dataflow: Dataflow, new_operators: frozenset[str]) -> SparkEnvironment:
        from viewkeeper.runtime.spark.jobs import SentDataflows
        from viewkeeper.runtime.spark.scheduler import SparkEnvironment
        from viewkeeper.runtime.spark.sessions import is_single_machine, reachability_check

        hidden = frozenset(s for name in new_operators for s in slot_names(dataflow.operators[name]))
        session = self.spark()
        if self._sent_dataflows is None:
            self._sent_dataflows = SentDataflows()
        return SparkEnvironment(
            session,
            self._sent_dataflows,
            self.store.url,
            {s: r for s, r in self.state.manifest.runs.items() if s not in hidden},
            str(self.state.directory),
            self.durable,
            is_single_machine(session, self.store),
            self.statements,
            self.memory,
            self.pool.size,
            reachability_check(session, self.store),
        )


class _VariantFailure(Exception):
    """What is done for several views at once failed."""


def memory_inputs(deltas: Mapping[str, pa.Table]) -> dict[str, InputSource]:
    return {name: MemoryRows(delta) for name, delta in deltas.items()}


def _views_error(dataflow: Dataflow, names: Mapping[int, str], operator: Operator, error: Exception) -> Exception:
    """An operator's error or a contradiction, naming the views it stops; a fault of the process as it is."""
    if operator.retires_operators and not isinstance(error, PROCESS_FAULTS):
        return _VariantFailure()
    if isinstance(error, OperatorError):
        return broken_views(dataflow, names, error)
    views = dataflow.views_of(operator.id)
    stopped = ", ".join(sorted(names.get(v, "the new view") for v in views))
    if isinstance(error, OUT_OF_MEMORY_ERRORS):
        return out_of_memory_error(f"the {operator.kind} of {stopped}")
    return Contradicted(views, f"{stopped}: {error.message}") if isinstance(error, Contradiction) else error
