"""The records of the sub-database `meta`: their names, and how each is read and written.

    format, uuid             written once, when the database is made
    head, floor              the last position; the positions up to here are forgotten from the log (u64)
    catalog_version, catalog the version (u64), and the whole catalog
    batch_number, batch      the number (u64) and the whole record of the published batch
    hold:<name>              a hold on the log
    note:<name>              what the maintainer wants others to see
    long:<table id>          the table has held keys over 510 bytes; how many rows share a bucket with another

Whole records are JSON behind a checksum (crc32, u32 big-endian). Numbers are apart, so that looking for news is cheap.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from viewkeeper.errors import CorruptState, Defect
from viewkeeper.model.catalog import Catalog
from viewkeeper.store.base import Batch, Hold
from viewkeeper.store.lmdb.environment import Environment

HEAD = b"head"
FLOOR = b"floor"
BATCH_NUMBER = b"batch_number"
_BATCH = b"batch"
_CATALOG_VERSION = b"catalog_version"
_CATALOG = b"catalog"
_HOLD = b"hold:"
_NOTE = b"note:"


def read_number(txn: Any, meta: Any, name: bytes) -> int:
    return int.from_bytes(txn.get(name, default=b"", db=meta), "big")


def put_number(txn: Any, meta: Any, name: bytes, number: int) -> None:
    txn.put(name, number.to_bytes(8, "big"), db=meta)


def renew_uuid(txn: Any, meta: Any) -> str:
    """Another uuid; holds go with the one before, whose tokens nobody can use any more."""
    for hold in holds(txn, meta, 0.0):
        delete_hold(txn, meta, hold.name)
    name = uuid.uuid4().hex
    txn.put(b"uuid", name.encode(), db=meta)
    return name


# -- catalog ----------------------------------------------------------------------------------------------------------


def catalog_version(txn: Any, meta: Any) -> int:
    return read_number(txn, meta, _CATALOG_VERSION)


def read_catalog(txn: Any, meta: Any) -> Catalog:
    data = _read(txn, meta, _CATALOG)
    return Catalog() if data is None else Catalog.from_json(data)


def change_catalog(txn: Any, meta: Any, change: Callable[[Catalog], Catalog]) -> Catalog:
    """Replace the catalog by `change(current)`, whose version must be higher unless nothing changed."""
    current = read_catalog(txn, meta)
    changed = change(current)
    if changed == current:
        return current
    if changed.version <= current.version:
        raise Defect(f"Catalog version {changed.version} does not follow {current.version}.")
    _put(txn, meta, _CATALOG, changed.to_json())
    put_number(txn, meta, _CATALOG_VERSION, changed.version)
    return changed


def purge(environment: Environment) -> None:
    """Delete the sub-databases of dropped tables. Only where no handle to them is open: when a database is opened."""
    with environment.read() as txn:
        catalog = read_catalog(txn, environment.meta)
        names = [name for name in txn.cursor().iternext(values=False) if name[:1] == b"t" and name[1:].isdigit()]
    alive = {table.id for table in catalog.tables} | {view.table.id for view in catalog.views}
    # An id that was never given is not dead: a commit may be about to give it.
    for name in names:
        number = int(name[1:])
        if number < catalog.next_id and number not in alive:
            db = environment.table(number)
            with environment.write() as txn:
                txn.drop(db, delete=True)
            environment.close_table(number)


# -- batch ------------------------------------------------------------------------------------------------------------


def read_batch(txn: Any, meta: Any) -> Batch | None:
    data = _read(txn, meta, _BATCH)
    return None if data is None else Batch(data["number"], data["cut"], data["record"])


def encoded_batch(batch: Batch) -> bytes:
    """Before the transaction: it names every run of the state, and writers wait."""
    return _encoded({"number": batch.number, "cut": batch.cut, "record": batch.record})


def put_batch(txn: Any, meta: Any, number: int, encoded: bytes) -> None:
    txn.put(_BATCH, encoded, db=meta)
    put_number(txn, meta, BATCH_NUMBER, number)


# -- holds ------------------------------------------------------------------------------------------------------------


def put_hold(txn: Any, meta: Any, hold: Hold) -> None:
    _put(txn, meta, _HOLD + hold.name.encode(), asdict(hold))


def delete_hold(txn: Any, meta: Any, name: str) -> None:
    txn.delete(_HOLD + name.encode(), db=meta)


def holds(txn: Any, meta: Any, now: float) -> list[Hold]:
    """The holds that have not expired."""
    found = []
    cursor = txn.cursor(db=meta)
    there = cursor.set_range(_HOLD)
    while there and cursor.key().startswith(_HOLD):
        hold = Hold(**_unseal(bytes(cursor.value()), bytes(cursor.key())))
        if hold.expiry is None or hold.expiry > now:
            found.append(hold)
        there = cursor.next()
    return found


# -- notes ------------------------------------------------------------------------------------------------------------


def read_note(txn: Any, meta: Any, name: str) -> Any:
    return _read(txn, meta, _NOTE + name.encode())


def put_note(txn: Any, meta: Any, name: str, note: Any) -> None:
    if note is None:
        txn.delete(_NOTE + name.encode(), db=meta)
    else:
        _put(txn, meta, _NOTE + name.encode(), note)


# -- whole records ----------------------------------------------------------------------------------------------------


def _read(txn: Any, meta: Any, name: bytes) -> Any:
    value = txn.get(name, db=meta)
    return None if value is None else _unseal(bytes(value), name)


def _put(txn: Any, meta: Any, name: bytes, data: Any) -> None:
    txn.put(name, _encoded(data), db=meta)


def _encoded(data: Any) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    return zlib.crc32(text).to_bytes(4, "big") + text


def _unseal(value: bytes, name: bytes) -> Any:
    text = value[4:]
    if zlib.crc32(text) != int.from_bytes(value[:4], "big"):
        raise CorruptState(f"The record {name.decode()!r} of the database is damaged: its checksum is wrong.")
    return json.loads(text)
