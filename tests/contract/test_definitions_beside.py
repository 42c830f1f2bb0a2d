"""A second process defines, alters and drops while another one maintains: on every store, through the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.programs import PROLOGUE, ROOT

import viewkeeper as vk
from viewkeeper.errors import (
    InUse,
    MaintainerBusy,
    NameTaken,
    PublicationUnknown,
    Timeout,
    UnknownName,
    ViewkeeperError,
)
from viewkeeper.maintain.remote_ddl import client

MAINTAIN = """
with db.maintain():
    print("maintains", flush=True)
    sys.stdin.readline()
db.close()
"""
Start = Callable[..., subprocess.Popen[str]]
FIRST = pytest.mark.parametrize(
    "settings", ["lmdb", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("rocksdb", "hbase"))], indirect=True
)
"""One store by default, the others in the deep profile: what is tested is the same code on all of them."""


@pytest.fixture(params=["lmdb", "rocksdb", "hbase"])
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """How the database is opened; it has two tables, rows, and the view totals."""
    planned.install(monkeypatch.setattr)
    found: dict[str, Any] = {"url": f"{request.param}:{tmp_path / 'shop'}", "durability": "none"}
    with ExitStack() as left:
        if request.param == "hbase":
            from tests.contract.small_hbase import SmallHBase

            server = left.enter_context(closing(SmallHBase()))
            url = f"hbase://{server.host}:{server.port}/small"
            found = {"url": url, "state": str(tmp_path / "state"), "create": True, "lease": 2.0, "cache": 0}
        with vk.open(**found) as db:
            planned.fill(db, 30, "totals")
        yield found


@pytest.fixture
def maintaining(settings: dict[str, Any]) -> Iterator[Start]:
    """Starts a process that maintains the database until its input ends."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str = MAINTAIN, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROLOGUE + program, json.dumps(settings)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "maintains\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


def names(db: Any) -> list[str]:
    found: list[str] = db.sql("SHOW VIEWS").column(0).to_pylist()
    return found


def test_everything_that_defines_works_beside_the_process_that_maintains(
    settings: dict[str, Any], maintaining: Start
) -> None:
    process = maintaining()
    with vk.open(**settings) as db:
        assert db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}").done == "view dear created"
        assert db.sql("CREATE INDEX by_boss ON kinds (boss)").done == "index by_boss created"
        assert db.sql("CREATE TABLE more (k INT, PRIMARY KEY (k))").done == "table more created"
        assert db.sql("ALTER TABLE more ADD COLUMN v INT").done == "table more altered"
        assert db.sql("ALTER MATERIALIZED VIEW dear SUSPEND").done == "view dear suspended"
        assert {v.name: v.suspended for v in db.status().views if v.name in ("dear", "totals")}["dear"]
        db.sql("ALTER MATERIALIZED VIEW dear RESUME")
        db.create_views({"bosses": planned.BOSSES})
        assert names(db) == ["bosses", "dear", "totals"]
        together = f"CREATE MATERIALIZED VIEW IF NOT EXISTS dear AS {planned.DEAR};"
        together += f" CREATE MATERIALIZED VIEW bosses2 AS {planned.BOSSES}"
        assert db.sql(together).done == "view bosses2 created, 1 there already"
        db.drop_views(["bosses2", "bosses"])
        assert db.sql("DROP INDEX by_boss; DROP TABLE more").done == "table more dropped"
        assert db.sql("DROP MATERIALIZED VIEW dear").done == "view dear dropped"
        assert names(db) == ["totals"]
        assert db.status().maintainer is not None
        with pytest.raises(MaintainerBusy, match=f"process {process.pid} "):
            db.refresh()
    assert process.communicate("\n")[0] == ""
    assert process.returncode == 0


@FIRST
def test_what_is_refused_there_is_refused_here_in_the_same_words(settings: dict[str, Any], maintaining: Start) -> None:
    refused: dict[str, type[ViewkeeperError]] = {
        f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}": NameTaken,
        "DROP MATERIALIZED VIEW nothing": UnknownName,
        "DROP TABLE items": InUse,
        "ALTER MATERIALIZED VIEW nothing SUSPEND": UnknownName,
        f"CREATE MATERIALIZED VIEW v KEY (nope) AS {planned.TOTALS}": UnknownName,
    }
    with vk.open(**settings) as db:
        alone = {}
        for text, kind in refused.items():
            with pytest.raises(kind) as told:
                db.sql(text)
            alone[text] = str(told.value)
    maintaining()
    with vk.open(**settings) as db:
        for text, kind in refused.items():
            with pytest.raises(kind) as told:
                db.sql(text)
            assert str(told.value) == alone[text]
        several = (
            f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR};\nCREATE MATERIALIZED VIEW totals AS {planned.TOTALS}"
        )
        with pytest.raises(NameTaken, match=r"^\[VK102\] Statement 2 \(line 2\): The name 'totals' is in use."):
            db.sql(several)
        assert names(db) == ["totals"]


@FIRST
def test_two_processes_define_at_once_and_the_views_stay_fresh(settings: dict[str, Any], maintaining: Start) -> None:
    maintaining()
    failed: list[BaseException] = []

    def define(name: str) -> None:
        try:
            with vk.open(**settings) as db:
                db.sql(f"CREATE MATERIALIZED VIEW {name} AS {planned.DEAR}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=define, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with vk.open(**settings) as db:
        assert names(db) == ["a", "b", "c", "totals"]
        if not settings["url"].startswith("rocksdb"):
            token = db.put("items", [planned.item(n, 1000) for n in range(30)])
            assert db.read("a", after=token, timeout=60).equals(db.read("c", after=token, timeout=60))
            assert sum(db.read("totals", after=token, timeout=60)["total"].to_pylist()) == 30_000


@FIRST
def test_a_request_survives_a_maintainer_that_ends_before_it_began(
    settings: dict[str, Any], maintaining: Start
) -> None:
    """It is stopped while the request comes, and killed: the sender takes the lease and runs the statement itself."""
    process = maintaining()
    with vk.open(**settings) as db:
        process.send_signal(signal.SIGSTOP)
        ending = threading.Timer(1.0, process.kill)
        ending.start()
        assert db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}").done == "view dear created"
        ending.join()
        assert names(db) == ["dear", "totals"]
        db.refresh()
        planned.check(db)
    assert [*Path(settings["url"].partition(":")[2]).glob("requests/*")] == []


def test_one_that_dies_in_the_midst_of_it_leaves_its_outcome_open(settings: dict[str, Any], maintaining: Start) -> None:
    maintaining(VK_CRASH_AT="view.planned")
    with vk.open(**settings) as db:
        with pytest.raises(PublicationUnknown, match="ended while it ran the statement"):
            db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}")
        assert names(db) == ["totals"]
        db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}")
        planned.check(db)


@FIRST
def test_one_that_is_silent_is_given_up(
    settings: dict[str, Any], maintaining: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settings["url"].startswith("hbase"):
        pytest.skip("its lease runs out first")
    process = maintaining()
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(client, "SILENCE_TIMEOUT", 1.0)
    with vk.open(**settings) as db:
        with pytest.raises(Timeout, match=rf"process {process.pid} .* has not answered for 1 s. Nothing was changed."):
            db.sql(f"CREATE MATERIALIZED VIEW dear AS {planned.DEAR}")
        process.send_signal(signal.SIGCONT)
        assert db.sql("DROP MATERIALIZED VIEW IF EXISTS dear").done == "there is no view dear"
        assert names(db) == ["totals"]


@FIRST
def test_a_process_that_reads_only_defines_nothing(settings: dict[str, Any], maintaining: Start) -> None:
    maintaining()
    with vk.open(**settings, mode="r") as db, pytest.raises(ViewkeeperError, match="VK104"):
        db.sql("DROP MATERIALIZED VIEW totals")


@pytest.mark.parametrize("settings", ["rocksdb"], indirect=True)
def test_rocksdb_still_has_one_writer_of_rows(settings: dict[str, Any], maintaining: Start) -> None:
    process = maintaining()
    with vk.open(**settings) as db:
        with pytest.raises(MaintainerBusy, match=f"is written by process {process.pid} "):
            db.put("items", planned.item(1))
        process.communicate("\n")
        db.put("items", planned.item(1, 77))
        db.refresh()
        planned.check(db)
    with closing(vk.open(**settings)) as db:
        assert db.get("items", 1)["price"] == 77
