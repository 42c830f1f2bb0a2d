"""RocksDB's one ordered map, divided by prefixes.

    m <name>              a record (`ordered/records.py`), and `count:<table id>`, the rows of a table (u64)
    l <position, chunk>   an entry of the change log
    t <id u32 BE> <key>   a row: its encoded key → the encoded row

One map, so that a snapshot is one state of everything, and a WriteBatch is one write of everything.
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

# What is read from: RocksDB as it is, or one state of it.
#
# The binding's snapshots show their state to reads by key only. Its iterators, a snapshot's too, show the database as
# it is when they are made, and stay with that. So a state is both, taken while nothing was written, which RocksDB's
# count of writes tells:
#
#     a snapshot     for reads by key
#     an iterator    for walks, which seek it anew for some rows at a time: any number of them go on side by side
#
# As long as nothing was written since, a walk has an iterator of its own: the binding then gives a row in one call, not
# in three.


_FIRST_WALK_ROWS, _MAX_WALK_ROWS, _MAX_WALK_BYTES = 16, 4_096, 4 << 20
"""As many rows, of as many bytes, a walk takes at a time from the iterator of a state that is past."""


class RocksReader(Protocol):
    """RocksDB itself, or one state of it."""

    def get(self, key: bytes) -> bytes | None: ...

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        """Its `keys`, `values` or `items` in a range."""


class LiveReader(RocksReader):
    """As it is now: for who writes, and nobody else can, or of a secondary instance, which stays as it is."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._db.get(key)
        return found

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._db.get(list(keys))
        return found

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        walked, bound = _start_walk(self._db, kind, start, stop)
        yield from walked
        del bound


class SnapshotReader(RocksReader):
    """One state of a database that goes on. May be used from any thread."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._lock = threading.Lock()
        """Of the iterator's place."""
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
        walked, bound = _start_walk(self._snapshot, kind, start, stop)
        if self._is_unchanged():  # and so it was when the iterator was made
            yield from walked
            del bound
            return
        del walked, bound
        size = _FIRST_WALK_ROWS
        while start < stop:
            found, start = self._walk_step(kind, start, stop, size)
            yield from found
            size = min(_MAX_WALK_ROWS, 8 * size)

    def _is_unchanged(self) -> bool:
        try:
            return bool(self._db.latest_sequence_number() == self._sequence_number)
        except DbClosedError:  # a state outlives it
            return False

    def _walk_step(self, kind: str, start: bytes, stop: bytes, size: int) -> tuple[Iterable[Any], bytes]:
        """The first of a range, and where the others begin."""
        keys: list[bytes] = []
        values: list[bytes] = []
        taken = 0
        with self._lock:
            at = self._iterator
            at.seek(start)
            for key in itertools.takewhile(stop.__gt__, itertools.islice(iter(at.key, None), size)):
                value = at.value()
                keys.append(key)
                values.append(value)
                at.next()
                taken += len(value)
                if taken >= _MAX_WALK_BYTES:
                    break
            at.status()  # raises, if it ended because of a failure
            following = at.key() or stop
        return {"keys": keys, "values": values, "items": zip(keys, values, strict=True)}[kind], following


def _start_walk(source: Any, kind: str, start: bytes, stop: bytes) -> tuple[Iterator[Any], ReadOptions]:
    """An iterator, and its bound: RocksDB has pointers to it, so it must not go before the walk is over."""
    bound = ReadOptions()
    bound.set_iterate_upper_bound(stop)
    return getattr(source, kind)(from_key=start, read_opt=bound), bound


META, LOG = b"m", b"l"
_TABLE = struct.Struct(">cI")
_COUNT = b"count:%d"
_BATCH_BYTES, _BATCH_ROWS, _FIRST_ROWS = 16 << 20, 8_192, 64
"""As many rows of a scan are decoded together: so few that they stay in the processor's cache."""


class RocksMap(OrderedMap):
    """The keys with a prefix."""

    def __init__(self, source: RocksReader, batch: WriteBatch | None, prefix: bytes) -> None:
        self._source, self._batch, self._prefix = source, batch, prefix

    def get(self, key: bytes) -> bytes | None:
        return self._source.get(self._prefix + key)

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes | memoryview]]:
        cut = len(self._prefix)
        found = self._source.walk("items", self._prefix + start, _prefix_end(self._prefix))
        return ((key[cut:], value) for key, value in found)

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
        batch, names = _require_batch(self._state.batch), [self._prefix + key for key in keys]
        deque(map(batch.put, itertools.compress(names, after), filter(None, after)), maxlen=0)
        deque(map(batch.delete, itertools.compress(names, map(not_, after))), maxlen=0)
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
    """What is read from and, inside a write, the batch that is written at its end. It knows what it has counted."""

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
        known = self._counts.get(table_id)
        return int.from_bytes(self.meta.get(_COUNT % table_id) or b"", "big") if known is None else known

    def set_count(self, table_id: int, rows: int) -> None:
        self._counts[table_id] = rows
        self.meta.put(_COUNT % table_id, rows.to_bytes(8, "big"))


def table_prefix(table_id: int) -> bytes:
    return _TABLE.pack(b"t", table_id)


def _prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin so."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _require_batch(batch: WriteBatch | None) -> WriteBatch:
    if batch is None:
        raise Defect("A state that is only read was written to.")
    return batch
