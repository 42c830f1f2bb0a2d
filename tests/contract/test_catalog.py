"""The catalog of every store: what one handle defines another sees, and one that version 0.1 wrote is taken over."""

from __future__ import annotations

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
    published(lambda c: c.with_renamed_entry(c.table("second"), "another"))
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
    with store._handle.read() as state:
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


def test_a_table_is_found_by_number_and_by_name(store: Store) -> None:
    catalog = store.catalog()
    found = catalog.find_by_id(ITEMS.id)
    assert isinstance(found, Table)
    assert catalog.table("ITEMS") == found == catalog.find_table_by_id(ITEMS.id)
