"""A store without before-images, without HBase: the table image supplies them, and views are the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.engine import Database
from viewkeeper.model.schema import Table
from viewkeeper.store.base import Changed
from viewkeeper.store.lmdb import LmdbStore

VIEWS = {
    "totals": "SELECT category, count(*) AS n, sum(price) AS total, max(price) AS top FROM items GROUP BY category",
    "pairs": "SELECT a.id, b.id AS other FROM items a JOIN items b ON a.price = b.price AND a.id < b.id",
    "kinds": "SELECT category FROM items WHERE price > 3",
}


class OnlyKeys(LmdbStore):
    """LMDB whose feed says which keys were touched, and more than need be, but not what was there."""

    capabilities = replace(LmdbStore.capabilities, before_images=False)

    def changes(self, table: Table, columns: Sequence[str], after: int, upto: int) -> pa.Table:
        raise AssertionError("this feed has no before-images")

    def changed(self, table: Table, columns: Sequence[str], after: int, upto: int) -> Changed:
        names = [c.name for c in table.key_columns]
        touched = super().changes(table, names, max(0, after - 2), upto).select(names)  # an overlap
        keys = touched.group_by(names).aggregate([])
        if after % 3 == 0:  # as after a long pause: the whole table
            return Changed(None, pa.Table.from_batches(self.scan(table, columns), _schema(table, columns)))
        return Changed(keys, self.get_many(table, keys, columns))


def _schema(table: Table, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([table.arrow.field(name) for name in columns])


@pytest.fixture
def both(tmp_path: Path, spark: Any) -> Iterator[list[Database]]:
    stores = [LmdbStore(tmp_path / "whole"), OnlyKeys(tmp_path / "keys")]
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
def test_views_are_the_same_with_before_images_from_the_table_image(both: list[Database], lane: str) -> None:
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
            whole, keys = (db.read(name) for db in both)
            assert keys.equals(whole), name
