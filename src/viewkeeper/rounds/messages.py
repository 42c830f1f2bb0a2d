"""What travels between the tasks of a batch, and to the driver:

dest INT     the task that owns the rows' share of the hash range
node STRING  the operator they are for; `+slot`: fresh rows of an arrangement, carried to a later lookup;
             `=source`: changes of a table that meet by key before the first expression sees them;
             `!…`: on their way to the driver
port INT     of the operator; the view, of rows that reached a sink
payload      an Arrow IPC stream of a few MB, or JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from viewkeeper.errors import CorruptState
from viewkeeper.model.names import HASH
from viewkeeper.rounds.blame import Failed

SINK, STAGED, CHANGED = "!sink", "!staged", "!changed"
"""Rows of a view: a payload, where they lie, and where puts and deletes lie that were made of them."""
RUNS, ERROR, DAMAGED, ELSEWHERE = "!runs", "!error", "!damaged", "!elsewhere"

_FINEST = 16
"""Bits of the hash by which tasks divide the work."""

_PAYLOAD_ROWS = 65_536
"""Rows in one payload: a few MB, so that a shuffle block stays small."""

SCHEMA = "dest int, node string, port int, payload binary"
_ARROW = pa.schema([("dest", pa.int32()), ("node", pa.string()), ("port", pa.int32()), ("payload", pa.binary())])
Message = tuple[int, str, int, bytes]


def routed(consumer: str, port: int, delta: pa.Table, parts: int) -> Iterator[Message]:
    """The rows split by the task that owns their hash; no rows at all (a seed) go to the owner of 0."""
    hashes = delta[HASH].to_numpy()
    dest = ((hashes >> np.uint64(64 - _FINEST)) * np.uint64(parts) >> np.uint64(_FINEST)).astype(np.int64)
    order = np.argsort(dest, kind="stable")
    edges = np.searchsorted(dest[order], np.arange(parts + 1))
    rows = delta.take(pa.array(order)) if parts > 1 else delta
    for part, (low, high) in enumerate(pairwise(edges)):
        if high > low or (part == 0 and not len(hashes)):
            yield from ((part, consumer, port, p) for p in payloads(rows.slice(low, high - low)))


def payloads(table: pa.Table) -> Iterator[bytes]:
    for at in range(0, max(table.num_rows, 1), _PAYLOAD_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(at, _PAYLOAD_ROWS).combine_chunks())
        yield sink.getvalue().to_pybytes()


def unpacked(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def as_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    columns = list(zip(*messages, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def damaged(operator: str, damage: CorruptState) -> Message:
    """State that an operator could not read: to try again would not help."""
    told = {"kind": type(damage).__name__, "message": damage.message, "hint": damage.hint, "operator": operator}
    return 0, DAMAGED, 0, json.dumps(told).encode()


def failed(failure: Failed) -> Message:
    """An operator failed on its rows."""
    members = [(m.parameters, m.key.hex(), m.message) for m in failure.members]
    told = {"operator": failure.operator, "message": failure.message, "members": members}
    return 0, ERROR, 0, json.dumps(told).encode()
