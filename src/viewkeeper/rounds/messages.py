"""What travels between the tasks of a batch, and to the driver:

dest     the task that owns the rows' share of the hash range
node     the operator they are for; `+slot`: fresh rows of an arrangement, carried to a later lookup;
         `=source`: changes of a table that meet by key before the first expression sees them;
         `!…`: on their way to the driver
port     of the operator; the view, of rows that reached a sink
payload  an Arrow IPC stream of a few MB, or JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.errors import CorruptState
from viewkeeper.model.names import HASH
from viewkeeper.rounds.failures import Failed
from viewkeeper.rounds.reach import machine

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
