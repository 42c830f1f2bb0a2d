"""The first view over lineitem, and a later one over the same columns, against Spark's recompute from Parquet.

The first is allowed Spark's time and that of scanning the table from LMDB; the later one, which finds the columns in
an arrangement of the first, Spark's time alone. Spark's session is warm for both sides: its
compiler needs several runs until Q1 gets no faster.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import viewkeeper as vk
from bars.check import SparkFiles, recomputed
from bars.setting import Setting, opened, session
from viewkeeper.verify.benchmark_check import create_views
from viewkeeper.workloads.tpch import views

FIRST, LATER = 1, 6
_TIMES, _WARM = 3, 5


def measure(setting: Setting) -> dict[str, Any]:
    runs: list[dict[str, float]] = []
    with opened(setting, "first", tables=["lineitem"], spark=session()) as (db, model):
        for view in db.status().views:
            db.sql(f"DROP MATERIALIZED VIEW {view.name}")
        spark = SparkFiles(db._spark(), model.files)
        for _ in range(_WARM):
            spark.answer(FIRST), spark.answer(LATER)
        for _ in range(_TIMES + 1):
            runs.append(
                {
                    "spark_first": spark.answer(FIRST)[1],
                    "spark_later": spark.answer(LATER)[1],
                    "scan": scanned(db, FIRST),
                    "first": created(db, FIRST),
                    "later": created(db, LATER),
                }
            )
            print("first load: " + ", ".join(f"{k} {v:.2f} s" for k, v in runs[-1].items()), flush=True)
            recomputed(db, model, [FIRST, LATER])
            for number in (LATER, FIRST):
                db.sql(f"DROP MATERIALIZED VIEW q{number}")
    return {"first_load": {key: statistics.median(r[key] for r in runs[1:]) for key in runs[0]} | {"runs": runs}}


def created(db: vk.Database, number: int) -> float:
    started = time.perf_counter()
    create_views(db, views([number]))
    return time.perf_counter() - started


def scanned(db: vk.Database, number: int) -> float:
    """Seconds to read the columns of the first view from the store, as a load of it does."""
    columns = ["l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_shipdate"]
    table = db._catalog().table("lineitem")
    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in db._store.scan(table, columns))
    assert rows
    return time.perf_counter() - started
