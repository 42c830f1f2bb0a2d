"""What grows where: bulk batches and first loads on Spark, with one core and with two, each in a process of its own.

    python benchmarks/cluster.py [--small] [--part machine|load|batch|skew …] [--cores 1 2] [--scale 1] [--rows 8000000]
                                 [--changes 1000000 5000000] [--data DIR] [--json FILE] [--markdown FILE]

    machine    what its cores give by themselves: DuckDB and Arrow over rows of its own, in one process and in two at
               once, which have nothing in common but the machine
    load       views over TPC-H's tables at the scale, made on Spark one after the other
    batch      so many sales updated in one call, through two views of sums; then, with the first number of changes,
               also through a view that has a row for each sale, all of which the driver puts into LMDB
               bytes that tasks sent to the driver for each changed row, and the memory of the driver's Python at its
               highest, beyond what it had before the batch (mapped files not counted)
    skew       the first number of changes with keys as words are in a text (zipf 1.2) and with keys that are all as
               often, where tasks are held to be on other machines, so that rows travel to what they look up: the rows
               of the busiest task against the median's, and the times

With one core all of it, Spark's JVM, its collector and its compiler too, has one core of the machine: every process
inherits the mask of this one. At the end views are audited. What earlier calls have left in the `--json` file is kept,
so that parts can be measured one by one and told together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk
from bars.setting import Peak, Setting, machine, opened, session, settled
from viewkeeper.verify.benchmark_check import create_views, mentioned_tables
from viewkeeper.workloads.tpch import SCHEMAS, views

LOADED = (1, 3, 5, 6, 10, 12, 14)
SUMS = {
    "totals": "SELECT shop, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop",
    "cities": "SELECT p.city, count(*) AS n, max(s.amount) AS top, sum(s.amount * p.rate) AS due"
    " FROM sales s JOIN shops p ON s.shop = p.shop GROUP BY p.city",
}
ROWS = {"placed": "SELECT s.id, s.amount, p.city FROM sales s JOIN shops p ON s.shop = p.shop"}
SHOPS = 5_000
BAR = 1.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="only this one; may be given again")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--changes", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cores", type=int, nargs="+", help="only with so many")
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="add the results to this file")
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    if asked.small:
        asked.scale, asked.rows, asked.changes = 0.01, asked.rows // 100, [n // 100 for n in asked.changes]
    if asked.inside is not None:
        print(json.dumps(measured(asked)))
        return
    known = asked.json is not None and asked.json.exists()
    said: dict[str, Any] = json.loads(asked.json.read_text()) if known else {"parts": {}}
    said["machine"] = machine()
    for part in asked.part or list(PARTS):
        setting = {name: getattr(asked, name) for name in PARTS[part]}
        if said["parts"].get(part, {}).get("setting") != setting:
            said["parts"][part] = {"setting": setting}
        for cores in asked.cores or ((2,) if part == "skew" else (1, 2)):
            command = [sys.executable, __file__, f"--inside={cores}", f"--part={part}", f"--scale={asked.scale}"]
            command += [f"--rows={asked.rows}", "--changes", *map(str, asked.changes)]
            command += [] if asked.data is None else [f"--data={asked.data.resolve()}"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            said["parts"][part][str(cores)] = json.loads(done.stdout.splitlines()[-1])
            print(f"{part}, {cores}: {said['parts'][part][str(cores)]}", file=sys.stderr, flush=True)
            if asked.json is not None:
                asked.json.write_text(json.dumps(said, indent=1) + "\n")
    print(text(said))
    if asked.markdown is not None:
        asked.markdown.write_text(text(said))


def measured(asked: Any) -> dict[str, Any]:
    """In a process of its own, before Spark is started there."""
    from viewkeeper.runtime import cost_model

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.inside])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cost_model.LaneCostModel.choose = lambda *_: cost_model.LaneChoice("spark", "it is measured")  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="vk-cluster-") as place:
        found: dict[str, Any] = MEASURES[asked.part[0]](asked, place)
    return found


def alone(asked: Any, place: str) -> dict[str, Any]:
    """Seconds of the slowest of as many processes as cores, each of which does the same with rows of its own."""
    work = [sys.executable, "-c", _ALONE.format(rows=asked.rows)]
    cores = sorted(os.sched_getaffinity(0))
    each = [subprocess.Popen(["taskset", "-c", str(core), *work], stdout=subprocess.PIPE, text=True) for core in cores]
    return {"seconds": max(float(process.communicate()[0]) for process in each)}


_ALONE = """
import time, duckdb, numpy as np, pyarrow as pa
ids = np.random.default_rng(1).permutation({rows})
rows = pa.table({{"id": ids, "shop": ids % 5_000, "amount": ids * 7 % 9_000}})
with duckdb.connect(config={{"threads": 1}}) as db:
    started = time.perf_counter()
    for _ in range(3):
        db.sql("SELECT shop, count(*), sum(amount) FROM rows GROUP BY shop").fetch_arrow_table()
        rows.take(pa.array(np.argsort(rows["id"].to_numpy()))).combine_chunks()
    print(time.perf_counter() - started)
"""


def load(asked: Any, place: str) -> dict[str, Any]:
    setting = Setting(asked.scale, 0, 0, 0, asked.data or Path(place) / "data", Path(place))
    chosen = views(LOADED)
    with opened(setting, "load", tables=mentioned_tables(SCHEMAS, chosen), spark=bulk_session(asked.inside)) as (db, _):
        db.sql("CREATE MATERIALIZED VIEW warm AS SELECT n_name, count(*) AS n FROM nation GROUP BY n_name")
        os.sync()  # the tables were written just before: that the disk is still at it is no part of a load
        seconds = timed(lambda: create_views(db, chosen))
        assert db.audit().differences == 0
    return {"seconds": seconds}


def batch(asked: Any, place: str) -> dict[str, Any]:
    heard = listening()
    with vk.open(f"lmdb:{place}/db", durability="none", spark=bulk_session(asked.inside)) as db:
        prepare(db, asked.rows)
        create_views(db, SUMS)
        random = np.random.default_rng(3)

        def turn(number: int, changes: int) -> dict[str, float]:
            db.put("sales", sales(random.choice(asked.rows, changes, replace=False), number))
            heard.clear()
            with Peak() as peak:
                seconds = timed(lambda: db.refresh("spark"))
            settled(db)
            return {"seconds": seconds, "peak": peak.bytes, "heard": heard[-1] / changes}

        for number in (1, 2):  # which warm the workers
            turn(number, asked.changes[0])
        few, *more = asked.changes
        turns = sorted((turn(number, few) for number in range(3, 10)), key=lambda told: told["seconds"])
        sums = {str(few): turns[3], **{str(changes): turn(10 + n, changes) for n, changes in enumerate(more)}}
        create_views(db, ROWS)
        turn(98, asked.changes[0])
        rows = turn(99, asked.changes[0])
        assert db.audit().differences == 0
    return {"sums": sums, "rows": rows}


def skew(asked: Any, place: str) -> dict[str, Any]:
    from viewkeeper.plan.dataflow import dataflow
    from viewkeeper.runtime.spark import sessions

    sessions.is_single_machine = lambda *_: False
    dataflow.BROADCAST_BYTES = 0
    found: dict[str, Any] = {}
    count, noted = asked.changes[0], Path(place) / "tasks"
    random = np.random.default_rng(4)
    drawn = {"even": random.integers(0, SHOPS, 3 * count), "zipf": (random.zipf(1.2, 3 * count) - 1) % SHOPS}
    spark = bulk_session(asked.inside, spark_viewkeeper_rowsPerTask=str(count // 10))  # or a few rows are one task's
    with vk.open(f"lmdb:{place}/db", durability="none", spark=spark) as db:
        prepare(db, asked.rows)
        create_views(db, SUMS)
        counting(noted)
        for name, keys in drawn.items():
            times = []
            for at in range(3):
                ids = random.choice(asked.rows, count, replace=False)
                db.put("sales", sales(ids, at + 2, keys[at * count : (at + 1) * count]))
                times.append(timed(lambda: db.refresh("spark")))
                settled(db)
            rounds = [each for each in counted(noted) if sum(rows for rows, _ in each) >= count]
            busiest, slowest = (max(over_median([task[at] for task in each]) for each in rounds) for at in (0, 1))
            found[name] = {"seconds": statistics.median(times[1:]), "busiest": busiest, "slowest": slowest}
        assert db.audit().differences == 0
    return found


MEASURES = {"machine": alone, "load": load, "batch": batch, "skew": skew}
PARTS = {"machine": ("rows",), "load": ("scale",), "batch": ("rows", "changes"), "skew": ("rows", "changes")}
"""And what each depends on: with another setting, what is known of it is forgotten."""


def bulk_session(cores: int, **more: str) -> Any:
    """Its JVM only carries bytes for Python's workers: what its first compiler makes is enough (docs/scale.md). The
    second one would take half a second of each of the first batches, on a core of its own if there is one."""
    return session(cores, spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1", **more)


def prepare(db: Any, rows: int) -> None:
    db.sql("CREATE TABLE shops (shop INT, city STRING, rate INT, PRIMARY KEY (shop))")
    db.sql("CREATE TABLE sales (id BIGINT, shop INT, day INT, amount DECIMAL(9,2), PRIMARY KEY (id))")
    shops, cities = np.arange(SHOPS, dtype=np.int32), [f"city {n % 300}" for n in range(SHOPS)]
    db.put("shops", pa.table({"shop": shops, "city": cities, "rate": shops % 7}))
    db.put("sales", sales(np.arange(rows), 0))


def listening() -> list[int]:
    """Bytes that the tasks of each job told the driver."""
    from viewkeeper.runtime.spark import scheduler as lane

    heard: list[int] = []
    collected = lane._collect_result

    def listened(flow: Any, results: Any, *rest: Any) -> Any:
        heard.append(sum(len(payload) for _, _, _, payload in results))
        return collected(flow, results, *rest)

    lane._collect_result = listened
    return heard


class Counted:
    """The work of a round that notes, for each task, the rows that arrived and the seconds that it took."""

    def __init__(self, work: Any, path: str) -> None:
        self.work, self.path = work, path

    def __call__(self, arrived: Any) -> Any:
        from pyspark import TaskContext

        from viewkeeper.runtime.spark.placement import decode_payload

        messages = list(arrived)
        rows = sum(decode_payload(m[3]).num_rows for m in messages if m[3] and not m[1].startswith("!"))
        started = time.perf_counter()
        left = list(self.work(messages))
        noted = json.dumps([rows, time.perf_counter() - started])
        Path(f"{self.path}-{TaskContext.get().partitionId()}").write_text(noted)
        return iter(left)


def counting(noted: Path) -> None:
    from viewkeeper.runtime.spark import scheduler as lane

    noted.mkdir()
    results = lane._run_round_job

    def spied(spark: Any, messages: Any, levels: Any, *tasks: int) -> Any:
        wrapped = [Counted(level, f"{noted}/{time.time_ns()}-{n}") for n, level in enumerate(levels)]
        return results(spark, messages, wrapped, *tasks)

    lane._run_round_job = spied


def counted(noted: Path) -> list[list[tuple[int, float]]]:
    """For each round since it was last asked, what its tasks noted."""
    rounds: dict[str, list[tuple[int, float]]] = {}
    for path in noted.iterdir():
        rounds.setdefault(path.name.rpartition("-")[0], []).append(tuple(json.loads(path.read_text())))
        path.unlink()
    return list(rounds.values())


def over_median(numbers: list[float]) -> float:
    return max(numbers) / max(statistics.median(numbers), 1e-9)


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def sales(ids: Any, turn: int, shops: Any = None) -> pa.Table:
    amounts = pa.array((ids * 7 + turn * 13) % 9_000, pa.int32()).cast(pa.decimal128(12, 2)).cast(pa.decimal128(9, 2))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "shop": pa.array(ids % SHOPS if shops is None else shops, pa.int32()),
            "day": pa.array(ids % 365, pa.int32()),
            "amount": amounts,
        }
    )


def text(said: dict[str, Any]) -> str:
    parts = {name: found for name, found in said["parts"].items() if name == "skew" or {"1", "2"} <= found.keys()}
    rows = []

    def grown(what: str, one: float, two: float, bar: bool = True) -> None:
        verdict = (f"≥ {BAR}x", "met" if one / two >= BAR else "missed") if bar else ("", "")
        rows.append((what, f"{one:.2f} s", f"{two:.2f} s", f"{one / two:.2f}x", *verdict))

    if "machine" in parts:
        one, two = (parts["machine"][cores]["seconds"] for cores in ("1", "2"))
        grown("the machine itself: two pieces of work that share nothing", 2 * one, two, bar=False)
    if "load" in parts:
        one, two = (parts["load"][cores]["seconds"] for cores in ("1", "2"))
        grown(f"{len(LOADED)} views of TPC-H loaded, scale {parts['load']['setting']['scale']:g}", one, two)
    if "batch" in parts:
        one, two = parts["batch"]["1"], parts["batch"]["2"]
        told = {f"{int(n):,} changes, {len(SUMS)} views of sums": (one["sums"][n], two["sums"][n]) for n in one["sums"]}
        least = parts["batch"]["setting"]["changes"][0]
        told[f"{least:,} changes, also a view of every row"] = one["rows"], two["rows"]
        for what, each in told.items():
            grown(what, *(turn["seconds"] for turn in each))
        for what, each in told.items():
            rows.append((f"bytes to the driver a change; {what}", *(f"{t['heard']:.4f}" for t in each), "", "", ""))
        for what, each in told.items():
            peaks = [f"{turn['peak'] / 1e6:.0f} MB" for turn in each]
            rows.append((f"memory of the driver's Python; {what}", *peaks, "", "", ""))
    lines = [
        "# Bulk on Spark: the last run",
        "",
        f"`python benchmarks/cluster.py`, LMDB, a local master; {_sales(parts)}one core is one for all"
        " processes; the JVM has its first compiler only (`-XX:TieredStopAtLevel=1`).",
        "",
        f"{said['machine']['processor']}; {said['machine']['versions']}.",
        "",
    ]
    if rows:
        lines += ["| | 1 core | 2 cores | ratio | bar | |", "| --- | ---: | ---: | ---: | ---: | --- |"]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    if "skew" in parts:
        even, zipf = parts["skew"]["2"]["even"], parts["skew"]["2"]["zipf"]
        ratio = zipf["seconds"] / even["seconds"]
        lines += [
            f"| {parts['skew']['setting']['changes'][0]:,} changes, rows travel | even keys | zipf 1.2 | bar | |",
            "| --- | ---: | ---: | ---: | --- |",
            f"| a batch | {even['seconds']:.2f} s | {zipf['seconds']:.2f} s, {ratio:.2f}x | ≤ 1.3x"
            f" | {'met' if ratio <= 1.3 else 'missed'} |",
            f"| rows of the busiest task / the median's | {even['busiest']:.2f} | {zipf['busiest']:.2f} | ≤ 2"
            f" | {'met' if zipf['busiest'] <= 2 else 'missed'} |",
            f"| seconds of the slowest task / the median's | {even['slowest']:.2f} | {zipf['slowest']:.2f} | ≤ 2"
            f" | {'met' if zipf['slowest'] <= 2 else 'missed'} |",
            "",
        ]
    return "\n".join(lines)


def _sales(parts: dict[str, Any]) -> str:
    rows = {found["setting"]["rows"] for name, found in parts.items() if name in ("batch", "skew")}
    return "".join(f"{count:,} sales; " for count in sorted(rows))


if __name__ == "__main__":
    main()
