"""The Q3 view alone: how soon 1,000 changes are seen, and how many changes a second go through it in large batches.

freshness    from `put` having returned to `refresh` having returned and `get` showing the changed row
throughput   batches of a million changes in the driver lane, with and without the writing of them, all durable
lanes        the same on Spark, with one core and with two, each in a process of its own
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import viewkeeper as vk
from bars import stream
from bars.check import compare
from bars.setting import Q3, Q3_TABLES, Setting, opened, session, settled
from bars.stream import Batch

SMALL_ROWS, SMALL_TIMES, LARGE_TIMES = 1_000, 30, 3
NAME = "q3"


def place(setting: Setting) -> Path:
    return setting.keep / "stream"


def measure(setting: Setting) -> dict[str, Any]:
    counts = [SMALL_ROWS] * 2 * SMALL_TIMES + [setting.rows] * LARGE_TIMES
    with opened(setting, NAME, tables=Q3_TABLES, seed=2) as (db, model):
        if not db.status().views:
            db.sql(f"CREATE MATERIALIZED VIEW q3 AS {Q3}")
        db.refresh("driver")
        before = time.perf_counter()
        stream.make(model, place(setting), counts)
        print(f"stream made in {time.perf_counter() - before:.0f} s", flush=True)
        expected = model.rows(Q3)
        batches = stream.batches(place(setting))
        none = freshness(db, batches[:SMALL_TIMES])
    with vk.open(f"lmdb:{setting.keep / NAME}", durability="commit") as db:
        durable = freshness(db, batches[SMALL_TIMES : 2 * SMALL_TIMES])
        large = [passed(db, batch, "driver") for batch in batches[2 * SMALL_TIMES :]]
        compare("q3", expected, db.read("q3"))
    flush = flush_ms(setting.keep / "flushed")
    return {"freshness": {"none": none, "durable": durable, "flush_ms": flush}, "throughput": summary(large)}


def flush_ms(path: Path) -> float:
    """What the disk takes to flush one page that is written again, in the median: what no durable commit goes below."""
    times = []
    with path.open("wb") as file:
        for _ in range(101):
            file.seek(0)
            file.write(bytes(4096))
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append((time.perf_counter() - started) * 1e3)
    path.unlink()
    return statistics.median(times)


def freshness(db: vk.Database, batches: Sequence[Batch]) -> dict[str, float]:
    times = []
    for batch in batches:
        db.put("lineitem", batch.rows)
        started = time.perf_counter()
        db.refresh("driver")
        seen = db.get("q3", batch.key)
        times.append((time.perf_counter() - started) * 1e3)
        if seen is None or seen["revenue"] != Decimal(batch.revenue):
            sys.exit(f"q3 does not show the change of {batch.key}: {seen}, not {batch.revenue}")
        settled(db)
    return {"p50_ms": statistics.median(times[5:]), "worst_ms": max(times[5:]), "first_ms": times[0]}


def passed(db: vk.Database, batch: Batch, lane: str) -> dict[str, float]:
    started = time.perf_counter()
    db.put("lineitem", batch.rows)
    put = time.perf_counter() - started
    started = time.perf_counter()
    changes = db.refresh(lane).changes
    refreshed = time.perf_counter() - started
    if changes < batch.rows.num_rows:
        sys.exit(f"only {changes:,} of {batch.rows.num_rows:,} rows were news: the batch was given before")
    print(f"{batch.rows.num_rows:,} changes, {lane}: put {put:.1f} s, refresh {refreshed:.1f} s", flush=True)
    settled(db)
    return {"rows": batch.rows.num_rows, "put": put, "refresh": refreshed}


def summary(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {
        "rows": runs[-1]["rows"],
        "put": statistics.median(r["put"] for r in runs),
        "refresh": statistics.median(r["refresh"] for r in runs),
        "rows_per_second": statistics.median(r["rows"] / r["refresh"] for r in runs),
        "rows_per_second_with_put": statistics.median(r["rows"] / (r["put"] + r["refresh"]) for r in runs),
        "runs": list(runs),
    }


# -- on Spark ---------------------------------------------------------------------------------------------------------


LANES = ("driver", "spark on 1 core", "spark on 2 cores")


def measure_lanes(setting: Setting) -> dict[str, Any]:
    """Every lane in a process of its own, over the same database; two batches each, of which the second counts.

    A run that was cut short between two lanes goes on where it was.
    """
    done = setting.keep / "lanes.json"
    if not done.exists():
        prepare_lanes(setting)
        done.write_text("{}")
    found: dict[str, dict[str, float]] = json.loads(done.read_text())
    for number, lane in enumerate(LANES):
        if lane not in found:
            found[lane] = _in_process(setting, number)
            done.write_text(json.dumps(found))
    with vk.open(f"lmdb:{setting.keep / NAME}", mode="r") as db:
        compare("q3", pq.read_table(place(setting) / "lanes" / "expected.parquet"), db.read("q3"))
    done.unlink()
    return {"lanes": found}


def prepare_lanes(setting: Setting) -> None:
    with opened(setting, NAME, tables=Q3_TABLES, seed=3) as (db, model):
        db.refresh("driver")
        stream.make(model, place(setting) / "lanes", [setting.rows] * 2 * len(LANES))
        pq.write_table(model.rows(Q3), place(setting) / "lanes" / "expected.parquet")


def _in_process(setting: Setting, number: int) -> dict[str, float]:
    told = json.dumps([str(setting.keep / NAME), str(place(setting) / "lanes"), number])
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from bars import q3; q3.as_process()"
    )
    done = subprocess.run([sys.executable, "-c", program], input=told, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{LANES[number]} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{LANES[number]}: {found['refresh']:.1f} s", flush=True)
    return found


def as_process() -> None:
    """What a process of `measure_lanes` does: two batches of the stream, its own."""
    url, batches, number = json.loads(sys.stdin.read())
    lane = LANES[number]
    spark = session(int(lane.split()[2])) if lane.startswith("spark") else None
    with vk.open(f"lmdb:{url}", durability="none", spark=spark) as db:
        mine = stream.batches(Path(batches))[2 * number : 2 * number + 2]
        runs = [passed(db, batch, lane.split()[0]) for batch in mine]
    print(json.dumps(runs[-1]))
