"""A batch that changes most rows makes the views anew: the same rows, and EXPLAIN says that it will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.runtime import cost_model

ROWS = 5_000


@pytest.fixture
def db(make_db: Callable[..., Any], spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cost_model, "_MIN_REBUILD_ROWS", 1_000)
    db = make_db(spark=spark, durability="none")
    db.sql("CREATE TABLE sales (id BIGINT, shop INT, price INT, PRIMARY KEY (id))")
    db.sql("CREATE MATERIALIZED VIEW by_shop AS SELECT shop, count(*) AS n, max(price) AS top FROM sales GROUP BY shop")
    return db


def sales(first: int, last: int, price: int) -> pa.Table:
    ids = np.arange(first, last)
    return pa.table({"id": ids, "shop": (ids % 7).astype("int32"), "price": np.full(len(ids), price, "int32")})


def expected(*parts: pa.Table) -> list[dict[str, int]]:
    rows = pa.concat_tables(parts)
    found = rows.group_by("shop").aggregate([("id", "count"), ("price", "max")]).sort_by("shop").to_pylist()
    return [{"shop": r["shop"], "n": r["id_count"], "top": r["price_max"]} for r in found]


def test_a_batch_of_most_rows_rebuilds_and_a_small_one_maintains(db: Any) -> None:
    db.put("sales", sales(0, ROWS, 5))
    assert db.refresh().lane == "rebuild"
    assert db.read("by_shop").to_pylist() == expected(sales(0, ROWS, 5))
    db.put("sales", sales(0, ROWS // 2, 9))
    assert db.refresh().lane == "driver"
    assert db.read("by_shop").to_pylist() == expected(sales(0, ROWS // 2, 9), sales(ROWS // 2, ROWS, 5))
    db.delete("sales", sales(0, ROWS - 3, 0).select(["id"]))
    report = db.refresh()
    assert (report.lane, report.changes) == ("rebuild", ROWS - 3)
    assert db.read("by_shop").to_pylist() == expected(sales(ROWS - 3, ROWS, 5))
    db.put("sales", sales(ROWS, ROWS + 1, 11))  # state and log go on from there
    assert db.refresh().lane == "driver"
    assert db.read("by_shop").to_pylist() == expected(sales(ROWS - 3, ROWS, 5), sales(ROWS, ROWS + 1, 11))


def test_a_subscriber_sees_a_rebuild_as_changes(db: Any) -> None:
    db.put("sales", sales(0, 700, 5))
    db.refresh()
    changes = db.subscribe("by_shop", timeout=0.2)
    token = [c.token for c in changes][-1]
    db.put("sales", sales(0, ROWS, 5))
    assert db.refresh().lane == "rebuild"
    (delta,) = [c for c in db.subscribe("by_shop", since=token, timeout=0.2) if c.kind == "changes"]
    assert sorted(delta.rows["_w"].to_pylist()) == [-1] * 7 + [1] * 7


def test_where_every_write_must_show_nothing_is_skipped(db: Any) -> None:
    db.sql(
        "CREATE MATERIALIZED VIEW each WITH (strategy = 'IN') AS SELECT shop, sum(price) AS s FROM sales GROUP BY shop"
    )
    seen = db.subscribe("each", timeout=0)
    next(seen)
    db.put("sales", sales(0, ROWS, 5))
    db.put("sales", sales(0, ROWS, 6))
    assert db.refresh().lane == "rebuild", "of the others"
    assert len([d for d in seen if d.kind == "changes"]) == 2
    assert db.read("each").num_rows == 7


def test_explain_says_when(db: Any) -> None:
    text = db.explain("by_shop")
    assert "rebuilt from the tables" in text
    assert "75%" in text
    assert "max cannot be taken back from a sum" in text
