"""TPC-DS's 99 queries (103 views), live: time, state and memory of each view by itself, and of all of them together.

    python benchmarks/tpcds.py [--small] [--views NUMBERS] [--scale F] [--batches N] [--seconds N] [--json F] [--md F]

Loads the 24 tables through the public API. Each view is then made over a copy of that database and goes through the
same batches, which change every table; then all are made in one database and go through them together. At the end every
view is compared with Spark's recompute, and one that differs ends the benchmark: figures of wrong answers are worth
nothing. The ten views whose batches cost most are told with the operators in which the time goes. Costs are the
process's own processor time, so that they can be compared also where the machine has other work; the page says how much
of that there was.

The tables are written to benchmarks/results, with --small (a few views, one batch) only where --json and --md say. With
--seconds it ends after about that time and goes on from the JSON file when it is called again: a machine that is not
idle for an hour is for some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import viewkeeper as vk
from bars.asked import some_of
from bars.batch import shares
from bars.report import table
from bars.setting import Peak, machine, session, settled
from bars.why import WHY
from viewkeeper.verify.benchmark_check import (
    SparkOracle,
    apply_changes,
    create_views,
    find_differences,
    is_order_dependent,
    load_tables,
)
from viewkeeper.verify.reference_model import Change
from viewkeeper.workloads.tpcds import QUERIES, views
from viewkeeper.workloads.tpcds.changes import TpcdsModel
from viewkeeper.workloads.tpcds.data import generate

SMALL = ("3", "19", "42", "55", "96")
WORST = 10
MEMORY = ("state", "create", "batch")
OPERATORS = 3
"""Shown of each of the worst views."""

Figures = dict[str, Any]


def main() -> None:
    results_there = Path(__file__).parent / "results"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--batches", type=int, default=3, help="that count; one more goes before them")
    parser.add_argument("--share", type=float, default=0.002, help="of each table's rows that a batch changes")
    parser.add_argument("--views", type=some_of(QUERIES), help="queries, separated by commas; all if not given")
    parser.add_argument("--seconds", type=float, help="how long to measure now; go on from the JSON file of before")
    parser.add_argument("--small", action="store_true", help="a few views and one batch: to see that it runs")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "viewkeeper-tpcds")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--md", type=Path, help="write the tables there")
    options = parser.parse_args()
    if options.small:
        options.batches, options.views = 1, options.views or SMALL
    else:
        options.json = options.json or results_there / "tpcds.json"
        options.md = options.md or results_there / "tpcds.md"
    chosen = views(options.views or QUERIES)
    results: Figures = {"machine": machine(), "scale": options.scale, "share": options.share}
    before = json.loads(options.json.read_text("utf-8")) if options.seconds and options.json.exists() else {}
    known = before.get("views", {}) if all(before.get(name) == results[name] for name in results) else {}
    results["load"] = before.get("load", 0.0) if known else 0.0
    until = time.monotonic() + (options.seconds or float("inf"))
    with tempfile.TemporaryDirectory(prefix="vk-tpcds-") as scratch:
        bench = Bench(Path(scratch), generate(options.scale, options.data), options.batches, options.share)
        results |= {"rows": bench.rows, "changes": bench.changes, "views": {n: known[n] for n in chosen if n in known}}
        for name in (n for n in chosen if n not in known):
            if time.monotonic() > until:
                sys.exit(f"{len(results['views'])} of {len(chosen)} views are measured; call it again")
            results["views"][name] = bench.alone(name, chosen[name])
            results["load"] = max(results["load"], os.getloadavg()[0])
            write(options.json, results)
        if time.monotonic() > until:
            sys.exit("every view is measured; call it again for all of them together")
        results["together"] = bench.together(chosen)
        results["load"] = max(results["load"], os.getloadavg()[0])
    write(options.json, results)
    text = markdown(results)
    print(f"\n{text}")
    if options.md:
        options.md.write_text(text, encoding="utf-8")


class Bench:
    """The loaded tables, to be copied, and the batches with Spark's answer after them."""

    def __init__(self, scratch: Path, files: Path, batches: int, share: float) -> None:
        self.scratch, self.spark = scratch, session()
        model = TpcdsModel(files, 1, share=share)
        started = time.perf_counter()
        with vk.open(f"lmdb:{scratch / 'base'}", durability="none", spark=self.spark) as db:
            load_tables(db, model)
        self.rows = sum(model.count(t) for t in model.schemas)
        print(f"{self.rows:,} rows loaded in {time.perf_counter() - started:.1f} s", flush=True)
        self.batches: list[list[Change]] = []
        for _ in range(batches + 1):
            self.batches.append(model.batch())
            model.apply(self.batches[-1])
        self.changes = statistics.median(sum(c.rows for c in batch) for batch in self.batches)
        self.oracle = SparkOracle(self.spark)
        self.oracle.load(model)
        model.close()

    def alone(self, name: str, query: str) -> Figures:
        with self._opened(name) as db:
            with Peak() as making:
                started = time.perf_counter()
                create_views(db, {name: query})
                made = time.perf_counter() - started
            seconds, costs, peaks = self._stream(db)
            work = worked(db, name)
            status = next(v for v in db.status().views if v.name == name)
            started = time.perf_counter()
            self._compare(db, name, query)
            recompute = time.perf_counter() - started
        found = {
            "create_seconds": made,
            "batch_seconds": statistics.median(seconds[1:]),
            "batch_cpu_seconds": statistics.median(costs[1:]),
            "first_batch_seconds": seconds[0],
            "recompute_seconds": recompute,
            "rows": status.rows,
            "state_bytes": status.state_bytes,
            "create_peak_bytes": making.bytes,
            "batch_peak_bytes": max(peaks),
            "work": work,
        }
        shutil.rmtree(self.scratch / name)
        told = f"made in {made:.1f} s, batch {1e3 * found['batch_seconds']:.0f} ms, {found['state_bytes'] / 1e6:.0f} MB"
        print(f"{name}: {told}, at most {max(making.bytes, *peaks) / 1e6:.0f} MB of memory", flush=True)
        return found

    def together(self, chosen: Mapping[str, str]) -> Figures:
        """All views in one database."""
        with self._opened("all") as db:
            with Peak() as making:
                started = time.perf_counter()
                create_views(db, chosen)
                made = time.perf_counter() - started
            seconds, costs, peaks = self._stream(db)
            by_view, status = shares(db), db.status()
            for name, query in chosen.items():
                self._compare(db, name, query)
        print(f"{len(chosen)} views together: made in {made:.0f} s, batches {seconds} s", flush=True)
        return {
            "create_seconds": made,
            "batch_seconds": statistics.median(seconds[1:]),
            "batch_cpu_seconds": statistics.median(costs[1:]),
            "first_batch_seconds": seconds[0],
            "state_bytes": status.state_bytes,
            "create_peak_bytes": making.bytes,
            "batch_peak_bytes": max(peaks),
            "shares": by_view,
        }

    def _opened(self, name: str) -> vk.Database:
        shutil.copytree(self.scratch / "base", self.scratch / name)
        return vk.open(f"lmdb:{self.scratch / name}", durability="none", spark=self.spark)

    def _stream(self, db: vk.Database) -> tuple[list[float], list[float], list[int]]:
        """For each batch its seconds, those of processors, and the most memory."""
        seconds, costs, peaks = [], [], []
        for changes in self.batches:
            apply_changes(db, changes)
            with Peak() as peak:
                started, worked = time.perf_counter(), time.process_time()
                db.refresh("driver", suspend=False)
                costs.append(time.process_time() - worked)
                seconds.append(time.perf_counter() - started)
            peaks.append(peak.bytes)
            settled(db)
        return seconds, costs, peaks

    def _compare(self, db: vk.Database, name: str, query: str) -> None:
        found = find_differences(
            name, 0, self.oracle.answer(query), db.read(name), approximate=is_order_dependent(query)
        )
        if found:
            sys.exit(f"{name} differs: expected {found[0].expected}, got {found[0].actual}")


def worked(db: vk.Database, name: str) -> list[dict[str, Any]]:
    """The operators in which the last batch spent its time, most first, as EXPLAIN tells them."""
    maintainer = db._acquire_maintainer()
    flow, clock = maintainer.publisher.dataflow, maintainer.executor.clock
    shown = [o for o in flow.operators.values() if not o.is_load_only]
    numbers = {o.id: i for i, o in enumerate(shown, 1)}
    lines = db.explain(name).splitlines()
    told = {line.split()[0]: line.strip() for line in lines if line.startswith("  #")}
    total = sum(clock.values()) or 1.0
    most = sorted(clock, key=lambda o: -clock[o])[:OPERATORS]
    return [{"share": clock[o] / total, "operator": told.get(f"#{numbers.get(o)}", o)} for o in most]


def write(path: Path | None, results: Figures) -> None:
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def markdown(results: Figures) -> str:
    found: Mapping[str, Figures] = results["views"]
    every = results["together"]
    header = ("view", "rows", "create s", "batch ms", "CPU ms", "share ms", "Spark ms", *(f"{m} MB" for m in MEMORY))
    rows = [
        (
            name,
            f"{one['rows']:,}",
            f"{one['create_seconds']:.2f}",
            f"{1e3 * one['batch_seconds']:,.0f}",
            f"{1e3 * one['batch_cpu_seconds']:,.0f}",
            f"{1e3 * every['shares'][name]:,.1f}",
            f"{1e3 * one['recompute_seconds']:,.0f}",
            f"{one['state_bytes'] / 1e6:,.0f}",
            f"{one['create_peak_bytes'] / 1e6:,.0f}",
            f"{one['batch_peak_bytes'] / 1e6:,.0f}",
        )
        for name, one in found.items()
    ]
    worst = sorted(found, key=lambda name: -found[name]["batch_cpu_seconds"])[:WORST]
    busy = f" The machine had other work meanwhile: its load was up to {results['load']:.0f}."
    busy = busy if results["load"] > (os.cpu_count() or 1) else ""
    machine_told = "\n".join(f"- {value}" for value in results["machine"].values())
    return f"""# TPC-DS at scale {results["scale"]:g}

{results["rows"]:,} rows in 24 tables. A batch changes {results["share"]:.1%} of each table's rows, at most
300, and one of a table of a few rows: updates, new rows and deletes, {results["changes"]:,.0f} rows in all. Every view
was compared with Spark's recompute after the last batch.{busy}

{len(found)} views together: made in {every["create_seconds"]:.0f} s, {every["create_peak_bytes"] / 1e9:.2f} GB of
memory at most; a batch {every["batch_seconds"]:.1f} s (the first {every["first_batch_seconds"]:.1f} s), of processors
{every["batch_cpu_seconds"]:.1f} s; {every["batch_peak_bytes"] / 1e9:.2f} GB; state {every["state_bytes"] / 1e9:.2f} GB.

## By view

*create*, *batch*: the view by itself. *CPU*: the batch's processor time. *share*: the view's part of a batch of all
views, as thread time. *Spark*: recompute over tables in Spark's memory, planning included. *state*: of the view by
itself, its tables' images included. The last two columns are the most anonymous memory of the process above what it had
before, while the view was made and in a batch; Spark's JVM, which plans the view, is not counted.

{table(header, rows)}

## The ten whose batches cost most

{chr(10).join(explained(name, found[name]) for name in worst)}

{machine_told}
"""


def explained(name: str, one: Figures) -> str:
    """A view with what makes its batches long, and its heaviest operators with their parts of the time."""
    why = f": {WHY[name]}" if name in WHY else ""
    lines = [f"**{name}**, {1e3 * one['batch_cpu_seconds']:,.0f} ms{why}.", ""]
    lines += [f"- {w['share']:.0%} {w['operator']}" for w in one["work"]]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
