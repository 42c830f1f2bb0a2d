"""A real HBase that pushes: plain clients write all the while, processes are killed, and every view is right.

VK_KILLS: how often each of them is killed (20; one takes about a minute where it is HBase).
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.integration.hbase.shop import expected, fill, totals

import viewkeeper as vk
from viewkeeper.errors import MissingDependency, StoreError
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.connection import Gateway
from viewkeeper.store.hbase.layout import MARKED
from viewkeeper.store.hbase.push import admin, settings
from viewkeeper.store.hbase.push.settings import Agreed
from viewkeeper.store.hbase.server import Server, _free_port

pytestmark = [pytest.mark.slow, pytest.mark.hbase, pytest.mark.deep]

KILLS = int(os.environ.get("VK_KILLS", "20"))
HOUR = 3_600_000


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An HBase that has the endpoint."""
    server = Server(
        tmp_path_factory.mktemp("pushes"), settings={"zookeeper.session.timeout.localHBaseCluster": "10000"}
    )
    try:
        admin.install(server.data / "ext")
        server.start(timeout=240)
    except MissingDependency as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield server
    server.stop()


@dataclass
class Shop:
    """A database to which HBase pushes."""

    server: Server
    namespace: str
    state: Path
    agreed: Agreed
    admin: admin.Admin
    spark: Any

    @property
    def url(self) -> str:
        """A gateway that starts again may have another port: who tries to connect meanwhile can take its old one."""
        return f"hbase://{self.server.host}:{self.server.port}/{self.namespace}?create=true&lease=2&state={self.state}"

    def open(self) -> Any:
        return vk.open(self.url, spark=self.spark)

    def writer(self) -> Writer:
        with self.open() as db:
            layout = db._store._layouts.of(db._catalog().table("items"))
        return Writer(self.server, layout)

    def check(self) -> None:
        """Views are what Spark makes of the tables, and what the tables say."""
        with self.open() as db:
            until_it_works(db.refresh)
            assert totals(db) == expected(db)
            assert db.audit().differences == 0
            assert db.refresh().lane == "none"


class Writer:
    """A plain client: puts with and without times, of some columns, deletes of columns and rows, several versions."""

    def __init__(self, server: Server, layout: Any) -> None:
        self.name, self._key, self._server = layout.name, layout.keys.encode_one, server
        self._connect()
        self._random = random.Random(5)
        self._stopped = threading.Event()
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _connect(self) -> None:
        self._client = Client(Gateway(self._server.host, self._server.port, connect_timeout=2, read_timeout=20))

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)
        self._client.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.write()
                self.acknowledged += 1
            except StoreError:  # whether it is done is not known: the table tells
                self._stopped.wait(0.5)
                self._client.close()
                self._connect()
            self._stopped.wait(0.002)

    def write(self) -> None:
        chosen = self._random
        key, now = self._key((chosen.randrange(200),)), int(time.time() * 1000)
        back = chosen.choice([None, None, now - chosen.randrange(HOUR), now - 10 * HOUR - chosen.randrange(HOUR)])
        price = struct.pack(">i", 2) + chosen.randrange(100).to_bytes(1, "big")
        match chosen.randrange(10):
            case 0:
                self._client.delete(self.name, key, time=back)
            case 1:
                self._client.delete(self.name, key, (b"c:category",), time=back)
            case 2 | 3:
                self._client.put(self.name, key, {b"c:price": price}, time=back)
            case _:
                cells = {b"c:": MARKED, b"c:category": chosen.choice([b"a", b"b", b"c"]), b"c:price": price}
                self._client.put(self.name, key, cells, time=back)


@pytest.fixture
def shop(pushes: Server, spark: Any, tmp_path: Path) -> Iterator[Shop]:
    namespace = f"vk_{secrets.token_hex(4)}"
    agreed = Agreed(f"p{namespace}", (f"127.0.0.1:{_free_port()}",), (namespace,))
    made = Shop(pushes, namespace, tmp_path / "state", agreed, admin.Admin(pushes.data / "conf"), spark)
    with made.open() as db:
        fill(db)
        secret = settings.secret(settings.place(db._store.state_path), make=True)
        made.admin.enable(agreed, secret, None, None, 20)
        db._store.put_note(settings.NOTE, agreed.to_json())
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
    note = db._store.note(settings.STATUS)
    return note is not None and note["by"] == "push"


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_everything_that_a_plain_client_writes_comes(shop: Shop) -> None:
    """Dated back by hours, deletes of columns and rows: a batch after the client's acknowledgement has them."""
    writer = shop.writer()
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
        for n in range(300):
            writer.write()
            if n % 30 == 0:
                db.refresh()
                assert totals(db) == expected(db)
        db.refresh()
        assert totals(db) == expected(db)
        assert is_pushed(db)
    shop.check()


def test_a_batch_that_refreshes_at_once_has_what_was_acknowledged(shop: Shop) -> None:
    """The cut is complete: no write that was acknowledged before it waits for the batch after."""
    writer = shop.writer()
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
        for n in range(100):
            cells = {b"c:": MARKED, b"c:category": b"late", b"c:price": struct.pack(">i", 2) + b"\x01"}
            writer._client.put(writer.name, writer._key((1000 + n,)), cells, time=int(time.time() * 1000) - HOUR)
            db.refresh()
            assert totals(db)["late"][0] == n + 1


def test_a_peer_that_was_removed_is_noticed(shop: Shop) -> None:
    writer = shop.writer()
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
        shop.admin.remove(shop.agreed.peer)
        writer._client.put(
            writer.name,
            writer._key((5000,)),
            {b"c:": MARKED, b"c:category": b"unseen", b"c:price": struct.pack(">i", 2) + b"\x01"},
            time=int(time.time() * 1000) - HOUR,
        )
        db.refresh()
        assert not is_pushed(db)
        secret = settings.secret(settings.place(db._store.state_path))
        shop.admin.enable(shop.agreed, secret, None, None, 20)
        eventually(lambda: is_pushed(db))
        assert "unseen" in totals(db)
    shop.check()


def test_by_tls(pushes: Server, spark: Any, tmp_path: Path) -> None:
    """Region servers believe the receiver's certificate, and no other."""
    right, wrong = certificate(tmp_path / "right"), certificate(tmp_path / "wrong")
    namespace = f"vk_{secrets.token_hex(4)}"
    agreed = Agreed(f"p{namespace}", (f"127.0.0.1:{_free_port()}",), (namespace,), (), *map(str, right))
    made = Shop(pushes, namespace, tmp_path / "state", agreed, admin.Admin(pushes.data / "conf"), spark)
    try:
        with made.open() as db:
            fill(db)
            secret = settings.secret(settings.place(db._store.state_path), make=True)
            made.admin.enable(agreed, secret, None, str(wrong[0]), 20)
            db._store.put_note(settings.NOTE, agreed.to_json())
        with made.open() as db:
            for _ in range(5):
                assert not is_pushed(db)
                time.sleep(1)
            made.admin.enable(agreed, secret, None, str(right[0]), 20)
            eventually(lambda: is_pushed(db), 120)
            writer = made.writer()
            for _ in range(50):
                writer.write()
            db.refresh()
            assert totals(db) == expected(db)
            assert is_pushed(db)
        made.check()
    finally:
        made.admin.remove(agreed.peer)


def certificate(place: Path) -> tuple[Path, Path]:
    """One of this machine's address, which is its own authority, and its key."""
    place.mkdir()
    files = place / "certificate.pem", place / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files


def test_the_commands_enable_and_disable_it(pushes: Server, tmp_path: Path) -> None:
    """What an administrator types, on a database without views."""
    url = f"hbase://{pushes.host}:{pushes.port}/vk_{secrets.token_hex(4)}?create=true&state={tmp_path / 'state'}"
    conf = ("--conf", str(pushes.data / "conf"))

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "viewkeeper", *arguments, "--db", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run("init")[0] == 0
    code, text = run("hbase", "push", "enable", "--receiver", f"127.0.0.1:{_free_port()}", *conf)
    assert (code, "sends changes of" in text) == (0, True), text
    code, text = run("hbase", "push", "status", *conf)
    assert code == 1  # nobody maintains
    for line in ("peer ", "covers ", "capture   nobody maintains", "lag ", "held ", "queue "):
        assert line in text, text
    assert "is removed" in run("hbase", "push", "disable", *conf)[1]
    assert "HBase pushes nothing" in run("hbase", "push", "status", *conf)[1]


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

    def keep(self) -> None:
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


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("victim", ["maintainer", "receiver", "gateway", "hbase"])
def test_nothing_is_missing_after_kills(shop: Shop, tmp_path: Path, victim: str) -> None:
    writer = shop.writer()
    processes = [Process(tmp_path / "run.log", shop, "run", "--standby")]
    if victim == "receiver":
        processes.insert(0, Process(tmp_path / "listen.log", shop, "hbase", "listen"))
    chosen = random.Random(7)
    try:
        with writer:
            for _ in range(KILLS):
                time.sleep(chosen.uniform(1.0, 4.0))
                if victim in ("maintainer", "receiver"):
                    processes[0].kill()
                    time.sleep(chosen.uniform(0.0, 2.0))
                elif victim == "gateway":
                    shop.server.kill_gateway()
                    shop.server.start_gateway(timeout=240)
                else:
                    shop.server.kill_hbase()
                    shop.server.start_hbase(timeout=240)
                for process in processes:
                    process.keep()
            time.sleep(3)
            assert writer.acknowledged > 20 * KILLS
    finally:
        for process in reversed(processes):
            process.stop()
    shop.check()
