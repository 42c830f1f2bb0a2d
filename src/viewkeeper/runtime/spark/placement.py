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
from viewkeeper.operators.operator import Operator, slots
from viewkeeper.plan.dataflow.dataflow import Sizes, is_small, levels
from viewkeeper.runtime.context import Fed, Site
from viewkeeper.runtime.inputs import Given, LogRows, Rows, is_empty
from viewkeeper.runtime.operator_errors import Failed
from viewkeeper.runtime.spark.sessions import machine
from viewkeeper.state.run import Run, arrange

FEW_ROWS = 65_536
"""Changes of a table up to which the driver arranges them, for all tasks."""

ROWS_A_TASK = 100_000
"""Changed rows up to which a batch is one task: divided, its statements and stages would cost more than its rows."""
_TASKS_A_SLOT, _WORTH = 3, 2.5
"""Tasks for each that can run at once, at most: so that what is slow, or comes later, finds its share of the work. One
fewer if each would have less than so many times the rows that are worth a task: it would be an eighth of its time."""
_SETTING = "spark.viewkeeper.rowsPerTask"
_LITTLE = 32 << 20
"""Bytes for each slot up to which a later round has no more tasks than slots."""


def tasks(given: Mapping[str, Given], slots: int, spark: Any, finely: bool = False) -> int:
    """How many tasks a batch is divided into; as many as run at once if nobody knows how many rows it has. `finely`:
    the driver has to do with what each leaves."""
    counts = [g.count for g in given.values()]
    if None in counts:
        return slots
    rows = sum(c or 0 for c in counts)
    each = max(1, int(spark.sparkContext.getConf().get(_SETTING) or ROWS_A_TASK))
    most = _TASKS_A_SLOT * slots
    return min(max(1, -(-rows // each)), most if finely or rows >= _WORTH * each * most else most - slots)


def later_tasks(parts: int, slots: int, size: float | None) -> int:
    """Tasks of each round after the first, to the busiest of which so many bytes come (None: nobody knows).

    A task costs about as much as the sums of a million rows, and those are often all that travels. Where it is little
    there is a task for each slot, and never fewer: what is known is of the last batch, and this one may bring more."""
    return parts if size is None or size > slots * _LITTLE else min(parts, slots)


@dataclass(frozen=True)
class Placing:
    """`levels` has the live operators; `staying` those that need no exchange; `spread` those whose rows any
    task may take; `arranged` what the driver adds."""

    levels: Mapping[str, int]
    staying: frozenset[str]
    spread: frozenset[str]
    arranged: Mapping[str, Run]
    given: Mapping[str, Given]
    netted: frozenset[str]
    """Sources whose shares name a key twice: a round more, in which they meet by key."""


def place(site: Site, given: Mapping[str, Given], seeds: Iterable[Fed], sizes: Sizes, near: bool) -> Placing:
    """`site` is the driver's; `sizes` those of the published state, without what is loaded anew."""
    flow = site.flow
    given = {n: _at_hand(site, g) if is_few(g) else g for n, g in given.items()}
    begun = [n for n, g in given.items() if not is_empty(g)]
    live = flow.reached([*begun, *(consumer for consumer, _, _ in seeds)], site.active)
    arranged: dict[str, Run] = {}
    for name, source in given.items():
        operator = flow.operators[name]
        if operator.is_source and isinstance(source, Rows) and is_few(source):
            fed = site.images(operator, source.table)
            arranged |= {slots(flow.operators[image])[0]: arrange(delta) for image, _, delta in fed}

    def stays(lookup: Operator, name: str) -> bool:
        slot = slots(flow.operators[name])[0]
        if not near and not is_small(flow, name, sizes) and not (slot in arranged and slot not in sizes):
            return False
        return is_known(lookup, name)

    def is_known(lookup: Operator, name: str) -> bool:
        """Whether what it wants of an arrangement is published, or with every task."""
        return name not in lookup.looked_up or name not in live or slots(flow.operators[name])[0] in arranged

    asked = {a for n in live for a in flow.operators[n].looked_up}
    staying = frozenset(
        n
        for n in live
        if ((o := flow.operators[n]).probed and all(stays(o, a) for a in o.probed))
        or (o.arranges is not None and near and n not in asked)
    )
    spread = frozenset(
        n
        for n in live - staying
        if ((o := flow.operators[n]).seeks is not None and all(is_known(o, a) for a in o.probed))
        or (o.arranges is not None and n not in asked)
    )
    netted = frozenset(n for n, g in given.items() if isinstance(g, LogRows) and g.several)
    changed = (flow.operators[n].changes_of for n in netted)
    later = netted.union(i.id for t in changed if t is not None for i in flow.images.get(t, ()))
    return Placing(levels(flow, staying, live, later), staying, spread, arranged, given, netted)


def is_few(given: Given) -> bool:
    """Whether the driver takes care of these rows by itself."""
    return given.count is not None and given.count <= FEW_ROWS


def _at_hand(site: Site, given: Given) -> Given:
    return given if isinstance(given, Rows) else Rows(given.rows(site.duck, site.memory))


# What travels between the tasks of a batch, and to the driver:
#
# dest     the task that owns the rows' share of the hash range
# node     the operator they are for; `+slot`: fresh rows of an arrangement, carried to a later lookup;
#          `=source`: changes of a table that meet by key before the first expression sees them;
#          `!…`: on their way to the driver
# port     of the operator; the view, of rows that reached a sink
# payload  an Arrow IPC stream of a few MB, or JSON


SINK, STAGED, CHANGED = "!sink", "!staged", "!changed"
"""Rows of a view: a payload, where they lie, and where puts and deletes lie that were made of them."""
RUNS, ERROR, DAMAGED, ELSEWHERE = "!runs", "!error", "!damaged", "!elsewhere"
ARRIVED = "!arrived"
"""How many bytes came to a task of a later round, which its port tells."""

_FINEST = 16
"""Bits of the hash by which tasks divide the work."""

_HOT_ROWS = 1_024
_HOT_SHARE = 16
"""A hash is hot that has so many of the rows on their way, and more than this part of a task's fair share."""

_PAYLOAD_ROWS = 65_536
"""Rows in one payload: a few MB, so that a shuffle block stays small."""

Message = tuple[int, str, int, bytes]


def routed(consumer: str, port: int, delta: pa.Table, parts: int, spread: bool = False) -> Iterator[Message]:
    """The rows split by the task that owns their hash; no rows at all (a seed) go to the owner of 0.

    `spread`: any task can do the consumer's work on any row, so those of a hot hash are dealt out to all.
    """
    hashes = delta[HASH].to_numpy()
    dest = ((hashes >> np.uint64(64 - _FINEST)) * np.uint64(parts) >> np.uint64(_FINEST)).astype(np.int64)
    if spread and parts > 1 and len(hashes) > _HOT_ROWS:
        _deal(hashes, dest, parts)
    order = np.argsort(dest, kind="stable")
    edges = np.searchsorted(dest[order], np.arange(parts + 1))
    rows = delta.take(pa.array(order)) if parts > 1 else delta
    for part, (low, high) in enumerate(pairwise(edges)):
        if high > low or (part == 0 and not len(hashes)):
            yield from ((part, consumer, port, p) for p in payloads(rows.slice(low, high - low)))


def _deal(hashes: npt.NDArray[np.uint64], dest: npt.NDArray[np.int64], parts: int) -> None:
    """Rows of hot hashes get tasks by turns. Only tasks that have more than their share can have such a hash."""
    fair = len(hashes) / parts
    crowded = np.flatnonzero((np.bincount(dest, minlength=parts) > fair)[dest])
    _, which, counts = np.unique(hashes[crowded], return_inverse=True, return_counts=True)
    hot = crowded[(counts > max(_HOT_ROWS, fair / _HOT_SHARE))[which]]
    dest[hot] = np.arange(len(hot)) % parts


def payloads(table: pa.Table) -> Iterator[bytes]:
    for at in range(0, max(table.num_rows, 1), _PAYLOAD_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, _PAYLOAD_ROWS).combine_chunks())
        yield sink.getvalue().to_pybytes()


def unpacked(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def arrived(level: int, size: int) -> Message:
    """So many bytes came to this task."""
    return 0, ARRIVED, level, str(size).encode()


def task_of(dest: int, parts: int, tasks: int) -> int:
    """The task that has a part's work, in a round of fewer tasks than parts: each has some that follow each other."""
    return dest * tasks // parts


def first_part(task: int, parts: int, tasks: int) -> int:
    """The first part whose work such a task has."""
    return -(-task * parts // tasks)


def damaged(operator: str, damage: CorruptState) -> Message:
    """State that an operator could not read: to try again would not help."""
    told = {"kind": type(damage).__name__, "message": damage.message, "hint": damage.hint, "operator": operator}
    return 0, DAMAGED, 0, json.dumps(told).encode()


def elsewhere() -> Message:
    """This task runs where the state is not."""
    return 0, ELSEWHERE, 0, machine().encode()


def failed(failure: Failed) -> Message:
    """An operator failed on its rows."""
    members = [(m.parameters, m.key.hex(), m.message) for m in failure.members]
    told = {"operator": failure.operator, "message": failure.message, "members": members}
    return 0, ERROR, 0, json.dumps(told).encode()
