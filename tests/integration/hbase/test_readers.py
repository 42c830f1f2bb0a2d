"""Readers of views in HBase: one batch whatever is written meanwhile, snapshots, subscriptions, plain clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from tests.integration.hbase.shop import expected, totals

from viewkeeper.errors import SnapshotGone, StoreError, Unsupported
from viewkeeper.store.redo import claim
from viewkeeper_hbase import cached_state
from viewkeeper_hbase import commit_steps as commits
from viewkeeper_hbase.layout import layout
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient

pytestmark = [pytest.mark.slow]


def test_a_plain_client_reads_a_view_up_to_the_published_batch(shop: Any, client: HBaseClient, namespace: str) -> None:
    """The documented layout: the state names the published batch; cells have batch numbers as times."""
    shop.put("items", {"id": 0, "category": "a", "price": None})
    shop.put("items", {"id": 90, "category": "zz", "price": 4})
    shop.refresh()
    shop.put("items", {"id": 90, "category": "zz", "price": None})
    shop.refresh()
    state = json.loads(client.get(f"{namespace}:viewkeeper.meta", b"database", (b"m:state",))[b"m:state"].value)
    view = next(t for t in client.admin.list_tables(namespace) if ":totals." in t)
    key = b"\x01zz\x00\x00"
    now = client.get(view, key, span=(0, state["published"] + 1))
    assert now is not None
    assert {c: cell.value for c, cell in now.items()} == {b"c:": b"\x01", b"c:n": (1).to_bytes(8, "big")}
    before = client.get(view, key, span=(0, state["published"]))
    assert before is not None
    assert before[b"c:total"].value[-2:] == (400).to_bytes(2, "big")
    assert client.get(view, key, span=(0, state["published"] - 1)) is None


def test_a_half_written_batch_is_not_seen(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = totals(shop)
    shop.put("items", [{"id": n, "category": "abc"[n % 3], "price": 5} for n in range(30)])

    def fail(*args: Any) -> None:
        raise StoreError("pulled the plug")

    with monkeypatch.context() as patch:
        patch.setattr(claim, "publish_batch", fail)
        with pytest.raises(StoreError, match="plug"):
            shop.refresh()
        assert totals(shop) == before
        assert {r["category"]: r["n"] for r in shop.scan("totals")} == {c: n for c, (n, _) in before.items()}
    shop.refresh()
    assert totals(shop) == expected(shop)


def test_a_reader_that_is_too_slow_is_told(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_state, "VIEW_VERSIONS", 3)
    monkeypatch.setattr(cached_state, "_SAFE_READ_TIME", 0.0)
    monkeypatch.setattr("viewkeeper_hbase.thrift.scan.FIRST_ROWS", 2)
    shop.sql("CREATE MATERIALIZED VIEW copies AS SELECT id, category, price FROM items")
    shop.put("items", [{"id": n, "category": "x", "price": 1} for n in range(50)])
    shop.refresh()
    rows = shop._store.scan(shop._store.catalog().table("copies"))
    next(rows)
    for n in range(3):
        shop.put("items", {"id": n, "category": "y", "price": n})
        shop.refresh()
    with pytest.raises(SnapshotGone, match="no longer readable"):
        list(rows)
    assert shop.read("copies").num_rows == 50


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_shows_tables_and_views_of_one_batch(shop: Any, open_db: Callable[..., Any]) -> None:
    before, items = totals(shop), shop.read("items")
    with open_db("r").snapshot() as snapshot:
        shop.put("items", [{"id": n, "category": "new", "price": 1} for n in range(5, 50)])
        shop.delete("items", [0, 1])
        shop.refresh()
        shop.put("items", {"id": 2, "category": "unseen"})
        assert {r["category"]: (r["n"], r["total"]) for r in snapshot.read("totals").to_pylist()} == before
        assert snapshot.get("totals", "new") is None
        assert snapshot.get("totals", "a") == {"category": "a", "n": 5, "total": Decimal(20)}
        assert snapshot.read("items").equals(items)
        assert snapshot.get("items", 0) == {"id": 0, "category": "a", "price": Decimal(0)}
        assert [r["id"] for r in snapshot.scan("items", start=7)] == [7, 8, 9]
    with pytest.raises(SnapshotGone, match="closed"):
        snapshot.read("totals")
    with shop.snapshot() as now:
        assert now.epoch == shop.status().epoch
        assert now.get("items", 2) == {"id": 2, "category": "a", "price": Decimal(2)}


def test_a_snapshot_ends_when_hbase_may_have_dropped_what_it_shows(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "TABLE_VERSIONS", 5)
    monkeypatch.setattr(cached_state, "VIEW_VERSIONS", 3)
    monkeypatch.setattr(cached_state, "_SAFE_READ_TIME", 0.0)
    with shop.snapshot() as snapshot:
        for n in range(4):
            shop.put("items", {"id": 3, "category": "hot", "price": n})
        assert snapshot.get("items", 3) == {"id": 3, "category": "b", "price": Decimal(3)}
        shop.put("items", {"id": 3, "category": "hot", "price": 4})
        with pytest.raises(SnapshotGone, match="overwritten 5 times"):
            snapshot.get("items", 3)
        with pytest.raises(SnapshotGone, match="overwritten"):
            snapshot.read("items")
        assert snapshot.get("items", 4) == {"id": 4, "category": "a", "price": Decimal(4)}
        for _ in range(3):
            shop.put("items", {"id": 3, "category": "hot", "price": 4})
            shop.refresh()
        with pytest.raises(SnapshotGone, match="no longer readable"):
            snapshot.read("totals")


def test_a_table_without_a_past_has_no_snapshot(
    open_db: Callable[..., Any], client: HBaseClient, namespace: str
) -> None:
    client.admin.create(f"{namespace}:weak", [ColumnFamily(b"d", max_versions=1)])
    db = open_db()
    with pytest.warns(UserWarning, match="KEEP_DELETED_CELLS|VERSIONS"):
        db.sql(
            f"""CREATE TABLE weak (id STRING PRIMARY KEY, n STRING)
                WITH (hbase.table = '{namespace}:weak', hbase.key = 'text', hbase.columns = 'd:n')"""
        )
    with db.snapshot() as snapshot, pytest.raises(Unsupported, match="no past"):
        snapshot.read("weak")


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_a_subscriber_gets_every_batch_once_and_resumes_by_token(shop: Any, open_db: Callable[..., Any]) -> None:
    deltas = open_db("r").subscribe("totals", timeout=30)
    first = next(deltas)
    assert (first.kind, first.rows.num_rows) == ("rows", 2)
    shop.put("items", [{"id": 1, "category": "c", "price": 7}, {"id": 3, "category": "c", "price": 1}])
    shop.refresh()
    shop.sql("CREATE MATERIALIZED VIEW other AS SELECT id FROM items")  # a batch that changes nothing here
    shop.delete("items", [1, 3])
    shop.refresh()
    second, third = next(deltas), next(deltas)
    assert [(c.kind, (c.before or {}).get("n"), (c.after or {}).get("n")) for c in second.changes()] == [
        ("update", 5, 3),
        ("insert", None, 2),
    ]
    assert [(c.kind, c.before) for c in third.changes()] == [("delete", {"category": "c", "n": 2, "total": 8})]
    assert first.token.position < second.token.position < third.token.position
    again = open_db("r").subscribe("totals", since=str(first.token), timeout=0)
    assert [d.rows.to_pylist() for d in again] == [d.rows.to_pylist() for d in (second, third)]
    assert list(shop.subscribe("totals", since=third.token, timeout=0)) == []


def test_a_subscriber_that_comes_back_too_late_is_told(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "VIEW_VERSIONS", 3)
    since = next(shop.subscribe("totals", timeout=0)).token
    for n in range(4):
        shop.put("items", {"id": 1, "category": "x", "price": n})
        shop.refresh()
    with pytest.raises(SnapshotGone, match="no longer kept"):
        list(shop.subscribe("totals", since=since, timeout=0))
    assert next(shop.subscribe("totals", timeout=0)).rows.num_rows == 3


def test_a_lazy_view_gives_what_a_stored_one_holds(shop: Any, open_db: Callable[..., Any]) -> None:
    shop.sql("CREATE TABLE owners (category STRING PRIMARY KEY, owner STRING)")
    shop.put("owners", [{"category": c, "owner": o} for c, o in (("a", "ada"), ("b", "ada"), ("c", "bob"))])
    query = "SELECT owner, count(*) AS n, sum(price) AS total FROM owners JOIN items USING (category) GROUP BY owner"
    shop.sql(f"CREATE MATERIALIZED VIEW stored AS {query}")
    shop.sql(f"CREATE MATERIALIZED VIEW lazy WITH (store = 'lazy') AS {query}")
    reader = open_db(mode="r")
    for turn in range(3):
        shop.put("items", [{"id": n + turn, "category": "abc"[(n + turn) % 3], "price": turn} for n in range(6)])
        shop.delete("items", [turn])
        shop.put("owners", {"category": "b", "owner": ("ada", "bob", None)[turn]})
        shop.refresh()
        for db in (shop, reader):
            for owner in ("ada", "bob", "nobody"):
                assert db.get("lazy", owner) == db.get("stored", owner)
                assert list(db.scan("lazy", prefix=owner)) == list(db.scan("stored", prefix=owner))
            assert db.read("lazy").equals(db.read("stored"))
            assert list(db.scan("lazy", where={"n": 3})) == list(db.scan("stored", where={"n": 3}))
