"""RocksDB's one ordered map, divided by prefixes.

    m <name>              a record (`ordered/metadata.py`), and `count:<table id>`, the rows of a table (u64)
    l <position, chunk>   an entry of the change log
    t <id u32 BE> <key>   a row: its encoded key → the encoded row

A single map makes a snapshot one state of the whole database, and a WriteBatch one atomic write to it.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import not_
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import DbClosedError, ReadOptions, WriteBatch

from viewkeeper.errors import Defect
from viewkeeper.model.schema import Table
from viewkeeper.store.ordered.maps import OrderedMap, State, TableRows
from viewkeeper.store.ordered.row_images import RowImages, empty_rows, sort_by_key
from viewkeeper.store.rocksdb.errors import is_absent

# Readers: the live database, or one state of it.
#
# The binding's snapshots show their state only to reads by key. Iterators, even those of a snapshot, show the database
# at the time when they are created, and keep that state. So a state consists of both, created while nothing is written,
# which RocksDB's sequence number shows:
#
#     a snapshot     for reads by key
#     an iterator    for walks, which seek it again for every few rows, so that any number of walks can interleave
#
# While nothing has been written since, a walk uses an iterator of its own: the binding then returns a row with one call
# instead of three.


_FIRST_WALK_ROWS, _MAX_WALK_ROWS, _MAX_WALK_BYTES = 16, 4_096, 4 << 20
"""Limits of the rows and bytes that a walk reads at a time from the iterator of a past state."""


class RocksReader(Protocol):
    """Reads RocksDB itself, or one state of it."""

    def get(self, key: bytes) -> bytes | None: ...

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        """Yield the `keys`, `values` or `items` of a range."""


class LiveReader(RocksReader):
    """Reads the current database: for the only writer, or for a secondary instance, which does not change during a
    read."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._db.get(key)
        return found

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._db.get(list(keys))
        return found

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        items, bound = _start_walk(self._db, kind, start, stop)
        yield from items
        del bound


class SnapshotReader(RocksReader):
    """Reads one state of a database that changes meanwhile. Thread-safe."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._lock = threading.Lock()
        """Guards the position of the iterator."""
        while True:
            self._sequence_number = db.latest_sequence_number()
            self._snapshot, self._iterator = db.snapshot(), db.iter()
            if self._is_unchanged():
                return

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes = self._snapshot[key]
        except Exception as error:
            if is_absent(error):
                return None
            raise
        return found

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        items, bound = _start_walk(self._snapshot, kind, start, stop)
        if self._is_unchanged():  # then it was also unchanged when the iterator was created
            yield from items
            del bound
            return
        del items, bound
        size = _FIRST_WALK_ROWS
        while start < stop:
            found, start = self._walk_step(kind, start, stop, size)
            yield from found
            size = min(_MAX_WALK_ROWS, 8 * size)

    def _is_unchanged(self) -> bool:
        try:
            return bool(self._db.latest_sequence_number() == self._sequence_number)
        except DbClosedError:  # a state may outlive its database
            return False

    def _walk_step(self, kind: str, start: bytes, stop: bytes, size: int) -> tuple[Iterable[Any], bytes]:
        """Return the first items of a range, and the start of the rest."""
        keys: list[bytes] = []
        values: list[bytes] = []
        size_read = 0
        with self._lock:
            iterator = self._iterator
            iterator.seek(start)
            for key in itertools.takewhile(stop.__gt__, itertools.islice(iter(iterator.key, None), size)):
                value = iterator.value()
                keys.append(key)
                values.append(value)
                iterator.next()
                size_read += len(value)
                if size_read >= _MAX_WALK_BYTES:
                    break
            iterator.status()  # raises if the iterator ended because of a failure
            next_start = iterator.key() or stop
        return {"keys": keys, "values": values, "items": zip(keys, values, strict=True)}[kind], next_start


def _start_walk(source: Any, kind: str, start: bytes, stop: bytes) -> tuple[Iterator[Any], ReadOptions]:
    """Return an iterator and its bound. RocksDB keeps pointers to the bound, so the caller must keep it alive during
    the walk."""
    bound = ReadOptions()
    bound.set_iterate_upper_bound(stop)
    return getattr(source, kind)(from_key=start, read_opt=bound), bound


META, LOG = b"m", b"l"
_TABLE = struct.Struct(">cI")
_COUNT = b"count:%d"
_BATCH_BYTES, _BATCH_ROWS, _FIRST_ROWS = 16 << 20, 8_192, 64
"""Limits of the rows of a scan that are decoded together, so that they stay in the processor cache."""


class RocksMap(OrderedMap):
    """The keys with one prefix."""

    def __init__(self, source: RocksReader, batch: WriteBatch | None, prefix: bytes) -> None:
        self._source, self._batch, self._prefix = source, batch, prefix

    def get(self, key: bytes) -> bytes | None:
        return self._source.get(self._prefix + key)

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes | memoryview]]:
        prefix_length = len(self._prefix)
        found = self._source.walk("items", self._prefix + start, _prefix_end(self._prefix))
        return ((key[prefix_length:], value) for key, value in found)

    def put(self, key: bytes, value: bytes, *, append: bool = False) -> None:
        _require_batch(self._batch).put(self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        _require_batch(self._batch).delete(self._prefix + key)

    def delete_before(self, stop: bytes) -> None:
        _require_batch(self._batch).delete_range(self._prefix, self._prefix + stop)

    def size(self) -> int | None:
        return None


class RocksRows(TableRows):
    """The rows of one table."""

    def __init__(self, state: RocksState, table_id: int) -> None:
        self._state, self._id = state, table_id
        self._prefix = table_prefix(table_id)

    def find(self, key: bytes) -> bytes | None:
        return self._state.source.get(self._prefix + key)

    def find_rows(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        found = self._state.source.multi_get(self._prefixed_keys(keys))
        return pa.array([row for row in found if row is not None], pa.binary())

    def find_in_order(self, keys: Sequence[bytes]) -> list[bytes]:
        return [row or b"" for row in self._state.source.multi_get([self._prefix + key for key in keys])]

    def scan(self, start: bytes | None, stop: bytes | None, limit: int | None) -> Iterator[pa.BinaryArray]:
        last = _prefix_end(self._prefix) if stop is None else self._prefix + stop
        if self._prefix + (start or b"") >= last:
            return
        values = itertools.islice(self._state.source.walk("values", self._prefix + (start or b""), last), limit)
        size = _FIRST_ROWS
        while rows := list(itertools.islice(values, size)):
            array = pa.array(rows, pa.binary())
            yield from array.chunks if isinstance(array, pa.ChunkedArray) else (array,)
            size = max(1, min(_BATCH_ROWS, 8 * size, _BATCH_BYTES * len(rows) // max(array.nbytes, 1)))

    def apply(self, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
        if not len(keys):
            return RowImages(keys, after, after)
        keys, after = sort_by_key(table, keys, after)
        before = empty_rows(len(keys))
        if self.count():
            before = pa.array(
                [row or b"" for row in self._state.source.multi_get(self._prefixed_keys(keys))], pa.binary()
            )
        changed = pc.not_equal(before, after)
        if changed.true_count < len(keys):
            keys, before, after = keys.filter(changed), before.filter(changed), after.filter(changed)
        self.rewrite(table, keys.to_pylist(), before.to_pylist(), after.to_pylist())
        return RowImages(keys, before, after)

    def rewrite(self, table: Table, keys: Sequence[bytes], before: Sequence[bytes], after: Sequence[bytes]) -> None:
        batch, prefixed_keys = _require_batch(self._state.batch), [self._prefix + key for key in keys]
        deque(map(batch.put, itertools.compress(prefixed_keys, after), filter(None, after)), maxlen=0)
        deque(map(batch.delete, itertools.compress(prefixed_keys, map(not_, after))), maxlen=0)
        self._state.set_count(self._id, self.count() + sum(map(bool, after)) - sum(map(bool, before)))

    def clear(self) -> None:
        _require_batch(self._state.batch).delete_range(self._prefix, _prefix_end(self._prefix))
        self._state.set_count(self._id, 0)

    def count(self) -> int:
        return self._state.count(self._id)

    def split_points(self, range_count: int) -> list[bytes]:
        step = self.count() // range_count
        if not step:
            return []
        keys = self._state.source.walk("keys", self._prefix, _prefix_end(self._prefix))
        found = itertools.islice(keys, step, None, step)
        return [key[len(self._prefix) :] for key in itertools.islice(found, range_count - 1)]

    def _prefixed_keys(self, keys: pa.BinaryArray) -> list[bytes]:
        names: list[bytes] = pc.binary_join_element_wise(
            pa.scalar(self._prefix, pa.binary()), keys, pa.scalar(b"", pa.binary())
        ).to_pylist()
        return names


class RocksState(State):
    """A reader and, inside a write, the batch that is written at its end. It caches the row counts that it has set."""

    def __init__(self, source: RocksReader, batch: WriteBatch | None = None) -> None:
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
        cached = self._counts.get(table_id)
        return int.from_bytes(self.meta.get(_COUNT % table_id) or b"", "big") if cached is None else cached

    def set_count(self, table_id: int, rows: int) -> None:
        self._counts[table_id] = rows
        self.meta.put(_COUNT % table_id, rows.to_bytes(8, "big"))


def table_prefix(table_id: int) -> bytes:
    return _TABLE.pack(b"t", table_id)


def _prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _require_batch(batch: WriteBatch | None) -> WriteBatch:
    if batch is None:
        raise Defect("A state that is only read was written to.")
    return batch
