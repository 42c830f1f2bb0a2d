"""What is read from: RocksDB as it is, or one state of it.

The binding's snapshots show their state to reads by key only. Its iterators, a snapshot's too, show the database as it
is when they are made, and stay with that. So a state is both, taken while nothing was written, which RocksDB's count of
writes tells:

    a snapshot     for reads by key
    an iterator    for walks, which seek it anew for some rows at a time: any number of them go on side by side

As long as nothing was written since, a walk has an iterator of its own: the binding then gives a row in one call, not
in three.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from rocksdict import DbClosedError, ReadOptions

from viewkeeper.store.rocksdb.failures import is_absent

_FIRST_ROWS, _ROWS, _BYTES = 16, 4_096, 4 << 20
"""As many rows, of as many bytes, a walk takes at a time from the iterator of a state that is past."""


class Source(Protocol):
    """RocksDB itself, or one state of it."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        """Its `keys`, `values` or `items` in a range."""


class Live(Source):
    """As it is now: for who writes, and nobody else can, or of a secondary instance, which stays as it is."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._db.get(key)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._db.get(list(keys))
        return found

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        walked, bound = _walk(self._db, kind, start, stop)
        yield from walked
        del bound


class Snapshot(Source):
    """One state of a database that goes on. May be used from any thread."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._lock = threading.Lock()
        """Of the iterator's place."""
        while True:
            self._writes = db.latest_sequence_number()
            self._snapshot, self._iterator = db.snapshot(), db.iter()
            if self._is_now():
                return

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes = self._snapshot[key]
        except Exception as error:
            if is_absent(error):
                return None
            raise
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self.get, keys))

    def walk(self, kind: str, start: bytes, stop: bytes) -> Iterator[Any]:
        walked, bound = _walk(self._snapshot, kind, start, stop)
        if self._is_now():  # and so it was when the iterator was made
            yield from walked
            del bound
            return
        del walked, bound
        size = _FIRST_ROWS
        while start < stop:
            found, start = self._some(kind, start, stop, size)
            yield from found
            size = min(_ROWS, 8 * size)

    def _is_now(self) -> bool:
        try:
            return bool(self._db.latest_sequence_number() == self._writes)
        except DbClosedError:  # a state outlives it
            return False

    def _some(self, kind: str, start: bytes, stop: bytes, size: int) -> tuple[Iterable[Any], bytes]:
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
                if taken >= _BYTES:
                    break
            at.status()  # raises, if it ended because of a failure
            following = at.key() or stop
        return {"keys": keys, "values": values, "items": zip(keys, values, strict=True)}[kind], following


def _walk(source: Any, kind: str, start: bytes, stop: bytes) -> tuple[Iterator[Any], ReadOptions]:
    """An iterator, and its bound: RocksDB has pointers to it, so it must not go before the walk is over."""
    bound = ReadOptions()
    bound.set_iterate_upper_bound(stop)
    return getattr(source, kind)(from_key=start, read_opt=bound), bound
