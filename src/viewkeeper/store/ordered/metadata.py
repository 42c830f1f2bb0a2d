"""The records of the map `meta`: their names, and how each is read and written.

    format, uuid             written once, when the database is made
    head, floor              the last position; the positions up to here are forgotten from the log (u64)
    catalog_version, catalog the version (u64), and the catalog's head (`catalogs`)
    catalog:<id>             a table or view of the catalog (the id as u64)
    batch_number             the number (u64) of the published batch
    batch, batch_basis       its record, in two parts (`batches`)
    hold:<name>              a hold on the log
    note:<name>              what the maintainer wants others to see
    long:<table id>          of LMDB alone: `lmdb/rows.py`

Whole records are JSON behind a checksum (crc32, u32 big-endian). Numbers are apart, so that looking for news is cheap.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from viewkeeper.errors import CorruptState
from viewkeeper.model.catalog.catalog import Catalog
from viewkeeper.store import catalog_records
from viewkeeper.store.contract.commits import Hold
from viewkeeper.store.ordered.maps import OrderedMap

HEAD = b"head"
FLOOR = b"floor"
BATCH_NUMBER = b"batch_number"
CATALOG_VERSION = b"catalog_version"
_CATALOG = b"catalog"
_DEFINED = b"catalog:"
_HOLD = b"hold:"
_NOTE = b"note:"


def read_number(meta: OrderedMap, name: bytes) -> int:
    return int.from_bytes(meta.get(name) or b"", "big")


def put_number(meta: OrderedMap, name: bytes, number: int) -> None:
    meta.put(name, number.to_bytes(8, "big"))


def renew_uuid(meta: OrderedMap) -> str:
    """Another uuid; holds go with the one before, whose tokens nobody can use any more."""
    for hold in holds(meta, 0.0):
        delete_hold(meta, hold.name)
    name = uuid.uuid4().hex
    meta.put(b"uuid", name.encode())
    return name


# -- catalog ----------------------------------------------------------------------------------------------------------


def catalog_version(meta: OrderedMap) -> int:
    return read_number(meta, CATALOG_VERSION)


class _Kept:
    """The catalog's records as a state shows them (`catalogs.Kept`)."""

    def __init__(self, meta: OrderedMap) -> None:
        self._meta = meta

    def head(self) -> Any:
        return read(self._meta, _CATALOG)

    def definition(self, number: int) -> Any:
        return read(self._meta, _DEFINED + number.to_bytes(8, "big"))

    def definitions(self) -> Iterator[Any]:
        return _starting(self._meta, _DEFINED)


def read_catalog(meta: OrderedMap, known: Catalog | None = None) -> Catalog:
    """The catalog; only what has changed since the `known` one is read."""
    return catalog_records.read(_Kept(meta), known or Catalog())


def change_catalog(meta: OrderedMap, change: Callable[[Catalog], Catalog], known: Catalog | None = None) -> Catalog:
    """Replace the catalog by `change(current)`: what differs is written."""
    changed, written = catalog_records.changed(_Kept(meta), known or Catalog(), change)
    if written is not None:
        _put(meta, _CATALOG, written.head)
        for number, data in written.definitions.items():
            name = _DEFINED + number.to_bytes(8, "big")
            if data is None:
                meta.delete(name)
            else:
                _put(meta, name, data)
        put_number(meta, CATALOG_VERSION, changed.version)
    return changed


# -- holds ------------------------------------------------------------------------------------------------------------


def put_hold(meta: OrderedMap, hold: Hold) -> None:
    _put(meta, _HOLD + hold.name.encode(), asdict(hold))


def delete_hold(meta: OrderedMap, name: str) -> None:
    meta.delete(_HOLD + name.encode())


def holds(meta: OrderedMap, now: float) -> list[Hold]:
    """The holds that have not expired."""
    known = (Hold(**data) for data in _starting(meta, _HOLD))
    return [hold for hold in known if hold.expiry is None or hold.expiry > now]


# -- notes ------------------------------------------------------------------------------------------------------------


def read_note(meta: OrderedMap, name: str) -> Any:
    return read(meta, _NOTE + name.encode())


def put_note(meta: OrderedMap, name: str, note: Any) -> None:
    if note is None:
        meta.delete(_NOTE + name.encode())
    else:
        _put(meta, _NOTE + name.encode(), note)


# -- whole records ----------------------------------------------------------------------------------------------------


def read(meta: OrderedMap, name: bytes) -> Any:
    value = meta.get(name)
    return None if value is None else _unseal(bytes(value), name)


def _starting(meta: OrderedMap, prefix: bytes) -> Iterator[Any]:
    """The records whose names begin so, in order."""
    for key, value in meta.items(prefix):
        if not bytes(key).startswith(prefix):
            return
        yield _unseal(bytes(value), bytes(key))


def _put(meta: OrderedMap, name: bytes, data: Any) -> None:
    meta.put(name, encode_record(data))


def encode_record(data: Any) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    return zlib.crc32(text).to_bytes(4, "big") + text


def _unseal(value: bytes, name: bytes) -> Any:
    text = value[4:]
    if zlib.crc32(text) != int.from_bytes(value[:4], "big"):
        raise CorruptState(f"The record {_shown(name)!r} of the database is damaged: its checksum is wrong.")
    return json.loads(text)


def _shown(name: bytes) -> str:
    if name.startswith(_DEFINED):
        return f"{_DEFINED.decode()}{int.from_bytes(name[len(_DEFINED) :], 'big')}"
    return name.decode()
