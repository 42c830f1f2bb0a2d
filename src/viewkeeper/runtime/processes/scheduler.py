"""The process scheduler: divides the views among worker processes, and decides when these are worth their memory.

1  batches of a workload class recur, and their operators take long enough: worker processes are started, in the
   background
2  the views are partitioned by the measured times of their operators, once for each set of changed tables
3  warm-up: the processes run the last batch in the background, so that files are mapped and statements prepared
4  from then on the cost model may choose the worker processes for such a batch (`runtime.cost_model`)
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from viewkeeper.plan.dataflow.dataflow import Dataflow
from viewkeeper.plan.dataflow.shared_paths import shared_variant
from viewkeeper.plan.dataflow.sharing_hints import SharingHints
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.runtime.inputs import InputSource, MemoryRows
from viewkeeper.runtime.processes.pool import ProcessPool, WorkerResult, WorkerTask
from viewkeeper.runtime.processes.worker import WorkerRequest
from viewkeeper.state.open_state import OpenState

# View partitions: each process runs one.
#
#     partition = some views, and all operators upstream of them
#
# An operator that views of several partitions need belongs to each of these, and each process runs it: arrangements of
# base tables, and shared lookups. (With the 22 TPC-H views in two partitions that is a twentieth of all work.) The
# first partition that has the operator writes its state.


@dataclass(frozen=True)
class ViewPartition:
    """The dataflow of some of the views. `keep_slots`: the slots whose new runs this partition writes."""

    dataflow: Dataflow
    keep_slots: frozenset[str]


def partition_views(dataflow: Dataflow, operator_seconds: Mapping[str, float], count: int) -> tuple[ViewPartition, ...]:
    """Divide the views into `count` partitions of about equal time; fewer partitions if there are fewer views.

    Views are assigned in order of decreasing time, each to the partition with the least total time afterwards. A
    partition that has most of a view's operators already is preferred, because only the missing ones add time.
    """

    def total_seconds(names: Set[str]) -> float:
        return sum(operator_seconds.get(name, 0.0) for name in names)

    operators_by_view = {view: dataflow.upstream(compiled.operators) for view, compiled in dataflow.views.items()}
    operator_sets: list[set[str]] = [set() for _ in range(min(count, len(operators_by_view)))]
    views: list[list[int]] = [[] for _ in operator_sets]
    seconds_by_view = {view: total_seconds(names) for view, names in operators_by_view.items()}
    totals = [0.0] * len(operator_sets)
    for view in sorted(operators_by_view, key=lambda view_id: (-seconds_by_view[view_id], view_id)):
        new_totals = [
            total + total_seconds(operators_by_view[view] - assigned)
            for total, assigned in zip(totals, operator_sets, strict=True)
        ]
        chosen = min(range(len(operator_sets)), key=lambda number: (new_totals[number], len(views[number]), number))
        operator_sets[chosen] |= operators_by_view[view]
        views[chosen].append(view)
        totals[chosen] = new_totals[chosen]
    if operator_sets:  # operators that no view needs keep their state for later views
        operator_sets[0] |= dataflow.upstream(dataflow.operators.keys() - set().union(*operator_sets))
    partitions: list[ViewPartition] = []
    kept_slots: set[str] = set()
    for names, own_views in zip(operator_sets, views, strict=True):
        restricted = _restrict_dataflow(dataflow, names, frozenset(own_views))
        partitions.append(ViewPartition(restricted, frozenset(restricted.slots) - kept_slots))
        kept_slots |= restricted.slots.keys()
    return tuple(partitions)


def _restrict_dataflow(dataflow: Dataflow, operator_ids: Set[str], views: frozenset[int]) -> Dataflow:
    own_views = {view: compiled for view, compiled in dataflow.views.items() if view in views}
    needed = Counter(name for compiled in own_views.values() for name in compiled.operators)
    return replace(
        dataflow,
        operators={name: operator for name, operator in dataflow.operators.items() if name in operator_ids},
        views=own_views,
        edges={
            name: [edge for edge in edges if edge[0] in operator_ids]
            for name, edges in dataflow.edges.items()
            if name in operator_ids
        },
        images={
            table: [image for image in images if image.id in operator_ids] for table, images in dataflow.images.items()
        },
        slots={slot: name for slot, name in dataflow.slots.items() if name in operator_ids},
        usage=replace(dataflow.usage, operators=needed),
    )


T = TypeVar("T")

_MAX_PROCESSES = 4
"""Maximum number of processes for a batch, including this one: each repeats the shared work."""
_MIN_OPERATOR_SECONDS = 0.05
"""Operator seconds of a batch from which on worker processes are worth their memory."""
_MIN_SIMILAR_BATCHES = 2
"""Batches of a workload class after which more are expected."""
_MAX_TIMED_BATCHES = 4
"""Batches whose operator times are kept."""
_COMPARED_BATCHES = 8
"""Batches whose partition times are compared."""
_MAX_IMBALANCE = 1.4
"""Ratio of the longest to the shortest partition time from which on the views are partitioned anew."""
_MAX_WORKLOADS = 8
"""Workloads whose partitions are cached."""


@dataclass(frozen=True)
class ProcessPartition:
    """A view partition, the variant of its dataflow that batches run, and the token that identifies it to a worker."""

    partition: ViewPartition
    variant: Dataflow
    token: str


@dataclass
class _WorkloadPlan:
    """Operator times and partitions for batches of one dataflow that change the same tables."""

    dataflow: Dataflow
    operator_times: list[Mapping[str, float]] = field(default_factory=list)
    partitions: Sequence[ProcessPartition] = ()
    partition_times: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds of each partition in the last batches."""

    @property
    def is_imbalanced(self) -> bool:
        """Whether the median times of the partitions differ too much."""
        medians = [statistics.median(times) for times in zip(*self.partition_times, strict=True)]
        return len(self.partition_times) >= _COMPARED_BATCHES and max(medians) > _MAX_IMBALANCE * min(medians)


class ProcessScheduler:
    """Worker processes that each run a partition of the views against the same state. `close` terminates them."""

    def __init__(self, state: OpenState, threads: int, durable: bool, memory: MemoryBudget) -> None:
        self._state, self._durable, self._memory = state, durable, memory
        self._processes = ProcessPool(min(threads, _MAX_PROCESSES) - 1 if state.directory.is_local else 0)
        self._workloads: OrderedDict[tuple[frozenset[int], SharingHints], _WorkloadPlan] = OrderedDict()

    def close(self) -> None:
        self._processes.close()

    def ready_partitions(
        self, dataflow: Dataflow, changed_tables: frozenset[int], hints: SharingHints
    ) -> Sequence[ProcessPartition]:
        """Return the partitions for such a batch, this process's first, if all processes are ready; else none."""
        plan = self._workloads.get((changed_tables, hints))
        if plan is None or plan.dataflow is not dataflow or len(plan.partitions) < 2:
            return ()
        return (
            plan.partitions
            if self._processes.poll() and self._processes.is_warm(_worker_tokens(plan.partitions))
            else ()
        )

    def run(
        self,
        number: int,
        partitions: Sequence[ProcessPartition],
        inputs: Mapping[str, InputSource],
        own_work: Callable[[], T],
    ) -> tuple[T, list[WorkerResult]]:
        """Run a batch; return the results of this process's partition and of the worker processes.

        Raises SchedulerUnavailable if a worker process failed.
        """
        ended = started = time.perf_counter()

        def timed_work() -> T:
            nonlocal ended
            result = own_work()
            ended = time.perf_counter()
            return result

        result, worker_results = self._processes.run(self._worker_tasks(number, partitions, inputs), timed_work)
        for plan in self._workloads.values():
            if plan.partitions is partitions:
                plan.partition_times = [
                    *plan.partition_times[1 - _COMPARED_BATCHES :],
                    (ended - started, *(worker_result.response.seconds for worker_result in worker_results)),
                ]
        return result, worker_results

    def observe(
        self,
        number: int,
        dataflow: Dataflow,
        changed_tables: frozenset[int],
        hints: SharingHints,
        inputs: Mapping[str, InputSource],
        operator_seconds: Mapping[str, float],
        batch_count: int,
    ) -> None:
        """Record a batch that this process ran alone, the `batch_count`-th of its workload class.

        Starts the worker processes, partitions the views, or warms the processes up, whichever step is next.
        """
        if (
            not self._processes.count
            or batch_count < _MIN_SIMILAR_BATCHES
            or len(dataflow.views) < 2
            or sum(operator_seconds.values()) < _MIN_OPERATOR_SECONDS
        ):
            return
        self._processes.start()
        plan = self._workload(dataflow, changed_tables, hints)
        plan.operator_times = [*plan.operator_times[1 - _MAX_TIMED_BATCHES :], operator_seconds]
        if len(plan.operator_times) < _MIN_SIMILAR_BATCHES or not self._processes.poll():
            return
        if not plan.partitions or plan.is_imbalanced:
            plan.partition_times = []
            view_partitions = partition_views(dataflow, _fastest_times(plan.operator_times), 1 + self._processes.count)
            if [view_partition.keep_slots for view_partition in view_partitions] != [
                partition.partition.keep_slots for partition in plan.partitions
            ]:
                plan.partitions = [
                    ProcessPartition(
                        view_partition,
                        shared_variant(view_partition.dataflow, changed_tables, hints),
                        secrets.token_hex(8),
                    )
                    for view_partition in view_partitions
                ]
        if not self._processes.is_warm(_worker_tokens(plan.partitions)):
            self._processes.warm_up(self._worker_tasks(number, plan.partitions, inputs))

    def _workload(self, dataflow: Dataflow, changed_tables: frozenset[int], hints: SharingHints) -> _WorkloadPlan:
        plan = self._workloads.get((changed_tables, hints))
        if plan is None or plan.dataflow is not dataflow:
            plan = self._workloads[changed_tables, hints] = _WorkloadPlan(dataflow)
        self._workloads.move_to_end((changed_tables, hints))
        if len(self._workloads) > _MAX_WORKLOADS:
            self._workloads.popitem(last=False)
        return plan

    def _worker_tasks(
        self, number: int, partitions: Sequence[ProcessPartition], inputs: Mapping[str, InputSource]
    ) -> list[WorkerTask]:
        runs = self._state.manifest.runs
        rows = {
            name: [source.table] for name, source in inputs.items() if isinstance(source, MemoryRows) and source.count
        }
        tasks = []
        for partition in partitions[1:]:
            request = WorkerRequest(
                number=number,
                token=partition.token,
                active=partition.variant.batch_operators,
                manifest={slot: runs[slot] for slot in partition.partition.dataflow.slots if slot in runs},
                keep_slots=partition.partition.keep_slots,
                directory=str(self._state.directory),
                durable=self._durable,
                memory=self._memory.divide(len(partitions)).total,
            )
            tasks.append(
                WorkerTask(
                    request,
                    partition.variant,
                    {
                        input_name: tables
                        for input_name, tables in rows.items()
                        if input_name in partition.variant.operators
                    },
                )
            )
        return tasks


def _worker_tokens(partitions: Sequence[ProcessPartition]) -> list[str]:
    """Return the tokens of the worker processes' partitions."""
    return [partition.token for partition in partitions[1:]]


def _fastest_times(operator_times: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the minimum seconds of each operator, because disturbances only slow an operator down."""
    return {
        name: min(times[name] for times in operator_times if name in times) for name in set().union(*operator_times)
    }
