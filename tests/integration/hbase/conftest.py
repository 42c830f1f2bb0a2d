"""What the tests of the HBase store share: a client, a namespace of their own, and a small shop in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.contract.small_hbase import SmallHBase
from tests.integration.hbase.shop import fill

import viewkeeper as vk
from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway


@pytest.fixture(params=[pytest.param("hbase", marks=[pytest.mark.hbase, pytest.mark.slow, pytest.mark.deep]), "small"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The small HBase in this process; on demand the real one too."""
    if request.param == "hbase":
        yield request.getfixturevalue("hbase")
        return
    small = SmallHBase()
    yield small
    small.close()


@pytest.fixture(scope="module")
def client(hbase: Server) -> Iterator[HBaseClient]:
    with HBaseClient(Gateway(hbase.host, hbase.port)) as one:
        yield one


@pytest.fixture
def namespace(client: HBaseClient) -> str:
    name = f"vk_{secrets.token_hex(6)}"
    client.admin.create_namespace(name)
    return name


@pytest.fixture
def open_db(hbase: Server, namespace: str, spark: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def make(mode: str = "w", **options: Any) -> Any:
        options = {"state": str(tmp_path / "state"), "lease": 3, **options}
        opened.append(vk.open(f"hbase://{hbase.host}:{hbase.port}/{namespace}", mode, spark=spark, **options))
        return opened[-1]

    yield make
    for db in reversed(opened):
        db.close()


@pytest.fixture
def shop(open_db: Callable[..., Any]) -> Any:
    return fill(open_db())
