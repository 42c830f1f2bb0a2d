"""Many views at once: all of them or none, whatever happens meanwhile, in one batch."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.planned import BOSSES, DEAR, TABLES, TOTALS

import viewkeeper
from viewkeeper import failpoints
from viewkeeper.database import Database
from viewkeeper.errors import BadStatement, NameTaken, Unsupported, ViewkeeperError
from viewkeeper.sql.statements import create_views_together
from viewkeeper.syntax.statements import group_view_statements, split

VIEWS = {"totals": TOTALS, "bosses": BOSSES, "dear": DEAR}
BEFORE = ["view.planned", "load.1.after", "load.2.after", "run.write.middle", "commit.3.middle", "commit.4.before"]
"""Points up to which nothing has happened."""


@pytest.fixture(params=["lmdb", pytest.param("rocksdb", marks=pytest.mark.deep)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    planned.install(monkeypatch.setattr)
    found = f"{request.param}:{tmp_path / 'db'}"
    with viewkeeper.open(found, mode="w") as db:
        for statement in TABLES:
            db.sql(statement)
        db.put("items", [{"item_id": n, "category": "abc"[n % 3], "price": n} for n in range(30)])
        db.put("kinds", [{"category": c, "boss": c.upper()} for c in "abc"])
    return found


def names(db: Database) -> list[str]:
    return db.sql("SHOW VIEWS").to_arrow()["name"].to_pylist()


def test_they_are_published_in_one_batch_and_maintained(url: str) -> None:
    with viewkeeper.open(url) as db:
        before = db.status().epoch
        db.create_views(VIEWS)
        assert names(db) == sorted(VIEWS)
        assert db.status().epoch == before + 1
        db.put("items", [{"item_id": 99, "category": "a", "price": 1000}])
        db.refresh()
        many = {name: db.read(name).to_pylist() for name in VIEWS}
    with viewkeeper.open(url) as db:
        for name, query in VIEWS.items():
            db.sql(f"DROP MATERIALIZED VIEW {name}")
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        assert {name: db.read(name).to_pylist() for name in VIEWS} == many


def test_one_that_is_refused_keeps_all_back(url: str) -> None:
    with viewkeeper.open(url) as db:
        db.create_views({"totals": TOTALS})
        before = db.status().epoch
        for views, error, says in (
            ({"a": DEAR, "totals": BOSSES}, NameTaken, "totals"),
            ({"a": DEAR, "A": BOSSES}, NameTaken, "A"),
            ({"a": DEAR, "b": "DELETE FROM items"}, BadStatement, "b"),
            ({"a": DEAR, "b": ""}, BadStatement, "b"),
            ({"a": DEAR, "items": BOSSES}, NameTaken, "items"),
        ):
            with pytest.raises(error, match=says):
                db.create_views(views)
        alone = f"CREATE MATERIALIZED VIEW b WITH (strategy = 'SN') AS {BOSSES}"
        with pytest.raises(Unsupported, match="cut of its own"):
            create_views_together(db, [f"CREATE MATERIALIZED VIEW a AS {DEAR}", alone])
        assert names(db) == ["totals"]
        assert db.status().epoch == before
        db.create_views({})
        db.create_views({"a": DEAR, "b": BOSSES})
        assert names(db) == ["a", "b", "totals"]


def test_a_view_is_made_by_create_or_replace(url: str) -> None:
    with viewkeeper.open(url) as db:
        db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW a AS {DEAR}")
        db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW a AS {BOSSES}")
        assert db.read("a").column_names == db.sql(BOSSES).column_names
        db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW b WITH (store = 'lazy') AS {DEAR}")
        assert names(db) == ["a", "b"]


def _script(db: Database, text: str) -> None:
    [group] = group_view_statements(split(text))
    create_views_together(db, group)


def test_statements_of_a_script_that_are_made_together() -> None:
    view = "CREATE materialized VIEW {} AS SELECT 1"
    script = ["CREATE TABLE t (k INT)", view.format("a"), view.format("b"), "SHOW VIEWS", view.format("c")]
    script += ["CREATE OR REPLACE MATERIALIZED VIEW c AS SELECT 2"]
    assert list(group_view_statements(script)) == [[script[0]], script[1:3], [script[3]], [script[4]], [script[5]]]
    alone = ["CREATE MATERIALIZED VIEW d WITH (strategy = 'SN') AS SELECT 1", "CREATE MATERIALIZED VIEW AS AS"]
    alone.append("CREATE MATERIALIZED VIEW f PARAMETERS (a INT) AS SELECT 1")
    assert list(group_view_statements(alone)) == [[text] for text in alone]
    assert list(group_view_statements([])) == []


def test_a_script_that_is_run_again_makes_what_is_missing(url: str) -> None:
    with viewkeeper.open(url) as db:
        db.create_views({"dear": DEAR})
        text = "; ".join(f"CREATE MATERIALIZED VIEW IF NOT EXISTS {n} AS {q}" for n, q in VIEWS.items())
        _script(db, text)
        assert names(db) == sorted(VIEWS)
        before = db.status().epoch
        _script(db, text)
        assert db.status().epoch == before


@pytest.mark.parametrize("point", BEFORE)
def test_a_step_that_fails_leaves_none(url: str, point: str) -> None:
    with viewkeeper.open(url) as db:
        with failpoints.fail_at(point, errno.EIO), pytest.raises((OSError, ViewkeeperError)):
            db.create_views(VIEWS)
        assert names(db) == []
        db.create_views(VIEWS)
        assert names(db) == sorted(VIEWS)
        assert len(db.read("totals").to_pylist()) == 3


CODE = """
import sys
from tests.contract import planned
planned.install()
import viewkeeper
with viewkeeper.open(sys.argv[1]) as db:
    db.create_views({"totals": planned.TOTALS, "bosses": planned.BOSSES, "dear": planned.DEAR})
"""


@pytest.mark.parametrize("point", [*BEFORE, "commit.4.after", "commit.5.collect"])
def test_a_process_that_dies_leaves_all_or_none(url: str, point: str) -> None:
    where = {**os.environ, "VK_CRASH_AT": point, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended: Any = subprocess.run([sys.executable, "-c", CODE, url], env=where, capture_output=True, timeout=120)
    assert ended.returncode == -9, ended.stderr
    with viewkeeper.open(url) as db:
        there = names(db)
        assert there == ([] if point in BEFORE else sorted(VIEWS))
        if not there:
            db.create_views(VIEWS)
        db.put("items", [{"item_id": 99, "category": "a", "price": 1000}])
        db.refresh()
        assert sum(r["n"] for r in db.read("totals").to_pylist()) == 31
