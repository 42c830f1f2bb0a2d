"""Structured Streaming through a view: numbers stream in, the view follows, its changes stream out.

It may be killed at any moment and started again in the same directory: it goes on where it was, and no change is lost
or counted twice.
"""

import time
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

import viewkeeper as vk
from viewkeeper.spark import register, session

spark = SparkSession.getActiveSession() or session("local[2,4]")
register(spark)
HERE = Path.cwd()  # Spark's own working directory may be another one
URL = f"lmdb:{HERE}/streamed"

with vk.open(URL, spark=spark) as db:
    db.sql("CREATE TABLE IF NOT EXISTS numbers (id BIGINT, digit BIGINT, PRIMARY KEY (id))")
    db.sql("CREATE MATERIALIZED VIEW IF NOT EXISTS digits AS SELECT digit, count(*) AS n FROM numbers GROUP BY digit")
    with db.maintain():
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
        into = (
            rate.selectExpr("value AS id", "value % 10 AS digit")
            .writeStream.format("viewkeeper")
            .options(db=URL, table="numbers", checkpointLocation=f"{HERE}/checkpoint/in")
            .start()
        )
        while (into.lastProgress or {}).get("batchId", 0) < 2:
            if into.exception():
                raise into.exception()
            time.sleep(0.1)
        into.stop()
        db.read("digits", vk.LATEST)  # wait until the view has everything

        changes = spark.readStream.format("viewkeeper").options(db=URL, table="digits", changes="true").load()
        out = (
            changes.writeStream.format("parquet")
            .options(path=f"{HERE}/changes", checkpointLocation=f"{HERE}/checkpoint/out")
            .trigger(availableNow=True)
            .start()
        )
        out.awaitTermination()

    added = Counter()
    for row in spark.read.parquet(f"{HERE}/changes").collect():
        added[row.digit, row.n] += row["_w"]
    print(sorted(+added))
    assert sorted(+added) == sorted((row["digit"], row["n"]) for row in db.scan("digits"))
