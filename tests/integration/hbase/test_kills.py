"""HBase and its gateway killed in mid-batch: views are right afterwards, nothing is doubled, and errors say where.

With a server of its own: one that has many tables takes long to start again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.integration.hbase.shop import expected, opened, totals

from viewkeeper.errors import StoreError, ViewkeeperError
from viewkeeper.store.redo import claim
from viewkeeper_hbase import commit_steps
from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.layout.row_reader import HBaseRowReader
from viewkeeper_hbase.thrift.errors import Unavailable
from viewkeeper_hbase.thrift.pool import RetryPolicy

pytestmark = [pytest.mark.slow, pytest.mark.hbase]

DEEP = pytest.mark.deep

SETTINGS = {
    # A call that finds no region server fails after seconds: what is tested is what follows.
    "hbase.client.retries.number": "3",
    "hbase.client.operation.timeout": "8000",
    "hbase.client.meta.operation.timeout": "8000",
    "hbase.rpc.timeout": "8000",
    # HBase is back when the session of the one that was killed is over.
    "zookeeper.session.timeout.localHBaseCluster": "10000",
}


@pytest.fixture(scope="module")
def mortal(hbase: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An HBase to be killed. (`hbase` says why, where there cannot be one.)"""
    server = Server(tmp_path_factory.mktemp("mortal"), settings=SETTINGS)
    server.start(timeout=240)
    yield server
    server.stop()


@pytest.fixture
def shop(mortal: Server, spark: Any, tmp_path: Path) -> Iterator[Any]:
    with opened(mortal, tmp_path / "state", spark) as db:
        yield db


@DEEP
@pytest.mark.parametrize("at", ["capture", "cells", "publish"])
def test_hbase_killed_in_mid_batch(shop: Any, mortal: Server, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of HBase in capture, in step 3 and just before the publication; then it starts again."""
    shop.put("items", [{"id": n, "category": "xyz"[n % 3], "price": n} for n in range(200)])
    owner: Any
    owner, name = {
        "capture": (HBaseRowReader, "read_rows"),
        "cells": (commit_steps, "write_cells"),
        "publish": (claim, "publish_batch"),
    }[at]
    original = getattr(owner, name)
    killed = []

    def dying(*args: Any, **options: Any) -> Any:
        if not killed:
            killed.append(at)
            mortal.kill_hbase()
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying)
        patch.setattr(RetryPolicy, "pause", lambda self, attempt: 0.05)
        with pytest.raises(ViewkeeperError):
            shop.refresh()
    assert killed
    mortal.start_hbase(timeout=240)
    _until_it_works(shop.refresh)
    assert totals(shop) == expected(shop)
    assert shop.read("items").num_rows == 200
    assert shop.refresh().lane == "none"


@DEEP
def test_a_killed_gateway_is_named_and_work_goes_on_when_it_returns(shop: Any, mortal: Server) -> None:
    address = f"{mortal.host}:{mortal.port}"
    mortal.kill_gateway()
    with pytest.raises(Unavailable, match=address):
        shop.read("totals")
    mortal.start_gateway(timeout=240)
    shop.put("items", {"id": 1, "category": "back", "price": 1})
    shop.refresh()
    assert totals(shop) == expected(shop)


def _until_it_works(work: Any) -> None:
    deadline = time.monotonic() + 180
    while True:
        try:
            work()
            return
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
