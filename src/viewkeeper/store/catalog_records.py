"""The catalog as records: one for each table and view, and a short one, the head, that is written with every change.

    catalog            {version, next_id, floor, recent: [[version, [id, …]], …]}
    catalog:<id>       {"table": …} or {"view": …}

A change writes the head and the records of what differs: as much for the thousandth view as for the first. `recent`
lists which ids changed with each version after `floor`, so a process that knows a version since then reads those alone.

Version 0.1 kept the whole catalog in one record, which has the head's place. It is read as it is; the first change
writes all of it anew as records.

Where records lie is the store's business, which must write those of one change together: `Kept` is all that is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from viewkeeper.errors import CorruptState, Defect
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Table

_MAX_RECENT_CHANGES = 32
"""Changes that the head lists."""
_MAX_RECENT_IDS = 64
"""Ids that the head lists; a change of more is not listed, and whoever knows less reads everything."""


class CatalogRecords(Protocol):
    """The records of a catalog, as one moment shows them."""

    def head(self) -> Mapping[str, Any] | None: ...

    def definition(self, number: int) -> Mapping[str, Any] | None: ...

    def definitions(self) -> Iterator[Mapping[str, Any]]: ...


@dataclass(frozen=True)
class CatalogDifference:
    """What a change writes: the head, and the definitions by id; None takes one away."""

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
        """What `to_json` made, or a whole catalog of version 0.1."""
        if "head" not in data:
            return _full_difference(Catalog.from_json(data))
        return CatalogDifference(data["head"], {int(i): d for i, d in data["definitions"].items()})

    @property
    def version(self) -> int:
        return int(self.head["version"])


def read_catalog(records: CatalogRecords, cached: Catalog) -> Catalog:
    """The catalog; what has not changed since the `known` one is taken from it."""
    head = records.head()
    if head is None:
        return Catalog()
    if is_whole_catalog(head):
        return cached if cached.version == head["version"] else Catalog.from_json(head)
    version, next_id = head["version"], head["next_id"]
    if version == cached.version:
        return cached
    if head["floor"] <= cached.version < version:
        found = {i: records.definition(i) for i in ids_changed_after(head, cached.version)}
        gone = [i for i, data in found.items() if data is None]
        return cached.derive(version, next_id, map(decode_entry, filter(None, found.values())), gone)
    entries = sorted(
        map(decode_entry, records.definitions()), key=lambda e: e.table.id if isinstance(e, View) else e.id
    )
    tables = (e for e in entries if isinstance(e, Table))
    return Catalog(version, next_id, tables, (e for e in entries if isinstance(e, View)))


def apply_change(
    records: CatalogRecords, cached: Catalog, change: Callable[[Catalog], Catalog]
) -> tuple[Catalog, CatalogDifference | None]:
    """The catalog after `change(current)`, and what is to be written for it: None if nothing changed."""
    current = read_catalog(records, cached)
    made = change(current)
    return made, diff_catalogs(records.head(), current, made)


def diff_catalogs(head: Mapping[str, Any] | None, current: Catalog, new: Catalog) -> CatalogDifference | None:
    """From the catalog that the head is of to another one, whose version must be higher unless nothing changed."""
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
    return list({i: None for at, listed in head["recent"] if at > version for i in listed})


def is_whole_catalog(head: Mapping[str, Any]) -> bool:
    """Whether it is the whole catalog of version 0.1."""
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
