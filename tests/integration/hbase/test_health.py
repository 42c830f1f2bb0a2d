"""`audit`, its repair and `doctor` on HBase: what capture cannot find is found, mended and told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.contract.small_hbase import SmallHBase
from tests.integration.hbase.shop import expected, fill, totals

import viewkeeper as vk
from viewkeeper.errors import StoreError
from viewkeeper_hbase import commit_steps
from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway

LONG_AGO = 1_000_000_000_000
"""A time of its writer's own choosing: no window looks there."""

MAPPED = """CREATE TABLE others (id STRING PRIMARY KEY, city STRING)
            WITH (hbase.table = '{}:others', hbase.key = 'text', hbase.columns = 'd:city')"""
CITIES = "CREATE MATERIALIZED VIEW cities AS SELECT city, count(*) AS n FROM others GROUP BY city"


@pytest.fixture
def client(server: Server | SmallHBase) -> Iterator[HBaseClient]:
    with HBaseClient(Gateway(server.host, server.port)) as one:
        yield one


@pytest.fixture
def shop(server: Any, spark: Any, tmp_path: Path) -> Iterator[Any]:
    url = f"hbase://{server.host}:{server.port}/vk_{time.time_ns()}?create=true&lease=1"
    with vk.open(url, spark=spark, state=str(tmp_path / "state")) as db:
        yield fill(db)


def namespace(db: Any) -> str:
    return str(db._store._namespace)


def test_a_write_with_an_old_time_is_found_by_the_audit_and_repaired(shop: Any, client: HBaseClient) -> None:
    assert shop.audit().differences == 0
    key = b"\x01" + ((1 << 63) + 77).to_bytes(8, "big")
    client.put(f"{namespace(shop)}:items.1", key, {b"c:category": b"old"}, time=LONG_AGO)
    assert shop.refresh().lane == "none"
    report = shop.audit()
    assert report.differences == 1
    assert report.views[0].examples[0].expected == {"category": "old", "n": 1, "total": None}
    repaired = shop.audit(repair=True).views[0]
    assert (repaired.differences, repaired.repaired) == (1, True)
    assert totals(shop) == expected(shop)
    assert totals(shop)["old"] == (1, None)
    shop.put("items", {"id": 77, "category": "new", "price": 7})
    shop.refresh()
    assert totals(shop) == expected(shop)
    assert shop.audit().differences == 0


def test_a_delete_whose_marker_is_gone_is_found_in_a_table_that_has_no_past(shop: Any, client: HBaseClient) -> None:
    """The table keeps one version and no deleted cells: it is read as it is, while nothing waits."""
    name = f"{namespace(shop)}:others"
    client.admin.create(name, [ColumnFamily(b"d", max_versions=1, keep_deleted_cells=False)])
    for key, city in ((b"1", b"Rome"), (b"2", b"Oslo"), (b"3", b"Rome")):
        client.put(name, key, {b"d:city": city}, time=LONG_AGO)
    with pytest.warns(UserWarning, match="deleted cells|one version"):
        shop.sql(MAPPED.format(namespace(shop)))
    shop.sql(CITIES)
    assert shop.audit().differences == 0
    client.delete(name, b"1", time=LONG_AGO + 1)
    shop.refresh()
    assert shop.get("cities", "Rome")["n"] == 2
    assert shop.audit("cities").differences == 1
    assert shop.audit("cities", repair=True).views[0].repaired
    assert shop.get("cities", "Rome")["n"] == 1


def test_the_doctor_says_what_is_well_and_what_is_not(
    shop: Any, client: HBaseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    examination = shop.doctor()
    assert examination.healthy, examination
    checks = {finding.check: finding.message for finding in examination.findings}
    assert checks["gateway"].startswith(client.pool.gateway.address)
    assert checks["commit"] == "no batch is half done"

    name = f"{namespace(shop)}:others"
    client.admin.create(name, [ColumnFamily(b"d", max_versions=10, keep_deleted_cells=True)])
    shop.sql(MAPPED.format(namespace(shop)))
    shop.sql(CITIES)
    client.put(name, b"1", {b"d:city": b"\xff"})
    shop.refresh()
    bad = [finding for finding in shop.doctor().findings if not finding.ok]
    assert [finding.check for finding in bad] == ["rejects"]
    assert "1 rows of others cannot be read" in bad[0].message

    client.delete(name, b"1")
    shop.put("items", {"id": 1, "category": "z", "price": 1})
    with monkeypatch.context() as patch:
        patch.setattr(commit_steps, "write_cells", _fails)
        with pytest.raises(StoreError, match="gone"):
            shop.refresh()
    shop._maintainer_ref.end()
    unfinished = next(finding for finding in shop.doctor().findings if finding.check == "commit")
    assert not unfinished.ok
    assert "The next maintainer finishes it" in unfinished.advice
    shop.refresh()
    assert totals(shop) == expected(shop)
    assert shop.doctor().healthy


def _fails(*_: Any) -> None:
    raise StoreError("the machine is gone")
