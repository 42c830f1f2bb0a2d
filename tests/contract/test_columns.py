"""Columns that come and go, without a view's help: rows, snapshots, subscriptions and updates agree."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract import planned
from tests.contract.planned import TABLES, TOTALS

import viewkeeper as vk
from viewkeeper import failpoints
from viewkeeper.errors import BadStatement, BadValue, InUse, NameTaken, UnknownName


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
    original = failpoints.hit

    def point(name: str) -> None:
        original(name)
        if name == "commit.1.before":
            monkeypatch.setattr(failpoints, "hit", original)
            with vk.open(shop._store.url) as other:
                other.sql("ALTER TABLE items ADD COLUMN colour STRING")
                other.put("items", {"item_id": 7, "category": "a", "price": 5, "stars": 1, "colour": "red"})

    shop.put("items", {"item_id": 6, "category": "a", "price": 2, "stars": 1})
    monkeypatch.setattr(failpoints, "hit", point)
    report = shop.refresh()
    assert report.mended == ()
    assert report.changes == 2
    assert shop.get("totals", "a") == {"category": "a", "n": 5, "total": 10}
    assert {f.check: f.ok for f in shop.doctor().findings}.get("mended") is None


# -- names and defaults ------------------------------------------------------------------------------------------------


def test_a_renamed_table_and_column_keep_their_rows(shop: Any) -> None:
    shop.sql("ALTER TABLE items RENAME COLUMN stars TO `number of stars`")
    shop.sql("ALTER TABLE kinds RENAME TO sorts")
    shop.put("sorts", {"category": "a", "boss": "B"})
    shop.sql("ALTER TABLE items ADD COLUMN stars STRING")  # the old name is free, and shows no old value
    shop.put("items", {"item_id": 3, "category": "b", "price": 2, "number of stars": 9, "stars": "new"})
    assert shop.read("items")["number of stars"].to_pylist() == [0, 1, 2, 9]
    assert shop.read("items")["stars"].to_pylist() == [None, None, None, "new"]
    assert shop.get("sorts", "a") == {"category": "a", "boss": "B"}
    shop.refresh()
    assert shop.get("totals", "b") == {"category": "b", "n": 1, "total": 2}
    with pytest.raises(UnknownName):
        shop.read("kinds")


def test_a_key_column_is_renamed_with_its_key(shop: Any) -> None:
    shop.sql("ALTER TABLE kinds RENAME COLUMN category TO kind")
    shop.put("kinds", {"kind": "x", "boss": "y"})
    assert shop.get("kinds", "x") == {"kind": "x", "boss": "y"}
    shop.delete("kinds", "x")
    assert shop.read("kinds").num_rows == 0


def test_a_renamed_view_goes_on(shop: Any) -> None:
    shop.sql("ALTER MATERIALIZED VIEW totals RENAME TO sums")
    shop.put("items", {"item_id": 3, "category": "b", "price": 2})
    shop.refresh()
    assert shop.get("sums", "b") == {"category": "b", "n": 1, "total": 2}
    assert [h.name for h in shop.views()] == ["sums"]


@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        ("ALTER TABLE kinds RENAME TO totals", NameTaken, "in use"),
        ("ALTER TABLE kinds RENAME COLUMN boss TO category", NameTaken, "already"),
        ("ALTER TABLE kinds RENAME COLUMN none TO some", UnknownName, "no column"),
        ("ALTER TABLE totals RENAME TO sums", BadValue, "materialized view"),
        ("ALTER MATERIALIZED VIEW kinds RENAME TO sorts", UnknownName, "is a table"),
        ("ALTER TABLE items ALTER COLUMN price SET DEFAULT 'dear'", BadStatement, "no INT"),
        ("ALTER TABLE items ALTER COLUMN price SET DEFAULT 1 + 1", BadStatement, "more than"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(shop: Any, statement: str, error: type, words: str) -> None:
    before = shop._store.catalog()
    with pytest.raises(error, match=words):
        shop.sql(statement)
    assert shop._store.catalog() == before


def test_a_default_is_for_rows_that_do_not_name_the_column(shop: Any) -> None:
    shop.sql("CREATE TABLE d (k INT, n INT DEFAULT -5, s STRING NOT NULL DEFAULT 'it''s', e DATE, PRIMARY KEY (k))")
    shop.put("d", [{"k": 1}, {"k": 2, "n": None, "s": "x"}])
    shop.put("d", pa.table({"k": [3]}))
    shop.sql("ALTER TABLE d ALTER COLUMN n DROP DEFAULT")
    shop.sql("ALTER TABLE d ALTER e SET DEFAULT DATE '2024-02-29'")
    shop.put("d", {"k": 4, "S": "y"})
    assert [tuple(row.values()) for row in shop.scan("d")] == [
        (1, -5, "it's", None),
        (2, None, "x", None),
        (3, -5, "it's", None),
        (4, None, "y", date(2024, 2, 29)),
    ]


def test_show_create_gives_the_statement_that_makes_it_again(shop: Any) -> None:
    shop.sql(
        "CREATE TABLE `o``dd` (k INT, b STRING DEFAULT 'a\\\\b''c', f DOUBLE DEFAULT 1.5e-7, n DOUBLE DEFAULT 'NaN',"
        " d DECIMAL(5,2) DEFAULT 1.5, g BOOLEAN DEFAULT TRUE, h BINARY DEFAULT X'0aFF',"
        " w TIMESTAMP DEFAULT TIMESTAMP '2020-01-02 03:04:05', PRIMARY KEY (k))"
    )
    (text,) = shop.sql("SHOW CREATE TABLE `o``dd`")["statement"].to_pylist()
    shop.put("o`dd", {"k": 1})
    shop.sql("DROP TABLE `o``dd`")
    shop.sql(text)
    assert shop.sql("SHOW CREATE TABLE `o``dd`")["statement"].to_pylist() == [text]
    shop.put("o`dd", {"k": 1})
    assert shop.get("o`dd", 1)["b"] == "a\\b'c"
    (view,) = shop.sql("SHOW CREATE VIEW totals")["statement"].to_pylist()
    shop.sql("DROP MATERIALIZED VIEW totals")
    shop.sql(view)
    assert shop.get("totals", "a") == {"category": "a", "n": 3, "total": 3}


def test_a_table_shows_itself_in_a_notebook(shop: Any) -> None:
    shop.put("items", {"item_id": 9, "category": "<script>", "price": 1})
    (items, kinds) = shop.tables()
    assert (items.name, items.key, kinds.is_view) == ("items", ("item_id",), False)
    page = items._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "item_id" in repr(items)
    assert shop.table("TOTALS").get("a")["n"] == 3
    assert "totals" in shop.status()._repr_html_()
    assert shop.explain("totals")._repr_svg_().startswith("<svg")
