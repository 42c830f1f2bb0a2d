"""RocksDB's one ordered map, divided by prefixes.

    m <name>              a record (`ordered/records.py`), and `count:<table id>`, the rows of a table (u64)
    l <position, chunk>   an entry of the change log
    t <id u32 BE> <key>   a row: its encoded key → the encoded row

One map, so that a snapshot is one state of everything, and a WriteBatch is one write of everything.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from operator import not_

import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import WriteBatch

from viewkeeper.errors import Defect
from viewkeeper.model.schema import Table
from viewkeeper.store.ordered.images import Images, by_key, no_rows
from viewkeeper.store.ordered.maps import OrderedMap, State, TableRows
from viewkeeper.store.rocksdb.sources import Source

META, LOG = b"m", b"l"
_TABLE = struct.Struct(">cI")
_COUNT = b"count:%d"
_BATCH_BYTES, _BATCH_ROWS, _FIRST_ROWS = 16 << 20, 8_192, 64
"""As many rows of a scan are decoded together: so few that they stay in the processor's cache."""


class RocksMap(OrderedMap):
    """The keys with a prefix."""

    def __init__(self, source: Source, batch: WriteBatch | None, prefix: bytes) -> None:
        self._source, self._batch, self._prefix = source, batch, prefix

    def get(self, key: bytes) -> bytes | None:
        return self._source.get(self._prefix + key)

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes | memoryview]]:
        cut = len(self._prefix)
        found = self._source.walk("items", self._prefix + start, _after(self._prefix))
        return ((key[cut:], value) for key, value in found)

    def put(self, key: bytes, value: bytes, *, last: bool = False) -> None:
        _writing(self._batch).put(self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        _writing(self._batch).delete(self._prefix + key)

    def delete_before(self, stop: bytes) -> None:
        _writing(self._batch).delete_range(self._prefix, self._prefix + stop)

    def size(self) -> int | None:
        return None


class RocksRows(TableRows):
    """The rows of one table."""

    def __init__(self, state: RocksState, table_id: int) -> None:
        self._state, self._id = state, table_id
        self._prefix = table_prefix(table_id)

    def find(self, key: bytes) -> bytes | None:
        return self._state.source.get(self._prefix + key)

    def find_many(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        found = self._state.source.get_many(self._names(keys))
        return pa.array([row for row in found if row is not None], pa.binary())

    def each(self, keys: Sequence[bytes]) -> list[bytes]:
        return [row or b"" for row in self._state.source.get_many([self._prefix + key for key in keys])]

    def scan(self, start: bytes | None, stop: bytes | None, limit: int | None) -> Iterator[pa.BinaryArray]:
        last = _after(self._prefix) if stop is None else self._prefix + stop
        if self._prefix + (start or b"") >= last:
            return
        values = itertools.islice(self._state.source.walk("values", self._prefix + (start or b""), last), limit)
        size = _FIRST_ROWS
        while rows := list(itertools.islice(values, size)):
            array = pa.array(rows, pa.binary())
            yield from array.chunks if isinstance(array, pa.ChunkedArray) else (array,)
            size = max(1, min(_BATCH_ROWS, 8 * size, _BATCH_BYTES * len(rows) // max(array.nbytes, 1)))

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> Images:
        if not len(keys):
            return Images(keys, after, after)
        keys, after = by_key(table, keys, after)
        before = no_rows(len(keys))
        if self.count():
            before = pa.array([row or b"" for row in self._state.source.get_many(self._names(keys))], pa.binary())
        changed = pc.not_equal(before, after)
        if changed.true_count < len(keys):
            keys, before, after = keys.filter(changed), before.filter(changed), after.filter(changed)
        self.rewrite(table, keys.to_pylist(), before.to_pylist(), after.to_pylist())
        return Images(keys, before, after)

    def rewrite(self, table: Table, keys: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]) -> None:
        batch, names = _writing(self._state.batch), [self._prefix + key for key in keys]
        deque(map(batch.put, itertools.compress(names, after), filter(None, after)), maxlen=0)
        deque(map(batch.delete, itertools.compress(names, map(not_, after))), maxlen=0)
        self._state.counted(self._id, self.count() + sum(map(bool, after)) - sum(map(bool, before)))

    def clear(self) -> None:
        _writing(self._state.batch).delete_range(self._prefix, _after(self._prefix))
        self._state.counted(self._id, 0)

    def count(self) -> int:
        return self._state.count(self._id)

    def split_points(self, parts: int) -> list[bytes]:
        step = self.count() // parts
        if not step:
            return []
        keys = self._state.source.walk("keys", self._prefix, _after(self._prefix))
        found = itertools.islice(keys, step, None, step)
        return [key[len(self._prefix) :] for key in itertools.islice(found, parts - 1)]

    def _names(self, keys: pa.BinaryArray) -> list[bytes]:
        names: list[bytes] = pc.binary_join_element_wise(
            pa.scalar(self._prefix, pa.binary()), keys, pa.scalar(b"", pa.binary())
        ).to_pylist()
        return names


class RocksState(State):
    """What is read from and, inside a write, the batch that is written at its end. It knows what it has counted."""

    def __init__(self, source: Source, batch: WriteBatch | None = None) -> None:
        self.source, self.batch = source, batch
        self._counts: dict[int, int] = {}

    @property
    def meta(self) -> RocksMap:
        return RocksMap(self.source, self.batch, META)

    @property
    def log(self) -> RocksMap:
        return RocksMap(self.source, self.batch, LOG)

    def rows(self, table_id: int) -> RocksRows:
        return RocksRows(self, table_id)

    def count(self, table_id: int) -> int:
        known = self._counts.get(table_id)
        return int.from_bytes(self.meta.get(_COUNT % table_id) or b"", "big") if known is None else known

    def counted(self, table_id: int, rows: int) -> None:
        self._counts[table_id] = rows
        self.meta.put(_COUNT % table_id, rows.to_bytes(8, "big"))


def table_prefix(table_id: int) -> bytes:
    return _TABLE.pack(b"t", table_id)


def _after(prefix: bytes) -> bytes:
    """The first key after all that begin so."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _writing(batch: WriteBatch | None) -> WriteBatch:
    if batch is None:
        raise Defect("A state that is only read was written to.")
    return batch
