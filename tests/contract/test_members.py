"""Members of a family are views: they are read, told of, dropped and taken out as if each were one by itself.

Each is compared with the same view made with `share = false`. Plans are written here, so that no JVM starts.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.contract.conftest import databases
from tests.contract.planned import TABLES

import viewkeeper
from viewkeeper import STALE, failpoints
from viewkeeper.database import Database
from viewkeeper.errors import BadValue, InUse, ViewkeeperError
from viewkeeper.maintain.definitions import families
from viewkeeper.plan import catalyst
from viewkeeper.plan.compile.compiler import ViewPlan
from viewkeeper.plan.families import cost

ROWS = "SELECT item_id, category, price FROM items WHERE price > {}"
SUMS = "SELECT category, count(*) AS n, sum(price) AS total FROM items WHERE price > {} GROUP BY category"
WHOLE = "SELECT count(*) AS n, sum(price) AS total FROM items WHERE price > {}"
BAG = "SELECT category FROM items WHERE price > {}"
TEMPLATES = (ROWS, SUMS, WHOLE, BAG)
HEAVY = SUMS.replace("sum(price)", "sum(3074457345618258603)")
"""Three rows of a group are beyond BIGINT."""
OVER = "SELECT count(*) AS n FROM {}"
POINTS = ["view.planned", "members.table", "members.written", "load.1.after", "commit.3.middle", "commit.4.before"]


def read_query(_spark: Any, text: str, tables: Any) -> Any:
    """What Catalyst makes of the templates."""
    scan = {"kind": "scan", "table": 1}
    columns = {"item_id": ["c0", "bigint", False], "category": ["c1", "string", True], "price": ["c2", "int", True]}
    calls: list[Any] = [
        {"call": ["c3", "Count", [{"expr": ["literal", "int", [], 1, False]}], "bigint", False, None, None, False]}
    ]
    if "price > " not in text:
        name = text.rsplit(" ", 1)[1]
        scan |= {"table": tables[name].id, "fields": []}
        root: Any = {"kind": "aggregate", "child": scan, "keys": [], "calls": calls}
        return ViewPlan.from_json({"root": root, "output": [["n", "c3", "bigint", False]], "sizes": {}}).query
    (bound,) = re.findall(r"price > (\d+)", text)
    scan["fields"] = [[{"column": c}, name] for name, c in columns.items()]
    there = ["IsNotNull", "boolean", [["column", "int", [], "c2", True]], None, False]
    more = [
        "GreaterThan",
        "boolean",
        [["column", "int", [], "c2", True], ["literal", "int", [], int(bound), False]],
        None,
        True,
    ]
    root = {"kind": "filter", "child": scan, "condition": {"expr": ["And", "boolean", [there, more], None, True]}}
    if "count" in text:
        price = {"expr": ["column", "int", [], "c2", True]}
        if heavy := re.findall(r"sum\((\d+)\)", text):
            price = {"expr": ["literal", "bigint", [], int(heavy[0]), False]}
        calls.append({"call": ["c4", "Sum", [price], "bigint", False, None, [["evalMode", "ANSI"]], True]})
        keys = [{"named": ["c1", {"expr": ["column", "string", [], "c1", True]}]}] if "GROUP" in text else []
        root = {"kind": "aggregate", "child": root, "keys": keys, "calls": calls}
        columns = {"category": columns["category"]} if keys else {}
        columns |= {"n": ["c3", "bigint", False], "total": ["c4", "bigint", True]}
    else:
        shown = [n for n in columns if n in text.split("FROM")[0]]
        columns = {n: columns[n] for n in shown}
        exprs = [{"named": [c[0], {"expr": ["column", c[1], [], c[0], c[2]]}]} for c in columns.values()]
        root = {"kind": "project", "child": root, "exprs": exprs}
    output = [[name, *c] for name, c in columns.items()]
    return ViewPlan.from_json({"root": root, "output": output, "sizes": {}}).query


def install(patch: Any = setattr) -> None:
    patch(catalyst, "read_query", read_query)
    patch(Database, "_spark", lambda self: None)
    patch(families, "is_family_cheaper", lambda views, different, rows: different >= 4)


@pytest.fixture(params=["lmdb", pytest.param("rocksdb", marks=pytest.mark.deep), "hbase"])
def open_db(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    install(monkeypatch.setattr)
    with databases(request.param, tmp_path) as make:
        with make() as db:
            _fill(db)
        yield make


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    install(monkeypatch.setattr)
    with viewkeeper.open(f"lmdb:{tmp_path / 'db'}", durability="none") as db:
        _fill(db)
    return f"lmdb:{tmp_path / 'db'}"


def _fill(db: Any) -> None:
    for statement in TABLES:
        db.sql(statement)
    db.put("items", [_item(Random(n), n) for n in range(60)])


def _item(rng: Random, number: int) -> dict[str, Any]:
    return {"item_id": number, "category": rng.choice(["a", "b", "c", None]), "price": rng.choice([None, *range(20)])}


def _views(template: str, count: int = 6, name: str = "v") -> dict[str, str]:
    return {f"{name}{n}": template.format(2 * n) for n in range(count)}


def _change(db: Any, rng: Random) -> None:
    db.put("items", [_item(rng, rng.randrange(90)) for _ in range(20)])
    db.delete("items", [rng.randrange(90) for _ in range(5)])


def _families(db: Any) -> list[int]:
    return sorted(map(len, db._store.catalog().members.values()))


def _apart(db: Any, views: dict[str, str]) -> None:
    for name, text in views.items():
        db.sql(f"CREATE MATERIALIZED VIEW apart_{name} WITH (share = false) AS {text}")


@pytest.mark.parametrize("template", TEMPLATES)
def test_members_are_the_views_that_they_would_be_by_themselves(open_db: Callable[..., Any], template: str) -> None:
    views, rng = _views(template), Random(1)
    with open_db() as db:
        db.create_views(views)
        assert _families(db) == [6]
        _apart(db, views)
        feeds = {name: db.subscribe(name, timeout=0.0) for name in ("v3", "apart_v3")}
        first = {name: next(feed) for name, feed in feeds.items()}
        assert first["v3"].rows.equals(first["apart_v3"].rows)
        for _ in range(3):
            _change(db, rng)
            db.refresh()
            for name in views:
                assert db.read(name).equals(db.read(f"apart_{name}")), name
                assert list(db.scan(name, limit=2)) == list(db.scan(f"apart_{name}", limit=2))
        told = {name: list(feed) for name, feed in feeds.items()}
        assert [d.token for d in told["v3"]] == [d.token for d in told["apart_v3"]] != []
        for mine, other in zip(told["v3"], told["apart_v3"], strict=True):
            order = [(n, "ascending") for n in mine.rows.column_names]
            assert mine.rows.sort_by(order).equals(other.rows.sort_by(order))
    with open_db() as db:  # what another process finds
        assert _families(db) == [6]
        for name in views:
            assert db.read(name).equals(db.read(f"apart_{name}")), name
            assert db.table(name).schema == db.table(f"apart_{name}").schema
            assert db.table(name).key == db.table(f"apart_{name}").key
        with db.snapshot() as snapshot:
            for name in views:
                assert snapshot.read(name).equals(snapshot.read(f"apart_{name}")), name


def test_many_equal_views_are_names_of_the_same_few_rows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three different ones are no family; where each is there fifty times, a family keeps its rows once."""
    monkeypatch.setattr(families, "is_family_cheaper", cost.is_family_cheaper)
    rng = Random(2)
    with viewkeeper.open(url, durability="none") as db:
        db.create_views(_views(SUMS, 3, "few"))
        assert _families(db) == []
        db.create_views({f"v{n}": SUMS.format(2 * (n % 3)) for n in range(150)})
        assert _families(db) == [150]
        catalog = db._store.catalog()
        [family] = [v for v in catalog.views if v.is_hidden_family]
        for _ in range(2):
            each = [db.read(f"few{n}") for n in range(3)]
            assert all(db.read(f"v{n}").equals(each[n % 3]) for n in range(150))
            assert db._store.count(family.table) == sum(rows.num_rows for rows in each)
            _change(db, rng)
            db.refresh()
        db.drop_views([f"v{n}" for n in range(120)])
        _change(db, rng)
        db.refresh()
        assert all(db.read(f"v{n}").equals(db.read(f"few{n % 3}")) for n in range(120, 150))


def test_rows_of_a_member_by_key(open_db: Callable[..., Any]) -> None:
    views = _views(ROWS)
    with open_db() as db:
        db.create_views(views)
        epoch, made = db.status().epoch, db.read("v3")
        _apart(db, views)
        assert made.equals(db.read("apart_v3"))  # as it is when the call returns
        assert epoch < db.status().epoch
        rows = made.to_pylist()
        low, some, high = rows[1], rows[len(rows) // 2], rows[-2]
        for name in ("v3", "apart_v3"):
            assert db.get(name, some["item_id"]) == some
            assert db.get(name, 1000) is None
            assert list(db.scan(name, start=low["item_id"], stop=high["item_id"])) == rows[1:-2]
            assert list(db.scan(name, stop=some["item_id"])) == rows[: len(rows) // 2]
            assert list(db.scan(name, start=some["item_id"])) == rows[len(rows) // 2 :]
            assert list(db.scan(name, prefix=some["item_id"])) == [some]
            assert list(db.scan(name, where={"item_id": [low["item_id"], high["item_id"]]})) == [low, high]
            assert list(db.scan(name, where="price >= 15")) == [r for r in rows if r["price"] >= 15]
            assert list(db.scan(name, where=f"item_id > {low['item_id']}", order_by="item_id DESC")) == rows[:1:-1]
            assert db.sql(f"SELECT count(*) AS n FROM {name}").to_pylist() == [{"n": len(rows)}]
            with pytest.raises(BadValue):
                db.get(name, (1, 2))
        status = {v.name: v for v in db.status().views}
        assert (status["v3"].rows, status["apart_v3"].rows) == (len(rows), len(rows))
        assert [t.name for t in db.status().tables] == ["items", "kinds"]
        assert [t["name"] for t in db.sql("SHOW TABLES").to_pylist()] == ["items", "kinds"]
        assert [t["name"] for t in db.sql("SHOW VIEWS").to_pylist()] == sorted(["apart_" + v for v in views] + [*views])
        assert "a member of a family with 5 other views" in db.explain("v3")
        assert "¤p0 = 6" in db.explain("v3")
        assert db.doctor().healthy


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_newest_rows_of_a_member_need_no_batch(url: str, template: str) -> None:
    views, rng = _views(template, 5), Random(6)
    with viewkeeper.open(url, durability="none") as db, viewkeeper.open(url, durability="none") as reader:
        db.create_views(views)
        assert _families(db) == [5]
        for turn in range(3):
            epoch = db.status().epoch
            _change(db, rng)
            latest = {name: reader.read(name, level=viewkeeper.LATEST) for name in views}
            scans = {name: list(reader.scan(name, level=viewkeeper.LATEST, limit=3)) for name in views}
            keys = list(reader.table("v2").key)
            found = [tuple(row[k] for k in keys) for row in latest["v2"].to_pylist()] if template != BAG else []
            rows = [reader.get("v2", key, viewkeeper.LATEST) for key in found]
            gone = None if template == BAG or not keys else reader.get("v2", _absent(keys), viewkeeper.LATEST)
            assert db.status().epoch == epoch, "nobody has published anything"
            assert gone is None
            db.refresh()
            assert db.status().epoch > epoch
            for name in views:
                assert latest[name].equals(db.read(name)), (turn, name)
                assert scans[name] == list(db.scan(name, limit=3))
            assert rows == [db.get("v2", key) for key in found]


def _absent(keys: list[str]) -> tuple[Any, ...]:
    return tuple(-1 if key == "item_id" else "nobody" for key in keys)


def test_views_come_to_a_family_and_go(open_db: Callable[..., Any]) -> None:
    rng = Random(2)
    with open_db() as db:
        for n in range(8):  # one by one: the first three are views by themselves, and stay so
            db.sql(f"CREATE MATERIALIZED VIEW v{n} AS {SUMS.format(n)}")
            _change(db, rng)
            assert _families(db) == ([n - 2] if n > 2 else [])
        db.create_views({"same": SUMS.format(5), "other": SUMS.format(11), "more": ROWS.format(3)})
        assert _families(db) == [7]
        views = {f"v{n}": SUMS.format(n) for n in range(8)} | {"same": SUMS.format(5), "other": SUMS.format(11)}
        _apart(db, views)
        db.sql("DROP MATERIALIZED VIEW v5")
        db.sql("DROP MATERIALIZED VIEW v6")
        _change(db, rng)
        db.refresh()
        for name in sorted(set(views) - {"v5", "v6"}):
            assert db.read(name).equals(db.read(f"apart_{name}")), name
        family = next(v for v in db._store.catalog().views if v.is_hidden_family)
        assert db._store.count(db._store.catalog().tables_by_id[family.parameter_table_id]) == 5  # 3, 4, 5, 7, 11
        for name in ("v3", "v4", "v7", "same", "other"):
            db.sql(f"DROP MATERIALIZED VIEW {name}")
        assert _families(db) == []
        assert [t.name for t in db._store.catalog().tables] == ["items", "kinds"]
        assert not any(v.is_hidden_family for v in db._store.catalog().views)


def test_what_is_counted_of_a_family_is_told_by_names_that_are_known(open_db: Callable[..., Any]) -> None:
    with open_db() as db:
        db.create_views({"sums": SUMS.format(1), **_views(ROWS)})
        assert _families(db) == [6]
        db.put("items", [{"item_id": 200, "category": "a", "price": 7}])
        assert db.refresh().views == {"sums": 1, "v0 and 5 like it": 4}  # those above 0, 2, 4 and 6
        shown = {v.name: (v.kept_with, v.state_bytes) for v in db.status().views}
        assert shown == {"sums": (0, shown["sums"][1]), **{f"v{n}": (5, shown["v0"][1]) for n in range(6)}}
        db.drop_views([f"v{n}" for n in range(1, 6)])
        db.refresh()  # their rows go
        db.delete("items", 200)
        assert db.refresh().views == {"sums": 1, "v0": 1}


def test_what_a_family_does_not_have_a_member_gets_by_leaving_it(open_db: Callable[..., Any]) -> None:
    views = _views(ROWS, 8)
    with open_db() as db:
        db.create_views(views)
        _apart(db, views)
        db.sql("CREATE INDEX by_price ON v0 (price)")
        db.sql(f"CREATE MATERIALIZED VIEW over AS {OVER.format('v1')}")
        db.sql("ALTER MATERIALIZED VIEW v2 SUSPEND")
        db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v3 AS {ROWS.format(17)}")
        db.sql("ALTER MATERIALIZED VIEW v4 RENAME TO renamed")
        assert _families(db) == [4]
        with pytest.raises(InUse):
            db.sql("DROP MATERIALIZED VIEW v1")
        kept = db.read("v2", STALE)
        assert kept.equals(db.read("apart_v2"))
        _change(db, Random(3))
        db.refresh()
        assert db.read("v2", STALE).equals(kept)
        db.sql("ALTER MATERIALIZED VIEW v2 RESUME")
        for name in ("v0", "v1", "v2", "v5", "v6", "v7"):
            assert db.read(name).equals(db.read(f"apart_{name}")), name
        assert db.read("renamed").equals(db.read("apart_v4"))
        assert db.get("over", ()) == {"n": db.read("v1").num_rows}
        assert list(db.scan("v0", where="price = 7")) == [r for r in db.read("v0").to_pylist() if r["price"] == 7]
        with pytest.raises(InUse, match="renamed, v0 and 6 more"):
            db.sql("ALTER TABLE items DROP COLUMN price")


def test_a_member_that_fails_is_suspended_alone(open_db: Callable[..., Any]) -> None:
    views = _views(HEAVY, 7)  # above 0, 2, …, 12
    views["twin"] = views["v1"]
    rows = [{"item_id": 1000 + n, "category": "big", "price": 3 + n} for n in range(4)]
    with open_db() as db:
        db.delete("items", list(range(60)))
        db.put("items", rows[:2])
        db.create_views(views)
        kept = {name: db.read(name) for name in views}
        _apart(db, {name: views[name] for name in ("v2", "v3", "v6")})
        db.put("items", [{**rows[2], "category": "small"}])
        db.refresh()
        db.put("items", rows[2:])
        report = db.refresh()
        # v0, v1 and its twin have four rows in the group, v2 has two (5 and 6): the others are none of their business.
        assert set(report.suspended) == {"v0", "v1", "twin"}
        assert all("ARITHMETIC_OVERFLOW" in why and "¤p0" not in why for why in report.suspended.values())
        assert _families(db) == [5]
        for name in ("v0", "v1", "twin"):
            shown = {r["category"]: r["n"] for r in db.read(name, STALE).to_pylist()}
            assert shown == {"big": 2, "small": 1} != {r["category"]: r["n"] for r in kept[name].to_pylist()}
        for turn in range(2):
            for name in ("v2", "v3", "v6"):
                assert db.read(name).equals(db.read(f"apart_{name}")), name
            db.put("items", [{"item_id": n, "category": f"{turn}-{n}", "price": 2 * n} for n in range(9)])
            assert db.refresh().suspended == {}
        status = {v.name: v for v in db.status().views}
        assert "ARITHMETIC_OVERFLOW" in status["v1"].suspended
        assert status["v3"].suspended is None
        # A new member that fails is not made, and nobody else hears of it.
        with pytest.raises(ViewkeeperError, match="ARITHMETIC_OVERFLOW"):
            db.sql(f"CREATE MATERIALIZED VIEW fails AS {HEAVY.format(1)}")
        assert _families(db) == [5]
        assert "fails" not in {v.name for v in db.views()}
        with pytest.raises(ViewkeeperError, match="ARITHMETIC_OVERFLOW"):
            db.sql("ALTER MATERIALIZED VIEW v1 RESUME")
        db.delete("items", [r["item_id"] for r in rows])
        db.delete("items", list(range(90)))
        for name in ("v0", "v1", "twin"):
            db.sql(f"ALTER MATERIALIZED VIEW {name} RESUME")
            assert db.read(name).num_rows == 0
        assert db.doctor().healthy
    with open_db() as db:
        assert _families(db) == [5]
        hidden = next(t for t in db._store.catalog().tables if t.is_hidden)
        assert db._store.count(hidden) == 5


def test_a_member_whose_key_the_store_cannot_hold_is_suspended_alone(open_db: Callable[..., Any]) -> None:
    with open_db() as db:
        db.create_views(_views(SUMS, 5))  # above 0, 2, …, 8, by category
        _apart(db, _views(SUMS, 5))
        db.put("items", [{"item_id": 1000, "category": "x" * 70_000, "price": 3}])
        told = db.refresh().suspended
        assert set(told) == {"v0", "v1", "apart_v0", "apart_v1"}
        assert not any("_family" in why for why in told.values())
        assert _families(db) == [3]
        for name in ("v2", "v3", "v4"):
            assert db.read(name).equals(db.read(f"apart_{name}"))
        db.delete("items", [1000])
        assert db.refresh().suspended == {}
        for name in ("v0", "apart_v0"):
            db.sql(f"ALTER MATERIALIZED VIEW {name} RESUME")
        assert db.read("v0").equals(db.read("apart_v0"))


def test_a_family_of_which_all_members_fail_goes(url: str) -> None:
    views = _views(HEAVY)
    with viewkeeper.open(url) as db:
        db.delete("items", list(range(60)))
        db.create_views(views)
        db.put("items", [{"item_id": n, "category": "a", "price": 19} for n in range(4)])
        assert set(db.refresh().suspended) == set(views)
        assert _families(db) == []
        assert not any(v.is_hidden_family for v in db._store.catalog().views)
        db.delete("items", [0, 1])
        db.create_views({f"again_{name}": text for name, text in views.items()})
        assert _families(db) == [6]
        assert db.read("again_v3").to_pylist() == [{"category": "a", "n": 2, "total": 2 * 3074457345618258603}]
        db.drop_views(list(views))
    with viewkeeper.open(url) as db:
        db._acquire_maintainer()
        assert len([t for t in db._store.catalog().tables if t.is_hidden]) == 1


def test_a_member_fails_in_a_batch_of_few_rows(url: str) -> None:
    with viewkeeper.open(url) as db:
        db.delete("items", list(range(60)))
        db.create_views(_views(HEAVY, 6))
        for n in range(12):
            db.put("items", [{"item_id": n, "category": "a", "price": 1 + n % 2}])
        maintainer = db._acquire_maintainer()
        while maintainer.publisher.is_behind():
            maintainer.refresh(max_changes=2)
        assert {v.name for v in db.status().views if v.suspended} == {"v0"}
        assert _families(db) == [5]
        assert db.read("v1").num_rows == 0


def test_many_are_dropped_at_once_or_none(open_db: Callable[..., Any]) -> None:
    with open_db() as db:
        db.create_views({**_views(ROWS, 8), **_views(SUMS, 3, "s")})
        db.sql(f"CREATE MATERIALIZED VIEW over AS {OVER.format('v1')}")
        db.sql("CREATE INDEX by_price ON v0 (price)")
        names = {v.name for v in db.views()}
        for wrong, error in (
            (["v0", "v1"], InUse),
            (["v0", "nobody"], ViewkeeperError),
            (["by_price"], BadValue),
            ("v0", BadValue),
        ):
            with pytest.raises(error):
                db.drop_views(wrong)
            assert {v.name for v in db.views()} == names
        db.drop_views(["s1", "over", "v1", "v0", *(f"v{i}" for i in range(3, 8))])
        assert [v.name for v in db.views()] == ["s0", "s2", "v2"]
        _change(db, Random(7))
        db.refresh()
        assert db.read("v2").num_rows == sum((r["price"] or 0) > 4 for r in db.read("items").to_pylist())
        db.drop_views(["v2"])
        assert _families(db) == []
        db.drop_views([])


@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_fails_leaves_nothing(url: str, point: str) -> None:
    views = _views(SUMS)
    with viewkeeper.open(url) as db:
        with failpoints.fail_at(point, errno.EIO), pytest.raises((OSError, ViewkeeperError)):
            db.create_views(views)
        assert db.sql("SHOW VIEWS").to_pylist() == []
        assert [t.name for t in db._store.catalog().tables] == ["items", "kinds"]
        db.create_views(views)
        assert _families(db) == [6]
        with failpoints.fail_at(point, errno.EIO):
            try:
                db.sql(f"CREATE MATERIALIZED VIEW joins AS {SUMS.format(19)}")
            except (OSError, ViewkeeperError):
                assert _families(db) == [6]
        _change(db, Random(4))
        db.refresh()
        _apart(db, views)
        for name in views:
            assert db.read(name).equals(db.read(f"apart_{name}")), name


CODE = """
import sys
from tests.contract import test_members as members
members.install()
import viewkeeper
with viewkeeper.open(sys.argv[1]) as db:
    if sys.argv[2] == "many":
        db.create_views(members._views(members.SUMS))
    elif sys.argv[2] == "fail":
        db.put("items", [{"item_id": 1000 + n, "category": "big", "price": 3} for n in range(4)])
        db.refresh()
    elif sys.argv[2] == "one":
        db.sql("CREATE MATERIALIZED VIEW joins AS " + members.SUMS.format(19))
    else:
        db.sql("DROP MATERIALIZED VIEW v3")
        db.sql("DROP MATERIALIZED VIEW v4")
"""


@pytest.mark.parametrize(
    ("what", "point"),
    [
        # The first batch has the parameters, the second the names.
        *(("many", point) for point in ("members.table", "members.written", "commit.4.before@2", "commit.4.after@2")),
        *(("one", point) for point in ("members.written", "commit.4.before@2", "commit.4.after@2")),
        *(("drop", point) for point in ("member.dropped", "member.dropped@2")),
    ],
)
def test_a_process_that_dies_leaves_all_or_nothing(url: str, what: str, point: str) -> None:
    views = _views(SUMS)
    if what != "many":
        with viewkeeper.open(url) as db:
            db.create_views(views)
    where = {**os.environ, "VK_CRASH_AT": point, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended: Any = subprocess.run([sys.executable, "-c", CODE, url, what], env=where, capture_output=True, timeout=120)
    assert ended.returncode == -9, ended.stderr
    with viewkeeper.open(url) as db:
        db._acquire_maintainer()  # which takes away what the dead left
        there = {v["name"] for v in db.sql("SHOW VIEWS").to_pylist()}
        assert there in ({*views}, {*views, "joins"}, {*views} - {"v3"}, {*views} - {"v3", "v4"}, set())
        assert bool(there) == (what != "many" or point == "commit.4.after@2")
        catalog = db._store.catalog()
        kept = [db._store.count(t) for t in catalog.tables if t.is_hidden]
        assert kept == ([len(there)] if there else [])
        if not there:
            db.create_views(views)
        _change(db, Random(5))
        db.refresh()
        _apart(db, views)
        for name in set(views) & (there or {*views}):
            assert db.read(name).equals(db.read(f"apart_{name}")), name


def test_a_process_that_dies_while_a_member_leaves_has_suspended_it(url: str) -> None:
    views = _views(HEAVY)
    with viewkeeper.open(url) as db:
        db.delete("items", list(range(60)))
        db.create_views(views)
    where = {**os.environ, "VK_CRASH_AT": "member.expelled", "PYTHONPATH": str(Path(__file__).parents[2])}
    ended: Any = subprocess.run([sys.executable, "-c", CODE, url, "fail"], env=where, capture_output=True, timeout=120)
    assert ended.returncode == -9, ended.stderr
    with viewkeeper.open(url) as db:
        db.put("items", [{"item_id": 5, "category": "small", "price": 19}])
        maintainer = db._acquire_maintainer()  # which takes away the parameters that the dead left
        while maintainer.publisher.is_behind():
            maintainer.refresh(max_changes=2)
        assert {v.name for v in db.status().views if v.suspended} == {"v0", "v1"}
        assert _families(db) == [4]
        assert db.read("v0", STALE).num_rows == 0
        assert db.read("v5").to_pylist() == [{"category": "small", "n": 1, "total": 3074457345618258603}]
