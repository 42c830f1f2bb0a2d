"""A real HBase that pushes: plain clients write all the while, processes are killed, and every view is right.

VK_KILLS: how often each of them is killed (20; one takes about a minute where it is HBase).
"""

from __future__ import annotations

import os
import random
import secrets
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.integration.hbase.pushed import HOUR, Process, Shop, eventually, is_pushed, pushed_to
from tests.integration.hbase.shop import expected, fill, totals

from viewkeeper.errors import MissingDependency
from viewkeeper_hbase.devserver.server import Server, free_port
from viewkeeper_hbase.layout.layout import MARK_VALUE
from viewkeeper_hbase.push import admin, settings
from viewkeeper_hbase.push.settings import PushAgreement

pytestmark = [pytest.mark.slow, pytest.mark.hbase, pytest.mark.deep]

KILLS = int(os.environ.get("VK_KILLS", "20"))


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An HBase that has the endpoint."""
    # Dead servers' queues are claimed half a minute to a minute later each: after 20 kills a quarter of an hour.
    quick = {"zookeeper.session.timeout.localHBaseCluster": "10000", "replication.sleep.before.failover": "1000"}
    server = Server(tmp_path_factory.mktemp("pushes"), settings=quick)
    try:
        admin.install_jar(server.data / "ext")
        server.start(timeout=240)
    except MissingDependency as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture
def shop(pushes: Server, spark: Any, tmp_path: Path) -> Iterator[Shop]:
    with pushed_to(pushes, spark, tmp_path / "state") as made:
        yield made


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
            cells = {b"c:": MARK_VALUE, b"c:category": b"late", b"c:price": struct.pack(">i", 2) + b"\x01"}
            writer.client.put(writer.name, writer.key(1000 + n), cells, time=int(time.time() * 1000) - HOUR)
            db.refresh()
            assert totals(db)["late"][0] == n + 1


def test_what_the_endpoint_lets_gather_comes_when_a_batch_asks(shop: Shop) -> None:
    writer = shop.writer()
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
        for n in range(20):
            for category in (b"before", b"%d" % n):
                writer.write_many(2_000, category)
            db.refresh()
            assert totals(db)[str(n)][0] == 2_000
            assert "before" not in totals(db)
        assert is_pushed(db)
    shop.check()


def test_a_peer_that_was_removed_is_noticed(shop: Shop) -> None:
    writer = shop.writer()
    with shop.open() as db:
        eventually(lambda: is_pushed(db))
        shop.admin.remove(shop.push_settings.peer)
        writer.client.put(
            writer.name,
            writer.key(5000),
            {b"c:": MARK_VALUE, b"c:category": b"unseen", b"c:price": struct.pack(">i", 2) + b"\x01"},
            time=int(time.time() * 1000) - HOUR,
        )
        db.refresh()
        assert not is_pushed(db)
        secret = settings.read_secret(settings.push_directory(db._store.state_path))
        shop.admin.enable(shop.push_settings, secret, None, None, 20)
        eventually(lambda: is_pushed(db))
        assert "unseen" in totals(db)
    shop.check()


def test_by_tls(pushes: Server, spark: Any, tmp_path: Path) -> None:
    """Region servers believe the receiver's certificate, and no other."""
    right, wrong = certificate(tmp_path / "right"), certificate(tmp_path / "wrong")
    namespace = f"vk_{secrets.token_hex(4)}"
    agreed = PushAgreement(f"p{namespace}", (f"127.0.0.1:{free_port()}",), (namespace,), (), *map(str, right))
    made = Shop(pushes, namespace, tmp_path / "state", agreed, admin.PushAdmin(pushes.data / "conf"), spark)
    try:
        with made.open() as db:
            fill(db)
            secret = settings.read_secret(settings.push_directory(db._store.state_path), create=True)
            made.admin.enable(agreed, secret, None, str(wrong[0]), 20)
            db._store.put_note(settings.AGREEMENT_NOTE, agreed.to_json())
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
    code, text = run("hbase", "push", "enable", "--receiver", f"127.0.0.1:{free_port()}", *conf)
    assert (code, "sends changes of" in text) == (0, True), text
    code, text = run("hbase", "push", "status", *conf)
    assert code == 1  # nobody maintains
    for line in ("peer ", "covers ", "capture   nobody maintains", "lag ", "held ", "queue "):
        assert line in text, text
    assert "is removed" in run("hbase", "push", "disable", *conf)[1]
    assert "HBase pushes nothing" in run("hbase", "push", "status", *conf)[1]


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
                    process.ensure_running()
            time.sleep(3)
            assert writer.acknowledged > 20 * KILLS
    finally:
        for process in reversed(processes):
            process.stop()
    shop.check()
