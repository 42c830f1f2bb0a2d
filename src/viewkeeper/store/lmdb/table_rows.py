"""A table's rows in its sub-database: apply changes, find, scan.

The key of a record is the row's encoded key, its value the encoded row. LMDB's keys end at 511 bytes, so a key of more
than 510 becomes 511: its first 495 bytes and a 128-bit digest. Such a record is a *bucket*: B1, then for each row whose
key has this prefix and digest, the two lengths (u32), the whole key and the row. A collision makes a bucket longer but
never gives a wrong row.

Scans return true key order for long keys, too: records that share their first 495 bytes are sorted by whole key during
the scan. They are in memory together; that is the one limit. `meta` records which tables have ever had a long key (and
how many rows share a bucket with another), so other tables have no overhead.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from operator import ne, not_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.model.schema import Table
from viewkeeper.store.lmdb import btree_pages
from viewkeeper.store.ordered.row_images import RowImages, binary_array, concat_images, sort_by_key

MAX_PLAIN_KEY = 510
"""Length of the longest key that is stored unchanged; a longer key is stored in a bucket."""

LONG_KEY_PREFIX = 495

_LONG_KEYS_RECORD = b"long:%d"
_BUCKET = b"\xb1"
_LENGTHS = struct.Struct("<II")
# Limits of a batch of a scan, so that it stays in the processor cache until it is decoded: half or twice as many rows
# are slower.
_BATCH_ROWS, _BATCH_BYTES, _FIRST_ROWS = 8_192, 16 << 20, 64
_SAMPLED_ROWS = 16
"""Rows of a slice that are sampled before all of its rows are written."""


# -- apply ------------------------------------------------------------------------------------------------------------


def apply(txn: Any, db: Any, meta: Any, table: Table, keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
    """Set the row of each key to `after` (empty: delete it) and return the rows that really changed, by key. Keys are
    unique."""
    if not len(keys):
        return RowImages(keys, after, after)
    keys, after = sort_by_key(table, keys, after)
    names = keys.to_pylist()
    if max(map(len, names)) <= MAX_PLAIN_KEY:
        return _apply_plain_keys(txn, db, names, keys, after)
    is_plain = pc.less_equal(pc.binary_length(keys), MAX_PLAIN_KEY)
    is_long = pc.invert(is_plain)
    plain_keys = keys.filter(is_plain)
    return concat_images(
        [
            _apply_plain_keys(txn, db, plain_keys.to_pylist(), plain_keys, after.filter(is_plain)),
            _apply_long_keys(txn, db, meta, table.id, keys.filter(is_long), after.filter(is_long)),
        ]
    )


def _apply_plain_keys(txn: Any, db: Any, names: list[bytes], keys: pa.BinaryArray, after: pa.BinaryArray) -> RowImages:
    """Apply changes of keys that are not long. `names` are the keys as bytes objects: keys and rows are converted to
    bytes objects once, because LMDB accepts and returns nothing else."""
    cursor = txn.cursor(db=db)
    # Keys after the table's last key are new: they need no lookup, and their rows are appended.
    existing = bisect_right(names, cursor.key()) if cursor.last() else 0
    rows = after.to_pylist()
    has_rows = all(rows)
    if replaced := has_rows and _should_replace_all(cursor, names, rows, existing):
        before = list(map(cursor.replace, itertools.islice(names, existing), rows))
        if not all(before):
            before = [row or b"" for row in before]
    else:
        before = list(map(cursor.get, itertools.islice(names, existing), itertools.repeat(b"")))
    before += itertools.repeat(b"", len(names) - existing)
    changed = list(map(ne, before, rows))
    if not all(changed):
        existing = sum(changed[:existing])
        names, before, rows = (list(itertools.compress(side, changed)) for side in (names, before, rows))
        keys, after = binary_array(names), binary_array(rows)
    if has_rows:
        if not replaced:
            cursor.putmulti(itertools.islice(zip(names, rows, strict=True), existing))
        cursor.putmulti(itertools.islice(zip(names, rows, strict=True), existing, None), append=True)
    else:
        _put_or_delete(txn, db, names, rows)
    return RowImages(keys, binary_array(before), after)


def _should_replace_all(cursor: Any, names: list[bytes], rows: list[bytes], existing: int) -> bool:
    """Return whether to replace the first `existing` rows in one pass: if there are many and all sampled ones change,
    each row is looked up and written by one call. An unchanged row is then rewritten, which only dirties its page."""
    step = existing // _SAMPLED_ROWS
    if step < 2:
        return False
    sampled = map(cursor.get, itertools.islice(names, 0, existing, step), itertools.repeat(b""))
    return all(map(ne, sampled, itertools.islice(rows, 0, existing, step)))


def rewrite(txn: Any, db: Any, meta: Any, table: Table, keys: Sequence[bytes], after: Sequence[bytes]) -> None:
    """Write rows that are known to change."""
    if max(map(len, keys), default=0) > MAX_PLAIN_KEY:
        apply(txn, db, meta, table, binary_array(keys), binary_array(after))
    else:
        _put_or_delete(txn, db, keys, after)


def _put_or_delete(txn: Any, db: Any, names: Sequence[bytes], rows: Sequence[bytes]) -> None:
    """Put or delete rows. Every deleted key exists, because deleting an absent key would be no change."""
    cursor = txn.cursor(db=db)
    if all(rows):
        cursor.putmulti(zip(names, rows, strict=True))
        return
    cursor.putmulti(itertools.compress(zip(names, rows, strict=True), rows))
    deque(map(partial(txn.delete, db=db), itertools.compress(names, map(not_, rows))), maxlen=0)


# -- find and scan ----------------------------------------------------------------------------------------------------


def find(txn: Any, db: Any, key: bytes) -> bytes | None:
    """Return one row, or None."""
    if len(key) > MAX_PLAIN_KEY:
        return dict(_decode_bucket(txn.get(_bucket_key(key), db=db))).get(key)
    row: bytes | None = txn.get(key, db=db)
    return row


def find_in_order(txn: Any, db: Any, keys: Sequence[bytes]) -> list[bytes]:
    """Return the row of each key; empty if there is none."""
    get = txn.get
    if max(map(len, keys), default=0) <= MAX_PLAIN_KEY:
        return [get(key, b"", db) for key in keys]
    return [find(txn, db, key) or b"" for key in keys]


def find_rows(txn: Any, db: Any, keys: pa.BinaryArray) -> pa.BinaryArray:
    """Return the existing rows of these keys, in any order."""
    names = keys.to_pylist()
    long_keys = [name for name in names if len(name) > MAX_PLAIN_KEY]
    if long_keys:
        names = [name for name in names if len(name) <= MAX_PLAIN_KEY]
    found = [row for _, row in txn.cursor(db=db).getmulti(names)]
    found.extend(row for name in long_keys if (row := find(txn, db, name)) is not None)
    return pa.array(found, pa.binary())


def scan(
    txn: Any, db: Any, meta: Any, table_id: int, start: bytes | None, stop: bytes | None, limit: int | None
) -> Iterator[pa.BinaryArray]:
    """Yield the rows of a key range in key order, in batches."""
    size = _batch_rows(txn, db)
    remaining = limit
    if txn.get(_LONG_KEYS_RECORD % table_id, db=meta) is not None:
        batches = _scan_long_keys(txn.cursor(db=db), start, stop, size)
    else:
        batches = _scan_plain_keys(txn.cursor(db=db), start, stop, size, limit)
    for rows in batches:
        if remaining is not None:
            rows = rows[:remaining]
            remaining -= len(rows)
        if rows:
            array = pa.array(rows, pa.binary())
            yield from array.chunks if isinstance(array, pa.ChunkedArray) else (array,)
        if remaining == 0:
            return


def _batch_rows(txn: Any, db: Any) -> int:
    stat = txn.stat(db)
    size = (stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"]
    return int(min(_BATCH_ROWS, max(1, _BATCH_BYTES * stat["entries"] // max(size, 1))))


def _scan_plain_keys(
    cursor: Any, start: bytes | None, stop: bytes | None, size: int, limit: int | None
) -> Iterator[list[bytes]]:
    # Read only values, which is twice as fast as items: the key at which the cursor stops shows whether the batch goes
    # past the range. A range may be short, so its batches start small.
    size, largest = (size, size) if stop is None else (min(size, _FIRST_ROWS), size)
    has_items = cursor.set_range(start) if start else cursor.first()
    while has_items:
        first = cursor.key()
        if stop is not None and first >= stop:
            return
        batch_rows = size if limit is None else min(size, limit)
        rows = list(itertools.islice(cursor.iternext(keys=False), batch_rows))
        has_items = len(rows) == batch_rows
        if stop is not None:
            if not has_items:
                cursor.last()  # after the last item the cursor has no position
            if cursor.key() >= stop:
                cursor.set_key(first)
                keys = list(itertools.islice(cursor.iternext(values=False), batch_rows))
                yield rows[: bisect_left(keys, stop)]
                return
        yield rows
        has_items = has_items and cursor.next()
        size = min(8 * size, largest)


def _scan_long_keys(cursor: Any, start: bytes | None, stop: bytes | None, size: int) -> Iterator[list[bytes]]:
    if not (cursor.set_range(start[:LONG_KEY_PREFIX]) if start else cursor.first()):
        return
    items: Iterator[tuple[bytes, bytes]] = _in_key_order(cursor.iternext())
    if start:
        items = itertools.dropwhile(lambda item: item[0] < start, items)
    if stop is not None:
        items = itertools.takewhile(lambda item: item[0] < stop, items)
    while rows := [row for _, row in itertools.islice(items, size)]:
        yield rows


def _in_key_order(records: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for prefix, group in itertools.groupby(records, lambda record: record[0][:LONG_KEY_PREFIX]):
        if len(prefix) < LONG_KEY_PREFIX:
            yield from group
        else:
            yield from sorted(itertools.chain.from_iterable(_record_rows(key, value) for key, value in group))


def _record_rows(key: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    return _decode_bucket(value) if len(key) > MAX_PLAIN_KEY else [(key, value)]


def split_points(txn: Any, db: Any, table_id: int, data: Path, range_count: int) -> list[bytes]:
    # Truncate the keys to the prefix, so that records which are sorted during a scan stay together.
    points = (key[:LONG_KEY_PREFIX] for key in btree_pages.split_points(txn, db, b"t%d" % table_id, data, range_count))
    return sorted(set(points))


# -- long keys --------------------------------------------------------------------------------------------------------


def count_shared_rows(txn: Any, meta: Any, table_id: int) -> int:
    """Return the number of rows that share a bucket with an earlier row: LMDB does not count them."""
    return int(bytes(txn.get(_LONG_KEYS_RECORD % table_id, default=b"0", db=meta)))


def forget_long_keys(txn: Any, meta: Any, table_id: int) -> None:
    txn.delete(_LONG_KEYS_RECORD % table_id, db=meta)


def _apply_long_keys(
    txn: Any, db: Any, meta: Any, table_id: int, keys: pa.BinaryArray, after: pa.BinaryArray
) -> RowImages:
    changed: list[tuple[bytes, bytes, bytes]] = []
    shared = count_shared_rows(txn, meta, table_id)
    for key, row in zip(keys.to_pylist(), after.to_pylist(), strict=True):
        name = _bucket_key(key)
        bucket = dict(_decode_bucket(txn.get(name, db=db)))
        size = max(len(bucket), 1)
        old = bucket.pop(key, b"")
        if old == row:
            continue
        changed.append((key, old, row))
        if row:
            bucket[key] = row
        shared += max(len(bucket), 1) - size
        if bucket:
            txn.put(name, _encode_bucket(bucket), db=db)
        else:
            txn.delete(name, db=db)
    txn.put(_LONG_KEYS_RECORD % table_id, b"%d" % shared, db=meta)
    return RowImages(*(pa.array([change[side] for change in changed], pa.binary()) for side in range(3)))


def _bucket_key(key: bytes) -> bytes:
    return key[:LONG_KEY_PREFIX] + digest(key)


def digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _decode_bucket(value: bytes | None) -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    offset = 1
    while value is not None and offset < len(value):
        key_size, row_size = _LENGTHS.unpack_from(value, offset)
        offset += _LENGTHS.size
        rows.append((value[offset : offset + key_size], value[offset + key_size : offset + key_size + row_size]))
        offset += key_size + row_size
    return rows


def _encode_bucket(bucket: dict[bytes, bytes]) -> bytes:
    return _BUCKET + b"".join(_LENGTHS.pack(len(key), len(row)) + key + row for key, row in sorted(bucket.items()))
