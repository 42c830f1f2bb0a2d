"""Views made by name that one family keeps, and views with one state, on a real HBase: made, kept, read, dropped."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract import test_members as members
from tests.contract import test_united as sums
from tests.contract.planned import TABLES

import viewkeeper as vk

pytestmark = [pytest.mark.hbase, pytest.mark.slow]


@pytest.fixture
def opened(hbase: Any, tmp_path: Path) -> Callable[[], Any]:
    """The same shop again and again, with rows."""
    url = f"hbase://{hbase.host}:{hbase.port}/vk_{secrets.token_hex(4)}?create=true&lease=3"
    with vk.open(url, state=str(tmp_path / "state")) as db:
        for statement in TABLES:
            db.sql(statement)
        sums.put(db, {n: ("abc"[n % 3], n) for n in range(30)})
    return lambda: vk.open(url, state=str(tmp_path / "state"))


def test_members_by_name(opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    members.install(monkeypatch.setattr)
    views = {f"v{n}": members.SUMS.format(2 * n) for n in range(6)}
    with opened() as db:
        db.create_views(views)
        [family] = db._store.catalog().members.values()
        assert len(family) == 6
        for name in ("v1", "v4"):
            db.sql(f"CREATE MATERIALIZED VIEW apart_{name} WITH (share = false) AS {views[name]}")
        sums.put(db, {5: ("a", 50), 40: ("new", 7), 41: (None, 9)})
        db.delete("items", [6, 7])
        db.refresh()
        for name in ("v1", "v4"):
            assert db.read(name).equals(db.read(f"apart_{name}"))
        assert db.get("v1", "new") == {"category": "new", "n": 1, "total": 7}
        db.sql("DROP MATERIALIZED VIEW v1")
    with opened() as db:  # what another process finds
        assert "v1" not in db.sql("SHOW VIEWS").to_arrow()["name"].to_pylist()
        sums.put(db, {42: ("new", 30)})
        db.refresh()
        assert db.get("v4", "new") == {"category": "new", "n": 1, "total": 30}
        assert db.read("v4").equals(db.read("apart_v4"))


def test_one_state_for_several_views(opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sums.install(monkeypatch.setattr)
    queries = {"totals": "sum(price) AS s", "counts": "count(*) AS n", "means": "avg(price) AS a"}
    queries = {name: f"SELECT category, {called} {sums.BY}" for name, called in queries.items()}
    table = {n: ("abc"[n % 3], n) for n in range(30)} | {5: ("a", 50), 40: ("new", 7)}
    with opened() as db:
        for name, query in queries.items():
            sums.create(db, name, query)
        sums.put(db, {5: table[5], 40: table[40]})
        db.refresh()
        db.sql("DROP MATERIALIZED VIEW means")
    with opened() as db:
        assert not db.refresh().mended
        for name in ("totals", "counts"):
            assert sums.rows_of(db, name) == sums.expected(table, queries[name])
        assert "shared with counts" in db.explain("totals")
