"""A database to which a real HBase pushes, plain clients that write to it, and processes that can be killed."""

from __future__ import annotations

import random
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from tests.integration.hbase.shop import expected, fill, totals

import viewkeeper as vk
from viewkeeper.errors import StoreError
from viewkeeper_hbase.devserver.server import free_port
from viewkeeper_hbase.layout.layout import MARK_VALUE
from viewkeeper_hbase.push import admin, settings
from viewkeeper_hbase.push.settings import PushAgreement
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway

HOUR = 3_600_000


class Serves(Protocol):
    """An HBase of one process, or of several."""

    data: Path

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


@dataclass
class Shop:
    """A database to which HBase pushes."""

    server: Serves
    namespace: str
    state: Path
    push_settings: PushAgreement
    admin: admin.PushAdmin
    spark: Any

    @property
    def url(self) -> str:
        """A gateway that starts again may have another port: who tries to connect meanwhile can take its old one."""
        return f"hbase://{self.server.host}:{self.server.port}/{self.namespace}?create=true&lease=2&state={self.state}"

    def open(self) -> Any:
        return vk.open(self.url, spark=self.spark)

    def writer(self) -> Writer:
        with self.open() as db:
            layout = db._store._layouts.layout_of(db._catalog().table("items"))
        return Writer(self.server, layout)

    def check(self) -> None:
        """Views are what Spark makes of the tables, and what the tables say."""
        with self.open() as db:
            until_it_works(db.refresh)
            assert totals(db) == expected(db)
            assert db.audit().differences == 0
            # What a dead server had may come yet: it is read, and is no change.
            eventually(lambda: is_pushed(db) and db.refresh().lane == "none", 240)
            assert totals(db) == expected(db)


class Writer:
    """A plain client: puts with and without times, of some columns, deletes of columns and rows, several versions."""

    def __init__(self, server: Serves, layout: Any) -> None:
        self.name, self._encode, self._server = layout.name, layout.row_key_encoding.encode_one, server
        self._connect()
        self._random = random.Random(5)
        self._stopped = threading.Event()
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def key(self, number: int) -> bytes:
        """The row key of an item."""
        return bytes(self._encode((number,)))

    def _connect(self) -> None:
        self.client = HBaseClient(Gateway(self._server.host, self._server.port, connect_timeout=2, read_timeout=20))

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)
        self.client.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.write()
                self.acknowledged += 1
            except StoreError:  # whether it is done is not known: the table tells
                self._stopped.wait(0.5)
                self.client.close()
                self._connect()
            self._stopped.wait(0.002)

    def write(self) -> None:
        chosen = self._random
        if chosen.randrange(100) == 0:
            self.write_many(500)
            return
        key, now = self.key(chosen.randrange(200)), int(time.time() * 1000)
        back = chosen.choice([None, None, now - chosen.randrange(HOUR), now - 10 * HOUR - chosen.randrange(HOUR)])
        price = struct.pack(">i", 2) + chosen.randrange(100).to_bytes(1, "big")
        match chosen.randrange(10):
            case 0:
                self.client.delete(self.name, key, time=back)
            case 1:
                self.client.delete(self.name, key, (b"c:category",), time=back)
            case 2 | 3:
                self.client.put(self.name, key, {b"c:price": price}, time=back)
            case _:
                cells = {b"c:": MARK_VALUE, b"c:category": chosen.choice([b"a", b"b", b"c"]), b"c:price": price}
                self.client.put(self.name, key, cells, time=back)

    def write_many(self, rows: int, category: bytes = b"many") -> None:
        """So many that the endpoint lets what follows them gather."""
        price = struct.pack(">i", 2) + b"\x01"
        cells = {b"c:": MARK_VALUE, b"c:category": category, b"c:price": price}
        keys = pa.array([self.key(10_000 + n) for n in range(rows)], pa.binary())
        self.client.put_rows(self.name, keys, {c: pa.array([v] * rows, pa.binary()) for c, v in cells.items()})


@contextmanager
def pushed_to(server: Serves, spark: Any, state: Path) -> Iterator[Shop]:
    """A small shop in a namespace of its own, and the peer for it."""
    namespace = f"vk_{secrets.token_hex(4)}"
    agreed = PushAgreement(f"p{namespace}", (f"127.0.0.1:{free_port()}",), (namespace,))
    made = Shop(server, namespace, state, agreed, admin.PushAdmin(server.data / "conf"), spark)
    with made.open() as db:
        fill(db)
        secret = settings.read_secret(settings.push_directory(db._store.state_path), create=True)
        made.admin.enable(agreed, secret, None, None, 20)
        db._store.put_note(settings.AGREEMENT_NOTE, agreed.to_json())
    yield made
    with suppress(StoreError):
        made.admin.remove(agreed.peer)


def until_it_works(work: Callable[[], Any], seconds: float = 240) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def is_pushed(db: Any) -> bool:
    db.refresh()
    note = db._store.note(settings.STATUS_NOTE)
    return note is not None and note["by"] == "push"


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


class Process:
    """`vk …` in a process of its own, started again whenever it was killed."""

    def __init__(self, log: Path, shop: Shop, *arguments: str) -> None:
        self._command, self._log, self._shop = [sys.executable, "-m", "viewkeeper", *arguments], log, shop
        self.start()

    def start(self) -> None:
        self._url = self._shop.url
        with self._log.open("ab") as out:
            self._process = subprocess.Popen([*self._command, "--db", self._url], stdout=out, stderr=out)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def ensure_running(self) -> None:
        """Start it if it has ended, as a supervisor would, or speaks to a gateway that is elsewhere now."""
        if self._process.poll() is None and self._url != self._shop.url:
            self.stop()
        if self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
