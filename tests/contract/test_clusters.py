"""Clustered views: rows of several tables by a common key, kept one write a change, joined when they are read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import databases

from viewkeeper.errors import BadStatement, BadValue, InUse, UnknownName

TABLES = (
    "CREATE TABLE items (item_id BIGINT, name STRING, price DECIMAL(8,2), PRIMARY KEY (item_id))",
    "CREATE TABLE reviews (review_id INT, item_id BIGINT, stars INT, name STRING, PRIMARY KEY (review_id))",
    "CREATE TABLE offers (item_id BIGINT, shop STRING, price DECIMAL(8,2), PRIMARY KEY (item_id, shop))",
)
PAGE = "CREATE MATERIALIZED VIEW page CLUSTER BY (item_id) OF items, reviews, offers"


@pytest.fixture(params=["lmdb", "rocksdb", "hbase"])
def open_db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with databases(request.param, tmp_path) as make:
        yield make


@pytest.fixture
def db(open_db: Callable[..., Any]) -> Any:
    found = open_db()
    for statement in TABLES:
        found.sql(statement)
    chance = random.Random(3)
    found.put("items", [{"item_id": n, "name": f"item {n}", "price": n} for n in range(12)])
    found.put("reviews", [_review(n, chance) for n in range(30)])
    found.put("offers", [{"item_id": n % 10, "shop": s, "price": n} for n in range(10) for s in "xy" if n % 3])
    found.sql(PAGE)
    return found


def _review(n: int, chance: random.Random) -> dict[str, Any]:
    return {"review_id": n, "item_id": chance.choice([None, *range(9)]), "stars": n % 6, "name": f"reader {n}"}


def _expected(db: Any, key: int, left: bool) -> list[dict[str, Any]]:
    tables = []
    for table in ("items", "reviews", "offers"):
        rows = [r for r in db.read(table).to_pylist() if r["item_id"] == key]
        blank = dict.fromkeys(db.table(table).schema.names)
        tables.append(rows or ([blank] if left and table != "items" else []))
    return [
        {
            "item_id": key, "items.name": i["name"], "items.price": i["price"],
            "review_id": r["review_id"], "stars": r["stars"], "reviews.name": r["name"],
            "shop": o["shop"], "offers.price": o["price"],
        }
        for i, r, o in product(*tables)
    ]  # fmt: skip


def _check(db: Any) -> None:
    for key in range(13):
        for how in ("inner", "left"):
            assert db.join("page", key, how) == _expected(db, key, how == "left"), (key, how)
        rows = db.cluster("page", key)
        for table in ("items", "reviews", "offers"):
            names = ["item_id", *(n for n in db.table(table).schema.names if n != "item_id")]
            assert rows[table] == [
                {n: r[n] for n in names} for r in db.read(table).to_pylist() if r["item_id"] == key
            ], table


def test_a_join_is_read_from_one_range(db: Any) -> None:
    _check(db)
    chance = random.Random(8)
    for _ in range(4):
        db.put("items", [{"item_id": chance.randrange(13), "name": "other", "price": 1}])
        db.put("reviews", [_review(chance.randrange(40), chance) for _ in range(1)])
        db.delete("offers", [(chance.randrange(10), "x")])
        db.delete("items", [chance.randrange(13)])
        report = db.refresh()
        assert report.views.get("page", 0) <= 6 if hasattr(report, "views") else True
        _check(db)


def test_each_table_is_joined_as_it_is_asked(db: Any) -> None:
    left = db.join("page", 3, {"offers": "left"})
    assert left == [r for r in _expected(db, 3, left=True) if r["review_id"] is not None]
    assert db.join("page", None) == db.join("page", None, "left") == []
    for wrong in ({"nothing": "left"}, {"offers": "full"}, "outer", 5):
        with pytest.raises(BadValue):
            db.join("page", 3, wrong)
    with pytest.raises(BadValue, match="clustered by"):
        db.join("page", (1, 2))
    with pytest.raises((BadValue, UnknownName)):
        db.join("items", 1)


def test_it_is_a_view_as_others_are(db: Any, open_db: Callable[..., Any]) -> None:
    statement = db.sql("SHOW CREATE VIEW page").rows[0]["statement"]
    assert statement == "CREATE MATERIALIZED VIEW `page` CLUSTER BY (`item_id`) OF `items`, `reviews`, `offers`"
    assert db.sql("SHOW VIEWS").rows == [{"name": "page"}]
    assert "union" in db.explain("page").lower() or "sink page" in db.explain("page")
    with pytest.raises(InUse, match="page"):
        db.sql("DROP TABLE reviews")
    db.sql("CREATE INDEX stars ON page (`reviews.stars`)")
    assert len(list(db.scan("page", where={"reviews.stars": 5}))) == 5
    before = _expected(db, 4, left=True)
    db.close()
    again = open_db()
    assert again.join("page", 4, "left") == before
    again.sql("DROP MATERIALIZED VIEW page")
    assert again.sql("SHOW INDEXES").rows == []
    again.sql("DROP TABLE reviews")


def test_what_cannot_be_clustered_is_refused(db: Any) -> None:
    db.sql("CREATE TABLE texts (item_id STRING, PRIMARY KEY (item_id))")
    for of, error in (
        ("CLUSTER BY (item_id) OF items", BadStatement),
        ("CLUSTER BY (item_id) OF items, items", BadStatement),
        ("CLUSTER BY (item_id, ITEM_ID) OF items, offers", BadStatement),
        ("CLUSTER BY (name) OF items, offers", UnknownName),
        ("CLUSTER BY (item_id) OF items, nothing", UnknownName),
        ("CLUSTER BY (item_id) OF items, texts", BadStatement),
        ("CLUSTER BY (item_id) AS SELECT 1", BadStatement),
    ):
        with pytest.raises(error):
            db.sql(f"CREATE MATERIALIZED VIEW other {of}")
    with pytest.raises(BadStatement):
        db.sql(PAGE.replace("CREATE", "CREATE OR REPLACE"))
    db.sql(PAGE.replace("VIEW page", "VIEW IF NOT EXISTS page"))
