"""A distributed HBase that pushes: servers die, regions move and split, files are loaded, WALs deleted.

VK_TURNS: how often a region server is killed (3).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.integration.hbase.distributed import Cluster, started
from tests.integration.hbase.pushed import (
    HOUR,
    Process,
    Shop,
    Writer,
    eventually,
    is_pushed,
    pushed_to,
)
from tests.integration.hbase.shop import expected, totals

from viewkeeper_hbase.layout.layout import MARK_VALUE
from viewkeeper_hbase.push import settings

pytestmark = [pytest.mark.slow, pytest.mark.hbase, pytest.mark.deep]

TURNS = int(os.environ.get("VK_TURNS", "3"))
PRICE = struct.pack(">i", 2) + b"\x01"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def shop(cluster: Cluster, spark: Any, tmp_path: Path) -> Iterator[Shop]:
    with pushed_to(cluster, spark, tmp_path / "state") as made:
        yield made


@pytest.mark.timeout(3600)
def test_servers_die_and_regions_move_and_split(shop: Shop, cluster: Cluster, tmp_path: Path) -> None:
    writer = shop.writer()
    process = Process(tmp_path / "run.log", shop, "run", "--standby")
    try:
        with writer:
            for turn in range(TURNS):
                table, at = writer.name, writer.key(20 + 160 * turn // TURNS).hex()
                # What has parts of a split one cannot be split: it is compacted first.
                done = f"compact {table} then split {table} {at} then move {table} then regions {table}"
                regions = cluster.run("do", *done.split(" ")).splitlines()[-2 - turn :]
                written(writer)
                victim = cluster.region_server_of(regions[0])
                cluster.run("kill", victim)
                written(writer)
                cluster.run("up", victim)
                written(writer)
                process.ensure_running()
    finally:
        process.stop()
    assert len(cluster.run("do", "regions", writer.name).splitlines()) == TURNS + 1
    shop.check()


def written(writer: Writer) -> None:
    """Until plain clients were told that more is done."""
    upto = writer.acknowledged + 50
    eventually(lambda: writer.acknowledged > upto, 300)


def test_files_that_are_bulk_loaded_come(shop: Shop, cluster: Cluster, tmp_path: Path) -> None:
    """With times of an hour ago: no window shows them."""
    writer = shop.writer()
    at = int(time.time() * 1000) - HOUR
    cells = {"c:": MARK_VALUE, "c:category": b"loaded", "c:price": PRICE}
    keys = sorted(writer.key(n) for n in range(300, 400))
    lines = [f"{key.hex()} {name} {at} {value.hex()}" for key in keys for name, value in cells.items()]
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
        cluster.run("do", "load", writer.name, str(tmp_path / "files"), stdin="\n".join(lines))
        db.refresh()
        assert totals(db)["loaded"][0] == 100
        assert is_pushed(db)
    shop.check()


@pytest.mark.parametrize("how", ["emptied", "made anew"])
def test_a_table_without_its_rows_is_noticed(shop: Shop, how: str) -> None:
    """Truncated, or dropped and created, by somebody else: the WAL says of no row that it was deleted."""
    writer = shop.writer()
    tables = writer.client.admin
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
        layout = db._store._layouts.layout_of(db._catalog().table("items"))
        if how == "emptied":
            tables.disable(writer.name)
            tables.truncate(writer.name)
        else:
            tables.drop(writer.name)
            tables.create(writer.name, [layout.family()])
        cells = {b"c:": MARK_VALUE, b"c:category": b"new", b"c:price": PRICE}
        writer.client.put(writer.name, writer.key(600), cells, time=int(time.time() * 1000) - HOUR)
        eventually(lambda: is_pushed(db))
        assert list(totals(db)) == ["new"]
    shop.check()


def test_wals_that_were_deleted_are_noticed(shop: Shop, cluster: Cluster) -> None:
    """The peer is paused, and what it had to ship is deleted: tables are compared, and nothing is silent about it."""
    writer = shop.writer()
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
    shop.admin.disable(shop.push_settings.peer)
    cluster.run("do", "roll")
    cells = {b"c:": MARK_VALUE, b"c:category": b"deleted", b"c:price": PRICE}
    writer.client.put(writer.name, writer.key(500), cells, time=int(time.time() * 1000) - HOUR)
    cluster.run("do", "roll", "then", "flush")
    wals: dict[str, list[str]] = {}
    for queue in shop.admin.status(shop.push_settings.peer).queues:
        wals.setdefault(queue.server, []).append(queue.wal)
    gone = [wal for found in wals.values() for wal in sorted(found)[1:-1]]  # the first is open, the last is written
    assert gone
    for wal in gone:
        for path in (cluster.data / "hbase").rglob(wal):
            path.unlink()
    secret = settings.read_secret(settings.push_directory(str(shop.state)))
    shop.admin.enable(shop.push_settings, secret, None, None, 20)
    assert {q.wal for q in shop.admin.status(shop.push_settings.peer).queues if q.length < 0} <= set(gone)
    with shop.open() as db:
        eventually(lambda: not is_pushed(db) and "deleted" in db._store.note(settings.STATUS_NOTE)["reason"])
        assert "deleted" in totals(db)
        assert totals(db) == expected(db)
        shop.admin.remove(shop.push_settings.peer)
        shop.admin.enable(shop.push_settings, secret, None, None, 20)
        eventually(lambda: is_pushed(db), 120)
    shop.check()
