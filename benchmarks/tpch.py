"""The 22 TPC-H views, live: how long a batch of changes takes, against recomputing.

    python benchmarks/tpch.py [--scale 1] [--orders 1500] [--batches 3] [--small] [--spark] [--json results.json]

Loads TPC-H through the public API, creates the 22 views, then streams batches: RF1 (new orders with their lines), RF2
(deleted orders), RF3 (updated orders and lines), and every other batch changes of the dimensions as well. After each
batch every view is compared with DuckDB's recompute (with `--spark` also with Spark's, and Spark's times are shown).
All times are of one run on the same machine; the ratios are what counts. Bars (2 cores, scale factor 1):

    batch      1,500 new, deleted and updated orders, all views in one refresh: at most 1/3 of DuckDB's recompute
    growth     the same batch at a tenth of the data: within a factor of 2
    freshness  1,000 changes of lineitem, the Q3 view, put to visible, no fsync: p50 at most 15 ms
    memory     anonymous resident memory below 6 GB; state at most 4x the Arrow bytes of the columns used
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

import viewkeeper as vk
from viewkeeper.tpch import QUERIES
from viewkeeper.tpch.changes import Change, Model, generate
from viewkeeper.tpch.verify import SparkOracle, apply, create_views, differences, load

APPROXIMATE = {1: ("avg_qty", "avg_price", "avg_disc"), 8: ("mkt_share",), 14: ("promo_revenue",), 17: ("avg_yearly",)}
"""Columns that DuckDB computes as DOUBLE where Spark, and so we, have exact decimals."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--orders", type=int, default=1500, help="orders made, deleted and updated in a batch")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="scale 0.1 (below 0.01 keys repeat)")
    parser.add_argument("--spark", action="store_true", help="compare with Spark SQL's recompute too")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "viewkeeper-tpch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.small:
        options.scale, options.orders, options.batches = 0.1, 150, 2
    result: dict[str, Any] = {"machine": machine(), "scale": options.scale, "orders": options.orders}
    with tempfile.TemporaryDirectory() as scratch:
        small = stream(options, options.scale / 10, Path(scratch) / "small", say=lambda _: None)
        result |= stream(options, options.scale, Path(scratch) / "full", say=print)
        result["growth"] = {
            "seconds_at_a_tenth": small["batch"]["seconds"],
            "factor": result["batch"]["seconds"] / small["batch"]["seconds"],
        }
        result["freshness"] = freshness(options, Path(scratch) / "fresh")
    report(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def machine() -> dict[str, str]:
    names = ("viewkeeper", "duckdb", "pyspark", "pyarrow", "numpy", "lmdb")
    return {"python": platform.python_version(), "cpu": platform.processor() or platform.machine()} | {
        name: version(name) for name in names
    }


def stream(options: argparse.Namespace, scale: float, path: Path, say: Any) -> dict[str, Any]:
    """Load, create, change and compare at one scale."""
    model = Model(generate(scale, options.data), seed=1)
    with vk.open(f"lmdb:{path}", durability="none") as db:
        started = time.perf_counter()
        load(db, model)
        loaded = time.perf_counter() - started
        say(f"scale {scale:g}: tables loaded in {loaded:.1f} s")
        first: dict[str, float] = {}
        for number in QUERIES:
            started = time.perf_counter()
            create_views(db, [number])
            first[f"q{number}"] = time.perf_counter() - started
        say(f"scale {scale:g}: 22 views loaded in {sum(first.values()):.1f} s, planning included")
        oracle = SparkOracle(db._spark()) if options.spark else None
        ours, recompute = [], []
        by_view: dict[str, list[float]] = defaultdict(list)
        duck_by_view: dict[str, list[float]] = defaultdict(list)
        spark_by_view: dict[str, float] = {}
        dimensions = []
        for batch in range(options.batches):
            for kind in ("orders", "dimensions"):
                changes = (
                    model.orders_batch(options.orders, options.orders, options.orders)
                    if kind == "orders"
                    else model.dimensions_batch(options.orders)
                )
                seconds, rows = refresh(db, model, changes)
                say(f"batch {batch + 1}, {kind}: {rows:,} changes in {seconds * 1e3:.0f} ms")
                if kind == "orders":
                    ours.append(seconds)
                    for view, share in shares(db).items():
                        by_view[view].append(share)
                else:
                    dimensions.append(seconds)
                times = compare(db, model)
                for view, taken in times.items():
                    duck_by_view[view].append(taken)
                recompute.append(sum(times.values()))
        if oracle is not None:
            spark_by_view = compare_with_spark(db, model, oracle)
        status = db.status()
        result = {
            "load_seconds": loaded,
            "first_load": first,
            "batch": {"seconds": statistics.median(ours), "runs": ours},
            "dimensions": {"seconds": statistics.median(dimensions), "runs": dimensions},
            "duckdb": {"seconds": statistics.median(recompute), "runs": recompute},
            "views": {
                view: {
                    "ours": statistics.median(taken),
                    "duckdb": statistics.median(duck_by_view[view]),
                    "spark": spark_by_view.get(view),
                    "state_bytes": next(v.state_bytes for v in status.views if v.name == view),
                }
                for view, taken in sorted(by_view.items(), key=lambda item: int(item[0][1:]))
            },
            "state_bytes": status.state_bytes,
            "base_bytes": base_bytes(db, model),
            "anonymous_bytes": anonymous_bytes(),
        }
    model.close()
    return result


def refresh(db: vk.Database, model: Model, changes: Sequence[Change]) -> tuple[float, int]:
    """Seconds of one refresh in the driver lane, the writes not counted, and the rows it changed."""
    apply(db, changes)
    started = time.perf_counter()
    report = db.refresh("driver")
    seconds = time.perf_counter() - started
    model.apply(list(changes))
    return seconds, report.changes


def shares(db: vk.Database) -> dict[str, float]:
    """Seconds of the last batch by view; an operator that several views share is split between them."""
    maintainer = db._maintain()
    names = {v.table.id: v.table.name for v in maintainer.catalog.views}
    found: dict[str, float] = dict.fromkeys(names.values(), 0.0)
    for operator, seconds in maintainer.stage.clock.items():
        views = maintainer.flow.views_of[operator]
        for view in views:
            found[names[view]] += seconds / len(views)
    return found


def compare(db: vk.Database, model: Model) -> dict[str, float]:
    """DuckDB's time for each query; stops the benchmark at the first view that differs from its answer."""
    times = {}
    for number, query in QUERIES.items():
        started = time.perf_counter()
        expected = model.rows(query)
        times[f"q{number}"] = time.perf_counter() - started
        check(f"q{number}", expected, db.read(f"q{number}"), APPROXIMATE.get(number, ()))
    return times


def check(view: str, expected: pa.Table, got: pa.Table, approximate: Sequence[str]) -> None:
    exact = [c for c in got.column_names if c not in approximate]
    found = differences(view, 0, expected.select(exact).cast(got.select(exact).schema), got.select(exact))
    if found:
        sys.exit(f"{view} differs: expected {found[0].expected}, got {found[0].got}")
    for column in approximate:
        pairs = zip(
            *(t.sort_by([(c, "ascending") for c in exact])[column].to_pylist() for t in (expected, got)), strict=True
        )
        for want, have in pairs:
            if abs(float(want) - float(have)) > 1e-6 * max(1.0, abs(float(want))):
                sys.exit(f"{view}.{column} differs: expected {want}, got {have}")


def compare_with_spark(db: vk.Database, model: Model, oracle: SparkOracle) -> dict[str, float]:
    oracle.load(model)
    times = {}
    for number in QUERIES:
        started = time.perf_counter()
        expected = oracle.answer(number)
        times[f"q{number}"] = time.perf_counter() - started
        found = differences(f"q{number}", 0, expected, db.read(f"q{number}"))
        if found:
            sys.exit(f"q{number} differs from Spark: expected {found[0].expected}, got {found[0].got}")
    return times


def freshness(options: argparse.Namespace, path: Path) -> dict[str, float]:
    """Milliseconds from a put of 1,000 lines having returned to the Q3 view having been refreshed and read."""
    found = {}
    model = Model(generate(options.scale, options.data), seed=2)
    for durability in ("none", "commit"):
        with vk.open(f"lmdb:{path}-{durability}", durability=durability) as db:
            load(db, model, ["customer", "orders", "lineitem"])
            db.sql("CREATE MATERIALIZED VIEW q3 AS " + QUERIES[3].split("ORDER BY")[0])
            times = []
            for _ in range(30):
                rows = changed_lines(model, 1_000)
                db.put("lineitem", rows)
                started = time.perf_counter()
                db.refresh("driver")
                next(iter(db.scan("q3", limit=1)))
                times.append((time.perf_counter() - started) * 1e3)
            found[f"{durability}_p50_ms"] = statistics.median(times[5:])
    model.close()
    return found


def changed_lines(model: Model, count: int) -> pa.Table:
    """Random lines with another discount."""
    stamp = int(model.random.integers(1 << 30))
    rows = model.rows(
        f"""SELECT * REPLACE (((hash(l_orderkey, {stamp}) % 11)::DECIMAL(15,2) / 100)::DECIMAL(15,2) AS l_discount)
            FROM lineitem USING SAMPLE {count} ROWS (reservoir, {stamp % 10_000})"""
    )
    return rows


def base_bytes(db: vk.Database, model: Model) -> int:
    """Arrow bytes of the base columns that the views use."""
    flow = db._maintain().flow
    return sum(
        model.rows(f"SELECT {', '.join(c.name for c in columns)} FROM {flow.tables[table].name}").nbytes
        for table, columns in flow.used.items()
    )


def anonymous_bytes() -> int:
    """This process's anonymous resident memory (mapped state files can be dropped at any time)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def report(result: dict[str, Any]) -> None:
    print(f"\n{'view':<6}{'ours ms':>10}{'DuckDB ms':>12}{'Spark ms':>12}{'state MB':>11}")
    for view, row in result["views"].items():
        spark = f"{row['spark'] * 1e3:,.0f}" if row["spark"] else "–"
        ours, duck = row["ours"] * 1e3, row["duckdb"] * 1e3
        print(f"{view:<6}{ours:>10.1f}{duck:>12.1f}{spark:>12}{row['state_bytes'] / 1e6:>11.1f}")
    ours, duck = result["batch"]["seconds"], result["duckdb"]["seconds"]
    gigabytes = result["anonymous_bytes"] / 1e9
    rows = [
        (
            "batch, all views",
            f"{ours * 1e3:.0f} ms; DuckDB recompute {duck * 1e3:.0f} ms",
            f"{ours / duck:.2f}",
            "0.33",
            ours / duck <= 1 / 3,
        ),
        ("growth, 10x data", "", f"{result['growth']['factor']:.2f}", "2", result["growth"]["factor"] <= 2),
        (
            "freshness, no fsync",
            "",
            f"{result['freshness']['none_p50_ms']:.1f} ms",
            "15 ms",
            result["freshness"]["none_p50_ms"] <= 15,
        ),
        ("freshness, durable", "", f"{result['freshness']['commit_p50_ms']:.1f} ms", "–", None),
        ("memory, anonymous", "", f"{gigabytes:.2f} GB", "6 GB", gigabytes < 6),
        (
            "state / base columns",
            "",
            f"{result['state_bytes'] / result['base_bytes']:.2f}",
            "4",
            result["state_bytes"] <= 4 * result["base_bytes"],
        ),
    ]
    print()
    for name, detail, value, bar, passed in rows:
        verdict = "" if passed is None else ("met" if passed else "missed")
        print(f"{name:<24}{value:>12}   bar {bar:<8}{verdict:<8}{detail}")


if __name__ == "__main__":
    sys.exit(main())
