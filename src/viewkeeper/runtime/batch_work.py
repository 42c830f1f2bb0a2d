"""The driver lane: runs a batch's operators in this process with one thread or several, or with worker processes.

A backfill and a batch of many rows keep all cores busy inside DuckDB. Several threads help there only if a table has to
be sorted and written at the same time. A batch of many operators and few rows consists of many short calls; the
scheduler for such a batch is chosen by measured times (`runtime.cost_model.SchedulerCostModel`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import pyarrow as pa

from viewkeeper.capture.changes import MIN_PARALLEL_ROWS
from viewkeeper.plan.dataflow.dataflow import Dataflow, slot_names
from viewkeeper.plan.dataflow.sharing_hints import SharingHints
from viewkeeper.resources.duckdb_pool import DuckDBPool
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime.context import LocalContext, PortDelta
from viewkeeper.runtime.cost_model import ONE_THREAD, SEVERAL_PROCESSES, SEVERAL_THREADS, SchedulerCostModel
from viewkeeper.runtime.inputs import InputSource, MemoryRows
from viewkeeper.runtime.local.scheduler import OnError, run_operators
from viewkeeper.runtime.local.scheduler import has_parallel_work as operators_divide
from viewkeeper.runtime.processes.pool import SchedulerUnavailable
from viewkeeper.runtime.processes.scheduler import ProcessPartition, ProcessScheduler
from viewkeeper.state.open_state import OpenState
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import RunEntry
from viewkeeper.store.contract.store import StreamChange, ViewChange

_log = logging.getLogger("viewkeeper.batch")

_SEPARATE_FILE_ROWS = 1_000_000
"""A run of at least this many rows gets a file of its own, written as soon as the run exists, during the other work."""
_MIN_THREADED_ROWS = 200_000
"""From this many changed rows on, several threads run a batch if it has parallel work; single calls are long then."""
_FAILED_ATTEMPT_PENALTY = 4
"""A scheduler that failed and fell back to inline execution is recorded as this many times slower than the whole
attempt was, so that it is rarely retried."""


@dataclass(frozen=True)
class BatchResult:
    """The output of a batch's operators: deltas at the sinks, and the runs that they wrote."""

    deltas: Mapping[int, list[pa.Table]]
    wait_for_runs: Callable[[], list[RunEntry]]
    """Return the entries of the new runs once all of them are written to files."""
    changes: Sequence[ViewChange | StreamChange] = ()
    """Changes of views whose deltas Spark tasks have already resolved to upserts."""

    @cached_property
    def entries(self) -> list[RunEntry]:
        return self.wait_for_runs()


@dataclass(frozen=True)
class BatchWork:
    """What a batch runs.

    `variant` is the dataflow with the paths of different views shared, if there is one. `new_operators` have no state
    yet. If `keep_slots` is set, new runs of other slots are dropped.
    """

    number: int
    dataflow: Dataflow
    variant: Dataflow | None
    hints: SharingHints
    active: frozenset[str]
    inputs: Mapping[str, InputSource]
    new_operators: frozenset[str]
    keep_slots: frozenset[str] | None
    seeds: Iterable[PortDelta]
    on_error: OnError
    progress: Callable[[int, int], None] | None

    @cached_property
    def row_count(self) -> int:
        return sum(source.table.num_rows for source in self.inputs.values() if isinstance(source, MemoryRows))

    @cached_property
    def changed_tables(self) -> frozenset[int]:
        """The base tables with changes in this batch."""
        tables = (self.dataflow.operators[name].input_table for name, rows in self.inputs.items() if rows.count != 0)
        return frozenset(table for table in tables if table is not None)

    @cached_property
    def hidden_slots(self) -> frozenset[str]:
        return frozenset(s for name in self.new_operators for s in slot_names(self.dataflow.operators[name]))

    @property
    def has_parallel_work(self) -> bool:
        """Whether several threads can work at the same time."""
        if self.new_operators:
            return _is_arrange_bound(self.dataflow, self.active & self.new_operators)
        return operators_divide(self.active) or (self.row_count >= _SEPARATE_FILE_ROWS and self._has_arrange_work)

    @property
    def _has_arrange_work(self) -> bool:
        """Whether an active operator is an arrangement of a changed table."""
        return not self.changed_tables.isdisjoint(self.dataflow.operators[name].arranged_table for name in self.active)

    @property
    def is_small(self) -> bool:
        return not self.new_operators and self.row_count < MIN_PARALLEL_ROWS


@dataclass(frozen=True)
class _LocalWork:
    """The part of the batch work that this process runs: a dataflow (whole or a view partition) and its inputs."""

    dataflow: Dataflow
    active: frozenset[str]
    inputs: Mapping[str, InputSource]
    keep_slots: frozenset[str] | None
    memory: MemoryBudget


class LocalExecutor:
    """Runs batch work over an open state. `close` terminates the worker processes."""

    def __init__(self, state: OpenState, pool: DuckDBPool, memory: MemoryBudget, durable: bool) -> None:
        self._state, self._pool, self._memory, self._durable = state, pool, memory, durable
        self._scheduler_costs = SchedulerCostModel()
        self._warned: set[str] = set()
        self._process_scheduler = ProcessScheduler(state, pool.size, durable, memory)
        self.operator_seconds: Mapping[str, float] = {}
        """Seconds by operator, of the last run."""
        self.output_rows: Mapping[str, int] = {}
        """Output rows by operator, of the last run."""
        self.skipped: Mapping[str, int] = {}
        """Rows by operator that its lookups skipped by semijoin reduction, in the last run."""
        self.scheduler_name = ""
        """The scheduler of the last run; empty if there was no choice."""

    def close(self) -> None:
        self._process_scheduler.close()

    def run(self, work: BatchWork) -> BatchResult:
        dataflow = work.variant or work.dataflow
        active = work.active if work.variant is None else dataflow.batch_operators
        is_parallel = work.has_parallel_work
        statements = self._pool.use_all()[0] if is_parallel else self._pool.use_primary(1 if work.is_small else None)
        self.scheduler_name = ""
        local_work = _LocalWork(dataflow, active, work.inputs, work.keep_slots, self._memory)
        if work.new_operators or work.row_count >= _MIN_THREADED_ROWS or not is_parallel or self._pool.size == 1:
            return self._run_locally(work, local_work, statements, is_parallel)
        workload = (work.changed_tables, dataflow.is_variant, work.row_count.bit_length())
        is_shared = work.variant is not None and work.keep_slots is None
        partition_key = (work.dataflow, work.changed_tables, work.hints)
        partitions = self._process_scheduler.ready_partitions(*partition_key) if is_shared else ()
        self.scheduler_name = self._scheduler_costs.choose(
            workload, (SEVERAL_THREADS, ONE_THREAD, *((SEVERAL_PROCESSES,) if partitions else ()))
        )
        started = time.perf_counter()
        attempted = self.scheduler_name
        if attempted == SEVERAL_PROCESSES:
            try:
                result = self._run_with_processes(work, partitions, statements)
                self._scheduler_costs.observe(workload, attempted, work.row_count, time.perf_counter() - started)
                return result
            except SchedulerUnavailable as failure:
                self.scheduler_name = ONE_THREAD
                self._warn(f"A batch was run without its partners: {failure}")
        result = self._run_locally(work, local_work, statements, self.scheduler_name == SEVERAL_THREADS)
        seconds = time.perf_counter() - started
        self._scheduler_costs.observe(
            workload,
            attempted,
            work.row_count,
            seconds if attempted == self.scheduler_name else _FAILED_ATTEMPT_PENALTY * seconds,
        )
        if is_shared:
            try:
                self._process_scheduler.observe(
                    work.number,
                    *partition_key,
                    work.inputs,
                    self.operator_seconds,
                    self._scheduler_costs.batch_count(workload),
                )
            except Exception as error:  # the batch does not depend on the worker processes
                self._warn(f"Partners could not be made ready: {type(error).__name__}: {error}")
        return result

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _run_with_processes(
        self, work: BatchWork, partitions: Sequence[ProcessPartition], statements: PreparedStatements
    ) -> BatchResult:
        variant, partition = partitions[0].variant, partitions[0].partition
        inputs = {name: rows for name, rows in work.inputs.items() if name in variant.operators}
        local_work = _LocalWork(
            variant, variant.batch_operators, inputs, partition.keep_slots, self._memory.divide(len(partitions))
        )
        run = partial(self._run_locally, work, local_work, statements, False)
        result, worker_results = self._process_scheduler.run(work.number, partitions, work.inputs, run)
        deltas = dict(result.deltas)
        seconds, output_rows, skipped = Counter(self.operator_seconds), dict(self.output_rows), dict(self.skipped)
        for worker_partition, (worker_result, rows) in zip(partitions[1:], worker_results, strict=True):
            deltas |= rows
            seconds.update(_attribute_seconds(worker_partition.variant, worker_result.operator_seconds))
            # An operator that belongs to several partitions has the same count in each of them.
            output_rows |= {
                name: max(count, output_rows.get(name, 0)) for name, count in worker_result.output_rows.items()
            }
            skipped |= {name: max(count, skipped.get(name, 0)) for name, count in worker_result.skipped.items()}
        self.operator_seconds, self.output_rows, self.skipped = seconds, output_rows, skipped
        entries = [entry for worker_result, _ in worker_results for entry in worker_result.entries]
        return BatchResult(deltas, lambda: [*result.entries, *entries])

    def _run_locally(
        self, work: BatchWork, local_work: _LocalWork, statements: PreparedStatements, threaded: bool
    ) -> BatchResult:
        """Run this process's part with one thread, or with the pool if `threaded`."""
        written: dict[str, list[RunEntry]] = {}
        keep_slots = local_work.keep_slots

        def persist_run(slot: str, run: Run) -> Run:
            if run.num_rows < _SEPARATE_FILE_ROWS or (keep_slots is not None and slot not in keep_slots):
                return run
            written[slot] = self._state.write(work.number, {slot: run}, self._durable)
            # In an object store a long run is written in pieces; operators then continue with the run in memory.
            return self._state.open_written(written[slot][0]) if len(written[slot]) == 1 else run

        context = LocalContext(
            statements,
            local_work.dataflow,
            partial(self._old_arrangement, work.hidden_slots),
            local_work.active,
            local_work.memory,
            persist_run,
        )
        if work.progress is not None:
            context.progress = work.progress
        deltas = run_operators(context, local_work.inputs, work.seeds, work.on_error, self._pool if threaded else None)
        self.operator_seconds, self.output_rows, self.skipped = (
            _attribute_seconds(local_work.dataflow, context.operator_seconds),
            context.output_rows,
            context.skipped,
        )
        remaining_runs = {
            s: run
            for s, run in context.new_runs.items()
            if s not in written and (keep_slots is None or s in keep_slots)
        }
        write = partial(self._state.write, work.number, remaining_runs, self._durable)
        in_background = remaining_runs and work.has_parallel_work and not work.is_small
        wait_for_remaining = self._pool.run_in_background(write) if in_background else partial(list, write())
        return BatchResult(deltas, lambda: [*chain.from_iterable(written.values()), *wait_for_remaining()])

    def _old_arrangement(self, hidden_slots: frozenset[str], slot: str) -> Arrangement:
        return Arrangement(()) if slot in hidden_slots else self._state.arrangement(slot)


def _attribute_seconds(dataflow: Dataflow, operator_seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds by operator; those of a shared operator are divided equally among the operators that it retires."""
    seconds_by_name = {
        name: seconds for name, seconds in operator_seconds.items() if not dataflow.operators[name].retires_operators
    }
    for name in operator_seconds.keys() - seconds_by_name.keys():
        retired = dataflow.operators[name].retired_operators
        for retired_name in retired:
            seconds_by_name[retired_name] = seconds_by_name.get(retired_name, 0.0) + operator_seconds[name] / len(
                retired
            )
    return seconds_by_name


def _is_arrange_bound(dataflow: Dataflow, names: frozenset[str]) -> bool:
    """Whether a backfill has tables to arrange, and no load-only join, which keeps all cores busy by itself."""
    loaded = [dataflow.operators[name] for name in names]
    return any(operator.arranged_table is not None for operator in loaded) and not any(
        operator.is_load_only for operator in loaded
    )
