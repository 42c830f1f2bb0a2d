"""A first load on Spark in a process of its own: load_on_spark.py DATABASE. Each report of its progress is a line."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import viewkeeper as vk
from viewkeeper.capture import partitions
from viewkeeper.runtime import cost_model

PART, ROWS = 1_000, 12_000
VIEW = "CREATE MATERIALIZED VIEW totals AS SELECT kind, count(*) AS n, sum(price) AS total FROM items GROUP BY kind"


def main(url: str) -> None:
    partitions.PARTITION_ROWS = PART  # a table of so few is read in parts
    cost_model.LaneCostModel.choose = lambda *_: cost_model.LaneChoice("spark", "it is asked for")  # type: ignore[method-assign]
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.viewkeeper.rowsPerTask": str(PART),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    with vk.open(url, spark=spark, progress=told) as db:
        db.sql(VIEW)
        print("differences", db.audit().differences, flush=True)
    spark.stop()


def told(what: str, done: int, expected: int) -> None:
    print(f"{what}: {done} of {expected}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
