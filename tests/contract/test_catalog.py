"""The catalog of every store: what one handle defines another sees, and one that version 0.1 wrote is taken over."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.contract.conftest import ITEMS, Opener

from viewkeeper.errors import CorruptState
from viewkeeper.model.catalog.catalog import Catalog, View
from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import Batch, Store
from viewkeeper.store.lmdb import LmdbStore


def view(catalog: Catalog, name: str) -> View:
    root = {"kind": "scan", "table": ITEMS.id, "fields": []}
    table = replace(ITEMS, id=catalog.next_id, name=name, is_view=True)
    return View(table, f"SELECT * FROM items -- {name}", {"root": root, "output": [], "sizes": {}})


def commit(store: Store, number: int, change: Any) -> None:
    store.commit(Batch(number, store.head(), {"attempt": str(number)}), [], change)


def test_other_handles_see_what_is_defined_changed_and_dropped(store: Store, opener: Opener) -> None:
    often, seldom = opener("r"), opener("r")
    store.acquire_lease()
    number = 0

    def published(change: Any) -> None:
        nonlocal number
        number += 1
        commit(store, number, change)
        assert often.catalog() == store.catalog()

    published(lambda c: c.with_view(view(c, "first")))
    store.change_catalog(lambda c: c.with_table(replace(ITEMS, id=c.next_id, name="more")))
    assert often.catalog().table("more") == store.catalog().table("more")
    for name in ("second", "third"):
        published(lambda c, name=name: c.with_view(view(c, name)))
    published(lambda c: c.renaming(c.table("second"), "another"))
    published(lambda c: c.without(c.view("third").table.id))
    with pytest.raises(ZeroDivisionError):
        store.change_catalog(lambda c: c.without(1 // 0))
    for _ in range(50):  # more than the head lists
        store.change_catalog(lambda catalog: catalog.with_reserved_ids(1))
    catalog = seldom.catalog()
    assert catalog == store.catalog() == often.catalog() == opener("r").catalog()
    assert [v.table.name for v in catalog.views] == ["first", "another"]
    assert [t.name for t in catalog.tables] == ["items", "pairs", "more"]
    assert catalog.readers[ITEMS.id] == {v.table.id for v in catalog.views}


def raw(path: Path) -> Any:
    return lmdb.open(str(path), max_dbs=4)


def records(store: Any) -> dict[bytes, bytes]:
    with store._opened.read() as state:
        return {bytes(k): bytes(v) for k, v in state.meta.items(b"")}


@pytest.mark.parametrize("opener", ["lmdb"], indirect=True)
def test_a_definition_is_a_record_and_costs_the_same_among_many(store: LmdbStore) -> None:
    sizes = []
    for number in range(60):
        before = records(store)
        store.change_catalog(lambda c, n=number: c.with_view(view(c, f"view{n:03}")))  # type: ignore[misc]
        after = records(store)
        sizes.append(sum(len(v) for k, v in after.items() if before.get(k) != v))
    assert max(sizes[40:]) < 1.2 * sizes[35]


@pytest.mark.parametrize("opener", ["lmdb"], indirect=True)
def test_a_damaged_definition_is_told_by_its_name(store: LmdbStore, opener: Opener, tmp_path: Path) -> None:
    store.close()
    with raw(tmp_path / "db") as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn)
        name = b"catalog:" + (2).to_bytes(8, "big")
        txn.put(name, txn.get(name, db=meta)[:-1] + b"?", db=meta)
    with pytest.raises(CorruptState, match="catalog:2"):
        opener("r").catalog()


def whole(catalog: Catalog) -> dict[str, Any]:
    """As version 0.1 wrote it."""
    listed = {"tables": [t.to_json() for t in catalog.tables], "views": [v.to_json() for v in catalog.views]}
    return {"version": catalog.version, "next_id": catalog.next_id, **listed}


@pytest.mark.parametrize("opener", ["lmdb"], indirect=True)
def test_one_record_of_version_0_1_in_lmdb_is_read_and_divided_by_the_first_change(
    store: LmdbStore, opener: Opener, tmp_path: Path
) -> None:
    catalog = store.change_catalog(lambda c: c.with_view(view(c, "old")))
    store.close()
    with raw(tmp_path / "db") as env, env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn)
        for number in (1, 2, 3):
            assert txn.delete(b"catalog:" + number.to_bytes(8, "big"), db=meta)
        text = json.dumps(whole(catalog)).encode()
        txn.put(b"catalog", zlib.crc32(text).to_bytes(4, "big") + text, db=meta)
        txn.put(b"format", b"2", db=meta)
    reader = opener("r")
    assert reader.catalog() == catalog
    assert not any(k.startswith(b"catalog:") for k in records(reader))
    writer = opener()
    changed = writer.change_catalog(lambda c: c.with_view(view(c, "new")))
    assert [v.table.name for v in changed.views] == ["old", "new"]
    assert reader.catalog() == changed == opener("r").catalog()
    assert len([k for k in records(writer) if k.startswith(b"catalog:")]) == 4


@pytest.mark.parametrize("opener", ["atomic rows only"], indirect=True)
def test_one_cell_of_version_0_1_in_hbase_is_read_and_divided_by_the_first_change(store: Any, opener: Opener) -> None:
    from viewkeeper_hbase.metadata import FORMAT, encode_record

    store.acquire_lease()
    commit(store, 1, lambda c: c.with_view(view(c, "old")))
    catalog: Catalog = store.catalog()
    meta = store._opened.records

    def old(state: Any) -> Any:
        cells = {b"m:d%d" % t.id: None for t in (*catalog.tables, *(v.table for v in catalog.views))}
        return replace(state, format=1), {b"m:catalog": encode_record(whole(catalog)), **cells}

    meta.move(old)
    reader: Any = opener("r")
    assert reader.catalog() == catalog
    commit(store, 2, lambda c: c.with_view(view(c, "new")))
    assert reader.catalog() == store.catalog() == opener("r").catalog()
    assert [v.table.name for v in reader.catalog().views] == ["old", "new"]
    assert meta.state().format == FORMAT
    dropped = store.change_catalog(lambda c: c.without(c.table("pairs").id))
    assert reader.catalog() == dropped
    cells = store._client.get(meta.table, b"database")
    assert sorted(c for c in cells if c.startswith(b"m:d")) == [b"m:d1", b"m:d3", b"m:d4"]


def test_a_table_is_found_by_number_and_by_name(store: Store) -> None:
    catalog = store.catalog()
    found = catalog.find_by_id(ITEMS.id)
    assert isinstance(found, Table)
    assert catalog.table("ITEMS") == found == catalog.find_table_by_id(ITEMS.id)
