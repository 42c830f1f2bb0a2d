"""Millions of changes in one batch: a group, a group over a join, and a join of some rows, all of them large."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk

GROUPS = 100_000
VIEWS = {
    "grouped": "SELECT g, count(*) AS n, sum(v) AS s, max(v) AS m FROM t GROUP BY g",
    "named": "SELECT name, s, count(*) AS n, sum(v) AS t FROM t JOIN d ON t.g = d.g GROUP BY name, s",
    "chosen": "SELECT k, v, name FROM t JOIN d ON t.g = d.g WHERE v > 990",
}
EVERY = {"every": "SELECT k, v, s, name FROM t JOIN d ON t.g = d.g"}
"""A row for each of the table's, so that as many change."""
AT_ONCE = 250_000


def make(db: Any, rows: int, views: Mapping[str, str]) -> None:
    """Two tables, filled, and the views over them."""
    db.sql("CREATE TABLE t (k BIGINT, g BIGINT, v BIGINT, s STRING, PRIMARY KEY (k))")
    db.sql("CREATE TABLE d (g BIGINT, name STRING, PRIMARY KEY (g))")
    names = pa.array([f"group {n % 5_000}" for n in range(GROUPS)])
    db.put("d", pa.table({"g": np.arange(GROUPS), "name": names}))
    put(db, rows, AT_ONCE, seed=1)
    for name, query in views.items():
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")


def put(db: Any, rows: int, rows_per_call: int, seed: int) -> None:
    """Rows with the first keys and new values, so many in a call."""
    first = 0
    for drawn in _drawn(rows, rows_per_call, seed):
        keys = np.arange(first, first := first + len(drawn))
        texts = pa.array([f"text {n}" for n in range(977)]).take(pa.array(keys % 977))
        db.put("t", pa.table({"k": keys, "g": keys % GROUPS, "v": drawn, "s": texts}))


def values(rows: int, rows_per_call: int, seed: int) -> np.ndarray:
    """What `put` puts, by key."""
    return np.concatenate(list(_drawn(rows, rows_per_call, seed)))


def _drawn(rows: int, rows_per_call: int, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    for first in range(0, rows, rows_per_call):
        yield rng.integers(0, 1_000, min(rows_per_call, rows - first))


def session(heap: str) -> Any:
    from pyspark.sql import SparkSession

    settings = {"spark.driver.memory": heap, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["make", "put", "refresh"])
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--memory")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--heap", help="run batches on Spark, with a heap of so much in the driver's JVM")
    asked = parser.parse_args()
    spark = session(asked.heap) if asked.heap else None
    with vk.open(asked.url, memory=asked.memory, durability="none", spark=spark) as db:
        if asked.what == "make":
            make(db, asked.rows, EVERY if asked.every else VIEWS)
        elif asked.what == "put":
            put(db, asked.rows, asked.at_once, seed=2)
        else:
            began, report = db.status().epoch, db.refresh("driver" if spark is None else "spark")
            print(report.epoch - began, "batches, the last of", report.changes, "changes in the lane", report.lane)


if __name__ == "__main__":
    main()
