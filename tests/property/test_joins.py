"""Every kind of join with every kind of ON, nested in each other: equal to Spark's recompute after every batch.

Keys are unique, repeated and NULL, tables come to be empty; joins are left-deep in one FROM, right-deep, bushy, over
derived tables, aggregates and views. CI runs the first scenarios of the series, `VK_PROFILE=deep` many more.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from viewkeeper.plan.dataflow import dataflow
from viewkeeper.runtime.spark import pipelined_commit, placement, sessions

from .nesting import Series
from .scenario import Refused
from .shapes import JOINS
from .test_views import assert_views_equal_recompute

DEEP = os.environ.get("VK_PROFILE") == "deep"
PRESENCE = ("exists", "not exists", "in", "not in", "exists or", "in or", "exists value", "in value")
INPUTS = ("project", "raising", "filter", "distinct", "group", "total", "union all")
SERIES = Series("joins", (*JOINS, "using", "self join", *PRESENCE, *INPUTS), (2, 2, 3), (3, 4, 5, 6))
COMPLETE = 250
"""So many scenarios draw every pair."""
RUN = 200 if DEEP else 4
LONG = Series("long", JOINS, (2,), (8, 10, 12), views=4)
"""Chains of up to twelve joins of mixed kinds."""
LONG_RUN = 60 if DEEP else 1


def test_every_join_is_drawn_over_every_input_with_every_condition() -> None:
    SERIES.scenario(COMPLETE - 1)
    print(SERIES.coverage.table())
    assert not SERIES.coverage.missing()
    assert not SERIES.coverage.missing_conditions()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUN))
def test_joins_equal_recompute(number: int, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third scenario runs on Spark, half of those as if tasks were elsewhere; some are in RocksDB and HBase."""
    lane = "spark" if number % 3 == 1 else "driver"
    if lane == "spark":
        monkeypatch.setattr(placement, "ROWS_PER_TASK", 1 if number % 2 else 1_000_000)
        monkeypatch.setattr(sessions, "is_single_machine", lambda *_: number % 4 == 0)
        monkeypatch.setattr(dataflow, "BROADCAST_BYTES", 0 if number % 4 == 1 else dataflow.BROADCAST_BYTES)
        monkeypatch.setattr(pipelined_commit, "MIN_REPORTED_ROWS", 1)
    store = {2: "rocksdb", 3: "hbase"}.get(number % 6, "lmdb")
    scenario, refused = SERIES.scenario(number), Refused()
    assert_views_equal_recompute(scenario, spark, lane, store, refused)
    assert all("reads no table" in why for why in refused.values()), refused  # ON FALSE may leave none


@pytest.mark.slow
@pytest.mark.parametrize("number", range(LONG_RUN))
def test_many_joins_equal_recompute(number: int, spark: Any) -> None:
    refused = Refused()
    assert_views_equal_recompute(
        LONG.scenario(number), spark, "spark" if number % 4 == 3 else "driver", "lmdb", refused
    )
    assert all("reads no table" in why for why in refused.values()), refused


@pytest.mark.parametrize("how", ["LEFT", "FULL"])
def test_first_load_keeps_both_zeros_of_an_optional_side(make_db: Any, spark: Any, how: str) -> None:
    """0.0 and −0.0 are equal keys and two values, also where rows are added up before a match is decided."""
    db = make_db(spark=spark)
    db.sql("CREATE TABLE f (id BIGINT PRIMARY KEY, k BIGINT)")
    db.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, k BIGINT, x DOUBLE)")
    db.put("f", [{"id": 1, "k": 1}])
    db.put("p", [{"id": 1, "k": 1, "x": 0.0}, {"id": 2, "k": 1, "x": -0.0}, {"id": 3, "k": 1, "x": float("nan")}])
    both = "(SELECT k, x FROM p WHERE id = 1 UNION ALL SELECT k, x FROM p WHERE id <> 1)"
    db.sql(
        f"CREATE MATERIALIZED VIEW v AS SELECT f.id, CAST(u.x AS STRING) AS x FROM f {how} JOIN {both} u ON f.k = u.k"
    )
    assert sorted(row["x"] for row in db.read("v").to_pylist()) == ["-0.0", "0.0", "NaN"]
    db.delete("p", [1])
    db.refresh("driver", suspend=False)
    assert sorted(row["x"] for row in db.read("v").to_pylist()) == ["-0.0", "NaN"]
