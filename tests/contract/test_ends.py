"""How programs end that have a database open: with the exit code they chose, without a word, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.small_hbase import SmallHBase

import viewkeeper as vk

ROOT = Path(__file__).parents[2]
PROLOGUE = """
import atexit, json, os, sys, threading, time
from tests.contract import planned
import viewkeeper as vk
planned.install()
settings = json.loads(sys.argv[1])
db = vk.open(**settings)
def change(price): return db.put("items", [planned.item(n, price) for n in range(1000)])
"""


@pytest.fixture(params=["lmdb", "rocksdb", "hbase"])
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """How to open a database with rows and views, in this process or another."""
    planned.install(monkeypatch.setattr)
    with closing(SmallHBase()) as server:
        found: dict[str, Any] = {"url": f"{request.param}:{tmp_path / 'shop'}", "durability": "none"}
        if request.param == "hbase":
            url = f"hbase://{server.host}:{server.port}/small"
            found = {"url": url, "state": str(tmp_path / "state"), "create": True}
        with vk.open(**found) as db:
            planned.fill(db, 1000, "totals", "bosses")
        yield found


def run(code: str, settings: dict[str, Any]) -> tuple[int, str, str]:
    """The exit code of a program that has the database open as `db`, and what it says."""
    program = PROLOGUE + textwrap.dedent(code)
    command = [sys.executable, "-c", program, json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_a_program_need_not_leave_its_maintenance(settings: dict[str, Any]) -> None:
    code = """
        db.maintain().__enter__()
        for price in range(10):
            change(price)
        sys.exit(3)
    """
    assert run(code, settings) == (3, "", "")
    with vk.open(**settings) as db:
        assert db.status().maintainer is None, "the lease is given up"
        db.refresh()
        planned.check(db)


def test_a_program_need_not_close(settings: dict[str, Any]) -> None:
    code = """
        change(7)
        db.refresh()
        planned.check(db)
    """
    assert run(code, settings) == (0, "", "")


def test_a_handle_may_be_lost_just_before_the_end(settings: dict[str, Any]) -> None:
    code = """
        change(7)
        db.refresh()
        db = None
        sys.exit(3)
    """
    assert run(code, settings) == (3, "", "")


def test_the_last_batch_may_be_made_at_exit(settings: dict[str, Any]) -> None:
    code = """
        def last():
            change(8)
            print(len(db.refresh().views))
            planned.check(db)
        atexit.register(last)
    """
    assert run(code, settings) == (0, "2\n", "")


def test_a_thread_that_outlives_the_main_one_is_still_served(settings: dict[str, Any]) -> None:
    code = """
        maintenance = db.maintain()
        def later():
            threading.main_thread().join()
            for price in range(5):
                row = db.get("totals", "a", after=change(price), timeout=60)
            print(row["total"] == 4 * row["n"], maintenance.running, db.refresh().suspended)
        threading.Thread(target=later).start()
    """
    assert run(code, settings) == (0, "True True {}\n", "")
