"""A server for a test: in a thread, over a database whose views need no JVM (`tests/contract/planned.py`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from tests.contract import planned

import viewkeeper as vk
from viewkeeper.server.context import Limits, Settings
from viewkeeper.server.process import serve as run


@dataclass
class Running:
    """A server that answers: by `http`, or at `address`."""

    address: str
    db: Any
    http: httpx.Client
    stop: Callable[[], None]

    def put(self, *rows: dict[str, Any]) -> str:
        found = self.http.post("/v1/items/rows", json=list(rows))
        assert found.status_code == 200, found.text
        token: str = found.json()["token"]
        return token


@pytest.fixture
def planned_views(monkeypatch: pytest.MonkeyPatch) -> None:
    planned.install(monkeypatch.setattr)


@pytest.fixture
def start(tmp_path: Path, planned_views: None) -> Iterator[Callable[..., Running]]:
    """Starts servers over the test's database: `start(maintain=True)`."""
    with ExitStack() as ended:

        def make(place: str = "db", **settings: Any) -> Running:
            return ended.enter_context(contextmanager(started)(f"lmdb:{tmp_path / place}", **settings))

        yield make


def started(url: str, limits: dict[str, Any] | None = None, **settings: Any) -> Iterator[Running]:
    """A server in a thread, until the test is over."""
    db = vk.open(url, mode="r" if settings.get("read_only") else "w")
    told: Queue[Any] = Queue()

    def serve() -> None:
        try:
            given = Settings(**{"port": 0, **settings}, limits=Limits(**(limits or {})))
            run(db, given, on_ready=lambda address, stop: told.put((address, stop)))
        except BaseException as error:
            told.put(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    found = told.get(timeout=30)
    if isinstance(found, BaseException):
        db.close()
        raise found
    address, stop = found
    http = httpx.Client(base_url=address, timeout=30)

    def end() -> None:
        stop()
        thread.join(30)
        assert not thread.is_alive()
        http.close()
        db.close()

    try:
        yield Running(address, db, http, end)
    finally:
        end()


def filled(db: Any, rows: int = 20) -> None:
    """Tables, some rows, and the view `totals`: count and sum of the prices by category."""
    for table in planned.TABLES:
        db.sql(table)
    db.put("items", [{"item_id": i, "category": f"c{i % 4}", "price": i} for i in range(rows)])
    db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")


@pytest.fixture
def shop(tmp_path: Path, planned_views: None) -> None:
    """The database `db` of the test."""
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        filled(db)


@pytest.fixture
def served(shop: None, start: Callable[..., Running]) -> Running:
    """A server that maintains the shop."""
    return start(maintain=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server that maintains the shop, for the tests of a module that change nothing."""
    with pytest.MonkeyPatch.context() as patch:
        planned.install(patch.setattr)
        place = tmp_path_factory.mktemp("shared")
        with vk.open(f"lmdb:{place / 'db'}") as db:
            filled(db)
        yield from started(f"lmdb:{place / 'db'}", maintain=True)
