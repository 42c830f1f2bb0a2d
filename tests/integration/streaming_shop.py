"""A program that the streaming test kills: numbers stream into a table, a view's changes stream out of it.

    rate-micro-batch ─▶ writeStream viewkeeper ─▶ numbers ─▶ by_group (maintained) ─▶ readStream ─▶ parquet

    python streaming_shop.py URL DIRECTORY BATCHES

It prints a line for each batch of the first query. When that has come so far it stops the first query, lets the second
read to the end, and prints the view as the second query's rows add up to it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from typing import Any

import viewkeeper
from viewkeeper.spark import register, session

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def main(url: str, directory: str, batches: int) -> None:
    spark = session("local[2,4]", SETTINGS)
    register(spark)
    with viewkeeper.open(url, spark=spark) as db:
        db.sql("CREATE TABLE IF NOT EXISTS numbers (id BIGINT, grp BIGINT, amount BIGINT, PRIMARY KEY (id))")
        db.sql(
            "CREATE MATERIALIZED VIEW IF NOT EXISTS by_group AS "
            "SELECT grp, count(*) AS n, sum(amount) AS total FROM numbers GROUP BY grp"
        )
        with db.maintain():
            into, out = start(spark, url, directory)
            told = -1
            while told < batches:
                for query in (into, out):
                    if query.exception() is not None:
                        raise query.exception()
                last = into.lastProgress
                if last is not None and last["batchId"] > told:
                    told = last["batchId"]
                    print(f"batch {told}", flush=True)
                time.sleep(0.05)
            into.stop()
            db.read("by_group", viewkeeper.LATEST)
            out.processAllAvailable()
            out.stop()
        added: Counter[tuple[int, ...]] = Counter()
        for row in spark.read.parquet(f"{directory}/out").collect():
            added[row.grp, row.n, row.total] += row["_w"]
        print("added", json.dumps(sorted((+added).elements())), flush=True)
        assert min(added.values()) >= 0
    spark.stop()


def start(spark: Any, url: str, directory: str) -> tuple[Any, Any]:
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "500").option("numPartitions", "2").load()
    numbers = rate.selectExpr("value AS id", "value % 10 AS grp", "value * 3 AS amount")
    into = (
        numbers.writeStream.format("viewkeeper")
        .options(db=url, table="numbers", checkpointLocation=f"{directory}/into")
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    changes = spark.readStream.format("viewkeeper").options(db=url, table="by_group", changes="true").load()
    out = (
        changes.writeStream.format("parquet")
        .options(path=f"{directory}/out", checkpointLocation=f"{directory}/from")
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    return into, out


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
