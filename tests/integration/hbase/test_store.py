"""Databases in a real HBase: views follow what is written through us, values come back, errors say what is wrong."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.hbase.shop import expected, totals

import viewkeeper as vk
from viewkeeper.errors import BadValue, NotADatabase, SnapshotGone, Unsupported
from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import NoSuchNamespace, NotThrift2Gateway, Unavailable

pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_views_follow_puts_updates_and_deletes(shop: Any, lane: str) -> None:
    assert totals(shop) == {"a": (5, Decimal(20)), "b": (5, Decimal(25))}
    shop.put("items", [{"id": 1, "category": None, "price": 7}, {"id": 77, "category": "c", "price": None}])
    shop.update("items", 3, {"price": None})
    shop.update("items", 5, {"category": "a"})
    shop.delete("items", [0, 2, 4000])
    report = shop.refresh(lane)
    assert (report.epoch, report.lane) == (2, lane)
    assert totals(shop) == expected(shop)
    assert totals(shop) == {"a": (4, Decimal(23)), "b": (3, Decimal(16)), None: (1, Decimal(7)), "c": (1, None)}
    assert shop.get("totals", "c") == {"category": "c", "n": 1, "total": None}
    assert shop.refresh(lane).lane == "none"


def test_a_put_replaces_the_row_whole_and_a_deleted_row_can_come_back(shop: Any) -> None:
    for price in range(20):
        shop.put("items", {"id": 1, "category": "b", "price": price})
        shop.put("items", {"id": 1, "category": None})
        assert shop.get("items", 1) == {"id": 1, "category": None, "price": None}
        shop.delete("items", 1)
        shop.put("items", {"id": 1, "category": "b", "price": price})
        assert shop.get("items", 1) == {"id": 1, "category": "b", "price": Decimal(price)}
    shop.refresh()
    assert totals(shop) == expected(shop)


def test_a_token_makes_the_view_as_new_as_the_write(shop: Any, open_db: Callable[..., Any]) -> None:
    token = shop.put("items", {"id": 100, "category": "z", "price": 1})
    assert not token.atomic
    assert shop.get("totals", "z", after=token)["n"] == 1
    other = open_db("r")
    assert other.get("totals", "z", after=str(token))["n"] == 1
    assert other.read("totals", vk.LATEST).num_rows == 3


def test_a_view_without_a_unique_key_a_join_and_a_view_on_a_view(shop: Any) -> None:
    shop.sql("CREATE TABLE names (category STRING PRIMARY KEY, title STRING)")
    shop.put("names", [{"category": "a", "title": "Apples"}, {"category": "b", "title": "Pears"}])
    shop.sql("CREATE MATERIALIZED VIEW kinds AS SELECT category FROM items")
    shop.sql(
        """CREATE MATERIALIZED VIEW titles AS SELECT n.title, t.total FROM names n
           JOIN totals t ON n.category = t.category"""
    )
    shop.put("items", [{"id": n, "category": "a", "price": 1} for n in range(20, 25)])
    shop.delete("items", [1, 3])
    shop.put("names", {"category": "a", "title": "Äpfel"})
    shop.refresh()
    assert sorted(row["category"] for row in shop.scan("kinds")) == ["a"] * 10 + ["b"] * 3
    assert {r["title"]: r["total"] for r in shop.read("titles").to_pylist()} == {"Äpfel": 25, "Pears": 21}


def test_a_view_is_dropped_replaced_suspended_and_resumed(shop: Any, client: HBaseClient, namespace: str) -> None:
    shop.sql("CREATE OR REPLACE MATERIALIZED VIEW totals AS SELECT category, max(price) AS top FROM items GROUP BY 1")
    assert {r["category"]: r["top"] for r in shop.read("totals").to_pylist()} == {"a": 8, "b": 9}
    shop.sql("ALTER MATERIALIZED VIEW totals SUSPEND")
    shop.put("items", {"id": 50, "category": "b", "price": 99})
    shop.refresh()
    assert shop.get("totals", "b", vk.STALE)["top"] == 9
    shop.sql("ALTER MATERIALIZED VIEW totals RESUME")
    assert shop.get("totals", "b")["top"] == 99
    shop.sql("DROP MATERIALIZED VIEW totals")
    shop.sql("DROP TABLE items")
    assert client.admin.list_tables(namespace) == [f"{namespace}:viewkeeper.meta"]


def test_what_hbase_cannot_do_is_said(shop: Any) -> None:
    with pytest.raises(Unsupported, match="no log of items"):
        shop.subscribe("items")
    assert [v.name for v in shop.status().views] == ["totals"]


def test_changes_of_a_table_are_streamed_by_a_view(shop: Any) -> None:
    shop.sql("CREATE MATERIALIZED VIEW items_changes WITH (store = 'none') AS SELECT * FROM items")
    deltas = shop.subscribe("items", timeout=0)
    before = {row["id"]: row for row in next(deltas).rows.to_pylist()}
    token = next(shop.subscribe("items", timeout=0, keep=("mailer", 60))).token
    assert set(before) == {row["id"] for row in shop.scan("items")}
    shop.put("items", {"id": 700, "category": "b", "price": 3})
    shop.refresh()
    shop.delete("items", 700)
    shop.refresh()
    told = [[(c.kind, (c.after or c.before)["id"]) for c in delta.changes()] for delta in deltas]
    assert told == [[("insert", 700)], [("delete", 700)]]
    assert shop.read("items_changes").num_rows == len(before)
    # What the subscriber keeps outlives the retention; when it is let go, the next batch forgets it.
    for held in (True, False):
        shop._store.truncate(shop._store.head())
        shop.put("items", {"id": 0, "category": "b", "price": 8 + held})
        shop.refresh()
        if held:
            assert len(list(shop.subscribe("items", token, timeout=0))) == 3
            shop._store.release_hold("subscription:mailer")
    with pytest.raises(SnapshotGone):
        list(shop.subscribe("items", token, timeout=0))
    shop.sql("DROP MATERIALIZED VIEW items_changes")


def test_background_maintenance_follows_another_process(shop: Any, open_db: Callable[..., Any]) -> None:
    writer = open_db()
    with shop.maintain():
        token = writer.put("items", {"id": 500, "category": "new", "price": 3})
        assert writer.get("totals", "new", after=token, timeout=30)["n"] == 1
        shop.delete("items", 500)
        deadline = time.monotonic() + 30
        while shop.get("totals", "new") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


# -- wrong addresses ---------------------------------------------------------------------------------------------------


def test_wrong_places_are_clear_errors(hbase: Server, client: HBaseClient, namespace: str) -> None:
    at = f"hbase://{hbase.host}:{hbase.port}"
    for url, kind, reason in [
        ("hbase://127.0.0.1:1/x?connect_timeout=2&retries=0", Unavailable, "127.0.0.1:1"),
        ("hbase://no.such.host.invalid:9090/x?connect_timeout=2&retries=0", Unavailable, "no.such.host.invalid"),
        (f"{at}/nowhere", NoSuchNamespace, "nowhere"),
        (f"{at}/a/b", BadValue, "address"),
        (f"{at}/x?colour=red", BadValue, "colour"),
        (f"{at}/x?overlap=-1", BadValue, "overlap"),
    ]:
        started = time.monotonic()
        with pytest.raises(kind, match=reason):
            vk.open(url)
        assert time.monotonic() - started < 30
    with pytest.raises(NotADatabase, match=namespace):
        vk.open(f"{at}/{namespace}", mode="r")
    assert client.admin.list_tables(namespace) == []


def test_what_is_no_gateway_is_told_by_its_answer(hbase: Server) -> None:
    with pytest.raises((NotThrift2Gateway, Unavailable), match="Thrift2"):
        vk.open(f"hbase://{hbase.host}:{hbase.instance().zookeeper_port}/x?connect_timeout=2")


# -- values ------------------------------------------------------------------------------------------------------------


def test_every_type_comes_back_as_it_was(open_db: Callable[..., Any]) -> None:
    types = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(20,3)", "string", "binary"]
    types += ["date", "timestamp"]
    columns = ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    db = open_db()
    when = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
    low = [
        False,
        -128,
        -(2**15),
        -(2**31),
        -(2**63),
        -1.5,
        -0.0,
        Decimal("-12345678901234567.123"),
        "",
        b"",
        None,
        when,
    ]
    high = [
        True,
        127,
        2**15 - 1,
        2**31 - 1,
        2**63 - 1,
        2.5,
        float("inf"),
        Decimal("0.001"),
        "ä\0z",
        b"\0\xff",
        dt.date(9999, 12, 31),
        None,
    ]
    for encoding in ("bytes", "text"):
        name = f"t_{encoding}"
        db.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, {columns}) WITH (hbase.encoding = '{encoding}')")
        rows = [{"id": n, **{f"c{i}": v for i, v in enumerate(vs)}} for n, vs in enumerate([low, high, [None] * 12])]
        db.put(name, rows)
        assert db.read(name).to_pylist() == rows
        assert [db.get(name, n) for n in range(3)] == rows
    assert isinstance(db.read("t_bytes"), pa.Table)
