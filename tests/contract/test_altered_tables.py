"""Tables that change under rows, views and readers, on every store. No JVM starts: plans were read once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract import planned
from tests.contract.conftest import MARKS, STORES, planned_shop
from tests.contract.planned import TOTALS

from viewkeeper.errors import BadStatement, BadValue, InUse, UnknownName, Unsupported

USUAL = ("lmdb", "rocksdb", "atomic rows only")
OTHERS = [name for name in STORES if name not in (*USUAL, "lmdb without a past")]  # which cannot be scanned at a cut
KINDS = [*USUAL, *(pytest.param(n, marks=[*MARKS.get(n, ()), pytest.mark.deep]) for n in OTHERS)]


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """items 0, 1 and 2 in the categories a, b and c, and the view totals."""
    with planned_shop(request, tmp_path, monkeypatch) as db:
        planned.fill(db, 3, "totals")
        yield db


def column(db: Any, name: str) -> dict[int, Any]:
    """A column of items by key, the same whether read whole, by key or for this column alone."""
    whole = {row["item_id"]: row[name] for row in db.read("items").to_pylist()}
    assert {number: db.get("items", number)[name] for number in whole} == whole
    assert {row["item_id"]: row[name] for row in db.scan("items", columns=["item_id", name])} == whole
    return whole


def index_rows(db: Any, name: str) -> dict[int, Any]:
    db.refresh()
    return {row["item_id"]: row["stars"] for row in db.read(name).to_pylist()}


# -- ADD COLUMN … DEFAULT ----------------------------------------------------------------------------------------------


def test_rows_that_are_there_show_the_default_of_an_added_column(shop: Any) -> None:
    shop.sql("ALTER TABLE items ADD COLUMN stars INT NOT NULL DEFAULT 3")
    assert column(shop, "stars") == {0: 3, 1: 3, 2: 3}
    shop.sql("ALTER TABLE items ALTER COLUMN stars SET DEFAULT 5")  # for rows that come; those that are there keep 3
    shop.put("items", planned.item(3))
    shop.put("items", {**planned.item(1), "stars": 9})
    assert column(shop, "stars") == {0: 3, 1: 9, 2: 3, 3: 5}
    with pytest.raises(BadValue, match="stars"):
        shop.put("items", {**planned.item(0), "stars": None})
    shop.refresh()
    planned.check(shop)


def test_null_is_another_value_than_the_default_that_was_there_before(shop: Any) -> None:
    shop.sql("ALTER TABLE items ADD COLUMN note STRING DEFAULT 'none'")
    shop.sql("ALTER TABLE items ADD COLUMN more STRING DEFAULT 'x'")
    shop.put("items", {**planned.item(0), "note": None})
    shop.update("items", 1, {"note": None})
    shop.update("items", 2, {"price": 8})
    assert column(shop, "note") == {0: None, 1: None, 2: "none"}
    shop.update("items", 0, {"note": "zero"})
    shop.update("items", 1, {"note": "one"})
    shop.update("items", 1, {"note": None})
    assert column(shop, "note") == {0: "zero", 1: None, 2: "none"}
    assert column(shop, "more") == {0: "x", 1: "x", 2: "x"}
    shop.refresh()
    planned.check(shop)


def test_a_view_that_is_made_later_reads_the_default_of_old_rows_and_follows_their_changes(shop: Any) -> None:
    shop.sql("ALTER TABLE items ADD COLUMN stars INT DEFAULT 3")
    shop.put("items", {**planned.item(3), "stars": 4})
    shop.sql("CREATE INDEX by_stars ON items (stars)")
    assert index_rows(shop, "by_stars") == {0: 3, 1: 3, 2: 3, 3: 4}
    shop.update("items", 0, {"stars": None})
    shop.put("items", planned.item(1, price=9))
    shop.delete("items", 2)
    assert index_rows(shop, "by_stars") == {0: None, 1: 3, 3: 4}
    planned.check(shop)


def test_a_column_that_is_added_between_write_and_batch(shop: Any) -> None:
    """The log has rows of both shapes."""
    shop.put("items", planned.item(0, price=6))
    shop.sql("ALTER TABLE items ADD COLUMN stars INT DEFAULT 3")
    shop.update("items", 0, {"price": 7})
    shop.put("items", {**planned.item(4), "stars": 1})
    shop.delete("items", 1)
    shop.refresh()
    planned.check(shop)
    assert column(shop, "stars") == {0: 3, 2: 3, 4: 1}


def test_defaults_of_every_type(shop: Any) -> None:
    added = {
        "b BOOLEAN DEFAULT true": True,
        "t TINYINT DEFAULT -1": -1,
        "g BIGINT DEFAULT 5000000000": 5_000_000_000,
        "f FLOAT DEFAULT 0.1": pytest.approx(0.1),
        "d DOUBLE DEFAULT 1e-7": 1e-7,
        "n DECIMAL(5,2) DEFAULT 1.5": Decimal("1.50"),
        "w DECIMAL(38,2) DEFAULT -1.5": Decimal("-1.50"),
        "s STRING DEFAULT 'it''s'": "it's",
        "x BINARY DEFAULT X'0aff'": b"\x0a\xff",
        "e DATE DEFAULT DATE '2024-02-29'": date(2024, 2, 29),
        "z TIMESTAMP DEFAULT TIMESTAMP '2020-01-02 03:04:05'": datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
        "y TIMESTAMP_NTZ DEFAULT TIMESTAMP_NTZ '2020-01-02 03:04:05'": datetime(2020, 1, 2, 3, 4, 5),
    }
    for text in added:
        shop.sql(f"ALTER TABLE items ADD COLUMN {text}")
    for text, value in added.items():
        assert column(shop, text.split()[0]) == {0: value, 1: value, 2: value}
    shop.put("items", planned.item(0))
    assert shop.get("items", 0) == {**shop.get("items", 1), **planned.item(0)}


def test_what_cannot_be_added_changes_nothing(shop: Any) -> None:
    before = shop._store.catalog()
    for text in ("stars INT NOT NULL", "stars INT NOT NULL DEFAULT NULL", "stars INT DEFAULT 'many'"):
        with pytest.raises(BadStatement):
            shop.sql(f"ALTER TABLE items ADD COLUMN {text}")
    assert shop._store.catalog() == before


# -- names under views -------------------------------------------------------------------------------------------------


def created(db: Any, view: str) -> str:
    (text,) = db.sql(f"SHOW CREATE VIEW {view}")["statement"].to_pylist()
    return str(text).partition(" AS\n")[2]


def test_a_column_is_renamed_under_a_view(shop: Any) -> None:
    epoch = shop.status().epoch
    shop.sql("ALTER TABLE items RENAME COLUMN price TO cost")
    assert shop.status().epoch == epoch, "no view was loaded again"
    shop.put("items", {"item_id": 0, "category": "a", "cost": 7})
    shop.refresh()
    assert shop.get("totals", "a") == {"category": "a", "n": 1, "total": 7}
    assert created(shop, "totals") == TOTALS.replace("price", "cost")
    with pytest.raises(BadValue, match=r"items has no column 'price'\. It is called cost now\."):
        shop.put("items", planned.item(1))
    with pytest.raises(BadValue, match="It is called cost now"):
        shop.update("items", 1, {"price": 3})
    shop.sql("ALTER TABLE items ADD COLUMN price INT DEFAULT 100")  # another column, which the view does not mean
    shop.put("items", {"item_id": 0, "category": "a", "cost": 8, "price": 1})
    shop.refresh()
    assert shop.get("totals", "a") == {"category": "a", "n": 1, "total": 8}
    assert created(shop, "totals") == (
        f"WITH `items` AS (SELECT `item_id`, `category`, `cost` AS `price` FROM `items`)\n{TOTALS}"
    )


def test_a_table_is_renamed_under_a_view(shop: Any) -> None:
    shop.sql("ALTER TABLE items RENAME TO goods")
    shop.sql("CREATE TABLE items (item_id BIGINT, category STRING, price INT, PRIMARY KEY (item_id))")
    shop.put("goods", planned.item(0, price=7))
    shop.put("items", planned.item(0, price=1_000))
    shop.refresh()
    assert shop.get("totals", "a") == {"category": "a", "n": 1, "total": 7}
    assert created(shop, "totals") == TOTALS.replace("items", "goods")
    shop.sql("DROP TABLE items")
    shop.sql("ALTER TABLE goods RENAME TO items")
    assert created(shop, "totals") == TOTALS
    shop.sql("ALTER TABLE items RENAME TO things")
    with pytest.raises(UnknownName, match=r"no table or view 'items'\. It is called things now\."):
        shop.put("items", planned.item(0))


# -- DROP COLUMN … CASCADE ---------------------------------------------------------------------------------------------


def test_a_column_is_dropped_with_what_uses_it_by_word_only(shop: Any) -> None:
    planned.create(shop, "bosses")
    shop.sql("CREATE INDEX by_price ON items (price)")
    shop.sql("CREATE INDEX by_total ON totals (total)")
    shop.sql("CREATE INDEX by_category ON items (category)")
    with pytest.raises(InUse, match=r"items\.price is used by bosses, by_price, totals\..*CASCADE"):
        shop.sql("ALTER TABLE items DROP COLUMN price")
    with pytest.raises(InUse, match="key"):
        shop.sql("ALTER TABLE items DROP COLUMN item_id CASCADE")
    assert [v.name for v in shop.views()] == ["bosses", "totals"], "what is refused has dropped nothing"
    shop.sql("ALTER TABLE items DROP COLUMN price CASCADE")
    assert [v.name for v in shop.views()] == []
    assert shop.sql("SHOW INDEXES")["name"].to_pylist() == ["by_category"]
    shop.put("items", {"item_id": 9, "category": "z"})
    shop.refresh()
    assert shop.get("items", 9) == {"item_id": 9, "category": "z"}
    assert shop.read("by_category").num_rows == 4
    shop.sql("ALTER TABLE items DROP COLUMN IF EXISTS price CASCADE")


# -- ALTER COLUMN … TYPE -----------------------------------------------------------------------------------------------


WIDER = {
    ("TINYINT", -5): ("SMALLINT", -5, 30_000),
    ("SMALLINT", 7): ("INT", 7, -70_000),
    ("INT", -1): ("BIGINT", -1, 5_000_000_000),
    ("FLOAT", 0.5): ("DOUBLE", 0.5, 1e-300),
    ("DECIMAL(5,2)", Decimal("1.50")): ("DECIMAL(9,4)", Decimal("1.5000"), Decimal("12345.0001")),
    ("DECIMAL(18,2)", Decimal("-2.25")): ("DECIMAL(38,3)", Decimal("-2.250"), Decimal(10) ** 30),
    ("DATE", date(1969, 12, 31)): (
        "TIMESTAMP",
        datetime(1969, 12, 31, tzinfo=UTC),
        datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    ),
    ("DATE ", date(2024, 2, 29)): ("TIMESTAMP_NTZ", datetime(2024, 2, 29), datetime(2024, 2, 29, 12, 30)),
}


def test_a_wider_type_leaves_values_as_they_are_and_takes_wider_ones(shop: Any) -> None:
    columns = [f"c{at} {narrow} {'DEFAULT ' + default if default else ''}" for at, ((narrow, _), default) in enumerate(
        zip(WIDER, ("3", "", "", "", "9.75", "", "DATE '2020-01-02'", ""), strict=True)
    )]  # fmt: skip
    for column_ in columns:
        shop.sql(f"ALTER TABLE items ADD COLUMN {column_}")
    narrow = {f"c{at}": value for at, (_, value) in enumerate(WIDER)}
    shop.put("items", [{**planned.item(0), **narrow}, {**planned.item(1), **dict.fromkeys(narrow)}])
    shop.refresh()
    for at, (type_, *_) in enumerate(WIDER.values()):
        shop.sql(f"ALTER TABLE items ALTER COLUMN c{at} TYPE {type_}")
    shop.put("items", {**planned.item(3), **{f"c{at}": new for at, (_, _, new) in enumerate(WIDER.values())}})
    initial = {0: 3, 4: Decimal("9.7500"), 6: datetime(2020, 1, 2, tzinfo=UTC)}
    for at, (_, same, new) in enumerate(WIDER.values()):
        assert column(shop, f"c{at}") == {0: same, 1: None, 2: initial.get(at), 3: new}
    shop.update("items", 0, {"price": 6})
    shop.refresh()
    planned.check(shop)
    assert shop.read("items").column_names == ["item_id", "category", "price", *narrow], "in their order"
    shop.sql("CREATE INDEX wide ON items (c2)")
    assert {r["item_id"]: r["c2"] for r in shop.read("wide").to_pylist()} == column(shop, "c2")


def test_a_type_is_widened_twice_and_between_write_and_batch(shop: Any) -> None:
    shop.sql("ALTER TABLE items ADD COLUMN stars TINYINT DEFAULT 1")
    shop.put("items", {**planned.item(0), "stars": 2})
    shop.sql("ALTER TABLE items ALTER COLUMN stars TYPE INT")
    shop.put("items", {**planned.item(1), "stars": 1_000})
    shop.sql("ALTER TABLE items RENAME COLUMN stars TO points")
    shop.sql("ALTER TABLE items ALTER points SET DATA TYPE BIGINT")
    shop.update("items", 2, {"points": 10**12})
    shop.put("items", planned.item(3))
    assert column(shop, "points") == {0: 2, 1: 1_000, 2: 10**12, 3: 1}
    shop.refresh()
    planned.check(shop)
    shop.sql("ALTER TABLE items DROP COLUMN points")
    shop.sql("ALTER TABLE items ADD COLUMN stars STRING")
    assert column(shop, "stars") == dict.fromkeys(range(4))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ("price TYPE SMALLINT", Unsupported, "INT, which is not changed to SMALLINT"),
        ("price TYPE STRING", Unsupported, "not changed to STRING"),
        ("price TYPE DOUBLE", Unsupported, "not changed to DOUBLE"),
        ("category TYPE BINARY", Unsupported, "not changed to BINARY"),
        ("price TYPE", BadStatement, "no type"),
        ("price NULLABLE", BadStatement, "by TYPE, SET DEFAULT or DROP DEFAULT, not by 'NULLABLE'"),
        ("none TYPE BIGINT", UnknownName, "no column"),
    ],
)
@pytest.mark.parametrize("shop", ["lmdb"], indirect=True)
def test_what_is_no_wider_type_is_refused(shop: Any, change: str, error: type, words: str) -> None:
    before = shop._store.catalog()
    with pytest.raises(error, match=words):
        shop.sql(f"ALTER TABLE items ALTER COLUMN {change}")
    assert shop._store.catalog() == before


@pytest.mark.parametrize("shop", ["lmdb"], indirect=True)
def test_what_is_not_planned_again_is_named(shop: Any) -> None:
    shop.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
    shop.sql("CREATE INDEX by_v ON t (v)")
    with pytest.raises(InUse, match=r"t\.v is used by by_v"):
        shop.sql("ALTER TABLE t ALTER COLUMN v TYPE BIGINT")
    with pytest.raises(InUse, match="key of t"):
        shop.sql("ALTER TABLE t ALTER COLUMN k TYPE BIGINT")
    shop.sql("ALTER TABLE t ALTER COLUMN v TYPE INT")  # it is


# -- changes while views are loaded, and by processes that do not know of them -----------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        ["items ADD COLUMN stars INT DEFAULT 3"],
        ["items RENAME COLUMN price TO cost", "items ADD COLUMN price STRING"],
        ["items RENAME TO goods"],
        ["items ADD COLUMN stars INT", "items ALTER COLUMN stars TYPE BIGINT", "items DROP COLUMN stars"],
    ],
)
def test_a_table_is_altered_while_a_view_over_it_is_loaded(shop: Any, changes: list[str]) -> None:
    left = list(changes)

    def alter(what: str, done: int, expected: int) -> None:
        while left:
            shop.sql(f"ALTER TABLE {left.pop(0)}")

    shop._progress = alter
    shop.sql(f"CREATE MATERIALIZED VIEW sums AS {TOTALS}")
    assert left == []
    shop.delete("goods" if "goods" in changes[0] else "items", 0)
    shop.refresh()
    assert shop.read("sums").to_pylist() == shop.read("totals").to_pylist()
    assert {r["category"]: r["total"] for r in shop.read("sums").to_pylist()} == {"b": 5, "c": 5}
    assert created(shop, "sums") == created(shop, "totals")


def test_a_process_that_looked_the_table_up_before_writes_and_reads_rows_of_its_shape(shop: Any) -> None:
    shop.sql("ALTER TABLE items ADD COLUMN stars INT")
    old = shop._store.catalog().table("items")
    shop.sql("ALTER TABLE items ALTER COLUMN stars TYPE BIGINT")
    shop.sql("ALTER TABLE items ADD COLUMN note STRING DEFAULT 'none'")
    shop.sql("ALTER TABLE items RENAME COLUMN price TO cost")
    rows = pa.table([[7], ["a"], [2], [4]], schema=old.arrow)
    shop._store.write(old, rows, rows.select(["item_id"]).slice(0, 0))
    shop.put("items", {"item_id": 8, "category": "b", "cost": 1, "stars": 9, "note": "new"})
    assert shop.get("items", 7) == {"item_id": 7, "category": "a", "cost": 2, "stars": 4, "note": "none"}
    assert shop._store.get(old, (8,)) == {"item_id": 8, "category": "b", "price": 1, "stars": 9}
    found = pa.Table.from_batches(list(shop._store.scan(old, ["item_id", "stars"])))
    assert dict(zip(*found.to_pydict().values(), strict=True)) == {0: None, 1: None, 2: None, 7: 4, 8: 9}
    shop.refresh()
    assert shop.get("totals", "a") == {"category": "a", "n": 2, "total": 7}
