"""Columns that come and go, without a view's help: rows, snapshots, subscriptions and updates agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.planned import TABLES, TOTALS

import viewkeeper as vk
from viewkeeper import faults
from viewkeeper.errors import BadValue, InUse


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'shop'}") as db:
        for statement in TABLES:
            db.sql(statement)
        db.sql("ALTER TABLE items ADD COLUMN stars INT")
        db.put("items", [{"item_id": n, "category": "a", "price": 1, "stars": n} for n in range(3)])
        db.sql(f"CREATE MATERIALIZED VIEW totals AS {TOTALS}")
        yield db


def test_a_subscriber_sees_no_change_of_a_column_that_is_gone(shop: Any) -> None:
    since = shop.token("items")
    shop.update("items", 0, {"stars": 5})
    shop.update("items", 1, {"price": 7, "stars": 5})
    shop.sql("ALTER TABLE items DROP COLUMN stars")
    shop.delete("items", 2)
    changes = [c for d in shop.subscribe("items", since, timeout=0.1) for c in d.changes()]
    assert [(c.before, c.after) for c in changes] == [
        ({"item_id": 1, "category": "a", "price": 1}, {"item_id": 1, "category": "a", "price": 7}),
        ({"item_id": 2, "category": "a", "price": 1}, None),
    ]


def test_rows_of_every_time_are_read_updated_and_counted(shop: Any) -> None:
    with shop.snapshot() as s:
        shop.sql("ALTER TABLE items DROP COLUMN stars")
        shop.sql("ALTER TABLE items ADD COLUMN Stars STRING")
        shop.put("items", {"item_id": 1, "category": "a", "price": 1, "stars": "***"})
        assert s.read("items")["stars"].to_pylist() == [0, 1, 2]
    assert shop.read("items")["Stars"].to_pylist() == [None, "***", None]
    shop.update("items", 0, {"price": 3})
    assert shop.get("items", 0) == {"item_id": 0, "category": "a", "price": 3, "Stars": None}
    assert [row["Stars"] for row in shop.scan("items")] == [None, "***", None]
    shop.refresh()
    assert shop.get("totals", "a") == {"category": "a", "n": 3, "total": 5}
    assert shop.sql("DESCRIBE items")["type"].to_pylist() == ["bigint", "string", "int", "string"]


def test_what_is_in_use_stays(shop: Any) -> None:
    with pytest.raises(InUse, match=r"items\.price is used by totals\."):
        shop.sql("ALTER TABLE items DROP COLUMN price")
    with pytest.raises(InUse, match="key"):
        shop.sql("ALTER TABLE items DROP COLUMN item_id")
    shop.sql("ALTER TABLE items DROP COLUMN stars")
    with pytest.raises(BadValue, match="stars"):
        shop.put("items", {"item_id": 9, "stars": 1})
    shop.refresh()
    assert shop.get("totals", "a")["n"] == 3


def test_a_column_that_is_added_while_a_batch_begins_is_no_damage(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch has looked the table up; then another process adds a column and writes rows that have it."""
    original = faults.point

    def point(name: str) -> None:
        original(name)
        if name == "commit.1.before":
            monkeypatch.setattr(faults, "point", original)
            with vk.open(shop._store.url) as other:
                other.sql("ALTER TABLE items ADD COLUMN colour STRING")
                other.put("items", {"item_id": 7, "category": "a", "price": 5, "stars": 1, "colour": "red"})

    shop.put("items", {"item_id": 6, "category": "a", "price": 2, "stars": 1})
    monkeypatch.setattr(faults, "point", point)
    report = shop.refresh()
    assert report.mended == ()
    assert report.changes == 2
    assert shop.get("totals", "a") == {"category": "a", "n": 5, "total": 10}
    assert {f.check: f.ok for f in shop.doctor().findings}.get("mended") is None
