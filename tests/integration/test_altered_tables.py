"""Tables that change under views: what Spark makes of a view's text stays what the view shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from viewkeeper.errors import BadValue, InUse

TABLES = (
    "CREATE TABLE items (id BIGINT, kind STRING, price INT, stock INT, PRIMARY KEY (id))",
    "CREATE TABLE orders (order_id BIGINT, id BIGINT, price INT, amount INT, PRIMARY KEY (order_id))",
)
TEXTS = {
    "star": "SELECT * FROM items",
    "some_star": "SELECT i.*, o.amount FROM items i JOIN orders o ON i.id = o.id",
    "bare": "SELECT price, id FROM items",
    "summed": "SELECT kind, sum(price), max(price) AS top FROM items GROUP BY kind",
    "joined": "SELECT i.price AS one, o.price AS other FROM items AS i JOIN orders o ON i.id = o.id",
    "unaliased": "SELECT items.price, amount FROM items JOIN orders ON items.id = orders.id WHERE items.price > 1",
    "using_both": "SELECT id, amount, kind FROM items JOIN orders USING (id)",
    "natural": "SELECT kind, amount FROM items NATURAL JOIN orders",
    "nested": "SELECT x.price + 1 AS more FROM (SELECT price FROM items WHERE stock > 0) x",
    "inherited": "SELECT `sum(price)` FROM (SELECT kind, sum(price) FROM items GROUP BY kind)",
    "with_name": "WITH dear AS (SELECT * FROM items WHERE price > 2) SELECT kind, count(*) n FROM dear GROUP BY kind",
    "same_name": "WITH items AS (SELECT id, price FROM items WHERE price > 2) SELECT * FROM items",
    "aliased": "SELECT kind price, count(*) AS n FROM items GROUP BY kind",
    "listed": "SELECT a, c FROM items AS x (a, b, c, d)",
    "correlated": "SELECT 1 x FROM orders o WHERE EXISTS (SELECT 1 FROM items i WHERE i.id = o.id AND stock < amount)",
    "unioned": "SELECT price FROM items UNION ALL SELECT amount FROM orders",
    "itself": "SELECT a.id, b.price FROM items a JOIN items b ON a.stock = b.stock",
    "texts": "SELECT id, 'price' AS price, concat(kind, 'items') AS c FROM items WHERE price IS NOT NULL -- price",
    "chosen": "SELECT CASE WHEN price > 2 THEN price ELSE stock END, price IS NULL FROM items",
    "ranked": "SELECT id, row_number() OVER (PARTITION BY kind ORDER BY price DESC, id) AS n FROM items",
    "ordered": "SELECT price, id FROM items ORDER BY price DESC, id",
    "above": "SELECT kind, top FROM summed",
}
IN_PLACE = {
    "bare": "SELECT cost AS `price`, id FROM goods",
    "summed": "SELECT kind, sum(cost) AS `sum(price)`, max(cost) AS top FROM goods GROUP BY kind",
    "joined": "SELECT i.cost AS one, o.price AS other FROM goods AS i JOIN orders o ON i.id = o.id",
    "nested": "SELECT x.cost + 1 AS more FROM (SELECT cost FROM goods WHERE stock > 0) x",
    "ranked": "SELECT id, row_number() OVER (PARTITION BY kind ORDER BY cost DESC, id) AS n FROM goods",
    "above": "SELECT kind, top FROM sums",
}
CHANGES = (
    "ALTER TABLE items ADD COLUMN colour STRING DEFAULT 'red'",
    "ALTER TABLE items ADD COLUMN amount INT",  # a column that texts mean of another table
    "ALTER TABLE items RENAME COLUMN price TO cost",
    "ALTER TABLE items RENAME TO goods",
    "ALTER MATERIALIZED VIEW summed RENAME TO sums",
    "CREATE TABLE items (price STRING, PRIMARY KEY (price))",
    "ALTER TABLE goods RENAME COLUMN stock TO price",
    "ALTER TABLE orders RENAME TO asked",
    "ALTER TABLE asked RENAME COLUMN amount TO number",
)


def put(db: Any, step: int, table: str, asked: str) -> None:
    """Rows in the tables' order of columns."""
    for name, rows in (
        (table, [(n, "abc"[(n + step) % 3], (n * 7 + step) % 5, n % 4) for n in range(8)]),
        (asked, [(n, n % 6, (n + step) % 3, n % 3 + 1) for n in range(12)]),
    ):
        columns = [c.name for c in db._store.catalog().table(name).columns]
        db.put(name, [dict(zip(columns, row, strict=False)) for row in rows])


def filled(db: Any) -> Any:
    for table in TABLES:
        db.sql(table)
    put(db, 0, "items", "orders")
    db.create_views(TEXTS)
    return db


def check(db: Any) -> None:
    """Every view is what Spark makes of its text."""
    found = {v.view: (v.differences, v.failed) for v in db.audit().views}
    assert found == dict.fromkeys(found, (0, None))


def test_views_mean_what_they_meant_after_every_change_of_their_tables(make_db: Callable[..., Any], spark: Any) -> None:
    db = filled(make_db("shop", spark=spark))
    before = {h.name: h.schema for h in db.views()}
    epoch = db.status().epoch
    for step, change in enumerate(CHANGES, start=1):
        db.sql(change)
        there = {t.name for t in db.tables()}
        put(db, step, "goods" if "goods" in there else "items", "asked" if "asked" in there else "orders")
        db.refresh()
        if step in (2, 5, len(CHANGES)):
            check(db)
    assert db.status().epoch == epoch + len(CHANGES), "a batch for each change of rows, and no load"
    renamed = {"summed": "sums"}
    assert {renamed.get(name, name): schema for name, schema in before.items()} == {
        h.name: h.schema for h in db.views()
    }


@pytest.mark.deep
def test_families_and_views_that_are_kept_together(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("shop", spark=spark)
    for table in TABLES:
        db.sql(table)
    put(db, 0, "items", "orders")
    db.sql("CREATE MATERIALIZED VIEW family PARAMETERS (k STRING) AS SELECT id, price FROM items WHERE kind = :k")
    db.sql("CREATE MATERIALIZED VIEW stars PARAMETERS (k STRING) AS SELECT * FROM items WHERE kind = :k")
    for name in ("family", "stars"):
        db.put(f"{name}.parameters", [{"k": "a"}, {"k": "b"}])
    like = "SELECT kind, sum(price) AS s FROM items WHERE price > {} GROUP BY kind"
    db.create_views({f"m{n}": like.format(n) for n in range(60)})
    assert db._store.catalog().members, "they are kept together"
    for change in ("ADD COLUMN more INT DEFAULT 4", "RENAME COLUMN price TO cost", "RENAME TO goods"):
        db.sql(f"ALTER TABLE items {change}")
    put(db, 1, "goods", "orders")
    db.refresh()
    check(db)
    shown = {h.name: h.definition.partition(" AS\n")[2] for h in db.views()}
    assert shown["family"] == "SELECT id, cost AS `price` FROM goods WHERE kind = :k"
    assert shown["m3"] == like.format(3).replace("price", "cost").replace("items", "goods")
    db.sql(db.table("stars").definition.replace("`stars`", "again", 1))
    db.put("again.parameters", [{"k": "a"}, {"k": "b"}])
    db.sql("ALTER MATERIALIZED VIEW m3 SUSPEND")  # which makes it a view by itself
    db.sql("ALTER MATERIALIZED VIEW m3 RESUME")
    db.refresh()
    assert db.read("again").to_pylist() == db.read("stars").to_pylist()
    check(db)
    db.sql("ALTER TABLE goods DROP COLUMN cost CASCADE")
    assert db.views() == []


@pytest.mark.deep
def test_the_statement_that_is_shown_makes_the_same_view(make_db: Callable[..., Any], spark: Any) -> None:
    db = filled(make_db("shop", spark=spark))
    for change in ("items RENAME COLUMN price TO cost", "items RENAME TO goods"):
        db.sql(f"ALTER TABLE {change}")
    db.sql("ALTER MATERIALIZED VIEW summed RENAME TO sums")
    shown = {h.name: h.definition for h in db.views()}
    for name, text in IN_PLACE.items():
        assert shown["sums" if name == "summed" else name].partition(" AS\n")[2] == text
    for name, statement in shown.items():
        head, _, query = statement.partition(" AS\n")
        db.sql(f"{head.replace(f'`{name}`', 'again')} AS\n{query}")
        assert db.table("again").schema == db.table(name).schema, query
        assert sorted(map(str, db.read("again").to_pylist())) == sorted(map(str, db.read(name).to_pylist())), query
        db.sql("DROP MATERIALIZED VIEW again")


WIDENED = {
    "narrow": "SELECT id, price FROM items",
    "totals": "SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind",
    "cheap": "SELECT id FROM items WHERE price < 3",
    "priced": "SELECT price, count(*) AS n FROM items GROUP BY price",
    "over": "SELECT sum(total) AS whole FROM totals",
    "pairs": "SELECT i.id, o.order_id FROM items i JOIN orders o ON i.price = o.amount",
    "beside": "SELECT kind, max(stock) AS most FROM items GROUP BY kind",
    "taken": "SELECT max(price) AS top FROM items",
}


def test_views_follow_a_wider_type(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("shop", spark=spark)
    for table in TABLES:
        db.sql(table)
    put(db, 0, "items", "orders")
    db.create_views(WIDENED)
    db.sql("ALTER TABLE items ADD COLUMN more INT")
    with pytest.raises(BadValue, match="price"):
        db.put("items", {"id": 1, "kind": "a", "price": 5_000_000_000})
    db.put("items", {"id": 1, "kind": "a", "price": 4, "stock": 1})  # waits for a batch
    db.sql("ALTER TABLE items ALTER COLUMN price TYPE BIGINT")
    check(db)
    assert str(db.table("narrow").schema.field("price").type) == "int64"
    assert str(db.table("taken").schema.field("top").type) == "int64"
    db.put("items", [{"id": n, "kind": "b", "price": 5_000_000_000 + n, "stock": n} for n in range(4)])
    db.put("orders", {"order_id": 99, "id": 1, "price": 1, "amount": 2})
    db.refresh()
    check(db)
    assert db.get("totals", "b")["total"] > 20_000_000_000
    db.sql("CREATE MATERIALIZED VIEW above AS SELECT max(top) AS best FROM taken")
    db.sql("ALTER TABLE items ALTER COLUMN stock TYPE BIGINT")
    db.refresh()
    check(db)


def test_a_wider_type_that_would_reach_views_over_views_is_refused(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("shop", spark=spark)
    for table in TABLES:
        db.sql(table)
    db.create_views({"taken": WIDENED["taken"], "above": "SELECT max(top) AS best FROM taken"})
    before = db._store.catalog().table("items")
    with pytest.raises(InUse, match="taken would have columns of other types, and is used by above"):
        db.sql("ALTER TABLE items ALTER COLUMN price TYPE BIGINT")
    assert db._store.catalog().table("items") == before
