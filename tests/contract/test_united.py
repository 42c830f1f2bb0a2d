"""Views that add up the same rows by the same keys keep one state, and nobody can tell but by EXPLAIN.

Plans are written here, so that no JVM starts; what views must show is worked out in Python, which never asks the store.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.contract import planned

import viewkeeper
from viewkeeper import LATEST, failpoints
from viewkeeper.database import Database
from viewkeeper.errors import InUse, ViewkeeperError
from viewkeeper.plan import catalyst
from viewkeeper.plan.compile.compiler import ViewPlan

Table = dict[int, tuple[Any, Any]]

HEAVY = 3074457345618258603
"""Three of them are beyond BIGINT."""
MEASURES = {
    "count(*)": ("Count", ["literal", "int", [], 1, False], "bigint", False),
    "sum(price)": ("Sum", ["column", "int", [], "c2", True], "bigint", False),
    "avg(price)": ("Average", ["column", "int", [], "c2", True], "double", False),
    "max(price)": ("Max", ["column", "int", [], "c2", True], "int", False),
    "min(price)": ("Min", ["column", "int", [], "c2", True], "int", False),
    "count(DISTINCT price)": ("Count", ["column", "int", [], "c2", True], "bigint", True),
    f"sum({HEAVY})": ("Sum", ["literal", "bigint", [], HEAVY, False], "bigint", False),
}
LIGHT = [text for text in MEASURES if str(HEAVY) not in text]
BY = "FROM items GROUP BY category"


def read_query(_spark: Any, text: str, _tables: Any) -> Any:
    """What Catalyst makes of aggregates of items."""
    fields = {"category": ["c1", "string", True], "price": ["c2", "int", True]}
    named = [[{"column": c}, name] for name, c in fields.items() if name in text]
    root: Any = {"kind": "scan", "table": 1, "fields": named}
    if found := re.search(r"WHERE price > (\d+)", text):
        bound = ["literal", "int", [], int(found[1]), False]
        more = ["GreaterThan", "boolean", [["column", "int", [], "c2", True], bound], None, True]
        root = {"kind": "filter", "child": root, "condition": {"expr": more}}
    keys = [{"named": ["c1", {"expr": ["column", "string", [], "c1", True]}]}] if "GROUP" in text else []
    calls, output = [], [["category", "c1", "string", True]] if keys else []
    for called, name in re.findall(r"(\w+\([^)]*\)) AS (\w+)", text):
        function, argument, type_, distinct = MEASURES[called]
        nullable = function != "Count"
        mode = [["evalMode", "ANSI"]] if function in ("Sum", "Average") else None
        calls.append({"call": [f"m_{name}", function, [{"expr": argument}], type_, distinct, None, mode, nullable]})
        output.append([name, f"m_{name}", type_, nullable])
    root = {"kind": "aggregate", "child": root, "keys": keys, "calls": calls}
    if found := re.search(r"HAVING n > (\d+)", text):
        bound = ["literal", "bigint", [], int(found[1]), False]
        more = ["GreaterThan", "boolean", [["column", "bigint", [], "m_n", False], bound], None, True]
        root = {"kind": "filter", "child": root, "condition": {"expr": more}}
    return ViewPlan.from_json({"root": root, "output": output, "sizes": {}}).query


def install(patch: Any = setattr) -> None:
    planned.install(patch)
    patch(catalyst, "read_query", read_query)


@pytest.fixture(params=["lmdb", pytest.param("rocksdb", marks=pytest.mark.deep)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    install(monkeypatch.setattr)
    found = f"{request.param}:{tmp_path / 'db'}"
    with viewkeeper.open(found, mode="w") as db:
        planned.tables(db)
        put(db, {n: ("abc"[n % 3], n) for n in range(30)})
    return found


def put(db: Database, rows: Table) -> None:
    db.put("items", [{"item_id": k, "category": c, "price": p} for k, (c, p) in rows.items()])


def create(db: Database, name: str, query: str, options: str = "") -> None:
    db.sql(f"CREATE MATERIALIZED VIEW {name} {options} AS {query}")


def states(db: Database) -> set[str]:
    """The aggregates whose state the published batch lists."""
    batch = db._store.published_batch()
    record = {} if batch is None else batch.record["manifest"]["runs"]
    return {slot.split("/")[0] for slot in record if slot.startswith("aggregate")}


def expected(table: Table, query: str) -> list[tuple[Any, ...]]:
    bound = re.search(r"WHERE price > (\d+)", query)
    rows = [(c, p) for c, p in table.values() if bound is None or (p is not None and p > int(bound[1]))]
    groups: dict[Any, list[Any]] = {} if "GROUP" in query else {"": []}
    for category, price in rows:
        groups.setdefault(category if "GROUP" in query else "", []).append(price)
    found = []
    for category, prices in groups.items():
        there = [p for p in prices if p is not None]
        values = {
            "count(*)": len(prices),
            "sum(price)": sum(there) if there else None,
            "avg(price)": sum(there) / len(there) if there else None,
            "max(price)": max(there, default=None),
            "min(price)": min(there, default=None),
            "count(DISTINCT price)": len(set(there)),
            f"sum({HEAVY})": HEAVY * len(prices) if prices else None,
        }
        kept = re.search(r"HAVING n > (\d+)", query)
        if kept is None or len(prices) > int(kept[1]):
            called = [values[text] for text, _ in re.findall(r"(\w+\([^)]*\)) AS (\w+)", query)]
            found.append((*([category] if "GROUP" in query else []), *called))
    return sorted(found, key=repr)


def rows_of(db: Database, name: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in db.read(name).to_pylist()), key=repr)


def random_query(rng: Random) -> str:
    called = rng.sample(LIGHT, rng.randrange(1, 4))
    names = ["n" if text == "count(*)" else f"x{i}" for i, text in enumerate(called)]
    keyed = rng.random() < 0.8
    query = (
        "SELECT " + ("category, " if keyed else "") + ", ".join(map("{} AS {}".format, called, names)) + " FROM items"
    )
    query += f" WHERE price > {rng.choice([3, 8])}" if rng.random() < 0.3 else ""
    query += " GROUP BY category" if keyed else ""
    return query + (" HAVING n > 2" if "n" in names and keyed and rng.random() < 0.4 else "")


@pytest.mark.parametrize("seed", range(1, 13) if os.environ.get("VK_PROFILE") == "deep" else range(1, 4))
def test_views_that_come_and_go_are_what_their_queries_say(url: str, seed: int) -> None:
    rng = Random(seed)
    table: Table = {n: ("abc"[n % 3], n) for n in range(30)}
    views: dict[str, str] = {}
    suspended: set[str] = set()
    fewest = 0
    db = viewkeeper.open(url, durability="none")
    for step in range(18):
        rows = {rng.randrange(40): (rng.choice(["a", "b", "c", None]), rng.choice([None, *range(12)])) for _ in "1234"}
        table |= rows
        put(db, rows)
        gone = [k for k in range(40) if rng.random() < 0.05]
        table = {k: v for k, v in table.items() if k not in gone}
        db.delete("items", gone)
        what = rng.choice(["one", "one", "many", "drop", "again", "stop", "apart", "replace"])
        if what in ("one", "apart"):
            views[f"v{step}"] = random_query(rng)
            create(db, f"v{step}", views[f"v{step}"], "WITH (share = false)" if what == "apart" else "")
        elif what == "many":
            new = {f"v{step}_{i}": random_query(rng) for i in range(4)}
            db.create_views(new)
            views |= new
        elif what == "drop" and views:
            name = rng.choice(sorted(views))
            db.sql(f"DROP MATERIALIZED VIEW {name}")
            del views[name]
            suspended.discard(name)
        elif what == "replace" and views.keys() - suspended:
            name = rng.choice(sorted(views.keys() - suspended))
            views[name] = random_query(rng)
            db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW {name} AS {views[name]}")
        elif what == "stop" and views:
            name = rng.choice(sorted(views))
            db.sql(f"ALTER MATERIALIZED VIEW {name} {'RESUME' if name in suspended else 'SUSPEND'}")
            suspended ^= {name}
        elif what == "again":
            db.close()
            db = viewkeeper.open(url, durability="none")
        if rng.random() < 0.5:
            asked = {n for n, q in views.items() if n not in suspended and rng.random() < 0.5}
            for name in asked:
                found = sorted((tuple(row.values()) for row in db.read(name, level=LATEST).to_pylist()), key=repr)
                assert found == expected(table, views[name]), (name, views[name])
        db.refresh()
        for name, query in views.items():
            if name not in suspended:
                assert rows_of(db, name) == expected(table, query), (name, query)
        fewest += len(views) - len(suspended) - len(states(db))
    assert fewest > 0
    assert not db.refresh().mended
    db.close()


def test_one_state_has_the_measures_of_all(url: str) -> None:
    with viewkeeper.open(url) as db:
        create(db, "totals", f"SELECT category, sum(price) AS s {BY}")
        alone = states(db)
        create(db, "apart", f"SELECT category, max(price) AS m {BY}", "WITH (share = false)")
        assert len(states(db)) == 2
        create(db, "counts", f"SELECT category, count(*) AS n, avg(price) AS m {BY}")
        both = states(db)
        assert len(both) == 2
        assert not alone & both  # the first view has moved
        # What wants nothing new joins, and nothing is made anew.
        create(db, "again", f"SELECT category, avg(price) AS m, sum(price) AS s {BY}")
        assert states(db) == both
        told = db.explain("again")
        assert "shared with counts, totals" in told
        assert "the 3 measures of several views in one state" in told
        assert "shared with" not in db.explain("apart")
        # Another condition, or other keys, are other rows.
        create(db, "dear", "SELECT category, count(*) AS n FROM items WHERE price > 3 GROUP BY category")
        create(db, "whole", "SELECT count(*) AS n FROM items")
        assert len(states(db)) == 4
        # Those that keep values are one with each other: who wants a sum waits for no values.
        create(db, "least", f"SELECT category, min(price) AS m, count(*) AS n {BY}")
        create(db, "several", f"SELECT category, count(DISTINCT price) AS m {BY}")
        assert len(states(db)) == 5
        assert "shared with several" in db.explain("least")
        db.drop_views(["least", "several"])
        # Who goes takes nothing away; the last one does.
        for name in ("totals", "counts"):
            db.sql(f"DROP MATERIALIZED VIEW {name}")
        assert both <= states(db)
        db.sql("DROP MATERIALIZED VIEW again")
        assert len(states(db)) == 3


@pytest.mark.parametrize("having", ["", " HAVING n > 99"])
def test_a_sum_that_does_not_fit_is_one_views_error(url: str, having: str) -> None:
    """Also where the view would not show the group: Spark fails on it all the same."""
    with viewkeeper.open(url) as db:
        db.delete("items", [k for k in range(30) if k > 5])  # two of each category
        create(db, "heavy", f"SELECT category, count(*) AS n, sum({HEAVY}) AS s {BY}{having}")
        create(db, "light", f"SELECT category, sum(price) AS s {BY}")
        assert len(states(db)) == 1
        put(db, {40: ("a", 7)})
        report = db.refresh(suspend=True)
        assert list(report.suspended) == ["heavy"]
        assert "ARITHMETIC_OVERFLOW" in report.suspended["heavy"]
        assert "items.category = 'a'" in report.suspended["heavy"]
        assert rows_of(db, "light") == [("a", 10), ("b", 5), ("c", 7)]
        put(db, {41: ("a", 1)})
        assert not db.refresh(suspend=True).suspended
        with pytest.raises(ViewkeeperError, match="ARITHMETIC_OVERFLOW"):
            db.sql("ALTER MATERIALIZED VIEW heavy RESUME")
        db.delete("items", [40, 41])
        db.refresh()
        db.sql("ALTER MATERIALIZED VIEW heavy RESUME")
        assert len(states(db)) == 1
        assert rows_of(db, "heavy") == ([] if having else [(c, 2, 2 * HEAVY) for c in "abc"])
        assert rows_of(db, "light") == [("a", 3), ("b", 5), ("c", 7)]


def test_a_column_can_go_that_only_a_view_read_which_is_gone(url: str) -> None:
    with viewkeeper.open(url) as db:
        create(db, "counts", f"SELECT category, count(*) AS n {BY}")
        create(db, "more", f"SELECT category, count(*) AS m {BY}")
        create(db, "totals", f"SELECT category, sum(price) AS s {BY}")
        with pytest.raises(InUse, match="totals"):
            db.sql("ALTER TABLE items DROP COLUMN price")
        db.sql("DROP MATERIALIZED VIEW totals")
        db.sql("ALTER TABLE items DROP COLUMN price")
        db.put("items", [{"item_id": 99, "category": "a"}])
        db.refresh()
        assert rows_of(db, "counts") == rows_of(db, "more") == [("a", 11), ("b", 10), ("c", 10)]


BEFORE = ["view.planned", "load.1.after", "load.2.after", "run.write.middle", "commit.3.middle", "commit.4.before"]
CODE = f"""
import sys
from tests.contract import test_united
test_united.install()
import viewkeeper
with viewkeeper.open(sys.argv[1]) as db:
    test_united.create(db, "counts", "SELECT category, count(*) AS n, avg(price) AS m {BY}")
"""


@pytest.mark.parametrize("point", ["load.1.after", "commit.3.middle", "commit.4.before", "commit.4.after"])
def test_a_process_that_dies_leaves_views_where_they_were_or_together(url: str, point: str) -> None:
    with viewkeeper.open(url) as db:
        create(db, "totals", f"SELECT category, sum(price) AS s {BY}")
    where = {**os.environ, "VK_CRASH_AT": point, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended: Any = subprocess.run([sys.executable, "-c", CODE, url], env=where, capture_output=True, timeout=120)
    assert ended.returncode == -9, ended.stderr
    table: Table = {n: ("abc"[n % 3], n) for n in range(30)} | {40: ("a", 100)}
    with viewkeeper.open(url) as db:
        there = db.sql("SHOW VIEWS").to_arrow()["name"].to_pylist()
        assert there == (["totals"] if point in BEFORE else ["counts", "totals"])
        assert len(states(db)) == 1
        put(db, {40: ("a", 100)})
        assert not db.refresh().mended
        assert rows_of(db, "totals") == expected(table, f"SELECT sum(price) AS s {BY}")
        if "counts" not in there:
            create(db, "counts", f"SELECT category, count(*) AS n, avg(price) AS m {BY}")
        assert rows_of(db, "counts") == expected(table, f"SELECT count(*) AS n, avg(price) AS m {BY}")


def test_a_step_that_fails_moves_nobody(url: str) -> None:
    with viewkeeper.open(url) as db:
        create(db, "totals", f"SELECT category, sum(price) AS s {BY}")
        before = states(db)
        for point in BEFORE:
            with failpoints.fail_at(point, errno.EIO), pytest.raises((OSError, ViewkeeperError)):
                create(db, "counts", f"SELECT category, count(*) AS n {BY}")
            assert states(db) == before
        create(db, "counts", f"SELECT category, count(*) AS n {BY}")
        assert len(states(db)) == 1
