"""Lazy views: nothing of them is kept but arrangements of their tables, and what is asked for is worked out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.conftest import databases

import viewkeeper as vk
from viewkeeper.errors import BadValue, InUse, ReadOnly, Suspended, Unsupported
from viewkeeper.read.lazy import cache

QUERIES = {"totals": planned.TOTALS, "bosses": planned.BOSSES, "dear": planned.DEAR, "kinds_of": planned.KINDS}


@pytest.fixture(params=["lmdb", "rocksdb", "hbase"])
def open_db(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    planned.install(monkeypatch.setattr)
    with databases(request.param, tmp_path) as make:
        yield make


@pytest.fixture
def db(open_db: Callable[..., Any]) -> Any:
    return _filled(open_db())


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'shop'}", durability="none") as found:
        yield _filled(found)


def _filled(db: Any) -> Any:
    for statement in planned.TABLES:
        db.sql(statement)
    db.put("items", [_item(n) for n in range(40)])
    db.put("kinds", [{"category": c, "boss": b} for c, b in zip("abcd", "xxyz", strict=True)])
    return db


def _item(n: int, **other: Any) -> dict[str, Any]:
    return {"item_id": n, "category": "abc"[n % 3], "price": n % 9 if n % 7 else None} | other


def _create(db: Any, *names: str) -> None:
    for name in names:
        db.sql(f"CREATE MATERIALIZED VIEW {name} WITH (store = 'lazy') AS {QUERIES[name]}")


def _with_stored(db: Any) -> None:
    _create(db, *QUERIES)
    for name, query in QUERIES.items():
        db.sql(f"CREATE MATERIALIZED VIEW stored_{name} AS {query}")


def _agree(db: Any, chance: random.Random) -> None:
    """By single keys first: a whole answer that is remembered would give them too."""
    for name in QUERIES:
        stored = db.read(f"stored_{name}")
        column = stored.column_names[0]
        keys = stored[column].to_pylist()
        for key in [*(chance.choice(keys) for _ in range(2 if keys else 0)), None, "zz" if name != "dear" else 99]:
            where = f"{column} IS NULL" if key is None else {column: key}
            expected = list(db.scan(f"stored_{name}", where=where))
            assert list(db.scan(name, where=where)) == expected
            assert list(db.scan(name, prefix=(key,))) == expected
            if name != "kinds_of":
                assert db.get(name, key) == (expected[0] if expected else None)
        assert db.read(name).equals(stored)
        assert list(db.scan(name, start=("b",) if name != "dear" else (3,))) == list(
            db.scan(f"stored_{name}", start=("b",) if name != "dear" else (3,))
        )


def _changed(db: Any, chance: random.Random) -> None:
    numbers = [chance.randrange(60) for _ in range(chance.choice((1, 3, 20)))]
    match chance.randrange(5):
        case 0:
            db.delete("items", sorted(set(numbers)))
        case 1:
            category = chance.choice("abcd")
            db.put("kinds", [{"category": category, "boss": chance.choice(("x", "y", None))}])
        case 2:
            db.delete("kinds", chance.choice("abcd"))
        case _:
            category = chance.choice(("a", "b", "c", "d", None))
            db.put("items", [_item(n, category=category, price=chance.choice((None, 0, n))) for n in numbers])


def test_a_lazy_view_answers_as_a_stored_one_holds(db: Any) -> None:
    _with_stored(db)
    chance = random.Random(5)
    _agree(db, chance)
    for _ in range(5):
        _changed(db, chance)
        db.refresh()
        _agree(db, chance)
    db.delete("items", [row["item_id"] for row in db.read("items").to_pylist()])
    db.refresh()
    _agree(db, chance)


def test_reads_are_of_the_published_batch_and_as_new_as_they_ask_for(db: Any) -> None:
    _create(db, "totals", "bosses")
    assert db.get("totals", "a")["n"] == 14
    token = db.put("items", [_item(60, category="a")])
    assert db.get("totals", "a")["n"] == 14  # no batch has it yet
    assert db.get("totals", "a", after=token)["n"] == 15
    assert db.get("totals", "a")["n"] == 15
    db.put("items", [_item(63, category="a")])
    assert next(db.scan("bosses", prefix=("x",), level=vk.LATEST))["n"] == 29
    with db.snapshot() as then:
        db.put("items", [_item(66, category="a")])
        db.refresh()
        assert then.get("totals", "a")["n"] == 16
        assert then.read("totals").num_rows == 3
    assert db.read("totals", where={"category": "a"})["n"].to_pylist() == [17]


def test_a_reader_of_another_handle_goes_on_with_the_batches(open_db: Callable[..., Any]) -> None:
    db = _filled(open_db())
    _create(db, "totals")
    reader = open_db(mode="r")
    for n in range(100, 110):
        assert reader.get("totals", "a") == db.get("totals", "a")
        db.put("items", [_item(n, category="a")])
        db.refresh()
    assert reader.get("totals", "a")["n"] == 24


def test_answers_are_remembered_until_their_tables_change(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    work = cache.compute_lazy_rows
    monkeypatch.setattr(cache, "compute_lazy_rows", lambda *how: asked.append(how) or work(*how))
    db = local
    _create(db, "totals", "bosses")
    for _ in range(3):
        assert db.get("totals", "a")["n"] == 14
        assert db.get("totals", "zz") is None
    assert len(asked) == 2
    db.put("kinds", [{"category": "e", "boss": "q"}])  # nothing that totals reads
    db.refresh()
    assert db.get("totals", "a")["n"] == 14
    assert len(asked) == 2
    db.put("items", [_item(41, category="a")])
    assert db.get("totals", "a")["n"] == 14
    assert len(asked) == 2
    db.refresh()
    assert db.get("totals", "a")["n"] == 15
    assert len(asked) == 3
    assert db.read("totals").num_rows == 3
    assert len(asked) == 4
    assert db.get("totals", "b")["n"] == 13
    assert len(asked) == 4


def test_what_is_remembered_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'small'}", lazy_cache_bytes=5_000) as db:
        _filled(db)
        _create(db, "dear")
        for n in range(40):
            db.get("dear", n)
        held = cache.lazy_view_cache(db._store)
        assert 0 < len(held._answers) <= 5
        assert 0 < held._cached_bytes <= 5_000
        assert held._cached_bytes == sum(a.size for a in held._answers.values())
    with pytest.raises(BadValue):
        vk.open(f"lmdb:{tmp_path / 'small'}", lazy_cache_bytes="much")


def test_batches_keep_arrangements_only(local: Any) -> None:
    db = local
    _create(db, "bosses")
    plan = db.explain("bosses")
    assert "arrangement of kinds by (boss)" in plan
    assert "arrangement of items by (category)" in plan
    assert "aggregate" not in plan
    assert "lookup (" not in plan
    assert "lazy: batches keep these arrangements" in plan
    assert "stored, it would cost" in plan
    assert db.status().views[0].rows is None
    db.put("items", [_item(50)])
    assert not db.refresh().views
    assert all(finding.ok for finding in db.doctor().findings)


def test_the_rows_of_one_key_are_looked_up_not_scanned(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    run = cache.BatchExecutor.run

    def counted(stage: Any, number: int, lane: str, flow: Any, active: Any, rows: Any, *rest: Any) -> Any:
        given.append(sum(g.count for g in rows.values()))
        return run(stage, number, lane, flow, active, rows, *rest)

    monkeypatch.setattr(cache.BatchExecutor, "run", counted)
    db = local
    _create(db, "bosses")
    given.clear()
    db.get("bosses", "y")
    assert given == [14]  # a kind, and 13 items of it
    db.read("bosses")
    assert given == [14, 44]


def test_other_views_stand_on_it_and_it_on_others(db: Any) -> None:
    _create(db, "totals")
    db.sql("CREATE MATERIALIZED VIEW over AS SELECT * FROM items")  # read as its rows below
    db.sql("CREATE MATERIALIZED VIEW on_lazy WITH (store = 'lazy') AS SELECT category FROM items")
    with pytest.raises(InUse):
        db.sql("DROP TABLE items")
    db.put("items", [_item(70, category="e", price=5)])
    db.refresh()
    assert db.get("totals", "e") == {"category": "e", "n": 1, "total": 5}
    assert db.get("over", 70)["price"] == 5
    assert list(db.scan("on_lazy", prefix=("e",))) == [{"category": "e"}]


def test_it_is_listed_described_suspended_and_dropped_as_others_are(db: Any) -> None:
    _create(db, "totals")
    assert "totals" in db.sql("SHOW VIEWS")["name"].to_pylist()
    assert db.sql("DESCRIBE totals").num_rows == 3
    assert "'lazy'" in db.table("totals").definition
    db.sql("ALTER MATERIALIZED VIEW totals SUSPEND")
    with pytest.raises(Suspended):
        db.get("totals", "a")
    db.put("items", [_item(71, category="a")])
    db.refresh()
    db.sql("ALTER MATERIALIZED VIEW totals RESUME")
    assert db.get("totals", "a")["n"] == 15
    db.sql("ALTER MATERIALIZED VIEW totals RENAME TO sums")
    assert db.get("sums", "a")["n"] == 15
    db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW sums AS {planned.TOTALS}")
    assert db.get("sums", "a")["n"] == 15
    assert db.status().views[0].rows == 3
    db.sql(f"CREATE OR REPLACE MATERIALIZED VIEW sums WITH (store = 'lazy') AS {planned.TOTALS}")
    assert db.get("sums", "a")["n"] == 15
    assert db.status().views[0].rows is None
    db.sql("DROP MATERIALIZED VIEW sums")
    assert not db.status().views
    db.refresh()


def test_what_a_lazy_view_cannot_do_is_refused_with_a_reason(db: Any) -> None:
    _create(db, "totals")
    with pytest.raises(Unsupported, match="lazy"):
        db.subscribe("totals")
    with pytest.raises(Unsupported, match="not stored"):
        db.sql("CREATE INDEX by_n ON totals (n)")
    with pytest.raises(ReadOnly):
        db.put("totals", [{"category": "a", "n": 1, "total": 1}])
    for option in ("sync = true", "strategy = 'SC', interval = 5", "lookahead = 'global'"):
        with pytest.raises(Unsupported, match="worked out when it is read"):
            db.sql(f"CREATE MATERIALIZED VIEW other WITH (store = 'lazy', {option}) AS {planned.TOTALS}")
    with pytest.raises(BadValue, match="lazy"):
        db.sql(f"CREATE MATERIALIZED VIEW other WITH (store = 'never') AS {planned.TOTALS}")


def test_it_is_there_after_opening_again(open_db: Callable[..., Any]) -> None:
    db = _filled(open_db())
    _create(db, "totals", "bosses")
    db.close()
    again = open_db(mode="r")
    assert again.get("bosses", "x")["n"] == 27
    assert sorted(again.read("totals")["n"].to_pylist()) == [13, 13, 14]


def test_the_command_line_asks_for_it(local: Any, vk: Callable[..., tuple[int, str, str]]) -> None:
    _create(local, "totals", "kinds_of")
    local.sql(f"CREATE MATERIALIZED VIEW stored AS {planned.TOTALS}")
    local.close()
    for arguments in (
        ("get", "{}", "a"),
        ("scan", "{}"),
        ("scan", "{}", "b", "-o", "json"),
        ("scan", "{}", "--limit", "1"),
    ):
        lazy, stored = (vk(*(a.format(name) for a in arguments)) for name in ("totals", "stored"))
        assert lazy == stored
        assert lazy[0] == 0
        assert lazy[1].strip()
    assert vk("get", "totals", "zz")[0] == 1
    assert len(vk("scan", "kinds_of", "-o", "csv")[1].splitlines()) == 41
