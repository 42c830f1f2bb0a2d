"""Faults at every call, and writes that show late, over a small HBase without a JVM of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.contract.small_hbase import SmallHBase
from tests.integration.hbase.shop import TOTALS, expected, totals

import viewkeeper as vk
from viewkeeper.errors import ViewkeeperError
from viewkeeper.runtime.cost_model import LaneChoice
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway


@pytest.fixture
def small() -> Iterator[SmallHBase]:
    server = SmallHBase()
    yield server
    server.close()


@pytest.fixture
def shop(small: SmallHBase, spark: Any, tmp_path: Path) -> Iterator[Any]:
    url = f"hbase://{small.host}:{small.port}/shop?create=true&retries=0"
    with vk.open(url, spark=spark, state=str(tmp_path / "state")) as db:
        db.sql("CREATE TABLE items (id BIGINT PRIMARY KEY, category STRING, price DECIMAL(12,2), note STRING)")
        db.put("items", [{"id": n, "category": "ab"[n % 2], "price": n} for n in range(10)])
        db.sql(TOTALS)
        yield db


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done and not answered"])
def test_a_batch_may_break_at_any_call(shop: Any, small: SmallHBase, done: bool) -> None:
    """The gateway dies at the first call of a batch, at the second, and so on, until the batch gets through."""
    for at in range(1000):
        shop.put("items", [{"id": n, "category": "abc"[(n + at) % 3], "price": at} for n in range(at % 7, 12)])
        shop.delete("items", [at % 5])
        small.breaks = (at, done)
        try:
            shop.refresh()
            break
        except ViewkeeperError:
            assert small.breaks[0] < 0
        finally:
            small.revive()
        before = shop.status().epoch
        shop.refresh()
        assert shop.status().epoch <= before + 1
        assert totals(shop) == expected(shop)
    assert 5 < at < 999  # the clock, what changed, the claim, the cells, the publication
    assert totals(shop) == expected(shop)


def _key(number: int) -> bytes:
    return b"\x01" + (number + (1 << 63)).to_bytes(8, "big")


def _late(small: SmallHBase, db: Any, number: int) -> None:
    """A row with a time before the last cut, as of a server that took it and was slow to show it."""
    with HBaseClient(Gateway(small.host, small.port)) as client:
        client.put("shop:items.1", _key(number), {b"c:category": b"late"}, time=db.token("totals").position - 500)


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_a_late_write_is_not_lost_to_views_when_another_one_is_loaded(
    shop: Any, small: SmallHBase, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new view needs more columns, so the table is read again, and with it the row that no batch has seen."""
    shop.put("items", {"id": 20, "category": "a", "price": 1, "note": "x"})
    shop.refresh(lane)
    _late(small, shop, 99)
    choice = LaneChoice(lane, "it is tested")
    monkeypatch.setattr("viewkeeper.runtime.executor.BatchExecutor.choose_lane", lambda *_, choice=choice: choice)
    shop.sql("CREATE MATERIALIZED VIEW notes AS SELECT id, category, note FROM items")
    assert shop.get("notes", 99) == {"id": 99, "category": "late", "note": None}
    shop.refresh()
    assert totals(shop) == expected(shop)
    assert totals(shop)["late"] == (1, None)


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_capture_reads_each_region_by_itself_on_spark_and_both_lanes_find_the_same(
    shop: Any, small: SmallHBase, lane: str
) -> None:
    table = small.tables[b"shop:items.1"]
    table.splits = [_key(3), _key(7), _key(50)]
    shop.put("items", [{"id": n, "category": "xyz"[n % 3], "price": n} for n in range(2, 100, 2)])
    shop.delete("items", [1, 5])
    table.scanned.clear()
    assert shop.refresh(lane).lane == lane
    assert totals(shop) == expected(shop)
    raw = {(scan.startRow or b"", scan.stopRow or b"") for scan in table.scanned if scan.attributes}
    regions = {(b"", _key(3)), (_key(3), _key(7)), (_key(7), _key(50)), (_key(50), b"")}
    assert raw == (regions if lane == "spark" else {(b"", b"")})
    table.splits = [_key(1), _key(2)]
    shop.put("items", {"id": 1, "category": "split", "price": 1})
    shop.refresh(lane)
    assert totals(shop) == expected(shop)


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_a_write_that_shows_after_a_first_load_is_not_lost(shop: Any, small: SmallHBase, lane: str) -> None:
    time.sleep(0.01)
    shop.refresh(lane)
    _late(small, shop, 98)
    assert shop.read("totals", vk.LATEST).num_rows == 3
    assert totals(shop) == expected(shop)
    assert shop.get("totals", "late") == {"category": "late", "n": 1, "total": None}
    assert shop.get("totals", "a")["total"] == Decimal(20)
