"""The public surface end to end: definitions, writes, refresh in both lanes, reads, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.processes import other

import viewkeeper as vk
from viewkeeper.errors import (
    BadStatement,
    BadValue,
    EvaluationError,
    FormatTooNew,
    InUse,
    NameTaken,
    NotADatabase,
    ReadOnly,
    RowAbsent,
    UnknownName,
    Unsupported,
)

ITEMS = "CREATE TABLE items (item_id BIGINT, category STRING, price DECIMAL(12,2), PRIMARY KEY (item_id))"
REVIEWS = "CREATE TABLE reviews (review_id BIGINT, item_id BIGINT, rating INT, PRIMARY KEY (review_id))"


@pytest.fixture
def shop(make_db: Callable[..., Any], spark: Any) -> Any:
    db = make_db("shop", spark=spark)
    db.sql(ITEMS)
    db.sql(REVIEWS)
    db.put("items", [{"item_id": i, "category": "toys" if i % 2 else "books", "price": i} for i in range(1, 7)])
    db.put("reviews", [{"review_id": i, "item_id": 1 + i % 6, "rating": i % 5} for i in range(30)])
    return db


def rows(db: Any, name: str) -> list[dict[str, Any]]:
    return db.read(name).to_pylist()


def test_the_ten_line_example(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("example", spark=spark)
    db.sql(ITEMS)
    db.sql("""CREATE MATERIALIZED VIEW by_category AS
              SELECT category, count(*) AS n, sum(price) AS total FROM items GROUP BY category""")
    db.put("items", [{"item_id": 1, "category": "toys", "price": "9.99"}])
    report = db.refresh()
    assert (report.changes, report.lane, report.views) == (1, "driver", {"by_category": 1})
    assert db.get("by_category", "toys") == {"category": "toys", "n": 1, "total": Decimal("9.99")}
    assert db.get("by_category", "books") is None
    db.delete("items", 1)
    db.refresh()
    assert db.get("by_category", "toys") is None


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_a_join_follows_updates_and_deletes_on_both_sides(shop: Any, lane: str) -> None:
    shop.sql("""CREATE MATERIALIZED VIEW rated AS SELECT review_id, category, rating * price AS worth
                FROM items JOIN reviews ON items.item_id = reviews.item_id WHERE rating > 1""")
    shop.update("items", 1, {"category": "games", "price": "100"})
    shop.delete("items", 2)
    shop.put("reviews", {"review_id": 99, "item_id": 1, "rating": 4})
    shop.delete("reviews", [18, 404])
    assert shop.refresh(lane).lane == lane
    items = {r["item_id"]: r for r in rows(shop, "items")}
    expected = [
        (r["review_id"], items[r["item_id"]]["category"], r["rating"] * items[r["item_id"]]["price"])
        for r in rows(shop, "reviews")
        if r["rating"] > 1 and r["item_id"] in items
    ]
    assert [tuple(r.values()) for r in rows(shop, "rated")] == sorted(expected)


def test_a_refresh_with_nothing_to_do_makes_no_batch(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM items")
    epoch = shop.refresh().epoch
    assert shop.refresh().epoch == epoch


def test_a_view_over_a_view_changes_in_the_same_batch(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW stars AS SELECT item_id, avg(rating) AS stars FROM reviews GROUP BY item_id")
    shop.sql("CREATE MATERIALIZED VIEW best AS SELECT max(stars) AS best FROM stars")
    shop.put("reviews", [{"review_id": 100 + i, "item_id": 3, "rating": 50} for i in range(10)])
    shop.refresh()
    assert shop.get("best", ())["best"] == max(r["stars"] for r in rows(shop, "stars"))
    with pytest.raises(InUse, match="best"):
        shop.sql("DROP MATERIALIZED VIEW stars")


def test_an_arrangement_that_comes_to_hold_fewer_columns_goes_on(shop: Any) -> None:
    """The first arrangement of a table holds all columns for later loads, until one by primary key takes that over."""
    numbered = "SELECT review_id, row_number() OVER (PARTITION BY {} ORDER BY review_id) AS place FROM reviews"
    shop.sql(f"CREATE MATERIALIZED VIEW by_item AS {numbered.format('item_id')}")
    shop.sql("CREATE MATERIALIZED VIEW by_rating AS SELECT rating, count(*) AS n FROM reviews GROUP BY rating")
    shop.sql(f"CREATE MATERIALIZED VIEW alone AS {numbered.format('review_id')}")
    for review_id in (1, 7):
        shop.put("reviews", {"review_id": review_id, "item_id": 3, "rating": 1})
        shop.refresh()
    places = {r["review_id"]: r["place"] for r in rows(shop, "by_item")}
    assert [places[i] for i in (1, 2, 7, 8)] == [1, 2, 3, 4]


def test_a_view_without_a_unique_key_repeats_rows(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW ratings AS SELECT rating FROM reviews")
    assert sorted(r["rating"] for r in rows(shop, "ratings")) == sorted(i % 5 for i in range(30))
    shop.delete("reviews", [0, 5])
    shop.refresh()
    assert [r["rating"] for r in shop.scan("ratings", prefix=0)] == [0] * 4
    with pytest.raises(BadValue, match="no unique key"):
        shop.get("ratings", 0)


def test_order_by_and_key_give_the_order_of_a_scan(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW dear AS SELECT item_id, price FROM items ORDER BY price DESC")
    assert [r["item_id"] for r in shop.scan("dear", limit=2)] == [6, 5]
    shop.sql("CREATE MATERIALIZED VIEW costly AS SELECT item_id, i.price AS cost FROM items i ORDER BY i.price DESC")
    assert [r["item_id"] for r in shop.scan("costly", limit=2)] == [6, 5]
    shop.sql("CREATE MATERIALIZED VIEW by_cat KEY (category) AS SELECT item_id, category FROM items")
    assert [r["item_id"] for r in shop.scan("by_cat", prefix="books")] == [2, 4, 6]


def test_a_later_view_that_needs_more_columns_leaves_the_first_one_right(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW a AS SELECT category, count(*) AS n FROM items GROUP BY category")
    shop.put("items", {"item_id": 7, "category": "toys", "price": 1})
    shop.sql("CREATE MATERIALIZED VIEW b AS SELECT category, sum(price) AS s FROM items GROUP BY category")
    shop.update("items", 7, {"price": 3})
    shop.delete("items", 1)
    shop.refresh()
    assert {r["category"]: r["n"] for r in rows(shop, "a")} == {"books": 3, "toys": 3}
    assert {r["category"]: r["s"] for r in rows(shop, "b")} == {"books": 12, "toys": 11}


def test_dropping_a_view_frees_its_state_and_keeps_what_others_share(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW a AS SELECT category, count(*) AS n FROM items GROUP BY category")
    shop.sql("CREATE MATERIALIZED VIEW b AS SELECT rating, count(*) AS n FROM reviews GROUP BY rating")
    before = shop.status().state_bytes
    shop.sql("DROP MATERIALIZED VIEW b")
    assert 0 < shop.status().state_bytes < before
    assert shop.sql("SHOW VIEWS").to_pylist() == [{"name": "a"}]
    shop.put("items", {"item_id": 8, "category": "toys", "price": 1})
    shop.refresh()
    assert shop.get("a", "toys")["n"] == 4


def test_a_reopened_database_goes_on_where_it_was(tmp_path: Path, spark: Any) -> None:
    url = f"lmdb:{tmp_path / 'again'}"
    with vk.open(url, spark=spark) as db:
        db.sql(ITEMS)
        db.sql("CREATE MATERIALIZED VIEW n AS SELECT category, count(*) AS n FROM items GROUP BY category")
        db.put("items", {"item_id": 1, "category": "toys", "price": 1})
    with vk.open(url, mode="r") as reader:
        assert reader.read("n").num_rows == 0
        with pytest.raises(ReadOnly):
            reader.put("items", {"item_id": 2})
    with vk.open(url) as db:
        db.refresh("driver")
        assert db.get("n", "toys") == {"category": "toys", "n": 1}


def test_a_float_sum_does_not_depend_on_history(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("floats", spark=spark)
    db.sql("CREATE TABLE t (k BIGINT, x DOUBLE, PRIMARY KEY (k))")
    db.sql("CREATE MATERIALIZED VIEW s AS SELECT sum(x) AS s, avg(x) AS a FROM t")
    db.put("t", [{"k": 1, "x": 1e16}, {"k": 2, "x": 1.0}, {"k": 3, "x": 1.0}])
    db.refresh()
    db.delete("t", 1)
    db.refresh()
    assert db.get("s", ()) == {"s": 2.0, "a": 1.0}


def test_the_row_of_an_aggregate_without_groups_goes_when_having_says_so(
    make_db: Callable[..., Any], spark: Any
) -> None:
    db = make_db("having", spark=spark)
    db.sql("CREATE TABLE t (k BIGINT, x INT, PRIMARY KEY (k))")
    db.put("t", [{"k": 1, "x": 5}, {"k": 2, "x": -1}])
    db.sql("CREATE MATERIALIZED VIEW s AS SELECT sum(x) AS s FROM t HAVING sum(x) > 0")
    found = [rows(db, "s")]
    for change in ({"k": 1, "x": 0}, {"k": 1, "x": 9}, None):
        if change is None:
            db.delete("t", [1, 2])
        else:
            db.put("t", change)
        db.refresh()
        found.append(rows(db, "s"))
    assert found == [[{"s": 4}], [], [{"s": 8}], []]


def test_a_value_that_never_survived_the_batch_does_not_raise(make_db: Callable[..., Any], spark: Any) -> None:
    db = make_db("ansi", spark=spark)
    db.sql("CREATE TABLE t (k BIGINT, x BIGINT, PRIMARY KEY (k))")
    db.sql("CREATE MATERIALIZED VIEW v AS SELECT k, 10 DIV x AS q FROM t")
    db.put("t", {"k": 1, "x": 0})
    db.put("t", {"k": 1, "x": 5})
    db.refresh()
    assert db.get("v", 1) == {"k": 1, "q": 2}
    db.put("t", {"k": 2, "x": 0})
    with pytest.raises(EvaluationError, match=r"v: .*DIVIDE_BY_ZERO"):
        db.refresh(suspend=False)
    assert db.get("v", 2) is None
    db.delete("t", 2)
    db.refresh()
    assert rows(db, "v") == [{"k": 1, "q": 2}]


def test_a_combination_that_never_was_does_not_raise(make_db: Callable[..., Any], spark: Any) -> None:
    """In one batch a.x becomes 3 and the b row with y = 3 goes: no state ever had 1 / (3 - 3)."""
    db = make_db("paths", spark=spark)
    db.sql("CREATE TABLE a (k BIGINT, x BIGINT, PRIMARY KEY (k))")
    db.sql("CREATE TABLE b (k BIGINT, y BIGINT, PRIMARY KEY (k))")
    db.sql("CREATE MATERIALIZED VIEW v AS SELECT a.k, 12 DIV (x - y) AS q FROM a JOIN b ON a.k = b.k")
    db.put("a", {"k": 1, "x": 5})
    db.put("b", {"k": 1, "y": 3})
    db.refresh()
    db.put("a", {"k": 1, "x": 3})
    db.put("b", {"k": 1, "y": 1})
    db.refresh()
    assert rows(db, "v") == [{"k": 1, "q": 6}]


BAD = {
    "unknown table": (lambda db: db.put("nothing", {}), UnknownName, "nothing"),
    "unknown column": (lambda db: db.put("items", {"item_id": 1, "colour": 2}), BadValue, "colour"),
    "missing key": (lambda db: db.put("items", {"category": "x"}), BadValue, "item_id"),
    "null key": (lambda db: db.put("items", {"item_id": None}), BadValue, "item_id"),
    "wrong type": (lambda db: db.put("items", {"item_id": "one"}), BadValue, "item_id"),
    "out of range": (lambda db: db.put("items", {"item_id": 2**63}), BadValue, "item_id"),
    "too many digits": (lambda db: db.put("items", {"item_id": 1, "price": "1.234"}), BadValue, "price"),
    "update of nothing": (lambda db: db.update("items", 404, {"price": 1}), RowAbsent, "404"),
    "put into a view": (lambda db: db.put("n", {"n": 1}), ReadOnly, "materialized view"),
    "get with half a key": (lambda db: db.get("items", (1, 2)), BadValue, "item_id"),
    "malformed statement": (lambda db: db.sql("CREATE TABEL t (a INT)"), BadStatement, "CREATE TABLE"),
    "malformed query": (lambda db: db.sql("CREATE MATERIALIZED VIEW v AS SELECT (1 FROM items"), BadStatement, "."),
    "unknown table in a query": (
        lambda db: db.sql("CREATE MATERIALIZED VIEW v AS SELECT * FROM no"),
        UnknownName,
        "no",
    ),
    "unknown column in a query": (
        lambda db: db.sql("CREATE MATERIALIZED VIEW v AS SELECT x FROM items"),
        UnknownName,
        "x",
    ),
    "time": (
        lambda db: db.sql("CREATE MATERIALIZED VIEW v AS SELECT now() AS t, * FROM items"),
        Unsupported,
        "now|Now|curr",
    ),
    "chance": (
        lambda db: db.sql("CREATE MATERIALIZED VIEW v AS SELECT rand() AS r FROM items"),
        Unsupported,
        "rand|Rand",
    ),
    "unsupported function": (
        lambda db: db.sql("CREATE MATERIALIZED VIEW v AS SELECT soundex(category) AS s FROM items"),
        Unsupported,
        "soundex",
    ),
    "twice the same name": (lambda db: db.sql(ITEMS), NameTaken, "items"),
    "twice the same column": (
        lambda db: db.sql("CREATE MATERIALIZED VIEW v AS SELECT item_id AS a, price AS a FROM items"),
        BadStatement,
        ".",
    ),
    "table in use": (lambda db: db.sql("DROP TABLE items"), InUse, "n"),
    "unknown lane": (lambda db: db.refresh("fast"), vk.ViewkeeperError, "fast"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_changes_nothing(shop: Any, name: str) -> None:
    act, error, pattern = BAD[name]
    shop.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM items")
    before = (shop.status().position, rows(shop, "items"), shop.sql("SHOW VIEWS"), shop.sql("SHOW TABLES"))
    with pytest.raises(error, match=pattern) as raised:
        act(shop)
    assert raised.value.code.startswith("VK")
    assert (shop.status().position, rows(shop, "items"), shop.sql("SHOW VIEWS"), shop.sql("SHOW TABLES")) == before


def test_opening_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    with pytest.raises(NotADatabase, match="photos"):
        vk.open(f"lmdb:{tmp_path / 'photos'}")
    with pytest.raises(NotADatabase):
        vk.open(f"lmdb:{tmp_path / 'absent'}", mode="r")
    assert not (tmp_path / "absent").exists()
    with pytest.raises(BadValue):
        vk.open("carrier-pigeon:coop")


def test_a_database_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    from viewkeeper.store.lmdb import environment

    url = f"lmdb:{tmp_path / 'db'}"
    vk.open(url).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "FORMAT", environment.FORMAT + 1)
        vk.open(f"lmdb:{tmp_path / 'newer'}").close()
    with pytest.raises(FormatTooNew, match="newer"):
        vk.open(f"lmdb:{tmp_path / 'newer'}")


def test_a_second_process_is_told_who_maintains(tmp_path: Path, spark: Any) -> None:
    url = f"lmdb:{tmp_path / 'db'}"
    refresh = "with vk.open(url) as db:\n    try: db.refresh()\n    except MaintainerBusy as busy: say(str(busy))"
    with vk.open(url, spark=spark) as first, vk.open(url, spark=spark) as second:
        first.sql(ITEMS)
        first.refresh()
        second.put("items", {"item_id": 1})
        with other(refresh, url) as process:
            assert f"process {os.getpid()} on" in process.receive()
        assert second.refresh().epoch == 1, "handles of one process do it together"
        first.refresh()


def test_reads_are_arrow_with_sparks_types(shop: Any) -> None:
    shop.sql("CREATE TABLE t (k INT, at TIMESTAMP, local TIMESTAMP_NTZ, PRIMARY KEY (k))")
    schema = shop.read("t").schema
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    assert schema.field("local").type == pa.timestamp("us")
