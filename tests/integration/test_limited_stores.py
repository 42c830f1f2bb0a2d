"""Stores that can do less: the table image supplies before-images, whole scans a feed, a redo log atomic batches. The
views are those of a store that can do everything, and those of another one that can."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.limited import LIMITED
from tests.contract.small_hbase import SmallHBase

from viewkeeper.database import Database
from viewkeeper.errors import BadValue, InUse
from viewkeeper.store.contract.store import Store
from viewkeeper.store.lmdb import LmdbStore
from viewkeeper.store.registry import open_store

VIEWS = {
    "totals": "SELECT category, count(*) AS n, sum(price) AS total, max(price) AS top FROM items GROUP BY category",
    "pairs": "SELECT a.id, b.id AS other FROM items a JOIN items b ON a.price = b.price AND a.id < b.id",
    "kinds": "SELECT category FROM items WHERE price > 3",
}


@pytest.fixture
def small() -> Iterator[SmallHBase]:
    server = SmallHBase()
    yield server
    server.close()


@pytest.fixture(params=[*LIMITED, "rocksdb", "atomic rows only"])
def both(request: pytest.FixtureRequest, tmp_path: Path, spark: Any, small: SmallHBase) -> Iterator[list[Database]]:
    if request.param in LIMITED:
        less: Store = LIMITED[request.param](tmp_path / "less")
    elif request.param == "rocksdb":
        less = open_store(f"rocksdb:{tmp_path / 'less'}")
    else:
        less = open_store(f"hbase://{small.host}:{small.port}/shop", create=True, state=str(tmp_path / "state"))
    stores = [LmdbStore(tmp_path / "whole"), less]
    opened = [Database(store, mode="w", spark=spark, progress=None) for store in stores]
    for db in opened:
        db.sql("CREATE TABLE items (id BIGINT PRIMARY KEY, category STRING, price INT, note STRING)")
        db.put("items", [{"id": n, "category": "ab"[n % 2], "price": n % 5} for n in range(20)])
        for name, query in VIEWS.items():
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    yield opened
    for db in opened:
        db.close()


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_views_are_the_same(both: list[Database], lane: str) -> None:
    chance = random.Random(7)
    for _ in range(6 if lane == "driver" else 2):
        for _ in range(3):
            rows = [
                {"id": chance.randrange(30), "category": chance.choice(["a", "b", None]), "price": chance.randrange(5)}
                for _ in range(chance.randrange(1, 6))
            ]
            gone = [chance.randrange(30) for _ in range(chance.randrange(3))]
            for db in both:
                db.put("items", rows)
                db.delete("items", gone)
                db.update("items", rows[0]["id"], {"note": "x"}) if rows[0]["id"] not in gone else None
        for db in both:
            db.refresh(lane)
        for name in VIEWS:
            whole, less = (db.read(name) for db in both)
            assert less.equals(whole), name


def test_a_column_is_dropped_and_one_of_its_name_is_added(both: list[Database]) -> None:
    """What the old column held never shows again: not in rows, not in views, not from the image that once had it."""
    for db in both:
        db.put("items", [{"id": n, "category": "a", "price": 1, "note": f"old {n}"} for n in range(5)])
        db.sql("CREATE MATERIALIZED VIEW notes AS SELECT note, count(*) AS n FROM items GROUP BY note")
        assert db.read("notes").num_rows == 6
        with pytest.raises(InUse, match=r"items.note is used by notes\."):
            db.sql("ALTER TABLE items DROP COLUMN note")
        db.sql("DROP MATERIALIZED VIEW notes")
        db.sql("ALTER TABLE items DROP COLUMN Note")
        assert db.get("items", 1) == {"id": 1, "category": "a", "price": 1}
        with pytest.raises(BadValue, match="note"):
            db.update("items", 1, {"note": "x"})
        db.put("items", [{"id": 2, "category": "b", "price": 3}, {"id": 90, "category": "b", "price": 3}])
        db.sql("ALTER TABLE items ADD COLUMN note STRING")
        assert db.read("items")["note"].null_count == db.read("items").num_rows
        db.sql("CREATE MATERIALIZED VIEW notes AS SELECT note, count(*) AS n FROM items GROUP BY note")
        assert db.read("notes").to_pylist() == [{"note": None, "n": 21}]
        db.put("items", {"id": 3, "category": "a", "price": 1, "note": "new"})
        db.update("items", 4, {"note": "new"})
        db.delete("items", 1)
        db.refresh()
        assert db.read("notes").to_pylist() == [{"note": None, "n": 18}, {"note": "new", "n": 2}]
        assert db.get("items", 4) == {"id": 4, "category": "a", "price": 1, "note": "new"}
        assert db.sql("DESCRIBE items")["column"].to_pylist() == ["id", "category", "price", "note"]
    for name in VIEWS:
        whole, less = (db.read(name) for db in both)
        assert less.equals(whole), name
