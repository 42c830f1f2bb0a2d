"""Tables that clients write who know nothing of us: whatever they do, views follow."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.hbase.shop import expected, totals

import viewkeeper as vk
import viewkeeper_hbase
from viewkeeper.errors import BadValue
from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import NoSuchTable

pytestmark = [pytest.mark.slow]

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
    thrift = Path(viewkeeper_hbase.__file__).parent / "thrift" / "hbase.thrift"
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
def foreign(client: HBaseClient, namespace: str) -> str:
    """A table that another program made."""
    name = f"{namespace}:their.orders"
    client.admin.create(name, [ColumnFamily(b"d", max_versions=20, keep_deleted_cells=True), ColumnFamily(b"other")])
    return name


def test_views_follow_a_table_that_others_made_and_write(
    open_db: Callable[..., Any], hbase: Server, foreign: str, client: HBaseClient
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
    assert client.admin.exists(foreign)


@pytest.mark.deep
@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_views_follow_while_regions_split_and_flush(
    open_db: Callable[..., Any], hbase: Server, client: HBaseClient, namespace: str, lane: str
) -> None:
    """A small MAX_FILESIZE and a load make regions split; disabling and enabling a table flushes it."""
    table = f"{namespace}:their.big"
    sizes = {b"MAX_FILESIZE": str(2 << 20).encode(), b"MEMSTORE_FLUSHSIZE": str(1 << 20).encode()}
    client.admin.create(table, [ColumnFamily(b"d", max_versions=20, keep_deleted_cells=True)], attributes=sizes)
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
        db.refresh(lane)
    loading.join()
    client.admin.disable(table)
    client.admin.enable(table)
    client.put(table, b"000001", {b"d:kind": b"moved"})
    db.refresh(lane)
    deadline = time.monotonic() + 60
    while len(client.admin.list_regions(table)) < 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert len(client.admin.list_regions(table)) > 1, "no region was split"
    rows = db.read("big")
    assert rows.num_rows == 12000 - 24
    want = {kind: rows["kind"].to_pylist().count(kind) for kind in ("k0", "k1", "k2", "moved")}
    assert {r["kind"]: r["n"] for r in db.read("kinds").to_pylist()} == want


@pytest.mark.deep
def test_a_row_that_cannot_be_read_is_put_aside_and_comes_back(
    open_db: Callable[..., Any], hbase: Server, foreign: str
) -> None:
    db = open_db()
    db.sql(MAPPED.format(table=foreign))
    stranger(hbase, foreign, "d", 'put(b"eu|1", n=b"xx"); put(b"nonsense", n=long(1)); put(b"eu|2", n=long(2))')
    db.sql(BY_CUSTOMER)
    table = db._store.catalog().table("orders")
    assert {r.key: r.reason for r in db._store.rejected_rows(table)} == {
        b"eu|1": "d:n is no n (bytes)",
        b"nonsense": "its row key cannot be read",
    }
    stranger(hbase, foreign, "d", 'put(b"eu|1", n=long(10)); put(b"eu|2", n=b""); put(b"eu|3", n=long(3))')
    db.refresh()
    assert db.read("by_customer").to_pylist() == [{"customer": None, "orders": 2, "total": None, "n": 13}]
    assert sorted(r.key for r in db._store.rejected_rows(table)) == [b"eu|2", b"nonsense"]
    assert [t.rejected for t in db.status().tables] == [2]


def test_a_table_that_cannot_be_mapped_is_refused_and_a_weak_one_warned_about(
    open_db: Callable[..., Any], client: HBaseClient, foreign: str, namespace: str
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
    client.admin.create(weak, [ColumnFamily(b"d", max_versions=1)])
    with pytest.warns(UserWarning, match=r"KEEP_DELETED_CELLS|VERSIONS") as said:
        db.sql(MAPPED.format(table=weak))
    assert len(said) == 2


@pytest.mark.deep
def test_a_weak_table_is_read_again_whole_after_a_long_pause(
    open_db: Callable[..., Any], hbase: Server, client: HBaseClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = f"{namespace}:weak"
    client.admin.create(weak, [ColumnFamily(b"d", max_versions=1, keep_deleted_cells=True)])
    db = open_db()
    with pytest.warns(UserWarning, match="VERSIONS"):
        db.sql(MAPPED.format(table=weak))
    stranger(hbase, weak, "d", 'put(b"eu|1", n=long(1)); put(b"eu|2", n=long(2))')
    db.sql(BY_CUSTOMER)
    # As after a compaction that took the delete's marker with it: a row is gone and left nothing behind.
    client.admin.disable(weak)
    client.admin.truncate(weak)
    client.put(weak, b"eu|2", {b"d:n": (2).to_bytes(8, "big")}, time=int(time.time() * 1000) - 60_000)
    stranger(hbase, weak, "d", 'put(b"eu|3", n=long(30))')
    monkeypatch.setattr("viewkeeper_hbase.capture.feed.RESCAN_AFTER", 0.0)
    db.refresh()
    assert db.read("by_customer").to_pylist() == [{"customer": None, "orders": 2, "total": None, "n": 32}]


def test_a_write_that_becomes_visible_late_is_not_lost(shop: Any, client: HBaseClient, namespace: str) -> None:
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
