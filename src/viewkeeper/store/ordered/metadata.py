"""The records of the map `meta`: their names, and how each is read and written.

    format, uuid             written once, when the database is created
    head, floor              the last position; the positions up to `floor` are deleted from the log (u64)
    catalog_version, catalog the version (u64), and the catalog's head (`catalog_records`)
    catalog:<id>             a table or view of the catalog (the id as u64)
    batch_number             the number (u64) of the published batch
    batch, batch_basis       its record, in two parts (`batch_record`)
    hold:<name>              a hold on the log
    note:<name>              a note of the maintainer
    long:<table id>          only LMDB: `lmdb/table_rows.py`

Whole records are JSON behind a checksum (crc32, u32 big-endian). Numbers are separate records, so that polling for
changes is cheap.
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
from viewkeeper.store.contract.commits import LogHold
from viewkeeper.store.ordered.maps import OrderedMap

HEAD = b"head"
FLOOR = b"floor"
BATCH_NUMBER = b"batch_number"
CATALOG_VERSION = b"catalog_version"
_CATALOG = b"catalog"
_DEFINITION = b"catalog:"
_HOLD = b"hold:"
_NOTE = b"note:"


def read_counter(meta: OrderedMap, name: bytes) -> int:
    return int.from_bytes(meta.get(name) or b"", "big")


def put_counter(meta: OrderedMap, name: bytes, number: int) -> None:
    meta.put(name, number.to_bytes(8, "big"))


def renew_uuid(meta: OrderedMap) -> str:
    """Replace the uuid. All holds are deleted: they belong to tokens of the old uuid, which are no longer accepted."""
    for hold in read_holds(meta, 0.0):
        delete_hold(meta, hold.name)
    name = uuid.uuid4().hex
    meta.put(b"uuid", name.encode())
    return name


# -- catalog ----------------------------------------------------------------------------------------------------------


def catalog_version(meta: OrderedMap) -> int:
    return read_counter(meta, CATALOG_VERSION)


class _MetaCatalogRecords:
    """The catalog's records in a state (`catalog_records.CatalogRecords`)."""

    def __init__(self, meta: OrderedMap) -> None:
        self._meta = meta

    def head(self) -> Any:
        return read_record(self._meta, _CATALOG)

    def definition(self, number: int) -> Any:
        return read_record(self._meta, _DEFINITION + number.to_bytes(8, "big"))

    def definitions(self) -> Iterator[Any]:
        return _read_with_prefix(self._meta, _DEFINITION)


def read_catalog(meta: OrderedMap, cached: Catalog | None = None) -> Catalog:
    """Return the catalog; only entries that have changed since the `cached` catalog are read."""
    return catalog_records.read_catalog(_MetaCatalogRecords(meta), cached or Catalog())


def change_catalog(meta: OrderedMap, change: Callable[[Catalog], Catalog], cached: Catalog | None = None) -> Catalog:
    """Replace the catalog by `change(current)`, writing only the records that differ."""
    changed, difference = catalog_records.apply_change(_MetaCatalogRecords(meta), cached or Catalog(), change)
    if difference is not None:
        _put_record(meta, _CATALOG, difference.head)
        for number, data in difference.definitions.items():
            name = _DEFINITION + number.to_bytes(8, "big")
            if data is None:
                meta.delete(name)
            else:
                _put_record(meta, name, data)
        put_counter(meta, CATALOG_VERSION, changed.version)
    return changed


# -- holds ------------------------------------------------------------------------------------------------------------


def put_hold(meta: OrderedMap, hold: LogHold) -> None:
    _put_record(meta, _HOLD + hold.name.encode(), asdict(hold))


def delete_hold(meta: OrderedMap, name: str) -> None:
    meta.delete(_HOLD + name.encode())


def read_holds(meta: OrderedMap, now: float) -> list[LogHold]:
    """Return the holds that have not expired."""
    holds = (LogHold(**data) for data in _read_with_prefix(meta, _HOLD))
    return [hold for hold in holds if hold.expiry is None or hold.expiry > now]


# -- notes ------------------------------------------------------------------------------------------------------------


def read_note(meta: OrderedMap, name: str) -> Any:
    return read_record(meta, _NOTE + name.encode())


def put_note(meta: OrderedMap, name: str, note: Any) -> None:
    if note is None:
        meta.delete(_NOTE + name.encode())
    else:
        _put_record(meta, _NOTE + name.encode(), note)


# -- whole records ----------------------------------------------------------------------------------------------------


def read_record(meta: OrderedMap, name: bytes) -> Any:
    value = meta.get(name)
    return None if value is None else _decode_record(bytes(value), name)


def _read_with_prefix(meta: OrderedMap, prefix: bytes) -> Iterator[Any]:
    """Yield the records whose names begin with a prefix, in order."""
    for key, value in meta.items(prefix):
        if not bytes(key).startswith(prefix):
            return
        yield _decode_record(bytes(value), bytes(key))


def _put_record(meta: OrderedMap, name: bytes, data: Any) -> None:
    meta.put(name, encode_record(data))


def encode_record(data: Any) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    return zlib.crc32(text).to_bytes(4, "big") + text


def _decode_record(value: bytes, name: bytes) -> Any:
    text = value[4:]
    if zlib.crc32(text) != int.from_bytes(value[:4], "big"):
        raise CorruptState(f"The record {_display_name(name)!r} of the database is damaged: its checksum is wrong.")
    return json.loads(text)


def _display_name(name: bytes) -> str:
    if name.startswith(_DEFINITION):
        return f"{_DEFINITION.decode()}{int.from_bytes(name[len(_DEFINITION) :], 'big')}"
    return name.decode()
