"""Stores that can do less: the table image supplies before-images, whole scans a feed, a redo log atomic batches. The
views are those of a store that can do everything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.limited import LIMITED
from tests.contract.small_hbase import SmallHBase

from viewkeeper.engine import Database
from viewkeeper.store.base import Store
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


@pytest.fixture(params=[*LIMITED, "atomic rows only"])
def both(request: pytest.FixtureRequest, tmp_path: Path, spark: Any, small: SmallHBase) -> Iterator[list[Database]]:
    if request.param in LIMITED:
        less: Store = LIMITED[request.param](tmp_path / "less")
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
