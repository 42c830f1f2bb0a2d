"""A process that is killed while it alters a table: the next one finds the table as it was or as it shall be, and every
view right; the statement, given again, does the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.conftest import databases

from viewkeeper.errors import MaintainerBusy

PROGRAM = """
import sys
from tests.contract import planned
import viewkeeper as vk
planned.install()
url, state, statement = sys.argv[1:]
with vk.open(url, **({"state": state} if state else {})) as db:
    db.put("items", [planned.item(n, 6) for n in range(4)])
    db.sql(statement)
    db.put("items", {"item_id": 9, "category": "a"})
    db.refresh()
"""
ADD = "ALTER TABLE items ADD COLUMN stars INT DEFAULT 3"
RENAME = "ALTER TABLE items RENAME COLUMN price TO cost"
DROP = "ALTER TABLE items DROP COLUMN price CASCADE"
TYPE = "ALTER TABLE items ALTER COLUMN weight TYPE BIGINT"


@pytest.fixture(params=["lmdb", *(pytest.param(kind, marks=pytest.mark.deep) for kind in ("rocksdb", "hbase"))])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    planned.install(monkeypatch.setattr)
    with databases(request.param, tmp_path) as make:
        db = make()
        planned.fill(db, 3, "totals", "dear")
        db.sql("ALTER TABLE items ADD COLUMN weight INT DEFAULT 1")
        db.close()
        yield lambda: make()


def kill(db: Any, point: str, statement: str) -> None:
    url, state = db._store.url, str(getattr(db._store, "state_path", "")) if db._store.url.startswith("hbase") else ""
    db.close()
    where = {**os.environ, "VK_CRASH_AT": point, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PROGRAM, url, state, statement]
    assert subprocess.run(command, env=where, timeout=120).returncode == -signal.SIGKILL


def taken_over(db: Any) -> Any:
    """Maintained from here: HBase knows of a killed process by its lease, which ends after a while."""
    while True:
        try:
            db.refresh()
            return db
        except MaintainerBusy:
            time.sleep(0.5)


@pytest.mark.parametrize(
    ("point", "statement"),
    [
        ("table.changed", ADD),
        ("commit.2.after", RENAME),
        ("view.dropped@2", DROP),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (
                ("commit.3.before", ADD),
                ("table.changed", RENAME),
                ("view.dropped", DROP),
                ("table.changed", TYPE),
                ("commit.4.after", TYPE),
            )
        ),
    ],
)
def test_a_killed_alteration(shop: Callable[[], Any], point: str, statement: str) -> None:
    kill(shop(), point, statement)
    db = taken_over(shop())
    now = {c.name for c in db._store.catalog().table("items").columns}
    views = {v.name for v in db.views()}
    price = "cost" if statement == RENAME else "price"
    if statement == DROP:
        assert "price" in now
        assert views < {"totals", "dear"}
        db.sql(statement)
        assert db.views() == []
        assert "price" not in {c.name for c in db._store.catalog().table("items").columns}
        return
    assert price in now
    assert views == {"totals", "dear"}
    db.put("items", {"item_id": 5, "category": "b", price: 8})
    db.refresh()
    rows = db.read("items").to_pylist()
    assert {r["item_id"]: r["weight"] for r in rows} == dict.fromkeys((r["item_id"] for r in rows), 1)
    if statement == ADD:
        assert {r["stars"] for r in rows} == {3}
    expected: dict[str, int] = {}
    for row in rows:
        expected[row["category"]] = expected.get(row["category"], 0) + (row[price] or 0)
    assert {r["category"]: r["total"] for r in db.read("totals").to_pylist()} == expected
    dear = {r["item_id"]: r["price"] for r in db.read("dear").to_pylist()}
    assert dear == {r["item_id"]: r[price] for r in rows if (r[price] or 0) > 3}
