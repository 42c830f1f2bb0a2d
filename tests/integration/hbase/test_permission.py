"""A guest at a real HBase with access control: every refusal is said as one, by name, and at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.integration.hbase.shop import fill, totals

import viewkeeper as vk
from viewkeeper.errors import StoreError
from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway
from viewkeeper_hbase.thrift.errors import PermissionDenied

pytestmark = [pytest.mark.deep, pytest.mark.slow, pytest.mark.hbase]

_CONTROL = "org.apache.hadoop.hbase.security.access.AccessController"
SETTINGS = {
    "hbase.security.authorization": "true",
    "hbase.coprocessor.master.classes": _CONTROL,
    "hbase.coprocessor.region.classes": _CONTROL,
    "hbase.coprocessor.regionserver.classes": _CONTROL,
    "hbase.superuser": "owner",
    "zookeeper.session.timeout.localHBaseCluster": "600000",
    "hbase.zookeeper.property.maxSessionTimeout": "600000",
}


@pytest.fixture
def guarded(hbase: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An HBase whose gateway is the owner's. (`hbase` says why, where there cannot be one.)"""
    monkeypatch.setenv("HADOOP_USER_NAME", "owner")
    server = Server(tmp_path / "hbase", settings=SETTINGS)
    server.start(timeout=400)
    yield server
    server.stop()


def test_a_guest_is_refused_by_name(
    guarded: Server, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vk.open(f"{_url(guarded)}&create=true", spark=spark, state=str(tmp_path / "state")) as db:
        fill(db)
        before = totals(db)

    guarded.kill_gateway()
    monkeypatch.setenv("HADOOP_USER_NAME", "guest")
    guarded._start_gateway()
    _greeted(guarded)
    refused = "(?i)AccessDenied.*(user.{0,3}guest|guest)"
    with HBaseClient(Gateway(guarded.host, guarded.port)) as client:
        with pytest.raises(PermissionDenied, match=refused) as said:
            client.get("shop:items.1", b"x")
        assert "Ask for the HBase permission" in said.value.hint
        with pytest.raises(PermissionDenied, match=refused):
            list(client.scan("shop:items.1"))
        with pytest.raises(PermissionDenied, match=refused):
            client.put("shop:items.1", b"x", {b"c:category": b"y"})
        with pytest.raises(PermissionDenied, match=refused):
            client.admin.create_namespace("mine")
    for mode in ("w", "r"):
        with pytest.raises(PermissionDenied, match=refused):
            vk.open(_url(guarded), mode, state=str(tmp_path / "state"))

    guarded.kill_gateway()
    monkeypatch.setenv("HADOOP_USER_NAME", "owner")
    guarded.start_gateway(timeout=400)
    with vk.open(_url(guarded), spark=spark, state=str(tmp_path / "state")) as db:
        assert totals(db) == before
        assert db.read("items").num_rows == 10


def _url(server: Server) -> str:
    """As it is now: a gateway that starts again may get another port."""
    return f"hbase://{server.host}:{server.port}/shop?lease=1"


def _greeted(server: Server) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            with HBaseClient(Gateway(server.host, server.port)) as client:
                client.check_gateway()
            return
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
