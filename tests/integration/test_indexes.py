"""Indexes on views, in audits, under other views and in Spark's reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import viewkeeper as vk
from viewkeeper.errors import InUse, Unsupported
from viewkeeper.spark import register

SALES = "CREATE TABLE sales (id BIGINT PRIMARY KEY, shop STRING, item INT, amount DECIMAL(10,2), note STRING)"


@pytest.fixture
def db(make_db: Callable[..., Any], spark: Any) -> Any:
    found = make_db(spark=spark)
    found.sql(SALES)
    found.put("sales", [_sale(n) for n in range(400)])
    return found


def _sale(n: int, **other: Any) -> dict[str, Any]:
    row = {"id": n, "shop": f"s{n % 9}" if n % 4 else None, "item": n % 50, "amount": n % 30, "note": "x" * (n % 3)}
    return row | other


def _way(db: Any, query: str) -> str:
    return str(db.sql(f"EXPLAIN {query}")["plan"].to_pylist()[1])


def test_an_index_of_a_view_is_kept_and_audited_with_it(db: Any) -> None:
    db.sql("CREATE MATERIALIZED VIEW totals AS SELECT shop, item, sum(amount) AS total FROM sales GROUP BY shop, item")
    db.sql("CREATE MATERIALIZED VIEW bag AS SELECT shop, amount FROM sales WHERE item < 40")
    db.sql("CREATE INDEX by_total ON totals (total DESC)")
    db.sql("CREATE INDEX by_item ON totals (item) INCLUDE (total)")
    db.sql("CREATE INDEX bag_amount ON bag (amount)")
    db.sql("CREATE INDEX by_shop ON sales (shop, item)")
    for _ in range(2):
        rows = db.read("totals").to_pylist()
        top = sorted(rows, key=lambda r: (-r["total"], r["shop"] or "", r["item"]))[:5]
        assert list(db.scan("totals", order_by="total DESC", limit=5)) == top
        assert list(db.scan("totals", where={"item": 7})) == [r for r in rows if r["item"] == 7]
        bag = [r for r in db.read("bag").to_pylist() if r["amount"] == 3]
        assert len(bag) > 1
        assert list(db.scan("bag", where={"amount": 3})) == bag
        assert db.sql("SELECT count(*) AS n FROM bag WHERE amount = 3").rows == [{"n": len(bag)}]
        assert "the covering index bag_amount" in _way(db, "SELECT * FROM bag WHERE amount = 3")
        token = db.put("sales", [_sale(500, item=7, shop="new", amount=9000), _sale(3, amount=3)])
        assert next(db.scan("totals", where="item = 7 AND total > 8000", after=token))["shop"] == "new"
    joined = "SELECT t.total, s.id FROM totals t JOIN sales s ON s.item = t.item WHERE s.shop = 's2' AND t.item = 7"
    assert sorted(map(str, db.sql(joined, engine="embedded").rows)) == sorted(
        map(str, db.sql(joined, engine="spark").rows)
    )
    audit = db.audit()
    assert audit.is_right
    assert {v.view for v in audit.views} == {"totals", "bag", "by_total", "by_item", "bag_amount", "by_shop"}


def test_views_stand_on_indexes_and_go_before_them(db: Any) -> None:
    db.sql("CREATE INDEX by_amount ON sales (amount) INCLUDE (shop)")
    db.sql("CREATE MATERIALIZED VIEW counts AS SELECT amount, count(*) AS n FROM by_amount GROUP BY amount")
    db.put("sales", [_sale(900, amount=3)])
    db.refresh()
    assert db.get("counts", 3)["n"] == sum(1 for n in range(400) if n % 30 == 3) + 1
    for text in ("DROP INDEX by_amount", "DROP TABLE sales", "ALTER INDEX by_amount RENAME TO x"):
        with pytest.raises(InUse, match="counts"):
            db.sql(text)
    db.sql("DROP MATERIALIZED VIEW counts")
    db.sql("DROP TABLE sales")
    assert db.sql("SHOW INDEXES").rows == []


def test_a_view_is_replaced_under_its_index_and_goes_with_it(db: Any) -> None:
    db.sql("CREATE MATERIALIZED VIEW big AS SELECT id, amount FROM sales WHERE amount > 20")
    db.sql("CREATE INDEX big_amount ON big (amount)")
    db.sql("CREATE OR REPLACE MATERIALIZED VIEW big AS SELECT id, amount FROM sales WHERE amount > 25")
    assert {r["id"] for r in db.scan("big", where={"amount": 26})} == {n for n in range(400) if n % 30 == 26}
    assert list(db.scan("big", where={"amount": 21})) == []
    with pytest.raises(InUse, match="big_amount"):
        db.sql("CREATE OR REPLACE MATERIALIZED VIEW big AS SELECT id, amount, note FROM sales")
    db.sql("ALTER MATERIALIZED VIEW big RENAME TO large")
    assert db.sql("SHOW INDEXES").rows[0]["on"] == "large"
    assert db.audit().is_right
    db.sql("DROP MATERIALIZED VIEW large")
    assert db.sql("SHOW INDEXES").rows == []
    for options, said in (("store = 'none'", "not stored"), ("strategy = 'IN'", "cut of its own")):
        db.sql(f"CREATE MATERIALIZED VIEW v WITH ({options}) AS SELECT id, amount FROM sales")
        with pytest.raises(Unsupported, match=said):
            db.sql("CREATE INDEX i ON v (amount)")
        db.sql("DROP MATERIALIZED VIEW v")


def test_a_suspended_index_is_not_used(db: Any) -> None:
    db.sql("CREATE INDEX by_shop ON sales (shop)")
    db.sql("ALTER MATERIALIZED VIEW by_shop SUSPEND")
    db.put("sales", [_sale(1000, shop="s2")])
    db.refresh()
    expected = [n for n in range(400) if n % 9 == 2 and n % 4] + [1000]
    assert [r["id"] for r in db.scan("sales", where={"shop": "s2"})] == expected
    assert ", whole, " in _way(db, "SELECT id FROM sales WHERE shop = 's2'")
    db.sql("ALTER MATERIALIZED VIEW by_shop RESUME")
    assert "index by_shop" in _way(db, "SELECT id FROM sales WHERE shop = 's2'")
    assert [r["id"] for r in db.scan("sales", where={"shop": "s2"})] == expected


def test_sparks_filters_take_an_index(db: Any, spark: Any) -> None:
    from viewkeeper.spark.batch_reader import RowReader, extract_terms

    register(spark)
    db.sql("CREATE INDEX by_shop ON sales (shop, item)")
    db.sql("CREATE INDEX by_amount ON sales (amount DESC) INCLUDE (note)")
    db.put("sales", [_sale(1000, shop="s2"), _sale(2, shop="gone"), _sale(5, amount=29)])
    db.delete("sales", [11, 29])  # waits in the log

    def read(**options: str) -> Any:
        return spark.read.format("viewkeeper").options(db=db._store.url, table="sales", **options).load()

    whole = {r["id"]: r for r in db.read("sales").to_pylist()}
    for condition, test in (
        ("shop = 's2'", lambda r: r["shop"] == "s2"),
        ("shop = 's2' AND item > 20", lambda r: r["shop"] == "s2" and r["item"] > 20),
        ("shop IS NULL AND item = 8", lambda r: r["shop"] is None and r["item"] == 8),
        ("amount IN (3, 29.0)", lambda r: r["amount"] in (3, 29)),
        ("shop LIKE 's3%'", lambda r: (r["shop"] or "").startswith("s3")),
        ("amount >= 28", lambda r: r["amount"] >= 28),
        ("id IN (1, 5, 11)", lambda r: r["id"] in (1, 5, 11)),
        ("shop = 'nobody'", lambda r: False),
    ):
        found = read().where(condition).collect()
        assert {r.id: r.asDict() for r in found} == {k: r for k, r in whole.items() if test(r)}, condition
        assert len({r.id for r in found}) == len(found)
    from pyspark.sql.datasource import EqualTo

    table = db._catalog().table("sales")
    reader = RowReader(db._store.url, table, ["id", "note"], None, {"partitions": "3"})
    reader.terms = tuple(extract_terms(table, [EqualTo(("shop",), "s2")]))
    assert [share.index for share in reader.partitions()] == ["by_shop"]
    reader.terms = tuple(extract_terms(table, [EqualTo(("note",), "s2")]))
    assert [share.index for share in reader.partitions()] == [""] * 3
    frame = read(at=str(db._store.head())).where("shop = 's2'")
    before = sorted(r.id for r in frame.collect())
    db.put("sales", [_sale(n, shop="s2") for n in range(2000, 2050)])
    db.refresh()
    assert sorted(r.id for r in frame.collect()) == before


def test_statements_find_their_rows_by_index(db: Any) -> None:
    db.sql("CREATE INDEX by_shop ON sales (shop)")
    count = sum(1 for n in range(400) if n % 9 == 2 and n % 4)
    assert db.sql("UPDATE sales SET note = 'seen' WHERE shop = 's2'", engine="embedded").done == f"{count} updated"
    assert db.sql("DELETE FROM sales WHERE shop = 's2'", engine="embedded").done == f"{count} deleted"
    assert list(db.scan("sales", where={"shop": "s2"})) == []


def test_a_backup_has_its_indexes(db: Any, tmp_path: Any) -> None:
    db.sql("CREATE INDEX by_shop ON sales (shop)")
    db.put("sales", [_sale(1000, shop="s2")])
    db.backup(tmp_path / "copy")
    with vk.open(f"lmdb:{tmp_path / 'copy'}", mode="r") as copy:
        assert [r["id"] for r in copy.scan("sales", where={"shop": "s2"})][-1] == 1000
        assert "thin index by_shop" in _way(copy, "SELECT note FROM sales WHERE shop = 's2'")
