"""Indexes on every store: made, used without being named, kept, renamed and dropped with what they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import databases

from viewkeeper.errors import BadStatement, BadValue, InUse, NameTaken, UnknownName, Unsupported

ITEMS = "CREATE TABLE items (id BIGINT PRIMARY KEY, price DECIMAL(10,2), category STRING, name STRING)"


@pytest.fixture(params=["lmdb", "rocksdb", "hbase"])
def open_db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with databases(request.param, tmp_path) as make:
        yield make


@pytest.fixture
def db(open_db: Callable[..., Any]) -> Any:
    found = open_db()
    found.sql(ITEMS)
    found.put("items", [_item(n) for n in range(300)])
    return found


def _item(n: int, **other: Any) -> dict[str, Any]:
    row = {"id": n, "price": n % 20, "category": f"c{n % 7}" if n % 3 else None, "name": f"item {n}"}
    return row | other


def _plan(db: Any, query: str) -> list[str]:
    found: list[str] = db.sql(f"EXPLAIN {query}")["plan"].to_pylist()
    return found


def _ids(rows: Any) -> list[int]:
    return [row["id"] for row in rows]


def test_an_index_is_used_without_being_named(db: Any) -> None:
    queries: list[dict[str, Any]] = [
        {"where": {"price": 7}},
        {"where": "price >= 18 AND category = 'c1'"},
        {"where": {"category": None}, "columns": ["id", "category"]},
        {"where": "price > 3.5 AND price < 5", "order_by": ["category DESC", "id"], "limit": 5},
        {"where": {"price": [1, 2], "category": "c2"}, "columns": ["name"]},
        {"where": {"category": ["c2", None], "price": [3, 4]}},
        {"order_by": "price DESC", "limit": 3},
        {"where": "category LIKE 'c1%' AND name LIKE '%4'"},
    ]
    whole = [list(db.scan("items", **q)) for q in queries]
    assert all(whole[:-1])
    assert whole[0] == [r for r in db.scan("items") if r["price"] == 7]
    db.sql("CREATE INDEX by_price ON items (price DESC) INCLUDE (category)")
    db.sql("CREATE INDEX by_category ON items (category, price)")
    assert [list(db.scan("items", **q)) for q in queries] == whole
    assert [db.read("items", **q).to_pylist() for q in queries] == whole
    assert "the covering index by_price: price = 7.00, 15 rows" in _plan(db, "SELECT id FROM items WHERE price = 7")[1]
    assert "thin index" in _plan(db, "SELECT name FROM items WHERE category = 'c1' AND price = 1")[1]
    shown = db.sql("SHOW INDEXES").rows
    assert shown == [
        {"name": "by_category", "on": "items", "columns": "category, price", "include": ""},
        {"name": "by_price", "on": "items", "columns": "price DESC", "include": "category"},
    ]
    assert db.sql("SHOW INDEXES ON items").rows == shown
    assert db.sql("SHOW VIEWS").rows == []
    assert [h.name for h in db.indexes()] == ["by_category", "by_price"]


def test_a_read_by_index_shows_every_write_that_has_ended(db: Any) -> None:
    db.sql("CREATE INDEX by_price ON items (price)")
    db.sql("CREATE INDEX covering ON items (category) INCLUDE (price, name)")
    for refreshed in (False, True):
        token = db.put("items", [_item(3, price=99), _item(1000, price=99, category="new")])
        db.delete("items", [7, 27])
        db.put("items", [_item(8, category="new")])
        if refreshed:
            db.refresh()
        assert _ids(db.scan("items", where={"price": 99}, after=token)) == [3, 1000]
        assert _ids(db.scan("items", where={"price": 7})) == [n for n in range(300) if n % 20 == 7 and n not in (7, 27)]
        assert _ids(db.scan("items", where={"category": "new"}, columns=["id", "name"])) == [8, 1000]
        assert db.sql("SELECT id FROM items WHERE price = 99 ORDER BY id", engine="embedded").rows == [
            {"id": 3},
            {"id": 1000},
        ]
        db.delete("items", [1000])
        assert _ids(db.scan("items", where={"price": 99})) == [3]
        db.put("items", [_item(3), _item(7), _item(27), _item(8)])


def test_a_snapshot_reads_table_and_index_at_its_batch(db: Any) -> None:
    db.sql("CREATE INDEX by_price ON items (price)")
    with db.snapshot() as before:
        expected = _ids(before.scan("items", where={"price": 4}))
        db.put("items", [_item(4, price=5)])
        assert _ids(before.scan("items", where={"price": 4})) == expected
        assert _ids(db.scan("items", where={"price": 4})) == [i for i in expected if i != 4]


def test_names_follow_what_is_renamed(db: Any) -> None:
    db.sql("CREATE INDEX by_price ON items (price) INCLUDE (name)")
    db.sql("ALTER TABLE items RENAME COLUMN price TO cost")
    db.sql("ALTER TABLE items RENAME TO goods")
    db.sql("ALTER INDEX by_price RENAME TO by_cost")
    assert db.sql("SHOW CREATE INDEX by_cost").rows == [
        {"statement": "CREATE INDEX `by_cost` ON `goods` (`cost`) INCLUDE (`name`)"}
    ]
    assert "covering index by_cost: cost = 4.00" in _plan(db, "SELECT name FROM goods WHERE cost = 4")[1]
    assert len(_ids(db.scan("goods", where={"cost": 4}))) == 15
    db.sql("ALTER TABLE goods RENAME COLUMN name TO price")  # as the index's own column was called
    db.put("goods", [{"id": 900, "cost": 4, "price": "text"}])
    db.refresh()
    assert db.read("goods", where={"cost": 4, "id": 900}).to_pylist() == [
        {"id": 900, "cost": 4, "category": None, "price": "text"}
    ]
    with pytest.raises(InUse, match="by_cost"):
        db.sql("ALTER TABLE goods DROP COLUMN cost")
    db.sql("ALTER TABLE goods DROP COLUMN category")
    db.sql("ALTER TABLE goods ADD COLUMN category INT")
    assert db.read("goods", where={"cost": 4, "id": 900}).to_pylist()[0]["category"] is None


def test_a_table_goes_with_its_indexes(db: Any, open_db: Callable[..., Any]) -> None:
    db.sql("CREATE INDEX by_price ON items (price)")
    db.sql("CREATE INDEX IF NOT EXISTS by_price ON items (category)")
    db.sql("DROP TABLE items")
    assert db.sql("SHOW INDEXES").rows == []
    db.sql(ITEMS)
    db.sql("CREATE INDEX by_price ON items (category)")
    db.put("items", [_item(1)])
    assert _ids(db.scan("items", where={"category": "c1"})) == [1]
    db.sql("DROP INDEX by_price")
    db.sql("DROP INDEX IF EXISTS by_price")
    assert _ids(db.scan("items", where={"category": "c1"})) == [1]
    plan = _plan(db, "SELECT id FROM items WHERE category = 'c1'")[1]
    assert plan.endswith("whole, 1 row, cost 1; then tested: category = 'c1'")


def test_what_is_no_index_is_refused_and_changes_nothing(db: Any) -> None:
    db.sql("CREATE INDEX by_price ON items (price)")
    before = db._catalog()
    for text, error, said in (
        ("CREATE UNIQUE INDEX u ON items (name)", Unsupported, "cannot be kept"),
        ("CREATE INDEX by_price ON items (name)", NameTaken, "in use"),
        ("CREATE INDEX items ON items (name)", NameTaken, "in use"),
        ("CREATE INDEX i ON items (nothing)", UnknownName, "no column"),
        ("CREATE INDEX i ON items (name, NAME)", BadStatement, "twice"),
        ("CREATE INDEX i ON items (name) INCLUDE (name)", BadStatement, "twice"),
        ("CREATE INDEX i ON items (upper(name))", BadStatement, "expression"),
        ("CREATE INDEX i ON items (name NULLS LAST)", BadStatement, "NULLs"),
        ("CREATE INDEX i ON items (name) WITH (store = 'none')", Unsupported, "no option"),
        ("CREATE INDEX ON items (name)", BadStatement, "no name"),
        ("CREATE INDEX i ON nothing (name)", UnknownName, "nothing"),
        ("CREATE INDEX i ON by_price (price)", BadValue, "is an index"),
        ("DROP INDEX items", UnknownName, "not an index"),
        ("DROP INDEX nothing", UnknownName, "no index"),
        ("DROP TABLE by_price", BadValue, "DROP INDEX"),
        ("DROP MATERIALIZED VIEW by_price", BadValue, "DROP INDEX"),
        ("ALTER MATERIALIZED VIEW by_price RENAME TO x", BadValue, "ALTER INDEX"),
        ("SHOW CREATE VIEW by_price", BadValue, "SHOW CREATE INDEX"),
        ("ALTER INDEX by_price REBUILD", BadStatement, "RENAME TO"),
    ):
        with pytest.raises(error, match=said):
            db.sql(text)
    for where, error in (
        ("price", BadStatement),
        ("price = 1) OR (1 = 1", BadStatement),
        ("price = ", BadStatement),
        ("", BadStatement),
        ("x = 1", UnknownName),
        ("price IN (1, NULL)", Unsupported),
        ({"x": 1}, UnknownName),
    ):
        with pytest.raises(error):
            list(db.scan("items", where=where))
    for where in ("price = 1 ORDER BY id", "1 / price = 1", "price = (SELECT 1)", 5):
        with pytest.raises((BadStatement, Unsupported, BadValue)):
            list(db.scan("items", where=where))
    with pytest.raises(UnknownName, match="order_by"):
        db.scan("items", order_by="nothing")
    assert db._catalog() == before


def test_an_index_is_found_when_opened_again(open_db: Callable[..., Any]) -> None:
    with open_db() as db:
        db.sql(ITEMS)
        db.sql("CREATE INDEX by_price ON items (price)")
        db.put("items", [_item(n) for n in range(100)])
    with open_db(mode="r") as reader:  # nobody maintains, and nothing is waited for
        assert _ids(reader.scan("items", where={"price": 3})) == [3, 23, 43, 63, 83]
        assert "thin index by_price" in _plan(reader, "SELECT name FROM items WHERE price = 3")[1]
    with open_db() as db:
        db.refresh()
        assert _ids(db.scan("by_price", prefix=3)) == [3, 23, 43, 63, 83]  # it is a view
        assert "key (price, id)" in db.explain("by_price")


def test_any_number_of_values_and_null_among_them(db: Any) -> None:
    """The rows of several values are those of each; NULL is one, as it is alone."""
    rows = list(db.scan("items"))
    many = [f"c{n}" for n in range(5, 2_000)]
    for categories in (["c1", None], [None], [None, None], [], many, [*many, None]):
        expected = [row for row in rows if row["category"] in categories]
        assert list(db.scan("items", where={"category": categories})) == expected
    ids = list(range(100, 2_000))
    assert _ids(db.scan("items", where={"id": ids})) == list(range(100, 300))
    assert _ids(db.scan("items", where={"id": [None, 7]})) == [7]
    assert _ids(db.scan("items", where=f"id IN ({', '.join(map(str, ids))})")) == list(range(100, 300))


def test_too_many_entries_are_left_for_a_scan(db: Any) -> None:
    db.sql("CREATE INDEX by_category ON items (category)")
    expected = [r for r in db.scan("items") if r["category"] is not None]
    assert list(db.scan("items", where="category IS NOT NULL")) == expected
    assert list(db.scan("items", where="category >= 'c'", order_by="category", limit=400)) == sorted(
        expected, key=lambda r: (r["category"], r["id"])
    )
    db.put("items", [_item(n, category="c3") for n in range(0, 300, 3)])
    assert _ids(db.scan("items", where="category > 'c'")) == list(range(300))


def test_most_of_a_table_is_scanned_and_a_part_of_it_is_not(db: Any) -> None:
    """An entry of a covering index is worth more than a row if it must be sorted, and less if rows are much wider."""
    db.put("items", [_item(n, name=f"item {n}") for n in range(6_000)])
    db.sql("CREATE INDEX by_price ON items (price) INCLUDE (name)")
    part, most = ("SELECT id, name FROM items WHERE price < " + str(bound) for bound in (6, 19))
    assert "covering index by_price" in _plan(db, part)[1]
    scanned = _plan(db, most)
    assert "whole, 6,000 rows, cost 6,000" in scanned[1]
    assert "not the covering index by_price: price < 19.00, about" in scanned[2]
    assert len(list(db.scan("items", where="price < 6", columns=["id"]))) == 1_800
    assert _ids(db.scan("items", where="price < 19", columns=["id"])) == [n for n in range(6_000) if n % 20 < 19]
    db.put("items", [_item(n, category="x" * 3_000) for n in range(0, 6_000, 2)])
    db.put("items", [_item(n + 6_000, category="x" * 3_000) for n in range(2_000)])
    db.refresh()
    assert "covering index by_price" in _plan(db, most)[1]
