"""What a write call leaves at hand of a synchronous view is used by the next one only while it is true."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract import synchronous_plans as plans

import viewkeeper as vk
from viewkeeper import failpoints
from viewkeeper.errors import EvaluationError
from viewkeeper.operators.aggregation import row_sums

VIEWS = ("sums", "means", "huge")


@pytest.fixture(params=["lmdb", "rocksdb"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    plans.install(monkeypatch.setattr)
    return f"{request.param}:{tmp_path / 'shop'}"


@pytest.fixture
def db(url: str) -> Iterator[Any]:
    with vk.open(url, durability="none") as found:
        for statement in planned.TABLES:
            found.sql(statement)
        found.put("items", [_item(n, "abc"[n % 3], n) for n in range(9)])
        found.sql("CREATE MATERIALIZED VIEW sums WITH (sync = true) AS SELECT sums")
        yield found


def _item(n: int, category: str | None, price: int | None) -> dict[str, Any]:
    return {"item_id": n, "category": category, "price": price}


def _shown(db: Any) -> list[dict[str, Any]]:
    return sorted(db.read("sums").to_pylist(), key=str)


def _agrees(db: Any) -> None:
    assert _shown(db) == sorted(plans.recomputed(db.read("items").to_pylist())["sums"], key=str)


def test_two_handles_write_by_turns(db: Any, url: str) -> None:
    chance = random.Random(3)
    with vk.open(url, durability="none") as other:
        for _ in range(40):
            one = chance.choice((db, db, other))
            numbers = [chance.randrange(12) for _ in range(chance.choice((1, 4)))]
            if chance.random() < 0.3:
                one.delete("items", sorted(set(numbers)))
            else:
                one.put("items", [_item(n, chance.choice("abcd"), chance.choice((None, n))) for n in numbers])
            _agrees(db)


def test_a_write_that_fails_leaves_nothing(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    db.put("items", [_item(1, "a", 5)])
    before = _shown(db)
    with monkeypatch.context() as failing:

        def fails(name: str) -> None:
            if name == "write.kept":
                raise OSError("The disk is full.")

        failing.setattr(failpoints, "hit", fails)
        with pytest.raises(OSError, match="full"):
            db.put("items", [_item(1, "a", 500), _item(20, "new", 1)])
    assert _shown(db) == before
    db.put("items", [_item(2, "a", 7), _item(21, "new", 2)])
    _agrees(db)


def test_a_view_that_refuses_leaves_the_other_as_it_was(db: Any) -> None:
    db.sql("CREATE MATERIALIZED VIEW shares WITH (sync = true) AS SELECT shares") if _no_zero(db) else None
    db.put("items", [_item(3, "b", 4)])
    with pytest.raises(EvaluationError):
        db.put("items", [_item(3, "b", 0)])
    db.put("items", [_item(4, "b", 9)])
    _agrees(db)


def _no_zero(db: Any) -> bool:
    db.delete("items", [r["item_id"] for r in db.read("items").to_pylist() if r["price"] == 0])
    return True


def test_a_view_that_was_made_anew_is_looked_up_again(db: Any) -> None:
    db.put("items", [_item(1, "a", 5)])
    db.sql("ALTER MATERIALIZED VIEW sums SUSPEND")
    db.put("items", [_item(2, "a", 50)])
    db.sql("ALTER MATERIALIZED VIEW sums RESUME")
    db.put("items", [_item(3, "a", 6)])
    _agrees(db)


def test_a_column_that_is_added_changes_nothing(db: Any) -> None:
    db.put("items", [_item(1, "a", 5)])
    db.sql("ALTER TABLE items ADD COLUMN note STRING")
    db.put("items", [_item(1, "b", 6) | {"note": "new"}, _item(2, "a", 8)])
    _agrees(db)
    db.put("items", [_item(1, None, None), _item(2, "a", 9)])
    _agrees(db)


def test_no_more_than_some_stay(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sums, "_MAX_CACHED_GROUPS", 3)
    monkeypatch.setattr(row_sums, "_MAX_CACHED_BYTES", 30)
    for turn in range(6):
        names = [f"{'long' * 9 if n % 2 else 'g'}{n + turn}" for n in range(5)]
        db.put("items", [_item(n, name, n) for n, name in enumerate(names)])
        _agrees(db)
        position, left = db._store.table_store._carried_state._last
        assert position == db._store.head()
        assert all(len(groups) <= 10 and not any("long" in str(g) for g in groups) for groups in left.values())
