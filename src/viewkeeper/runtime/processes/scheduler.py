"""Other processes that take part in a batch: which part each has, and when they are worth it.

1  batches of a sort come again, and their operators take long enough: partners are started, in the background
2  the flow is divided by what its operators took (`plan.parts`), once for each set of tables that change
3  they rehearse the last batch, in the background: files are mapped, statements prepared
4  from then on it is one of the ways to run such a batch (`hands`)
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

# A flow in parts by its views: for processes that run one each.
#
#     part = some views, and every operator behind them
#
# What views of several parts need is in each of those, and each works it out for itself: arrangements of base tables,
# and lookups that views share. (Of the 22 TPC-H views in two parts that is a twentieth of all work.) The state of such
# an operator is kept by the first part that has it.


@dataclass(frozen=True)
class ViewPartition:
    """A flow of some of the views. `keeps`: the slots whose new runs count."""

    dataflow: Dataflow
    keep_slots: frozenset[str]


def partition_views(dataflow: Dataflow, operator_seconds: Mapping[str, float], count: int) -> tuple[ViewPartition, ...]:
    """So many parts that take about as long, by what operators took; fewer if there are fewer views.

    The views that take longest are dealt out first, each to the part that is then done soonest: one that has done most
    of what the view needs is.
    """

    def took(names: Set[str]) -> float:
        return sum(operator_seconds.get(name, 0.0) for name in names)

    behind = {view: dataflow.upstream(made.operators) for view, made in dataflow.views.items()}
    parts: list[set[str]] = [set() for _ in range(min(count, len(behind)))]
    views: list[list[int]] = [[] for _ in parts]
    each = {view: took(names) for view, names in behind.items()}
    sums = [0.0] * len(parts)
    for view in sorted(behind, key=lambda v: (-each[v], v)):
        after = [done + took(behind[view] - part) for done, part in zip(sums, parts, strict=True)]
        chosen = min(range(len(parts)), key=lambda i: (after[i], len(views[i]), i))
        parts[chosen] |= behind[view]
        views[chosen].append(view)
        sums[chosen] = after[chosen]
    if parts:  # what no view needs is kept for later ones
        parts[0] |= dataflow.upstream(dataflow.operators.keys() - set().union(*parts))
    found: list[ViewPartition] = []
    kept: set[str] = set()
    for names, mine in zip(parts, views, strict=True):
        one = _restrict_dataflow(dataflow, names, frozenset(mine))
        found.append(ViewPartition(one, frozenset(one.slots) - kept))
        kept |= one.slots.keys()
    return tuple(found)


def _restrict_dataflow(dataflow: Dataflow, operator_ids: Set[str], views: frozenset[int]) -> Dataflow:
    mine = {view: made for view, made in dataflow.views.items() if view in views}
    needed = Counter(name for made in mine.values() for name in made.operators)
    return replace(
        dataflow,
        operators={name: operator for name, operator in dataflow.operators.items() if name in operator_ids},
        views=mine,
        edges={
            name: [way for way in ways if way[0] in operator_ids]
            for name, ways in dataflow.edges.items()
            if name in operator_ids
        },
        images={table: [i for i in images if i.id in operator_ids] for table, images in dataflow.images.items()},
        slots={slot: name for slot, name in dataflow.slots.items() if name in operator_ids},
        usage=replace(dataflow.usage, operators=needed),
    )


T = TypeVar("T")

_MAX_PROCESSES = 4
"""Processes that run a batch at most, this one among them: each does again what views share."""
_MIN_OPERATOR_SECONDS = 0.05
"""Seconds of a batch's operators from which partners are worth their memory."""
_MIN_SIMILAR_BATCHES = 2
"""Batches alike, after which more of them are expected."""
_MAX_TIMED_BATCHES = 4
"""Batches whose operators' times are remembered."""
_COMPARED_BATCHES = 8
"""Batches whose parts are compared."""
_MAX_IMBALANCE = 1.4
"""How many times as long as another a part takes that is too large."""
_MAX_WORKLOADS = 8
"""Sets of tables that change together, whose divisions are remembered."""


@dataclass(frozen=True)
class ProcessPartition:
    """A part in the form in which a batch runs it, under the token by which a partner knows it."""

    partition: ViewPartition
    variant: Dataflow
    token: str


@dataclass
class _WorkloadPlan:
    """Batches of one flow that change the same tables: what its operators took, and how it is divided, if it is."""

    dataflow: Dataflow
    operator_times: list[Mapping[str, float]] = field(default_factory=list)
    partitions: Sequence[ProcessPartition] = ()
    partition_times: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds of everybody's part in the last batches."""

    @property
    def is_imbalanced(self) -> bool:
        """Whether one waits for another most of the time."""
        usual = [statistics.median(each) for each in zip(*self.partition_times, strict=True)]
        return len(self.partition_times) >= _COMPARED_BATCHES and max(usual) > _MAX_IMBALANCE * min(usual)


class ProcessScheduler:
    """The partners of one stage, over its state. `close` ends them."""

    def __init__(self, state: OpenState, threads: int, durable: bool, memory: MemoryBudget) -> None:
        self._state, self._durable, self._memory = state, durable, memory
        self._processes = ProcessPool(min(threads, _MAX_PROCESSES) - 1 if state.directory.is_local else 0)
        self._workloads: OrderedDict[tuple[frozenset[int], SharingHints], _WorkloadPlan] = OrderedDict()

    def close(self) -> None:
        self._processes.close()

    def ready_partitions(
        self, dataflow: Dataflow, changed_tables: frozenset[int], hints: SharingHints
    ) -> Sequence[ProcessPartition]:
        """Everybody's part of such a batch, this process's first, if all are ready for it; else none."""
        known = self._workloads.get((changed_tables, hints))
        if known is None or known.dataflow is not dataflow or len(known.partitions) < 2:
            return ()
        return (
            known.partitions
            if self._processes.poll() and self._processes.is_warm(_worker_tokens(known.partitions))
            else ()
        )

    def run(
        self,
        number: int,
        partitions: Sequence[ProcessPartition],
        inputs: Mapping[str, InputSource],
        own_work: Callable[[], T],
    ) -> tuple[T, list[WorkerResult]]:
        """What comes of this process's part, and of the others'. Alone if one of them did not do it."""
        ended = started = time.perf_counter()

        def timed() -> T:
            nonlocal ended
            found = own_work()
            ended = time.perf_counter()
            return found

        found, heard = self._processes.run(self._worker_tasks(number, partitions, inputs), timed)
        for known in self._workloads.values():
            if known.partitions is partitions:
                known.partition_times = [
                    *known.partition_times[1 - _COMPARED_BATCHES :],
                    (ended - started, *(h.response.seconds for h in heard)),
                ]
        return found, heard

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
        """A batch was run by this process alone, its operators took so long, and `seen` were like it."""
        if (
            not self._processes.count
            or batch_count < _MIN_SIMILAR_BATCHES
            or len(dataflow.views) < 2
            or sum(operator_seconds.values()) < _MIN_OPERATOR_SECONDS
        ):
            return
        self._processes.start()
        known = self._workload(dataflow, changed_tables, hints)
        known.operator_times = [*known.operator_times[1 - _MAX_TIMED_BATCHES :], operator_seconds]
        if len(known.operator_times) < _MIN_SIMILAR_BATCHES or not self._processes.poll():
            return
        if not known.partitions or known.is_imbalanced:
            known.partition_times = []
            parts = partition_views(dataflow, _fastest_times(known.operator_times), 1 + self._processes.count)
            if [p.keep_slots for p in parts] != [share.partition.keep_slots for share in known.partitions]:
                known.partitions = [
                    ProcessPartition(p, shared_variant(p.dataflow, changed_tables, hints), secrets.token_hex(8))
                    for p in parts
                ]
        if not self._processes.is_warm(_worker_tokens(known.partitions)):
            self._processes.warm_up(self._worker_tasks(number, known.partitions, inputs))

    def _workload(self, dataflow: Dataflow, changed_tables: frozenset[int], hints: SharingHints) -> _WorkloadPlan:
        known = self._workloads.get((changed_tables, hints))
        if known is None or known.dataflow is not dataflow:
            known = self._workloads[changed_tables, hints] = _WorkloadPlan(dataflow)
        self._workloads.move_to_end((changed_tables, hints))
        if len(self._workloads) > _MAX_WORKLOADS:
            self._workloads.popitem(last=False)
        return known

    def _worker_tasks(
        self, number: int, partitions: Sequence[ProcessPartition], inputs: Mapping[str, InputSource]
    ) -> list[WorkerTask]:
        runs = self._state.manifest.runs
        rows = {name: [g.table] for name, g in inputs.items() if isinstance(g, MemoryRows) and g.count}
        found = []
        for share in partitions[1:]:
            work = WorkerRequest(
                number=number,
                token=share.token,
                active=share.variant.batch_operators,
                manifest={slot: runs[slot] for slot in share.partition.dataflow.slots if slot in runs},
                keep_slots=share.partition.keep_slots,
                directory=str(self._state.directory),
                durable=self._durable,
                memory=self._memory.divide(len(partitions)).total,
            )
            found.append(
                WorkerTask(
                    work, share.variant, {n: tables for n, tables in rows.items() if n in share.variant.operators}
                )
            )
        return found


def _worker_tokens(partitions: Sequence[ProcessPartition]) -> list[str]:
    """Of the partners' shares."""
    return [share.token for share in partitions[1:]]


def _fastest_times(operator_times: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """What each operator took when nothing got in its way."""
    return {
        name: min(clock[name] for clock in operator_times if name in clock) for name in set().union(*operator_times)
    }
