"""The catalog as a value, and as records: what is read piece by piece is what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.errors import Defect, NameTaken
from viewkeeper.model import types
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.catalog.view import OwnCut
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store import catalog_records


class Shelf:
    """Records in memory, as JSON."""

    def __init__(self) -> None:
        self.records: dict[str, str] = {}
        self.reads = self.written = 0

    def head(self) -> Any:
        return self._read("catalog")

    def definition(self, number: int) -> Any:
        return self._read(f"catalog:{number}")

    def definitions(self) -> Iterator[Any]:
        return (self._read(name) for name in list(self.records) if name != "catalog")

    def _read(self, name: str) -> Any:
        self.reads += 1
        return json.loads(self.records[name]) if name in self.records else None

    def write(self, written: catalog_records.CatalogDifference | None) -> None:
        if written is not None:
            again = catalog_records.CatalogDifference.from_json(json.loads(json.dumps(written.to_json())))
            texts: dict[str, Any] = {"catalog": again.head}
            texts |= {f"catalog:{i}": data for i, data in again.definitions.items()}
            for name, data in texts.items():
                self.records[name] = json.dumps(data)
                self.written += len(self.records[name])
                if data is None:
                    del self.records[name]

    def change(self, known: Catalog, change: Any) -> Catalog:
        made, written = catalog_records.apply_change(self, known, change)
        self.write(written)
        return made


def table(catalog: Catalog, name: str) -> Table:
    return Table(catalog.next_id, name, (Column("k", types.INT),), (KeyPart("k"),))


def view(catalog: Catalog, name: str, reads: tuple[int, ...] = ()) -> View:
    root = {"kind": "union", "inputs": [{"kind": "scan", "table": i, "fields": []} for i in reads]}
    plan = {"root": root, "output": [], "sizes": {}}
    return View(replace(table(catalog, name), is_view=True), f"SELECT {reads}", plan)


def as_json(catalog: Catalog) -> Any:
    return [catalog.version, catalog.next_id, *(e.to_json() for e in (*catalog.tables, *catalog.views))]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.booleans()), max_size=80))
def test_what_is_read_since_a_known_version_is_the_whole(steps: list[tuple[int, int, bool]]) -> None:
    shelf, writer, reader = Shelf(), Catalog(), Catalog()
    for number, (kind, pick, looks) in enumerate(steps):

        def change(catalog: Catalog, kind: int = kind, pick: int = pick, number: int = number) -> Catalog:
            listed = [*catalog.tables, *(v.table for v in catalog.views)]
            one = listed[pick % len(listed)] if listed else None
            if kind == 0 or one is None:
                return catalog.with_table(table(catalog, f"t{number}"))
            if kind == 1:
                return catalog.with_view(view(catalog, f"v{number}", tuple(sorted({one.id, listed[0].id}))))
            if kind == 2:
                return catalog.without(one.id)
            if kind == 3:
                return catalog.with_renamed_entry(one, f"n{number}")
            if kind == 4 and catalog.views:
                moved = catalog.views[pick % len(catalog.views)]
                return catalog.with_replaced_view(replace(moved, own_cut=OwnCut(number, 0, number, 0.0)))
            return catalog.with_reserved_ids(1) if pick % 2 else catalog

        writer = shelf.change(writer, change)
        whole = catalog_records.read_catalog(shelf, Catalog())
        assert as_json(writer) == as_json(whole)
        assert writer == whole
        if looks:
            reader = catalog_records.read_catalog(shelf, reader)
            assert reader == whole
        for listed in (*whole.tables, *(v.table for v in whole.views)):
            assert writer.find_table_by_id(listed.id) == listed == writer.table(listed.name.upper())
        assert len(writer._ids) == len(whole.tables) + len(whole.views)
    assert catalog_records.read_catalog(shelf, reader) == catalog_records.read_catalog(shelf, Catalog())


def test_a_view_costs_the_same_whatever_is_there() -> None:
    shelf, catalog = Shelf(), Catalog()
    catalog = shelf.change(catalog, lambda c: c.with_table(table(c, "t")))
    spent, looked = [], []
    reader = catalog
    for number in range(500):
        before, read = shelf.written, shelf.reads
        catalog = shelf.change(catalog, lambda c, n=number: c.with_view(view(c, f"v{n}", (1,))))  # type: ignore[misc]
        spent.append(shelf.written - before)
        reader = catalog_records.read_catalog(shelf, reader)
        looked.append(shelf.reads - read)
    assert reader == catalog
    assert max(spent[400:]) < 1.5 * spent[40]
    assert max(looked[400:]) == looked[40]


def test_one_whole_record_of_version_0_1_is_read_and_then_divided() -> None:
    first = Catalog().with_table(table(Catalog(), "t"))
    first = first.with_view(view(first, "v", (1,)))
    shelf = Shelf()
    whole = {"version": first.version, "next_id": first.next_id}
    listed = {"tables": [t.to_json() for t in first.tables], "views": [v.to_json() for v in first.views]}
    shelf.records["catalog"] = json.dumps({**whole, **listed})
    assert catalog_records.read_catalog(shelf, Catalog()) == first
    changed = shelf.change(Catalog(), lambda c: c.with_table(table(c, "u")))
    assert set(shelf.records) == {"catalog", "catalog:1", "catalog:2", "catalog:3"}
    assert catalog_records.read_catalog(shelf, Catalog()) == catalog_records.read_catalog(shelf, first) == changed
    assert catalog_records.CatalogDifference.from_json({**whole, **listed}).definitions.keys() == {1, 2}


def test_a_change_of_very_many_is_not_listed() -> None:
    shelf, catalog = Shelf(), Catalog()
    catalog = shelf.change(catalog, lambda c: c.with_table(table(c, "t")))
    reader = catalog

    def many(current: Catalog) -> Catalog:
        for number in range(1000):
            current = current.with_view(view(current, f"v{number}", (1,)))
        return current

    catalog = shelf.change(catalog, many)
    assert len(shelf.records["catalog"]) < 200
    assert catalog_records.read_catalog(shelf, reader) == catalog


def test_who_reads_whom_is_known_through_others() -> None:
    """Also where a view was replaced by one that reads a later one."""
    catalog = Catalog().with_table(table(Catalog(), "t"))
    for name, reads in (("a", (1,)), ("b", (1,)), ("c", (1,))):
        catalog = catalog.with_view(view(catalog, name, reads))
    a, b, c = (catalog.view(name) for name in "abc")
    catalog = catalog.with_replaced_view(replace(a, plan=view(catalog, "x", (b.table.id,)).plan))
    catalog = catalog.with_replaced_view(replace(b, plan=view(catalog, "x", (c.table.id,)).plan))
    assert catalog.dependents([c.table.id]) == [a.table.id, b.table.id]
    assert catalog.dependents([1]) == [a.table.id, b.table.id, c.table.id]
    assert catalog.readers[1] == {c.table.id}


def test_versions_go_up_and_names_are_taken_once() -> None:
    catalog = Catalog().with_table(table(Catalog(), "t"))
    with pytest.raises(NameTaken):
        catalog.with_table(table(catalog, "T"))
    shelf = Shelf()
    shelf.change(Catalog(), lambda c: c.with_table(table(c, "t")))
    with pytest.raises(Defect):
        shelf.change(Catalog(), lambda c: c.derive(0, 5))
