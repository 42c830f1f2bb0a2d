"""The driver lane of a stage: rounds in this process, by one thread or several, or with partners beside it.

A first load and a batch of many rows keep all cores busy inside DuckDB, unless there is a table to sort and to write
beside that. A batch of many operators has many short calls: who runs them is a choice (`hands`, `company`).
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
"""A run of so many rows has a file of its own and is written as soon as it is made, beside the work that goes on."""
_MIN_THREADED_ROWS = 200_000
"""Changes from which several threads run a batch's operators in any case: their calls are long."""
_FAILED_ATTEMPT_PENALTY = 4
"""How much worse than the time that it took a way is that led nowhere: so it is seldom tried again."""


@dataclass(frozen=True)
class BatchResult:
    """What the rounds of a batch left: deltas at the sinks, and the runs they wrote."""

    deltas: Mapping[int, list[pa.Table]]
    wait_for_runs: Callable[[], list[RunEntry]]
    """The runs, when they are in their files."""
    changes: Sequence[ViewChange | StreamChange] = ()
    """Of views whose deltas tasks have resolved already."""

    @cached_property
    def entries(self) -> list[RunEntry]:
        return self.wait_for_runs()


@dataclass(frozen=True)
class BatchWork:
    """What is to run. `together`: the flow with the paths of different views made together, if they are; `new`
    operators have no state yet; with `only`, runs of other slots than these are not kept."""

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
        return sum(g.table.num_rows for g in self.inputs.values() if isinstance(g, MemoryRows))

    @cached_property
    def changed_tables(self) -> frozenset[int]:
        """Those that changed."""
        found = (self.dataflow.operators[name].input_table for name, rows in self.inputs.items() if rows.count != 0)
        return frozenset(table for table in found if table is not None)

    @cached_property
    def hidden_slots(self) -> frozenset[str]:
        return frozenset(s for name in self.new_operators for s in slot_names(self.dataflow.operators[name]))

    @property
    def has_parallel_work(self) -> bool:
        """Whether there is work for several side by side."""
        if self.new_operators:
            return _is_arrange_bound(self.dataflow, self.active & self.new_operators)
        return operators_divide(self.active) or (self.row_count >= _SEPARATE_FILE_ROWS and self._has_arrange_work)

    @property
    def _has_arrange_work(self) -> bool:
        """Whether a table that has changes is arranged by one of the operators."""
        return not self.changed_tables.isdisjoint(self.dataflow.operators[name].arranged_table for name in self.active)

    @property
    def is_small(self) -> bool:
        return not self.new_operators and self.row_count < MIN_PARALLEL_ROWS


@dataclass(frozen=True)
class _LocalWork:
    """What of the rounds this process runs: a form of the flow or of a part, with the rows for it."""

    dataflow: Dataflow
    active: frozenset[str]
    inputs: Mapping[str, InputSource]
    keep_slots: frozenset[str] | None
    memory: MemoryBudget


class LocalExecutor:
    """Runs rounds over a state. `close` ends the processes beside this one."""

    def __init__(self, state: OpenState, pool: DuckDBPool, memory: MemoryBudget, durable: bool) -> None:
        self._state, self._pool, self._memory, self._durable = state, pool, memory, durable
        self._scheduler_costs = SchedulerCostModel()
        self._warned: set[str] = set()
        self._process_scheduler = ProcessScheduler(state, pool.size, durable, memory)
        self.operator_seconds: Mapping[str, float] = {}
        """Seconds of the last run, by operator."""
        self.output_rows: Mapping[str, int] = {}
        """Rows that it gave, by operator."""
        self.skipped: Mapping[str, int] = {}
        """Rows that its lookups did not make, since they lead nowhere."""
        self.scheduler_name = ""
        """Who ran it, if there was a choice."""

    def close(self) -> None:
        self._process_scheduler.close()

    def run(self, work: BatchWork) -> BatchResult:
        form = work.variant or work.dataflow
        active = work.active if work.variant is None else form.batch_operators
        divides = work.has_parallel_work
        duck = self._pool.use_all()[0] if divides else self._pool.use_primary(1 if work.is_small else None)
        self.scheduler_name = ""
        whole = _LocalWork(form, active, work.inputs, work.keep_slots, self._memory)
        if work.new_operators or work.row_count >= _MIN_THREADED_ROWS or not divides or self._pool.size == 1:
            return self._run_locally(work, whole, duck, divides)
        sort = (work.changed_tables, form.is_variant, work.row_count.bit_length())
        is_shared = work.variant is not None and work.keep_slots is None
        kind = (work.dataflow, work.changed_tables, work.hints)
        shares = self._process_scheduler.ready_partitions(*kind) if is_shared else ()
        self.scheduler_name = self._scheduler_costs.choose(
            sort, (SEVERAL_THREADS, ONE_THREAD, *((SEVERAL_PROCESSES,) if shares else ()))
        )
        started = time.perf_counter()
        tried = self.scheduler_name
        if tried == SEVERAL_PROCESSES:
            try:
                found = self._run_with_processes(work, shares, duck)
                self._scheduler_costs.observe(sort, tried, work.row_count, time.perf_counter() - started)
                return found
            except SchedulerUnavailable as failed:
                self.scheduler_name = ONE_THREAD
                self._warn(f"A batch was run without its partners: {failed}")
        found = self._run_locally(work, whole, duck, self.scheduler_name == SEVERAL_THREADS)
        seconds = time.perf_counter() - started
        self._scheduler_costs.observe(
            sort, tried, work.row_count, seconds if tried == self.scheduler_name else _FAILED_ATTEMPT_PENALTY * seconds
        )
        if is_shared:
            try:
                self._process_scheduler.observe(
                    work.number, *kind, work.inputs, self.operator_seconds, self._scheduler_costs.batch_count(sort)
                )
            except Exception as error:  # the batch is right without them
                self._warn(f"Partners could not be made ready: {type(error).__name__}: {error}")
        return found

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _run_with_processes(
        self, work: BatchWork, partitions: Sequence[ProcessPartition], statements: PreparedStatements
    ) -> BatchResult:
        form, part = partitions[0].variant, partitions[0].partition
        given = {name: rows for name, rows in work.inputs.items() if name in form.operators}
        mine = _LocalWork(form, form.batch_operators, given, part.keep_slots, self._memory.divide(len(partitions)))
        run = partial(self._run_locally, work, mine, statements, False)
        found, heard = self._process_scheduler.run(work.number, partitions, work.inputs, run)
        reached = dict(found.deltas)
        clock, made, skipped = Counter(self.operator_seconds), dict(self.output_rows), dict(self.skipped)
        for share, (done, rows) in zip(partitions[1:], heard, strict=True):
            reached |= rows
            clock.update(_attribute_seconds(share.variant, done.operator_seconds))
            # What several parts work out, each gives alike.
            made |= {name: max(count, made.get(name, 0)) for name, count in done.output_rows.items()}
            skipped |= {name: max(count, skipped.get(name, 0)) for name, count in done.skipped.items()}
        self.operator_seconds, self.output_rows, self.skipped = clock, made, skipped
        entries = [entry for done, _ in heard for entry in done.entries]
        return BatchResult(reached, lambda: [*found.entries, *entries])

    def _run_locally(
        self, work: BatchWork, local_work: _LocalWork, statements: PreparedStatements, threaded: bool
    ) -> BatchResult:
        """What this process runs, by one thread or several."""
        written: dict[str, list[RunEntry]] = {}
        only = local_work.keep_slots

        def keep(slot: str, run: Run) -> Run:
            if run.num_rows < _SEPARATE_FILE_ROWS or (only is not None and slot not in only):
                return run
            written[slot] = self._state.write(work.number, {slot: run}, self._durable)
            # Behind a URL a long run is written in pieces; whoever goes on with it has it as it is.
            return self._state.open_written(written[slot][0]) if len(written[slot]) == 1 else run

        site = LocalContext(
            statements,
            local_work.dataflow,
            partial(self._old_arrangement, work.hidden_slots),
            local_work.active,
            local_work.memory,
            keep,
        )
        if work.progress is not None:
            site.progress = work.progress
        reached = run_operators(site, local_work.inputs, work.seeds, work.on_error, self._pool if threaded else None)
        self.operator_seconds, self.output_rows, self.skipped = (
            _attribute_seconds(local_work.dataflow, site.operator_seconds),
            site.output_rows,
            site.skipped,
        )
        left = {s: run for s, run in site.new_runs.items() if s not in written and (only is None or s in only)}
        write = partial(self._state.write, work.number, left, self._durable)
        beside = left and work.has_parallel_work and not work.is_small
        rest = self._pool.run_in_background(write) if beside else partial(list, write())
        return BatchResult(reached, lambda: [*chain.from_iterable(written.values()), *rest()])

    def _old_arrangement(self, hidden_slots: frozenset[str], slot: str) -> Arrangement:
        return Arrangement(()) if slot in hidden_slots else self._state.arrangement(slot)


def _attribute_seconds(dataflow: Dataflow, operator_seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds by operator: those of one that stands for others are theirs, in equal parts."""
    found = {
        name: seconds for name, seconds in operator_seconds.items() if not dataflow.operators[name].retires_operators
    }
    for name in operator_seconds.keys() - found.keys():
        others = dataflow.operators[name].retired_operators
        for other in others:
            found[other] = found.get(other, 0.0) + operator_seconds[name] / len(others)
    return found


def _is_arrange_bound(dataflow: Dataflow, names: frozenset[str]) -> bool:
    """Whether a load has tables to arrange, and no join that keeps all cores busy by itself."""
    loaded = [dataflow.operators[name] for name in names]
    return any(o.arranged_table is not None for o in loaded) and not any(o.is_load_only for o in loaded)
