"""The Spark data source: reads, streams of changes, and writes that happen once."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import viewkeeper
from viewkeeper.spark import register

ITEMS = """CREATE TABLE items (shop STRING, id BIGINT, price DECIMAL(8,2), day DATE, seen TIMESTAMP, note STRING,
           PRIMARY KEY (shop, id))"""
VIEW = "SELECT shop, count(*) AS n, sum(price) AS total FROM items GROUP BY shop"


@pytest.fixture
def source(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"lmdb:{tmp_path / 'db'}"


@pytest.fixture
def shop(source: Any, url: str) -> Iterator[Any]:
    with viewkeeper.open(url, spark=source) as db:
        db.sql(ITEMS)
        db.put("items", [item(shop, i) for shop in "abc" for i in range(200)])
        db.sql(f"CREATE MATERIALIZED VIEW by_shop AS {VIEW}")
        yield db


def item(shop: str, i: int, price: str = "1.50") -> dict[str, Any]:
    seen = datetime.datetime(2024, 2, 29, 12, 0, i % 60, tzinfo=datetime.UTC)
    return {"shop": shop, "id": i, "price": price, "day": "2024-02-29", "seen": seen, "note": None}


def read(spark: Any, url: str, table: str, **options: str) -> Any:
    return spark.read.format("viewkeeper").options(db=url, table=table, **options).load()


# -- read --------------------------------------------------------------------------------------------------------------


def test_read_gives_the_rows_and_types_of_the_table(source: Any, shop: Any, url: str) -> None:
    frame = read(source, url, "items", partitions="4")
    assert frame.dtypes[:5] == [
        ("shop", "string"),
        ("id", "bigint"),
        ("price", "decimal(8,2)"),
        ("day", "date"),
        ("seen", "timestamp"),
    ]
    assert frame.rdd.getNumPartitions() == 4
    expected = sorted(shop.read("items").select(["shop", "id", "price"]).to_pylist(), key=str)
    assert sorted((r.asDict() for r in frame.select("shop", "id", "price").collect()), key=str) == expected
    assert read(source, url, "by_shop").orderBy("shop").first().asDict() == {
        "shop": "a",
        "n": 200,
        "total": Decimal("300.00"),
    }


def test_columns_are_pruned_on_request(source: Any, shop: Any, url: str) -> None:
    assert read(source, url, "items", columns="id, price").columns == ["id", "price"]
    mine = source.read.format("viewkeeper").schema("price decimal(8,2)").options(db=url, table="items").load()
    assert mine.groupBy().sum("price").first()[0] == Decimal("900.00")


def test_filters_on_the_key_are_pushed_down(source: Any, shop: Any, url: str) -> None:
    frame = read(source, url, "items", partitions="6")
    all_of_b = frame.where("shop = 'b' AND id >= 10 AND id < 15")
    assert sorted(r.id for r in all_of_b.collect()) == [10, 11, 12, 13, 14]
    # Fewer key ranges are planned: the others hold no such key.
    assert all_of_b.rdd.getNumPartitions() < 6
    assert frame.where("shop IN ('a', 'b')").count() == 400
    assert frame.where("shop > 'b'").count() == 200
    assert frame.where("id = 7").count() == 3


def test_a_read_is_one_state_whatever_is_written_meanwhile(source: Any, shop: Any, url: str) -> None:
    position = str(shop.status().position)
    frame = read(source, url, "items", partitions="3", at=position)
    shop.delete("items", [("a", i) for i in range(100)])
    shop.put("items", item("b", 3, "9.99"))
    assert frame.count() == 600
    assert frame.where("shop = 'b' AND id = 3").first().price == Decimal("1.50")
    assert read(source, url, "items").count() == 500


def test_a_bag_view_repeats_its_rows(source: Any, shop: Any, url: str) -> None:
    shop.sql("CREATE MATERIALIZED VIEW days AS SELECT day FROM items")
    assert read(source, url, "days").count() == 600


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "nothing"}, "VK101"),
        ({}, "option table"),
        ({"table": "items", "columns": "x"}, "no column 'x'"),
        ({"table": "items", "partitons": "2"}, "Is it 'partitions'"),
    ],
)
def test_wrong_options_are_named(source: Any, shop: Any, url: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        source.read.format("viewkeeper").options(db=url, **options).load()


# -- write -------------------------------------------------------------------------------------------------------------


def test_write_upserts_and_deletes_in_one_call(source: Any, shop: Any, url: str) -> None:
    before = shop.status().position
    frame = source.createDataFrame([("a", 1, "7.00"), ("z", 1, "8.00")], "shop string, id long, price string")
    frame = frame.selectExpr("shop", "id", "cast(price as decimal(8,2)) price")
    frame.write.format("viewkeeper").options(db=url, table="items").mode("append").save()
    assert shop.status().position == before + 1
    assert shop.get("items", ("z", 1))["price"] == Decimal("8.00")
    assert shop.get("items", ("a", 1))["day"] is None  # a whole row replaces a whole row
    keys = frame.select("shop", "id")
    keys.write.format("viewkeeper").options(db=url, table="items", operation="delete").mode("append").save()
    assert shop.get("items", ("z", 1)) is None
    assert shop.get("items", ("a", 1)) is None


def test_weights_decide_between_upsert_and_delete(source: Any, shop: Any, url: str) -> None:
    rows = [("a", 1, -1), ("a", 1, 1), ("b", 2, -1)]
    frame = source.createDataFrame(rows, "shop string, id long, _w long")
    frame.write.format("viewkeeper").options(db=url, table="items").mode("append").save()
    assert shop.get("items", ("a", 1)) is not None
    assert shop.get("items", ("b", 2)) is None


@pytest.mark.parametrize(
    ("columns", "mode", "says"),
    [
        ("'a' shop, 1L id, 2 bogus", "append", "bogus"),
        ("'a' shop", "append", "part of the key"),
        ("'a' shop, 1L id", "overwrite", "not overwritten"),
    ],
)
def test_a_write_that_cannot_be_is_refused_before_it_starts(
    source: Any, shop: Any, url: str, columns: str, mode: str, says: str
) -> None:
    before = shop.status().position
    with pytest.raises(Exception, match=says):
        source.sql(f"SELECT {columns}").write.format("viewkeeper").options(db=url, table="items").mode(mode).save()
    with pytest.raises(Exception, match="materialized view"):
        source.sql("SELECT 'a' shop").write.format("viewkeeper").options(db=url, table="by_shop").mode("append").save()
    assert shop.status().position == before


# -- streams -----------------------------------------------------------------------------------------------------------


def replay(frame: Any) -> Counter[tuple[Any, ...]]:
    """The multiset that a stream's rows add up to."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in frame.collect():
        found[tuple(v for k, v in row.asDict().items() if k != "_w")] += row["_w"]
    return +found


def rows(db: Any, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(r.values()) for r in db.read(name).to_pylist())


def test_the_changes_of_a_view_add_up_to_it(source: Any, shop: Any, url: str, tmp_path: Path) -> None:
    changes = source.readStream.format("viewkeeper").options(db=url, table="by_shop", changes="true").load()
    assert changes.columns == ["shop", "n", "total", "_w"]

    def run() -> None:
        query = (
            changes.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    assert replay(source.read.parquet(str(tmp_path / "out"))) == rows(shop, "by_shop")
    shop.put("items", [item("d", 1), item("a", 5, "2.00")])
    shop.refresh()
    shop.delete("items", [("b", i) for i in range(200)])
    shop.refresh()
    run()
    found = replay(source.read.parquet(str(tmp_path / "out")))
    assert found == rows(shop, "by_shop")
    assert ("d", 1, Decimal("1.50")) in found

    for file in ("1", ".1.crc"):  # killed just before the second batch was told to be done
        (tmp_path / "checkpoint" / "commits" / file).unlink()
    shop.put("items", [item("e", 1)])
    shop.refresh()
    run()
    assert replay(source.read.parquet(str(tmp_path / "out"))) == rows(shop, "by_shop")


def test_a_stream_without_weights_is_refused(source: Any, shop: Any, url: str) -> None:
    with pytest.raises(Exception, match="changes"):
        source.readStream.format("viewkeeper").options(db=url, table="by_shop").load().writeStream.format(
            "noop"
        ).start().awaitTermination(60)


def test_a_repeated_batch_is_no_second_write(shop: Any, url: str) -> None:
    from viewkeeper.store.registry import open_store

    store = open_store(url, "w")
    try:
        table = store.catalog().table("items")
        some = store.get_rows(table, shop.read("items").select(["shop", "id"]).slice(0, 1))
        nothing = some.slice(0, 0).select(["shop", "id"])
        shop.delete("items", ("a", 0))
        assert store.write_once(table, some, nothing, "query:1", 4).changed_rows == 1
        shop.delete("items", ("a", 0))  # somebody else, before Spark repeats the batch
        assert store.write_once(table, some, nothing, "query:1", 4).changed_rows == 0
        assert shop.get("items", ("a", 0)) is None
        assert store.write_once(table, some, nothing, "query:2", 4).changed_rows == 1
    finally:
        store.close()
