"""A program for the cluster test: the Spark lane on a master, then again after a worker from elsewhere has joined.

python cluster_shop.py MASTER URL        reads a line from standard input between the two
"""

from __future__ import annotations

import sys
import time

import viewkeeper
from viewkeeper.errors import Unsupported
from viewkeeper.spark import register, session

VIEW = """SELECT i.category, count(*) AS n, sum(o.quantity * i.price) AS revenue
          FROM orders o JOIN items i ON o.item_id = i.item_id GROUP BY i.category"""


def refused(db: viewkeeper.Database) -> str:
    """What a batch on Spark was refused with, and how many were published."""
    before = db.status().epoch
    try:
        db.refresh("spark")
    except Unsupported as refusal:
        return f"{db.status().epoch - before} batches, {refusal}"
    return "no"


def main(master: str, url: str) -> None:
    spark = session(
        master,
        {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "500m",
            "spark.sql.session.timeZone": "UTC",
            "spark.viewkeeper.rowsPerTask": "1",
        },
    )
    register(spark)
    with viewkeeper.open(url, spark=spark) as db:
        db.sql("CREATE TABLE items (item_id BIGINT, category STRING, price DECIMAL(8,2), PRIMARY KEY (item_id))")
        db.sql("CREATE TABLE orders (order_id BIGINT, item_id BIGINT, quantity INT, PRIMARY KEY (order_id))")
        db.put("items", [{"item_id": i, "category": f"c{i % 5}", "price": f"{i}.50"} for i in range(50)])
        db.put("orders", [{"order_id": i, "item_id": i % 60, "quantity": 1 + i % 3} for i in range(2000)])
        db.sql(f"CREATE MATERIALIZED VIEW revenue AS {VIEW}")
        db.put("orders", [{"order_id": i, "item_id": i % 50, "quantity": 5} for i in range(1500, 2500)])
        db.delete("orders", list(range(100)))
        print("lane", db.refresh("spark").lane, flush=True)
        frame = spark.read.format("viewkeeper").options(db=url, table="orders").load()
        print("read", frame.count(), frame.rdd.getNumPartitions() > 1, flush=True)
        hosts = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        print("executors", hosts, flush=True)
        sys.stdin.readline()
        while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1 < 3:
            time.sleep(0.2)
        db.put("orders", [{"order_id": i, "item_id": 1, "quantity": 1} for i in range(100)])
        print("late", refused(db), flush=True)
        print("rebuilds", db.status().rebuilds, flush=True)
    with viewkeeper.open(url, spark=spark) as db:
        db.put("orders", {"order_id": 1, "item_id": 1, "quantity": 1})
        print("refused", refused(db), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
