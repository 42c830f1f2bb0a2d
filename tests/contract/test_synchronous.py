"""Views that are kept in the transaction of each write: right after every single call, whoever wrote."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract import synchronous_plans as plans
from tests.contract.conftest import databases

import viewkeeper as vk
from viewkeeper.commit.write_observer import SynchronousViews
from viewkeeper.errors import EvaluationError, InUse, Suspended, Unsupported
from viewkeeper.store.ordered import observed_writes

ANY = 10**9
WAYS = {
    "tallied": ({"apply_row_sums"}, ANY, ANY),
    "one by one": ({"apply_rows"}, 0, ANY),
    "by columns": ({"apply_vector_sums"}, 0, -1),
    "by statements": (set(), 0, -1),
}
"""How rows pass through a view: methods of the observer beside statements, and the two limits that lead there."""
ABLE = {name: getattr(SynchronousViews, name) for name in ("apply_row_sums", "apply_rows", "apply_vector_sums")}
SYNC = ("grouped", "whole", "dear", "categories", "doubles", "totals", "sums")


@pytest.fixture(params=["lmdb", "rocksdb"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    plans.install(monkeypatch.setattr)
    return f"{request.param}:{tmp_path / 'shop'}"


@pytest.fixture
def db(url: str) -> Iterator[Any]:
    with vk.open(url, durability="none") as found:
        for statement in planned.TABLES:
            found.sql(statement)
        found.put("items", [_item(n) for n in range(40)])
        yield found


def _item(n: int, **other: Any) -> dict[str, Any]:
    return {"item_id": n, "category": "abc"[n % 3], "price": n % 9 if n % 7 else None} | other


def _create(db: Any, name: str, query: str | None = None, how: str = "sync = true") -> None:
    db.sql(f"CREATE MATERIALIZED VIEW {name} {f'WITH ({how})' if how else ''} AS SELECT {query or name}")


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [(v is not None, v) for v in row.values()])


def _agree(db: Any, *names: str) -> None:
    expected = plans.recomputed(db.read("items").to_pylist())
    for name in names:
        found = [{k: row[k] for k in expected[name][0]} if expected[name] else row for row in db.read(name).to_pylist()]
        assert _sorted(found) == _sorted(expected[name]), name


def _changed(db: Any, chance: random.Random) -> None:
    """One write call of any kind."""
    kind, numbers = chance.randrange(4), [chance.randrange(60) for _ in range(chance.choice((1, 1, 3, 20)))]
    if kind == 0:
        db.delete("items", sorted(set(numbers)))
    elif kind == 1 and db.get("items", numbers[0]) is not None:
        db.update("items", numbers[0], {"price": chance.choice((None, -4, 0, 7, 12))})
    else:
        category = chance.choice(("a", "b", "c", "d", None))
        db.put("items", [_item(n, category=category, price=chance.choice((None, 0, -3, n))) for n in numbers])


def test_a_view_is_right_after_every_call(db: Any) -> None:
    for name in SYNC:
        _create(db, name)
    db.sql("CREATE INDEX by_price ON items (price) WITH (sync = true)")
    _agree(db, *SYNC, "by_price")
    chance = random.Random(11)
    for _ in range(25):
        _changed(db, chance)
        _agree(db, *SYNC, "by_price")
    db.delete("items", [row["item_id"] for row in db.read("items").to_pylist()])
    _agree(db, *SYNC, "by_price")
    assert db.read("whole").to_pylist() == [{"n": 0, "high": None}]
    db.put("items", [_item(1, price=5)])
    _agree(db, *SYNC, "by_price")


def _go(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    able, few, some = WAYS[way]
    monkeypatch.setattr(observed_writes, "_MAX_ROW_SUMS", few)
    monkeypatch.setattr(observed_writes, "_MAX_ROWS_ONE_BY_ONE", some)
    for name, does in ABLE.items():
        monkeypatch.setattr(SynchronousViews, name, does if name in able else lambda *_: None)


@pytest.mark.parametrize("way", WAYS)
def test_averages_past_2_to_the_53_are_rounded_once(db: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way rows go: the exact sum of the numbers as DOUBLEs, rounded, divided by their count."""
    _go(monkeypatch, way)
    _create(db, "means")
    chance = random.Random(53)
    edges = [2**53 + 1, 2**63 - 1, -(2**63), 2**62 + 1, -(2**53) - 1, 3, 2**54 + 2]
    for _ in range(12):
        keys = [chance.choice((chance.choice(edges), chance.randrange(-(2**63), 2**63))) for _ in range(9)]
        db.put("items", [_item(k, category=chance.choice("abc")) for k in keys])
        db.delete("items", keys[:2])
        groups: dict[str, list[int]] = {}
        for row in db.read("items").to_pylist():
            groups.setdefault(row["category"], []).append(int(float(row["item_id"])))
        expected = {c: float(sum(values)) / len(values) for c, values in groups.items()}
        assert {r["category"]: r["mean"] for r in db.read("means").to_pylist()} == expected


def test_a_view_of_nothing_has_its_row(url: str) -> None:
    with vk.open(url, durability="none") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        _create(db, "whole")
        assert db.read("whole").to_pylist() == [{"n": 0, "high": None}]


def test_a_write_that_a_view_cannot_follow_is_refused_whole(db: Any) -> None:
    with pytest.raises(EvaluationError, match="shares"):
        _create(db, "shares")  # a price is zero
    db.delete("items", [r["item_id"] for r in db.read("items").to_pylist() if r["price"] == 0])
    _create(db, "shares")
    _create(db, "huge")
    _create(db, "grouped")
    before = {name: db.read(name) for name in ("items", "shares", "grouped", "huge")}
    head = db.status().position
    with pytest.raises(EvaluationError, match=r"shares.*refused.*zero"):
        db.put("items", [_item(100, price=4), _item(101, price=0)])
    with pytest.raises(EvaluationError, match=r"huge.*refused"):
        db.put("items", [_item(100, price=2_000_000)])
    assert {name: db.read(name) for name in before} == before
    assert db.status().position == head
    db.put("items", [_item(100, price=5)])
    _agree(db, "grouped")


def test_writers_that_knew_nothing_of_it_keep_it(db: Any, url: str) -> None:
    with vk.open(url, durability="none") as other:
        other.put("items", [_item(50)])
        _create(db, "grouped")
        other.put("items", [_item(51, price=8)])
        _agree(db, "grouped")
        db.sql("DROP MATERIALIZED VIEW grouped")
        other.put("items", [_item(52, price=8)])
        _create(db, "grouped")
        _create(db, "doubles")
        other.delete("items", [50])
        _agree(db, "grouped", "doubles")


def test_another_process_keeps_it(db: Any, url: str) -> None:
    if url.startswith("rocksdb"):
        pytest.skip("RocksDB has one writer")
    _create(db, "grouped")
    _write_elsewhere(url, {})
    _agree(db, "grouped")
    assert db.get("items", 777)["price"] == 6


@pytest.mark.parametrize("point", ["write.middle", "write.kept"])
def test_a_kill_in_the_write_leaves_base_and_view_as_they_were(db: Any, url: str, point: str) -> None:
    _create(db, "grouped")
    _create(db, "categories")
    db.close()
    assert _write_elsewhere(url, {"VK_CRASH_AT": point}) != 0
    with vk.open(url) as again:
        assert again.get("items", 777) is None
        _agree(again, "grouped", "categories")
        again.put("items", [_item(777)])
        _agree(again, "grouped", "categories")


@pytest.mark.parametrize("point", ["load.1.after", "load.2.after", "view.kept"])
def test_a_kill_while_one_is_made_leaves_none(db: Any, url: str, point: str) -> None:
    db.sql("CREATE INDEX by_category ON items (category)")  # there is a batch
    db.put("items", [_item(60, price=1)])
    db.close()
    text = "from tests.contract import synchronous_plans; synchronous_plans.install(); import viewkeeper as vk;"
    text += f"vk.open({url!r}).sql('CREATE MATERIALIZED VIEW grouped WITH (sync = true) AS SELECT grouped')"
    assert _run(text, {"VK_CRASH_AT": point}) != 0
    with vk.open(url) as again:
        assert again.views() == []
        _create(again, "grouped")
        again.put("items", [_item(61, price=2)])
        _agree(again, "grouped")


def _write_elsewhere(url: str, environment: dict[str, str]) -> int:
    row = _item(777, price=6)
    return _run(f"import viewkeeper as vk; vk.open({url!r}).put('items', [{row!r}])", environment)


def _run(text: str, environment: dict[str, str]) -> int:
    root = str(Path(__file__).parents[2])
    return subprocess.run([sys.executable, "-c", text], env={**os.environ, **environment}, cwd=root).returncode


def test_a_snapshot_shows_it_where_the_batch_stands(db: Any) -> None:
    db.sql("CREATE INDEX by_category ON items (category)")
    db.put("items", [_item(60, price=5)])  # after the batch, before the view
    _create(db, "grouped")
    db.put("items", [_item(61, price=6)])
    db.delete("items", [1])
    with db.snapshot() as snapshot:
        expected = plans.recomputed(snapshot.read("items").to_pylist())
        assert _sorted(snapshot.read("grouped").to_pylist()) == _sorted(expected["grouped"])
        assert snapshot.get("items", 60) is None
    _agree(db, "grouped")
    db.refresh()
    with db.snapshot() as snapshot:
        expected = plans.recomputed(snapshot.read("items").to_pylist())
        assert _sorted(snapshot.read("grouped").to_pylist()) == _sorted(expected["grouped"])
        assert snapshot.get("items", 60) is not None


def test_subscribers_hear_of_every_call(db: Any) -> None:
    _create(db, "grouped")
    db.refresh()
    heard = db.subscribe("grouped", timeout=0.05)
    rows = {row["category"]: row for row in next(heard).rows.drop_columns(["_w"]).to_pylist()}
    chance, last = random.Random(3), None
    for _ in range(8):
        _changed(db, chance)
    for delta in heard:
        for change in delta.changes():
            assert rows.pop(change.before["category"], None) == change.before if change.before else True
            if change.after is not None:
                rows[change.after["category"]] = change.after
        last = delta.token
    assert _sorted(list(rows.values())) == _sorted(db.read("grouped").to_pylist())
    db.put("items", [_item(3, category="z", price=1)])
    later = next(db.subscribe("grouped", last, timeout=0.05))
    assert {"category": "z"}.items() <= next(c.after for c in later.changes() if c.before is None).items()


def test_views_stand_on_it_and_it_on_views(db: Any) -> None:
    _create(db, "dear")
    _create(db, "grouped")
    _create(db, "prices", "prices of dear", how="")  # batches keep this one, over one that writes keep
    _create(db, "counts", "counts of grouped")  # writes keep both
    _create(db, "batched", "grouped", how="")
    _create(db, "above", "counts of batched")  # batches keep both
    chance = random.Random(4)
    for _ in range(6):
        _changed(db, chance)
        expected = plans.recomputed(db.read("items").to_pylist())
        counts = _counted(row["n"] for row in expected["grouped"])
        assert {r["n"]: r["times"] for r in db.read("counts").to_pylist()} == counts
        with db.snapshot() as snapshot:
            below = snapshot.read("batched").to_pylist()
            assert {r["n"]: r["times"] for r in snapshot.read("above").to_pylist()} == _counted(r["n"] for r in below)
            dear = snapshot.read("dear").to_pylist()
            prices = snapshot.read("prices").to_pylist()
            assert {r["price"]: r["times"] for r in prices} == _counted(r["price"] for r in dear)
        db.refresh()
    with pytest.raises(InUse):
        db.sql("DROP MATERIALIZED VIEW dear")


def _counted(values: Any) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


def test_an_index_of_it_is_read_with_what_came_since(db: Any) -> None:
    _create(db, "grouped")
    db.sql("CREATE INDEX by_total ON grouped (total)")
    db.put("items", [_item(200, category="new", price=1_000)])
    assert [r["category"] for r in db.scan("grouped", where="total >= 1000")] == ["new"]
    db.sql("DROP MATERIALIZED VIEW grouped")
    assert db.indexes() == []


def test_one_that_was_loaded_beyond_the_first_batch_is_listed(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _create(db, "batched", "grouped", how="")
    db.refresh()
    db.put("items", [_item(n, price=1) for n in range(30, 50)])
    store, followed = db._store, []
    follow = store.catch_up_synchronous_view

    def counted(*arguments: Any) -> Any:
        followed.append(arguments)
        assert len(followed) < 5
        return follow(*arguments)

    monkeypatch.setattr(store, "catch_up_synchronous_view", counted)
    monkeypatch.setattr(store, "published_batch", lambda: None)  # as if the batch came just after it was asked for
    _create(db, "grouped")
    monkeypatch.undo()
    plans.install(monkeypatch.setattr)
    db.put("items", [_item(n, price=2) for n in range(45, 60)])
    _agree(db, "grouped")


def test_reads_never_wait_and_nobody_maintains(db: Any, url: str) -> None:
    _create(db, "grouped")
    token = db.put("items", [_item(300, category="n", price=3)])
    assert db.get("grouped", "n", after=token)["total"] == 3
    assert db.get("grouped", "n", vk.LATEST)["total"] == 3
    assert db.status().maintainer is None
    [view] = [v for v in db.status().views if v.name == "grouped"]
    assert (view.strategy, view.lag_changes, view.rows) == ("sync", 0, 4)
    assert "synchronous: kept in the transaction of each write to items" in str(db.explain("grouped"))
    assert "sync = 'true'" in db.sql("SHOW CREATE VIEW grouped").to_pylist()[0]["statement"]


def test_it_is_suspended_resumed_renamed_and_dropped(db: Any) -> None:
    _create(db, "grouped")
    before = db.read("grouped")
    db.sql("ALTER MATERIALIZED VIEW grouped SUSPEND")
    db.put("items", [_item(400, price=4)])
    assert db.read("grouped", vk.STALE) == before
    for level in (vk.ANY, vk.LATEST):
        with pytest.raises(Suspended):
            db.read("grouped", level)
    db.sql("ALTER MATERIALIZED VIEW grouped RESUME")
    _agree(db, "grouped")
    db.sql("ALTER MATERIALIZED VIEW grouped RENAME TO others")
    db.put("items", [_item(401, category="q", price=4)])
    assert db.get("others", "q")["n"] == 1
    with pytest.raises(Unsupported):
        db.sql("CREATE OR REPLACE MATERIALIZED VIEW others WITH (sync = true) AS SELECT dear")
    db.sql("DROP MATERIALIZED VIEW others")
    db.put("items", [_item(402)])
    assert db.views() == []


def test_columns_come_and_go_below_it(db: Any) -> None:
    _create(db, "grouped")
    db.sql("ALTER TABLE items ADD COLUMN note STRING")
    db.put("items", [{**_item(500, price=2), "note": "x"}])
    _agree(db, "grouped")
    db.sql("ALTER TABLE items DROP COLUMN note")
    db.put("items", [_item(501, price=2)])
    _agree(db, "grouped")


def test_what_no_write_can_keep_is_refused_by_name(db: Any) -> None:
    with pytest.raises(Unsupported, match=r"cannot be synchronous.*beside those of the write"):
        _create(db, "joined")
    with pytest.raises(Unsupported):
        _create(db, "grouped", how="sync = true, store = 'none'")
    with pytest.raises(Unsupported):
        _create(db, "grouped", how="sync = true, strategy = 'SN'")
    with pytest.raises(vk.ViewkeeperError, match="true or false"):
        _create(db, "grouped", how="sync = maybe")
    assert db.views() == []


def test_a_store_of_atomic_rows_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.install(monkeypatch.setattr)
    with databases("hbase", tmp_path) as make:
        db = make()
        db.sql(planned.TABLES[0])
        with pytest.raises(Unsupported, match="each row atomic by itself"):
            _create(db, "grouped")
        with pytest.raises(Unsupported, match="each row atomic by itself"):
            db.sql("CREATE INDEX by_price ON items (price) WITH (sync = true)")
        assert db.views() == []


def test_few_rows_and_many_leave_the_same_bytes(db: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way rows go through a view, what lies in the store afterwards is the same."""
    with ExitStack() as stack:
        names = ("second", "third", "fourth")
        others = [stack.enter_context(vk.open(url.replace("shop", name), durability="none")) for name in names]
        for other in others:
            for statement in planned.TABLES:
                other.sql(statement)
            other.put("items", [_item(n) for n in range(40)])
        for one in (db, *others):
            for name in (*SYNC, "means"):
                _create(one, name)
            one.sql("CREATE INDEX by_price ON items (price DESC) INCLUDE (category) WITH (sync = true)")
        for seed in range(12):
            for one, way in zip((db, *others), WAYS, strict=True):
                _go(monkeypatch, way)
                _changed(one, random.Random(seed))
            stored = _stored(db)
            for other in others:
                assert _stored(other) == stored, seed


def _stored(db: Any) -> dict[int, list[bytes]]:
    """The bytes of all rows, those of the views' state too."""
    numbers = sorted(db._store.catalog().stored_table_ids)
    with db._store._handle.read(numbers) as state:
        return {n: [row for rows in state.rows(n).scan(None, None, None) for row in rows.to_pylist()] for n in numbers}
