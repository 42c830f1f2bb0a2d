"""Placement of operators in a Spark job: decided for each batch from the changes and the sizes of the state.

*Live* operators are those that rows can reach in this batch; only they form rounds. A lookup is *co-located* with its
source (no exchange between them) if every task can read the whole arrangement in the state that the lookup needs:

    old state   the runs that the manifest lists, if they are small or on the tasks' own machine (`single_machine`)
    new state   the same, if no row reaches the arrangement, or if the driver arranges its few changes itself

A lookup that is not co-located may be *skew-balanced*: every task can read published runs, so if no new rows are
needed, the rows of a hot key are distributed over all tasks instead of being sent to the task that owns the key. The
same holds for changes of a base table that no operator looks up in new state in this batch, because any run may contain
them. (Groups are pre-aggregated before the exchange.)

A base table's changes are co-located too if all tasks run on one machine and no operator looks them up in new state:
each task then writes a run of its split of the changes, not of its range of hashes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.errors import CorruptState
from viewkeeper.model.names import HASH
from viewkeeper.operators.operator import Operator, slot_names
from viewkeeper.plan.dataflow.dataflow import SlotSizes, assign_rounds, is_broadcast
from viewkeeper.runtime.context import LocalContext, PortDelta
from viewkeeper.runtime.inputs import InputSource, LogRange, MemoryRows, is_empty
from viewkeeper.runtime.operator_errors import OperatorError
from viewkeeper.runtime.spark.sessions import machine_name
from viewkeeper.state.run import Run, arrange

MAX_DRIVER_ROWS = 65_536
"""Up to this many changes of a table, the driver arranges them for all tasks."""

ROWS_PER_TASK = 100_000
"""Up to this many changed rows, a batch is one task: divided, statements and stages would cost more than the rows."""
_TASKS_PER_SLOT, _MIN_TASK_FILL = 3, 2.5
"""Maximum number of tasks for each slot, so that a slow or late slot runs fewer of them.

There is one task less for each slot if a task would have less than `_MIN_TASK_FILL` times the rows that are worth a
task: its overhead would be an eighth of its time.
"""
_ROWS_PER_TASK_SETTING = "spark.viewkeeper.rowsPerTask"
_SMALL_ROUND_BYTES = 32 << 20
"""Up to this many received bytes for each slot, a later round has as many tasks as slots."""


def count_tasks(inputs: Mapping[str, InputSource], task_slots: int, spark: Any, fine_grained: bool = False) -> int:
    """Return the number of tasks of a batch's first round; one for each slot if the number of rows is unknown.

    `fine_grained`: the driver applies the output of each task while others run, so more tasks are better.
    """
    counts = [source.count for source in inputs.values()]
    if None in counts:
        return task_slots
    rows = sum(count or 0 for count in counts)
    rows_per_task = max(1, int(spark.sparkContext.getConf().get(_ROWS_PER_TASK_SETTING) or ROWS_PER_TASK))
    max_tasks = _TASKS_PER_SLOT * task_slots
    return min(
        max(1, -(-rows // rows_per_task)),
        max_tasks if fine_grained or rows >= _MIN_TASK_FILL * rows_per_task * max_tasks else max_tasks - task_slots,
    )


def count_later_tasks(partitions: int, task_slots: int, received_bytes: float | None) -> int:
    """Return the number of tasks of each later round.

    `received_bytes` is the estimate for the busiest of these rounds; None if it is unknown.

    A task costs about as much as aggregating a million rows, and a later round often receives only such sums. If it
    receives little, there is one task for each slot. There are never fewer, because the estimate is from the last batch
    and this one may have more.
    """
    return (
        partitions
        if received_bytes is None or received_bytes > task_slots * _SMALL_ROUND_BYTES
        else min(partitions, task_slots)
    )


@dataclass(frozen=True)
class Placement:
    """The placement of a batch's operators.

    `rounds` contains the live operators; `co_located` those that need no exchange; `skew_balanced` those whose rows any
    task may process; `driver_runs` the runs that the driver has arranged.
    """

    rounds: Mapping[str, int]
    co_located: frozenset[str]
    skew_balanced: frozenset[str]
    driver_runs: Mapping[str, Run]
    inputs: Mapping[str, InputSource]
    consolidated: frozenset[str]
    """Sources whose splits may contain a key several times: they need another round, which consolidates them by key."""


def plan_placement(
    context: LocalContext,
    inputs: Mapping[str, InputSource],
    seeds: Iterable[PortDelta],
    sizes: SlotSizes,
    single_machine: bool,
) -> Placement:
    """Decide the placement. `context` is the driver's; `sizes` is the published state without new operators."""
    dataflow = context.dataflow
    inputs = {n: _in_memory(context, g) if is_driver_sized(g) else g for n, g in inputs.items()}
    starting = [n for n, g in inputs.items() if not is_empty(g)]
    live = dataflow.reachable([*starting, *(consumer for consumer, _, _ in seeds)], context.active)
    driver_runs: dict[str, Run] = {}
    for name, source in inputs.items():
        operator = dataflow.operators[name]
        if operator.is_source and isinstance(source, MemoryRows) and is_driver_sized(source):
            deltas = context.feed_images(operator, source.table)
            driver_runs |= {slot_names(dataflow.operators[image])[0]: arrange(delta) for image, _, delta in deltas}

    def is_co_located(lookup: Operator, name: str) -> bool:
        slot = slot_names(dataflow.operators[name])[0]
        if (
            not single_machine
            and not is_broadcast(dataflow, name, sizes)
            and not (slot in driver_runs and slot not in sizes)
        ):
            return False
        return is_known(lookup, name)

    def is_known(lookup: Operator, name: str) -> bool:
        """Whether the state that the lookup needs is published, or sent to every task by the driver."""
        return (
            name not in lookup.new_state_lookups
            or name not in live
            or slot_names(dataflow.operators[name])[0] in driver_runs
        )

    new_state_lookups = {a for n in live for a in dataflow.operators[n].new_state_lookups}
    co_located = frozenset(
        n
        for n in live
        if (
            (o := dataflow.operators[n]).probed_arrangements and all(is_co_located(o, a) for a in o.probed_arrangements)
        )
        or (o.arranged_table is not None and single_machine and n not in new_state_lookups)
    )
    skew_balanced = frozenset(
        n
        for n in live - co_located
        if ((o := dataflow.operators[n]).lookup is not None and all(is_known(o, a) for a in o.probed_arrangements))
        or (o.arranged_table is not None and n not in new_state_lookups)
    )
    consolidated = frozenset(n for n, g in inputs.items() if isinstance(g, LogRange) and g.has_several_calls)
    changed_tables = (dataflow.operators[n].input_table for n in consolidated)
    delayed = consolidated.union(i.id for t in changed_tables if t is not None for i in dataflow.images.get(t, ()))
    return Placement(
        assign_rounds(dataflow, co_located, live, delayed), co_located, skew_balanced, driver_runs, inputs, consolidated
    )


def is_driver_sized(source: InputSource) -> bool:
    """Whether these rows are few enough to be processed by the driver."""
    return source.count is not None and source.count <= MAX_DRIVER_ROWS


def _in_memory(context: LocalContext, source: InputSource) -> InputSource:
    return source if isinstance(source, MemoryRows) else MemoryRows(source.read(context.statements, context.memory))


# Messages between the tasks of a batch, and to the driver, are tuples (dest, node, port, payload):
#
# dest     the task that owns the rows' range of hashes
# node     the receiving operator; `+slot`: new rows of an arrangement, carried to a later lookup;
#          `=source`: changes of a table, to be consolidated by key before the first expression is evaluated;
#          `!…`: a message to the driver
# port     the operator's port; for rows at a sink the view id
# payload  an Arrow IPC stream of a few MB, or JSON


SINK_ROWS, STAGED_ROWS, STAGED_CHANGES = "!sink", "!staged", "!changed"
"""Rows of a view: as a payload; the location of staged rows; the locations of staged upserts and tombstones."""
NEW_RUNS, OPERATOR_ERROR, CORRUPT_STATE, STATE_UNREACHABLE = "!runs", "!error", "!damaged", "!elsewhere"
RECEIVED_BYTES = "!arrived"
"""The number of bytes that a task of a later round has received; the port is the round."""

_PARTITION_BITS = 16
"""Bits of the hash that determine the task."""

_HOT_ROWS = 1_024
_HOT_SHARE = 16
"""A hash is hot if it has more than `_HOT_ROWS` routed rows, and more than 1/`_HOT_SHARE` of a task's fair share."""

_PAYLOAD_ROWS = 65_536
"""Rows in one payload: a few MB, so that a shuffle block stays small."""

Message = tuple[int, str, int, bytes]


def route_rows(
    consumer: str, port: int, delta: pa.Table, partitions: int, balance_hot_keys: bool = False
) -> Iterator[Message]:
    """Split rows by the task that owns their hash; a delta without rows (a seed) is sent to the first task.

    `balance_hot_keys`: any task can process any row, so the rows of a hot hash are distributed over all tasks.
    """
    hashes = delta[HASH].to_numpy()
    dest = ((hashes >> np.uint64(64 - _PARTITION_BITS)) * np.uint64(partitions) >> np.uint64(_PARTITION_BITS)).astype(
        np.int64
    )
    if balance_hot_keys and partitions > 1 and len(hashes) > _HOT_ROWS:
        _distribute_hot_keys(hashes, dest, partitions)
    order = np.argsort(dest, kind="stable")
    bounds = np.searchsorted(dest[order], np.arange(partitions + 1))
    rows = delta.take(pa.array(order)) if partitions > 1 else delta
    for partition, (low, high) in enumerate(pairwise(bounds)):
        if high > low or (partition == 0 and not len(hashes)):
            yield from ((partition, consumer, port, p) for p in encode_payloads(rows.slice(low, high - low)))


def _distribute_hot_keys(hashes: npt.NDArray[np.uint64], dest: npt.NDArray[np.int64], partitions: int) -> None:
    """Assign rows of hot hashes to tasks in turn. Only a task with more than its fair share can have a hot hash."""
    fair = len(hashes) / partitions
    candidates = np.flatnonzero((np.bincount(dest, minlength=partitions) > fair)[dest])
    _, inverse, counts = np.unique(hashes[candidates], return_inverse=True, return_counts=True)
    hot = candidates[(counts > max(_HOT_ROWS, fair / _HOT_SHARE))[inverse]]
    dest[hot] = np.arange(len(hot)) % partitions


def encode_payloads(table: pa.Table) -> Iterator[bytes]:
    for start in range(0, max(table.num_rows, 1), _PAYLOAD_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(start, _PAYLOAD_ROWS).combine_chunks())
        yield sink.getvalue().to_pybytes()


def decode_payload(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def received_bytes_message(round_number: int, size: int) -> Message:
    """Return the message with the number of bytes that this task has received."""
    return 0, RECEIVED_BYTES, round_number, str(size).encode()


def task_of(partition: int, partitions: int, tasks: int) -> int:
    """Return the task of a partition in a round with fewer tasks than partitions; a task has consecutive partitions."""
    return partition * tasks // partitions


def first_partition(task: int, partitions: int, tasks: int) -> int:
    """Return the first partition of such a task."""
    return -(-task * partitions // tasks)


def corrupt_state_message(operator: str, damage: CorruptState) -> Message:
    """Return the message about damaged state of an operator, which a retry would not repair."""
    content = {"kind": type(damage).__name__, "message": damage.message, "hint": damage.hint, "operator": operator}
    return 0, CORRUPT_STATE, 0, json.dumps(content).encode()


def state_unreachable_message() -> Message:
    """Return the message that this task runs on a machine that cannot reach the state."""
    return 0, STATE_UNREACHABLE, 0, machine_name().encode()


def operator_error_message(error: OperatorError) -> Message:
    """Return the message about an operator's error."""
    members = [(m.parameters, m.key.hex(), m.message) for m in error.members]
    content = {"operator": error.operator, "message": error.message, "members": members}
    return 0, OPERATOR_ERROR, 0, json.dumps(content).encode()
