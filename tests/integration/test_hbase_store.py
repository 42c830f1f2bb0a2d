"""Databases in a real HBase: views follow whoever writes, whatever is killed, and errors say what is wrong."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("thriftpy2")

from tests.integration.hbase_shop import expected, fill, totals

import viewkeeper as vk
from viewkeeper.errors import (
    BadValue,
    MaintainerBusy,
    NotADatabase,
    SnapshotGone,
    StoreError,
    Unsupported,
)
from viewkeeper.store.hbase import commit as commits
from viewkeeper.store.hbase import known
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.connection import Gateway
from viewkeeper.store.hbase.failures import NoSuchNamespace, NoSuchTable, NotThrift2, Unavailable
from viewkeeper.store.hbase.server import Server
from viewkeeper.store.hbase.tables import Family

pytestmark = [pytest.mark.deep, pytest.mark.slow]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def client(hbase: Server) -> Iterator[Client]:
    with Client(Gateway(hbase.host, hbase.port)) as one:
        yield one


@pytest.fixture
def namespace(client: Client) -> str:
    name = f"vk_{time.time_ns()}_{next(_numbers)}"
    client.tables.create_namespace(name)
    return name


@pytest.fixture
def open_db(hbase: Server, namespace: str, spark: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def make(mode: str = "w", **options: Any) -> Any:
        options = {"state": str(tmp_path / "state"), "lease": 1, **options}
        opened.append(vk.open(f"hbase://{hbase.host}:{hbase.port}/{namespace}", mode, spark=spark, **options))
        return opened[-1]

    yield make
    for db in reversed(opened):
        db.close()


@pytest.fixture
def shop(open_db: Callable[..., Any]) -> Any:
    return fill(open_db())


# -- views follow -----------------------------------------------------------------------------------------------------


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


def test_a_view_is_dropped_replaced_suspended_and_resumed(shop: Any, client: Client, namespace: str) -> None:
    shop.sql("CREATE OR REPLACE MATERIALIZED VIEW totals AS SELECT category, max(price) AS top FROM items GROUP BY 1")
    assert {r["category"]: r["top"] for r in shop.read("totals").to_pylist()} == {"a": 8, "b": 9}
    shop.sql("ALTER MATERIALIZED VIEW totals SUSPEND")
    shop.put("items", {"id": 50, "category": "b", "price": 99})
    shop.refresh()
    assert shop.get("totals", "b")["top"] == 9
    shop.sql("ALTER MATERIALIZED VIEW totals RESUME")
    assert shop.get("totals", "b")["top"] == 99
    shop.sql("DROP MATERIALIZED VIEW totals")
    shop.sql("DROP TABLE items")
    assert client.tables.tables(namespace) == [f"{namespace}:viewkeeper.meta"]


def test_what_hbase_cannot_do_is_said(shop: Any) -> None:
    with pytest.raises(Unsupported, match="log of views"):
        shop.sql("CREATE MATERIALIZED VIEW s WITH (store = 'none') AS SELECT id FROM items")
    with pytest.raises(Unsupported):
        shop.snapshot()
    assert [v.name for v in shop.status().views] == ["totals"]


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


# -- other clients ----------------------------------------------------------------------------------------------------

STRANGER = """
import json, struct, sys, thriftpy2
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory
thrift, host, port, table = sys.argv[1:5]
hbase = thriftpy2.load(thrift, module_name="stranger_thrift")
client = make_client(hbase.THBaseService, host, int(port), trans_factory=TFramedTransportFactory(), timeout=20000)
table = table.encode()
def put(key, **cells):
    values = [hbase.TColumnValue(b"%s", q.encode(), v) for q, v in cells.items()]
    client.put(table, hbase.TPut(row=key, columnValues=values))
def drop(key, *qualifiers):
    columns = [hbase.TColumn(b"%s", q.encode()) for q in qualifiers] or None
    client.deleteSingle(table, hbase.TDelete(row=key, columns=columns))
long = lambda n: struct.pack(">q", n)
money = lambda cents: struct.pack(">i", 2) + cents.to_bytes(4, "big", signed=True)
"""


def stranger(hbase: Server, table: str, family: str, program: str) -> None:
    """Run a plain thriftpy2 client in another process: it does not import viewkeeper."""
    thrift = Path(vk.__file__).parent / "store" / "hbase" / "hbase.thrift"
    code = STRANGER.replace("%s", family) + textwrap.dedent(program) + "\nassert 'viewkeeper' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-c", code, str(thrift), hbase.host, str(hbase.port), table],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_views_follow_a_plain_client_that_writes_our_table(shop: Any, hbase: Server, namespace: str) -> None:
    table = f"{namespace}:items.1"
    key = "key = lambda n: b'\\x01' + struct.pack('>Q', n + (1 << 63))"
    stranger(
        hbase,
        table,
        "c",
        f"""
        {key}
        put(key(1), category=b"b2")                       # some columns of a row
        put(key(200), category=b"new", price=money(250))  # a new row, without our mark
        drop(key(3), "price")                             # a column
        drop(key(5))                                      # a row
        for n in range(10): put(key(7), price=money(n))   # many versions
        """,
    )
    shop.refresh()
    assert totals(shop) == expected(shop)
    assert shop.get("items", 1) == {"id": 1, "category": "b2", "price": Decimal(1)}
    assert totals(shop)["new"] == (1, Decimal("2.50"))
    shop.put("items", {"id": 200, "category": "ours"})
    shop.refresh()
    assert totals(shop) == expected(shop)
    assert shop.get("items", 200) == {"id": 200, "category": "ours", "price": None}


MAPPED = """CREATE TABLE orders (region STRING, id INT, customer STRING, total DECIMAL(12,2), n BIGINT,
                                 PRIMARY KEY (region, id))
            WITH (hbase.table = '{table}', hbase.key = 'text |', hbase.encoding = 'bytes customer=text',
                  hbase.columns = 'd:customer d:total d:n')"""
BY_CUSTOMER = """CREATE MATERIALIZED VIEW by_customer AS
                 SELECT customer, count(*) AS orders, sum(total) AS total, sum(n) AS n FROM orders GROUP BY customer"""


@pytest.fixture
def foreign(client: Client, namespace: str) -> str:
    """A table that another program made."""
    name = f"{namespace}:their.orders"
    client.tables.create(name, [Family(b"d", max_versions=20, keep_deleted_cells=True), Family(b"other")])
    return name


def test_views_follow_a_table_that_others_made_and_write(
    open_db: Callable[..., Any], hbase: Server, foreign: str, client: Client
) -> None:
    stranger(
        hbase,
        foreign,
        "d",
        """
        for n in range(20):
            put(b"eu|%d" % n, customer=b"c%d" % (n % 2), total=money(100 * n), n=long(1))
        put(b"us|-1", n=long(5))
        """,
    )
    db = open_db()
    db.sql(MAPPED.format(table=foreign))
    db.sql(BY_CUSTOMER)

    def check() -> None:
        want: dict[Any, list[Any]] = {}
        for row in db.read("orders").to_pylist():
            one = want.setdefault(row["customer"], [0, None, None])
            one[0] += 1
            one[1] = one[1] if row["total"] is None else row["total"] + (one[1] or 0)
            one[2] = one[2] if row["n"] is None else row["n"] + (one[2] or 0)
        got = {r["customer"]: [r["orders"], r["total"], r["n"]] for r in db.read("by_customer").to_pylist()}
        assert got == want

    assert db.read("orders").num_rows == 21
    assert db.get("orders", ("us", -1)) == {"region": "us", "id": -1, "customer": None, "total": None, "n": 5}
    check()
    stranger(
        hbase,
        foreign,
        "d",
        """
        put(b"eu|1", customer=b"moved")
        put(b"eu|2", total=struct.pack(">i", 1) + b"\\x05")     # 0.5, written with another scale and length
        drop(b"eu|3", "customer")
        drop(b"eu|4")
        put(b"ap|9", customer=b"moved", total=money(-1), n=long(-7))
        """,
    )
    db.refresh()
    check()
    assert db.get("orders", ("eu", 2))["total"] == Decimal("0.50")
    db.put("orders", {"region": "eu", "id": 1, "customer": "back", "n": 3})
    db.delete("orders", [("ap", 9)])
    db.update("orders", ("eu", 5), {"n": None})
    db.refresh()
    check()
    assert db.get("orders", ("eu", 1)) == {"region": "eu", "id": 1, "customer": "back", "total": None, "n": 3}
    assert [r["id"] for r in db.scan("orders", prefix="us")] == [-1]
    db.sql("DROP MATERIALIZED VIEW by_customer")
    db.sql("DROP TABLE orders")
    assert client.tables.exists(foreign)


def test_views_follow_while_regions_split_and_flush(
    open_db: Callable[..., Any], hbase: Server, client: Client, namespace: str
) -> None:
    """A small MAX_FILESIZE and a load make regions split; disabling and enabling a table flushes it."""
    table = f"{namespace}:their.big"
    sizes = {b"MAX_FILESIZE": str(2 << 20).encode(), b"MEMSTORE_FLUSHSIZE": str(1 << 20).encode()}
    client.tables.create(table, [Family(b"d", max_versions=20, keep_deleted_cells=True)], attributes=sizes)
    db = open_db()
    db.sql(
        f"""CREATE TABLE big (id STRING PRIMARY KEY, kind STRING, filler STRING)
            WITH (hbase.table = '{table}', hbase.key = 'text', hbase.columns = 'd:*')"""
    )
    db.sql("CREATE MATERIALIZED VIEW kinds AS SELECT kind, count(*) AS n FROM big GROUP BY kind")
    loading = threading.Thread(
        target=stranger,
        args=(
            hbase,
            table,
            "d",
            """
            import os
            values = lambda **cells: [hbase.TColumnValue(b"d", q.encode(), v) for q, v in cells.items()]
            for at in range(0, 12000, 500):
                rows = [hbase.TPut(b"%06d" % n, values(kind=b"k%d" % (n % 3), filler=os.urandom(500).hex().encode()))
                        for n in range(at, at + 500)]
                client.putMultiple(table, rows)
                drop(b"%06d" % at)
            """,
        ),
    )
    loading.start()
    while loading.is_alive():
        db.refresh()
    loading.join()
    client.tables.disable(table)
    client.tables.enable(table)
    client.put(table, b"000001", {b"d:kind": b"moved"})
    db.refresh()
    deadline = time.monotonic() + 60
    while len(client.tables.regions(table)) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert len(client.tables.regions(table)) > 1, "no region was split"
    rows = db.read("big")
    assert rows.num_rows == 12000 - 24
    want = {kind: rows["kind"].to_pylist().count(kind) for kind in ("k0", "k1", "k2", "moved")}
    assert {r["kind"]: r["n"] for r in db.read("kinds").to_pylist()} == want


def test_a_row_that_cannot_be_read_is_put_aside_and_comes_back(
    open_db: Callable[..., Any], hbase: Server, foreign: str
) -> None:
    db = open_db()
    db.sql(MAPPED.format(table=foreign))
    stranger(hbase, foreign, "d", 'put(b"eu|1", n=b"xx"); put(b"nonsense", n=long(1)); put(b"eu|2", n=long(2))')
    db.sql(BY_CUSTOMER)
    table = db._store.catalog().table("orders")
    assert {r.key: r.reason for r in db._store.rejects(table)} == {
        b"eu|1": "d:n is no n (bytes)",
        b"nonsense": "its row key cannot be read",
    }
    stranger(hbase, foreign, "d", 'put(b"eu|1", n=long(10)); put(b"eu|2", n=b""); put(b"eu|3", n=long(3))')
    db.refresh()
    assert db.read("by_customer").to_pylist() == [{"customer": None, "orders": 2, "total": None, "n": 13}]
    assert sorted(r.key for r in db._store.rejects(table)) == [b"eu|2", b"nonsense"]
    assert [t.rejected for t in db.status().tables] == [2]


def test_a_table_that_cannot_be_mapped_is_refused_and_a_weak_one_warned_about(
    open_db: Callable[..., Any], client: Client, foreign: str, namespace: str
) -> None:
    db = open_db()
    sql = MAPPED.format(table=foreign)
    with pytest.raises(NoSuchTable, match="nowhere"):
        db.sql(MAPPED.format(table=f"{namespace}:nowhere"))
    for wrong, reason in {
        sql.replace("d:n'", "x:n'"): "no family x",
        sql.replace(" d:n'", "'"): "where n is",
        sql.replace("'text |'", "'text'"): "hbase.key",
        sql.replace("'text |'", "'bytes'"): "region",
        sql.replace("customer=text", "customer=xml"): "xml",
        sql.replace("hbase.key", "hbase.keys"): "hbase.keys",
    }.items():
        with pytest.raises(BadValue, match=reason):
            db.sql(wrong)
    assert db.sql("SHOW TABLES").num_rows == 0
    weak = f"{namespace}:weak"
    client.tables.create(weak, [Family(b"d", max_versions=1)])
    with pytest.warns(UserWarning, match=r"KEEP_DELETED_CELLS|VERSIONS") as said:
        db.sql(MAPPED.format(table=weak))
    assert len(said) == 2


def test_a_weak_table_is_read_again_whole_after_a_long_pause(
    open_db: Callable[..., Any], hbase: Server, client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = f"{namespace}:weak"
    client.tables.create(weak, [Family(b"d", max_versions=1, keep_deleted_cells=True)])
    db = open_db()
    with pytest.warns(UserWarning, match="VERSIONS"):
        db.sql(MAPPED.format(table=weak))
    stranger(hbase, weak, "d", 'put(b"eu|1", n=long(1)); put(b"eu|2", n=long(2))')
    db.sql(BY_CUSTOMER)
    # As after a compaction that took the delete's marker with it: a row is gone and left nothing behind.
    client.tables.disable(weak)
    client.tables.truncate(weak)
    client.put(weak, b"eu|2", {b"d:n": (2).to_bytes(8, "big")}, time=int(time.time() * 1000) - 60_000)
    stranger(hbase, weak, "d", 'put(b"eu|3", n=long(30))')
    monkeypatch.setattr("viewkeeper.store.hbase.feed.RESCAN", 0.0)
    db.refresh()
    assert db.read("by_customer").to_pylist() == [{"customer": None, "orders": 2, "total": None, "n": 32}]


def test_a_write_that_becomes_visible_late_is_not_lost(shop: Any, client: Client, namespace: str) -> None:
    """A cell with a time before the last cut, as of a server that took it and was slow to show it."""
    shop.refresh()
    shop.put("items", {"id": 300, "category": "seen", "price": 1})
    shop.refresh()
    late = shop.token("totals").position - 1000
    key = b"\x01" + (301 + (1 << 63)).to_bytes(8, "big")
    client.put(f"{namespace}:items.1", key, {b"c:category": b"late"}, time=late)
    assert shop.read("totals", vk.LATEST).num_rows == 4
    assert totals(shop) == expected(shop)
    assert shop.refresh().lane == "none"


# -- readers ----------------------------------------------------------------------------------------------------------


def test_a_plain_client_reads_a_view_up_to_the_published_batch(shop: Any, client: Client, namespace: str) -> None:
    """The documented layout: the state names the published batch; cells have batch numbers as times."""
    shop.put("items", {"id": 0, "category": "a", "price": None})
    shop.put("items", {"id": 90, "category": "zz", "price": 4})
    shop.refresh()
    shop.put("items", {"id": 90, "category": "zz", "price": None})
    shop.refresh()
    state = json.loads(client.get(f"{namespace}:viewkeeper.meta", b"database", (b"m:state",))[b"m:state"].value)
    view = next(t for t in client.tables.tables(namespace) if ":totals." in t)
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
        patch.setattr(commits, "publish", fail)
        with pytest.raises(StoreError, match="plug"):
            shop.refresh()
        assert totals(shop) == before
        assert {r["category"]: r["n"] for r in shop.scan("totals")} == {c: n for c, (n, _) in before.items()}
    shop.refresh()
    assert totals(shop) == expected(shop)


def test_a_reader_that_is_too_slow_is_told(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "VIEW_VERSIONS", 3)
    monkeypatch.setattr(known, "_SURE", 0.0)
    monkeypatch.setattr("viewkeeper.store.hbase.scanning.FIRST_ROWS", 2)
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


# -- maintainers ------------------------------------------------------------------------------------------------------


def test_a_successor_finishes_the_claimed_batch_and_the_old_maintainer_changes_nothing(
    shop: Any, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put("items", [{"id": n, "category": "new", "price": 5} for n in range(5)])
    held: list[Any] = []
    publish = commits.publish
    monkeypatch.setattr(commits, "publish", lambda records, redo: held.append((records, redo)))
    shop.refresh()  # it slept before step 4
    monkeypatch.setattr(commits, "publish", publish)
    shop._maintainer.lease._done.set()  # nor does it renew its lease
    time.sleep(1.2)
    other = open_db()
    other.put("items", {"id": 5, "category": "newer", "price": 1})
    other.refresh()
    assert totals(other) == expected(other)
    epoch = other.status().epoch
    publish(*held[0])  # it wakes up
    for table in held[0][1].tables:
        commits.write_cells(held[0][0].client, table, held[0][1].batch.number)
    assert (other.status().epoch, totals(other)) == (epoch, expected(other))
    with pytest.raises(MaintainerBusy):
        shop._store.commit(held[0][1].batch, [])


def test_two_maintainers_exclude_each_other(shop: Any, open_db: Callable[..., Any]) -> None:
    with pytest.raises(MaintainerBusy, match="process"):
        open_db().refresh()
    shop.close()
    assert open_db().refresh().epoch == 1


MAINTAINER = """
import os, signal, sys
import viewkeeper as vk
from viewkeeper.store.hbase import commit, redo
url, state, at = sys.argv[1:4]
def die(*args): os.kill(os.getpid(), signal.SIGKILL)
db = vk.open(url, state=state, lease=1)
if at == "claim": commit.finish = die
if at == "cells": commit.publish = die
if at == "redo": commit.Claim = die
db.refresh()
"""


@pytest.mark.parametrize("at", ["redo", "claim", "cells"])
def test_a_maintainer_killed_in_a_commit_leaves_a_right_database(
    shop: Any, open_db: Callable[..., Any], tmp_path: Path, at: str
) -> None:
    url = shop._store.url
    shop.close()
    writer = open_db()
    writer.put("items", [{"id": n, "category": "k", "price": 5} for n in range(40)])
    run = [sys.executable, "-c", MAINTAINER, url, str(tmp_path / "state"), at]
    assert subprocess.run(run, capture_output=True, timeout=120, check=False).returncode == -9
    time.sleep(1.2)
    writer.put("items", {"id": 1000, "category": "after", "price": 1})
    writer.refresh()
    assert totals(writer) == expected(writer)
    assert writer.refresh().lane == "none"


# -- wrong addresses --------------------------------------------------------------------------------------------------


def test_wrong_places_are_clear_errors(hbase: Server, client: Client, namespace: str) -> None:
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
    assert client.tables.tables(namespace) == []


def test_what_is_no_gateway_is_told_by_its_answer(hbase: Server) -> None:
    with pytest.raises((NotThrift2, Unavailable), match="Thrift2"):
        vk.open(f"hbase://{hbase.host}:{hbase.instance().zookeeper_port}/x?connect_timeout=2")


# -- values -----------------------------------------------------------------------------------------------------------


def test_every_type_comes_back_as_it_was(open_db: Callable[..., Any]) -> None:
    types = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(20,3)", "string", "binary"]
    types += ["date", "timestamp"]
    columns = ", ".join(f"c{i} {t}" for i, t in enumerate(types))
    db = open_db()
    import datetime as dt

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
