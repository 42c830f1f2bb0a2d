"""Either lane for each view alone, at a tenth of the scale; all 22 on Spark at the scale; Spark's recompute of them.

Spark recomputes from Parquet files of the same rows; its second pass counts, the first warms the JVM.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import viewkeeper as vk
from bars.check import SparkFiles, compare, recomputed
from bars.setting import Setting, opened, session, settled
from bars.views import FULL, viewed
from viewkeeper.verify.benchmark_check import apply_changes, create_views
from viewkeeper.workloads.tpch import QUERIES, views
from viewkeeper.workloads.tpch.changes import TpchModel

_TIMES = 3


def measure(setting: Setting) -> dict[str, Any]:
    """Each view made alone, changed in both lanes, and dropped. A run that was cut short goes on where it was."""
    done = setting.keep / "alone.json"
    found: dict[str, dict[str, float]] = json.loads(done.read_text()) if done.exists() else {}
    with opened(setting, "alone", scale=setting.scale / 10) as (db, model):
        for view in db.status().views:
            db.sql(f"DROP MATERIALIZED VIEW {view.name}")
        for number in (n for n in QUERIES if f"q{n}" not in found):
            create_views(db, views([number]))
            lanes = {lane: [timed(db, model, setting, lane) for _ in range(_TIMES)] for lane in ("driver", "spark")}
            recomputed(db, model, [number])
            db.sql(f"DROP MATERIALIZED VIEW q{number}")
            found[f"q{number}"] = {lane: statistics.median(seconds[1:]) for lane, seconds in lanes.items()}
            told = ", ".join(f"{lane} {seconds * 1e3:.0f} ms" for lane, seconds in found[f"q{number}"].items())
            print(f"q{number} alone: {told}", flush=True)
            done.write_text(json.dumps(found))
    done.unlink()
    return {"alone": found}


def timed(db: vk.Database, model: TpchModel, setting: Setting, lane: str) -> float:
    changes = model.orders_batch(setting.orders, setting.orders, setting.orders)
    apply_changes(db, changes)
    model.apply(changes)
    started = time.perf_counter()
    db.refresh(lane)
    seconds = time.perf_counter() - started
    settled(db)
    return seconds


def measure_all(setting: Setting) -> dict[str, Any]:
    """All views in one refresh of the Spark lane."""
    with viewed(setting, FULL) as (db, model):
        seconds = [timed(db, model, setting, "spark") for _ in range(_TIMES)]
        recomputed(db, model)
    return {"spark_lane": {"seconds": statistics.median(seconds[1:]), "first": seconds[0]}}


def measure_recompute(setting: Setting) -> dict[str, Any]:
    """Spark SQL's own time for each query, and the exact comparison."""
    with viewed(setting, FULL, spark=session()) as (db, model):
        spark = SparkFiles(db._spark(), model.files)
        times: dict[str, float] = {}
        for warm in (False, True):
            for number in QUERIES:
                expected, seconds = spark.answer(number)
                if warm:
                    times[f"q{number}"] = seconds
                    compare(f"q{number}", expected, db.read(f"q{number}"))
            print(f"Spark recomputed the 22 queries{', warm' if warm else ''}", flush=True)
    return {"spark_recompute": {"seconds": sum(times.values()), "by_view": times}}
