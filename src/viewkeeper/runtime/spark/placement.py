"""Where a Spark job's operators run: decided anew for each batch, from what changes and how large the state is.

*Live* operators are those that anything can reach in this batch; only they make rounds. A lookup *stays* where its
source ran (`plan.levels`) if every task can read the whole arrangement in the state that the lookup wants:

    its old state     the runs that the manifest lists, if they are few bytes or on the tasks' own machine (`near`)
    its fresh state   the same, if nothing reaches the arrangement, or if the driver arranges its few changes itself

A lookup that does not stay may still be *spread*: published runs can be read by any task, so where no fresh rows are
needed, those of a hot key are dealt out instead of all going to the task that owns it. So are changes of a base table
that none looks up in this batch: a run may have any of them. (Groups are summed up before they travel.)

A base table's changes stay too if all tasks are near and none looks them up in this batch: each task then leaves a run
of its share of the changes, not of the hashes.
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
"""Changes of a table up to which the driver arranges them, for all tasks."""

ROWS_PER_TASK = 100_000
"""Changed rows up to which a batch is one task: divided, its statements and stages would cost more than its rows."""
_TASKS_PER_SLOT, _MIN_TASK_FILL = 3, 2.5
"""Tasks for each that can run at once, at most: so that what is slow, or comes later, finds its share of the work. One
fewer if each would have less than so many times the rows that are worth a task: it would be an eighth of its time."""
_ROWS_PER_TASK_SETTING = "spark.viewkeeper.rowsPerTask"
_SMALL_ROUND_BYTES = 32 << 20
"""Bytes for each slot up to which a later round has no more tasks than slots."""


def count_tasks(inputs: Mapping[str, InputSource], task_slots: int, spark: Any, fine_grained: bool = False) -> int:
    """How many tasks a batch is divided into; as many as run at once if nobody knows how many rows it has. `finely`:
    the driver has to do with what each leaves."""
    counts = [g.count for g in inputs.values()]
    if None in counts:
        return task_slots
    rows = sum(c or 0 for c in counts)
    each = max(1, int(spark.sparkContext.getConf().get(_ROWS_PER_TASK_SETTING) or ROWS_PER_TASK))
    most = _TASKS_PER_SLOT * task_slots
    return min(
        max(1, -(-rows // each)), most if fine_grained or rows >= _MIN_TASK_FILL * each * most else most - task_slots
    )


def count_later_tasks(partitions: int, task_slots: int, received_bytes: float | None) -> int:
    """Tasks of each round after the first, to the busiest of which so many bytes come (None: nobody knows).

    A task costs about as much as the sums of a million rows, and those are often all that travels. Where it is little
    there is a task for each slot, and never fewer: what is known is of the last batch, and this one may bring more."""
    return (
        partitions
        if received_bytes is None or received_bytes > task_slots * _SMALL_ROUND_BYTES
        else min(partitions, task_slots)
    )


@dataclass(frozen=True)
class Placement:
    """`levels` has the live operators; `staying` those that need no exchange; `spread` those whose rows any
    task may take; `arranged` what the driver adds."""

    rounds: Mapping[str, int]
    co_located: frozenset[str]
    skew_balanced: frozenset[str]
    driver_runs: Mapping[str, Run]
    inputs: Mapping[str, InputSource]
    consolidated: frozenset[str]
    """Sources whose shares name a key twice: a round more, in which they meet by key."""


def plan_placement(
    context: LocalContext,
    inputs: Mapping[str, InputSource],
    seeds: Iterable[PortDelta],
    sizes: SlotSizes,
    single_machine: bool,
) -> Placement:
    """`site` is the driver's; `sizes` those of the published state, without what is loaded anew."""
    flow = context.dataflow
    inputs = {n: _in_memory(context, g) if is_driver_sized(g) else g for n, g in inputs.items()}
    begun = [n for n, g in inputs.items() if not is_empty(g)]
    live = flow.reachable([*begun, *(consumer for consumer, _, _ in seeds)], context.active)
    arranged: dict[str, Run] = {}
    for name, source in inputs.items():
        operator = flow.operators[name]
        if operator.is_source and isinstance(source, MemoryRows) and is_driver_sized(source):
            fed = context.feed_images(operator, source.table)
            arranged |= {slot_names(flow.operators[image])[0]: arrange(delta) for image, _, delta in fed}

    def stays(lookup: Operator, name: str) -> bool:
        slot = slot_names(flow.operators[name])[0]
        if not single_machine and not is_broadcast(flow, name, sizes) and not (slot in arranged and slot not in sizes):
            return False
        return is_known(lookup, name)

    def is_known(lookup: Operator, name: str) -> bool:
        """Whether what it wants of an arrangement is published, or with every task."""
        return (
            name not in lookup.new_state_lookups or name not in live or slot_names(flow.operators[name])[0] in arranged
        )

    asked = {a for n in live for a in flow.operators[n].new_state_lookups}
    staying = frozenset(
        n
        for n in live
        if ((o := flow.operators[n]).probed_arrangements and all(stays(o, a) for a in o.probed_arrangements))
        or (o.arranged_table is not None and single_machine and n not in asked)
    )
    spread = frozenset(
        n
        for n in live - staying
        if ((o := flow.operators[n]).lookup is not None and all(is_known(o, a) for a in o.probed_arrangements))
        or (o.arranged_table is not None and n not in asked)
    )
    netted = frozenset(n for n, g in inputs.items() if isinstance(g, LogRange) and g.has_several_calls)
    changed = (flow.operators[n].input_table for n in netted)
    later = netted.union(i.id for t in changed if t is not None for i in flow.images.get(t, ()))
    return Placement(assign_rounds(flow, staying, live, later), staying, spread, arranged, inputs, netted)


def is_driver_sized(source: InputSource) -> bool:
    """Whether the driver takes care of these rows by itself."""
    return source.count is not None and source.count <= MAX_DRIVER_ROWS


def _in_memory(context: LocalContext, source: InputSource) -> InputSource:
    return source if isinstance(source, MemoryRows) else MemoryRows(source.read(context.statements, context.memory))


# What travels between the tasks of a batch, and to the driver:
#
# dest     the task that owns the rows' share of the hash range
# node     the operator they are for; `+slot`: fresh rows of an arrangement, carried to a later lookup;
#          `=source`: changes of a table that meet by key before the first expression sees them;
#          `!…`: on their way to the driver
# port     of the operator; the view, of rows that reached a sink
# payload  an Arrow IPC stream of a few MB, or JSON


SINK_ROWS, STAGED_ROWS, STAGED_CHANGES = "!sink", "!staged", "!changed"
"""Rows of a view: a payload, where they lie, and where puts and deletes lie that were made of them."""
NEW_RUNS, OPERATOR_ERROR, CORRUPT_STATE, STATE_UNREACHABLE = "!runs", "!error", "!damaged", "!elsewhere"
RECEIVED_BYTES = "!arrived"
"""How many bytes came to a task of a later round, which its port tells."""

_PARTITION_BITS = 16
"""Bits of the hash by which tasks divide the work."""

_HOT_ROWS = 1_024
_HOT_SHARE = 16
"""A hash is hot that has so many of the rows on their way, and more than this part of a task's fair share."""

_PAYLOAD_ROWS = 65_536
"""Rows in one payload: a few MB, so that a shuffle block stays small."""

Message = tuple[int, str, int, bytes]


def route_rows(
    consumer: str, port: int, delta: pa.Table, partitions: int, balance_hot_keys: bool = False
) -> Iterator[Message]:
    """The rows split by the task that owns their hash; no rows at all (a seed) go to the owner of 0.

    `spread`: any task can do the consumer's work on any row, so those of a hot hash are dealt out to all.
    """
    hashes = delta[HASH].to_numpy()
    dest = ((hashes >> np.uint64(64 - _PARTITION_BITS)) * np.uint64(partitions) >> np.uint64(_PARTITION_BITS)).astype(
        np.int64
    )
    if balance_hot_keys and partitions > 1 and len(hashes) > _HOT_ROWS:
        _distribute_hot_keys(hashes, dest, partitions)
    order = np.argsort(dest, kind="stable")
    edges = np.searchsorted(dest[order], np.arange(partitions + 1))
    rows = delta.take(pa.array(order)) if partitions > 1 else delta
    for part, (low, high) in enumerate(pairwise(edges)):
        if high > low or (part == 0 and not len(hashes)):
            yield from ((part, consumer, port, p) for p in encode_payloads(rows.slice(low, high - low)))


def _distribute_hot_keys(hashes: npt.NDArray[np.uint64], dest: npt.NDArray[np.int64], partitions: int) -> None:
    """Rows of hot hashes get tasks by turns. Only tasks that have more than their share can have such a hash."""
    fair = len(hashes) / partitions
    crowded = np.flatnonzero((np.bincount(dest, minlength=partitions) > fair)[dest])
    _, which, counts = np.unique(hashes[crowded], return_inverse=True, return_counts=True)
    hot = crowded[(counts > max(_HOT_ROWS, fair / _HOT_SHARE))[which]]
    dest[hot] = np.arange(len(hot)) % partitions


def encode_payloads(table: pa.Table) -> Iterator[bytes]:
    for at in range(0, max(table.num_rows, 1), _PAYLOAD_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, _PAYLOAD_ROWS).combine_chunks())
        yield sink.getvalue().to_pybytes()


def decode_payload(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def received_bytes_message(round_number: int, size: int) -> Message:
    """So many bytes came to this task."""
    return 0, RECEIVED_BYTES, round_number, str(size).encode()


def task_of(partition: int, partitions: int, tasks: int) -> int:
    """The task that has a part's work, in a round of fewer tasks than parts: each has some that follow each other."""
    return partition * tasks // partitions


def first_partition(task: int, partitions: int, tasks: int) -> int:
    """The first part whose work such a task has."""
    return -(-task * partitions // tasks)


def corrupt_state_message(operator: str, damage: CorruptState) -> Message:
    """State that an operator could not read: to try again would not help."""
    told = {"kind": type(damage).__name__, "message": damage.message, "hint": damage.hint, "operator": operator}
    return 0, CORRUPT_STATE, 0, json.dumps(told).encode()


def state_unreachable_message() -> Message:
    """This task runs where the state is not."""
    return 0, STATE_UNREACHABLE, 0, machine_name().encode()


def operator_error_message(error: OperatorError) -> Message:
    """An operator failed on its rows."""
    members = [(m.parameters, m.key.hex(), m.message) for m in error.members]
    told = {"operator": error.operator, "message": error.message, "members": members}
    return 0, OPERATOR_ERROR, 0, json.dumps(told).encode()
