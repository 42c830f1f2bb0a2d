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

_RECENT = 32
"""Changes that the head lists."""
_LISTED = 64
"""Ids that the head lists; a change of more is not listed, and whoever knows less reads everything."""


class Kept(Protocol):
    """The records of a catalog, as one moment shows them."""

    def head(self) -> Mapping[str, Any] | None: ...

    def definition(self, number: int) -> Mapping[str, Any] | None: ...

    def definitions(self) -> Iterator[Mapping[str, Any]]: ...


@dataclass(frozen=True)
class Difference:
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
    def from_json(data: Mapping[str, Any]) -> Difference:
        """What `to_json` made, or a whole catalog of version 0.1."""
        if "head" not in data:
            return _whole(Catalog.from_json(data))
        return Difference(data["head"], {int(i): d for i, d in data["definitions"].items()})

    @property
    def version(self) -> int:
        return int(self.head["version"])


def read(kept: Kept, known: Catalog) -> Catalog:
    """The catalog; what has not changed since the `known` one is taken from it."""
    head = kept.head()
    if head is None:
        return Catalog()
    if is_old(head):
        return known if known.version == head["version"] else Catalog.from_json(head)
    version, next_id = head["version"], head["next_id"]
    if version == known.version:
        return known
    if head["floor"] <= known.version < version:
        found = {i: kept.definition(i) for i in changed_after(head, known.version)}
        gone = [i for i, data in found.items() if data is None]
        return known.moved(version, next_id, map(entry, filter(None, found.values())), gone)
    entries = sorted(map(entry, kept.definitions()), key=lambda e: e.table.id if isinstance(e, View) else e.id)
    tables = (e for e in entries if isinstance(e, Table))
    return Catalog(version, next_id, tables, (e for e in entries if isinstance(e, View)))


def changed(kept: Kept, known: Catalog, change: Callable[[Catalog], Catalog]) -> tuple[Catalog, Difference | None]:
    """The catalog after `change(current)`, and what is to be written for it: None if nothing changed."""
    current = read(kept, known)
    made = change(current)
    return made, difference(kept.head(), current, made)


def difference(head: Mapping[str, Any] | None, current: Catalog, made: Catalog) -> Difference | None:
    """From the catalog that the head is of to another one, whose version must be higher unless nothing changed."""
    ids = made.changed_since(current)
    if not ids and (made.version, made.next_id) == (current.version, current.next_id):
        return None
    if made.version <= current.version:
        raise Defect(f"Catalog version {made.version} does not follow {current.version}.")
    if head is None or is_old(head):
        return _whole(made)
    recent = [*head["recent"], [made.version, ids]]
    floor = head["floor"]
    while len(recent) > _RECENT or sum(len(listed) for _, listed in recent) > _LISTED:
        floor = recent.pop(0)[0]
    definitions = {i: None if (found := made.of(i)) is None else definition(found) for i in ids}
    return Difference({"version": made.version, "next_id": made.next_id, "floor": floor, "recent": recent}, definitions)


def changed_after(head: Mapping[str, Any], version: int) -> list[int]:
    return list({i: None for at, listed in head["recent"] if at > version for i in listed})


def is_old(head: Mapping[str, Any]) -> bool:
    """Whether it is the whole catalog of version 0.1."""
    return "views" in head


def definition(entry: Table | View) -> dict[str, Any]:
    return {"view" if isinstance(entry, View) else "table": entry.to_json()}


def entry(data: Mapping[str, Any]) -> Table | View:
    ((kind, body),) = data.items()
    if kind not in ("table", "view"):
        raise CorruptState(f"The catalog lists a {kind}, which this version does not know.", hint="Use a newer one.")
    return View.from_json(body) if kind == "view" else Table.from_json(body)


def _whole(catalog: Catalog) -> Difference:
    definitions = {e.table.id if isinstance(e, View) else e.id: definition(e) for e in catalog.listed}
    head = {"version": catalog.version, "next_id": catalog.next_id, "floor": catalog.version, "recent": []}
    return Difference(head, definitions)
