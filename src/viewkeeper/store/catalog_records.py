"""The catalog as records: one record for each table and view, and a short head record that every change rewrites.

    catalog            {version, next_id, floor, recent: [[version, [id, …]], …]}
    catalog:<id>       {"table": …} or {"view": …}

A change writes the head and the records that differ, so its cost does not grow with the number of views. `recent` lists
the ids that changed with each version after `floor`: a process that has cached a version since then reads only those
records.

Version 0.1 kept the whole catalog in the head's record. Such a record is still read; the first change rewrites it as
separate records.

The store decides where the records are stored and must write those of one change atomically; `CatalogRecords` is the
interface that this module needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from viewkeeper.errors import CorruptState, Defect
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Table

_MAX_RECENT_CHANGES = 32
"""Maximum number of changes that the head lists."""
_MAX_RECENT_IDS = 64
"""Maximum number of ids that the head lists. A larger change is not listed, and a process with an older version reads
the whole catalog."""


class CatalogRecords(Protocol):
    """Reads the catalog's records in one state of the store."""

    def head(self) -> Mapping[str, Any] | None: ...

    def definition(self, number: int) -> Mapping[str, Any] | None: ...

    def definitions(self) -> Iterator[Mapping[str, Any]]: ...


@dataclass(frozen=True)
class CatalogDifference:
    """The writes of a catalog change: the new head, and definitions by id; None deletes a definition."""

    head: Mapping[str, Any]
    definitions: Mapping[int, Mapping[str, Any] | None]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "head": self.head,
            "definitions": {str(i): d for i, d in self.definitions.items()},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> CatalogDifference:
        """Decode the result of `to_json`, or a whole catalog of version 0.1."""
        if "head" not in data:
            return _full_difference(Catalog.from_json(data))
        return CatalogDifference(data["head"], {int(i): d for i, d in data["definitions"].items()})

    @property
    def version(self) -> int:
        return int(self.head["version"])


def read_catalog(records: CatalogRecords, cached: Catalog) -> Catalog:
    """Return the current catalog. Entries that have not changed since the `cached` catalog are reused."""
    head = records.head()
    if head is None:
        return Catalog()
    if is_whole_catalog(head):
        return cached if cached.version == head["version"] else Catalog.from_json(head)
    version, next_id = head["version"], head["next_id"]
    if version == cached.version:
        return cached
    if head["floor"] <= cached.version < version:
        changed = {i: records.definition(i) for i in ids_changed_after(head, cached.version)}
        deleted = [i for i, data in changed.items() if data is None]
        return cached.derive(version, next_id, map(decode_entry, filter(None, changed.values())), deleted)
    entries = sorted(
        map(decode_entry, records.definitions()), key=lambda e: e.table.id if isinstance(e, View) else e.id
    )
    tables = (e for e in entries if isinstance(e, Table))
    return Catalog(version, next_id, tables, (e for e in entries if isinstance(e, View)))


def apply_change(
    records: CatalogRecords, cached: Catalog, change: Callable[[Catalog], Catalog]
) -> tuple[Catalog, CatalogDifference | None]:
    """Return the catalog after `change(current)`, and the records to write for it; None if nothing changed."""
    current = read_catalog(records, cached)
    new = change(current)
    return new, diff_catalogs(records.head(), current, new)


def diff_catalogs(head: Mapping[str, Any] | None, current: Catalog, new: Catalog) -> CatalogDifference | None:
    """Return the writes that lead from `current`, whose head is `head`, to `new`. The version of `new` must be higher
    unless nothing changed."""
    ids = new.changed_since(current)
    if not ids and (new.version, new.next_id) == (current.version, current.next_id):
        return None
    if new.version <= current.version:
        raise Defect(f"Catalog version {new.version} does not follow {current.version}.")
    if head is None or is_whole_catalog(head):
        return _full_difference(new)
    recent = [*head["recent"], [new.version, ids]]
    floor = head["floor"]
    while len(recent) > _MAX_RECENT_CHANGES or sum(len(listed) for _, listed in recent) > _MAX_RECENT_IDS:
        floor = recent.pop(0)[0]
    definitions = {i: None if (found := new.find_by_id(i)) is None else encode_entry(found) for i in ids}
    return CatalogDifference(
        {"version": new.version, "next_id": new.next_id, "floor": floor, "recent": recent}, definitions
    )


def ids_changed_after(head: Mapping[str, Any], version: int) -> list[int]:
    return list({i: None for changed_version, listed in head["recent"] if changed_version > version for i in listed})


def is_whole_catalog(head: Mapping[str, Any]) -> bool:
    """Return whether a head record is a whole catalog of version 0.1."""
    return "views" in head


def encode_entry(entry: Table | View) -> dict[str, Any]:
    return {"view" if isinstance(entry, View) else "table": entry.to_json()}


def decode_entry(data: Mapping[str, Any]) -> Table | View:
    ((kind, body),) = data.items()
    if kind not in ("table", "view"):
        raise CorruptState(f"The catalog lists a {kind}, which this version does not know.", hint="Use a newer one.")
    return View.from_json(body) if kind == "view" else Table.from_json(body)


def _full_difference(catalog: Catalog) -> CatalogDifference:
    definitions = {e.table.id if isinstance(e, View) else e.id: encode_entry(e) for e in catalog.entries}
    head = {"version": catalog.version, "next_id": catalog.next_id, "floor": catalog.version, "recent": []}
    return CatalogDifference(head, definitions)
