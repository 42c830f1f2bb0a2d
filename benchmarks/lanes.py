"""The floor of the Spark lane: the same batches in either lane, by turns, in one run.

    python benchmarks/lanes.py [--small] [--scale 1] [--orders 1125] [--batches 7] [--data DIR] [--keep DIR]
                               [--json FILE] [--markdown FILE]

    all        TPC-H's 22 views, orders made, deleted and updated with their lines: about 22,500 changed rows
    one        one view of one table, 1,000 changed rows
    first      the first batch of a Spark session on the 22 views, in a new process with a new JVM, not counting Spark's
               start, to which its Python workers belong: they start when the database is opened to maintain it

Either lane sees changes of the same kind and size, one batch each in turn; medians of wall clock, and how often one
lane's median goes into the other's. At the end the views are compared with DuckDB's answer over its own tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk
from bars.check import recomputed
from bars.lanes import timed
from bars.setting import Setting, machine, session, settled
from bars.views import viewed
from viewkeeper.verify.benchmark_check import apply_changes

BARS = {"all": 2.5, "one": 0.4, "first": 5.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a hundredth of the scale, three batches")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--orders", type=int, default=1_125)
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--keep", type=Path, help="where the database of the 22 views stays for the next run")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    if asked.first is not None:
        print(json.dumps(first_batch(asked.first)))
        return
    scale, orders, batches = (0.01, 100, 3) if asked.small else (asked.scale, asked.orders, asked.batches)
    with tempfile.TemporaryDirectory(prefix="vk-lanes-") as place:
        keep = asked.keep or Path(place)
        keep.mkdir(parents=True, exist_ok=True)
        spark = session()
        setting = Setting(scale, orders, batches, 0, asked.data or Path(place) / "data", keep)
        found = all_views(setting, spark) | one_view(f"lmdb:{place}/one", spark, batches)
    said = {"machine": machine(), "scale": scale, **found}
    print(text(said))
    if asked.json is not None:
        asked.json.write_text(json.dumps(said, indent=1) + "\n")
    if asked.markdown is not None:
        asked.markdown.write_text(text(said))


def all_views(setting: Setting, spark: Any) -> dict[str, Any]:
    """Batches over the 22 views, by turns, without the first of each lane; then the first of a session."""
    times: dict[str, list[float]] = {"driver": [], "spark": []}
    with viewed(setting, f"lanes-{setting.scale:g}", spark=spark) as (db, model):
        for _ in range(setting.batches):
            for lane, seconds in times.items():
                seconds.append(timed(db, model, setting, lane))
                print(f"22 views, {lane}: {seconds[-1]:.3f} s", flush=True)
        changes = db._acquire_maintainer().publisher.history.listed_batches()[-1]["changes"]
        recomputed(db, model)
        apply_changes(db, model.orders_batch(setting.orders, setting.orders, setting.orders))  # for the next session
    command = [sys.executable, __file__, f"--first=lmdb:{setting.keep}/lanes-{setting.scale:g}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    first = json.loads(done.stdout.splitlines()[-1])
    warm = {lane: statistics.median(seconds[1:]) for lane, seconds in times.items()}
    return {
        "changes": changes,
        "all": {**warm, "ratio": warm["spark"] / warm["driver"], "each": times},
        "first": {**first, "ratio": first["spark"] / warm["spark"]},
    }


def first_batch(url: str) -> dict[str, float]:
    """In a process of its own: what waits, as the first batch of a session."""
    started = time.perf_counter()
    with vk.open(url, durability="none", spark=session()) as db:
        db._acquire_maintainer()
        for thread in threading.enumerate():
            if thread.name == "viewkeeper-workers":
                thread.join()
        ready = time.perf_counter()
        assert db.refresh("spark").lane == "spark"
        return {"spark": time.perf_counter() - ready, "start": ready - started}


def one_view(url: str, spark: Any, batches: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"driver": [], "spark": []}
    with vk.open(url, durability="none", spark=spark) as db:
        db.sql("CREATE TABLE sales (id BIGINT, shop INT, amount DECIMAL(9,2), PRIMARY KEY (id))")
        db.put("sales", _sales(np.arange(100_000)))
        query = "SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop"
        db.sql(f"CREATE MATERIALIZED VIEW totals AS {query}")
        random = np.random.default_rng(2)
        for _ in range(batches):
            for lane, seconds in times.items():
                db.put("sales", _sales(random.choice(100_000, 500, replace=False)))
                started = time.perf_counter()
                db.refresh(lane)
                seconds.append(time.perf_counter() - started)
                settled(db)
        assert db.audit().differences == 0
    return {"one": {lane: statistics.median(seconds[1:]) for lane, seconds in times.items()} | {"each": times}}


def _sales(ids: Any) -> pa.Table:
    drawn = np.random.default_rng(int(ids[0])).integers(1, 9_000, len(ids), dtype=np.int32)
    amounts = pa.array(drawn).cast(pa.decimal128(12, 2)).cast(pa.decimal128(9, 2))
    return pa.table({"id": pa.array(ids, pa.int64()), "shop": pa.array(ids % 97, pa.int32()), "amount": amounts})


def text(said: dict[str, Any]) -> str:
    every, first, one = said["all"], said["first"], said["one"]

    def verdict(value: float, bar: float) -> str:
        return "met" if value <= bar else "missed"

    rows = [
        (
            f"22 views, {said['changes']:,} changes, warm",
            f"{every['driver']:.3f} s",
            f"{every['spark']:.3f} s",
            f"{every['ratio']:.2f}x",
            f"≤ {BARS['all']}x",
            verdict(every["ratio"], BARS["all"]),
        ),
        (
            f"the first of a session / a warm one (Spark's start: {first['start']:.1f} s)",
            "",
            f"{first['spark']:.3f} s",
            f"{first['ratio']:.2f}x",
            f"≤ {BARS['first']}x",
            verdict(first["ratio"], BARS["first"]),
        ),
        (
            "one view of one table, 500 updates",
            f"{one['driver']:.3f} s",
            f"{one['spark']:.3f} s",
            f"{one['spark'] / one['driver']:.1f}x",
            f"≤ {BARS['one']} s",
            verdict(one["spark"], BARS["one"]),
        ),
    ]
    lines = [
        "# The Spark lane's floor: the last run",
        "",
        f"`python benchmarks/lanes.py`, TPC-H at scale {said['scale']:g}.",
        "",
        f"{said['machine']['processor']}; {said['machine']['versions']}.",
        "",
        "| batch | driver | Spark | ratio | bar | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
