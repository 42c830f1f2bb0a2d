"""What a view costs to define when many are there: CREATE of the 10th, the 100th and the 1,000th, over a small table.

    python benchmarks/definitions.py [--views 1000] [--together] [--small] [--keep] [--json results.json] [--check]

    create    median wall time of the CREATEs up to there, Catalyst included               1,000th ≤ 1.5 × 10th
    catalyst  of which Spark's reading of the query, which does not depend on other views
    catalog   bytes of catalog records that such a CREATE writes                           1,000th ≤ 1.5 × 10th
    first     one new row, which all views add up, for the first time: their statements are prepared
    refresh   … and from then on: the median of some batches, and the processor time of that one

All in one run: each line's ratio is to the first. Views are like TPC-H's Q6, each with constants of its own. They are
kept apart (share = false), since as they are written they would become members of one family: `--together` lets them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import viewkeeper
from bars.catalyst import catalyst_seconds

RESULTS = Path(__file__).parent / "results"
MEASURED = 9
"""CREATEs of which the median is taken."""
BATCHES = 7
BAR = 1.5
TOUCHING = 1_000_950
"""The key of a row that all views add up, as they do every 7,000th after it: what they ask of it stays the same."""
DAY = datetime.date(1994, 1, 1)


@dataclass(frozen=True)
class Line:
    """What was measured when so many views were there."""

    views: int
    create: float
    cpu: float
    catalyst: float
    catalog: int
    first: float
    refresh: float
    refresh_cpu: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=1000)
    parser.add_argument("--together", action="store_true", help="let the views become members of a family")
    parser.add_argument("--small", action="store_true", help="100 views")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--keep", action="store_true", help="keep the results in results/definitions.json and .md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    arguments = parser.parse_args()
    last, busy = 100 if arguments.small else arguments.views, round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="vk-bench-") as directory:
        lines = list(measure(directory, arguments.together, sorted({n for n in (10, 100, 1000) if n < last} | {last})))
    show(lines)
    found = {"benchmark": "definitions", "views": last, "load": busy, "lines": [asdict(line) for line in lines]}
    for path in (*([arguments.json] if arguments.json else []), *([RESULTS / "definitions.json"] * arguments.keep)):
        path.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.keep:
        (RESULTS / "definitions.md").write_text("\n".join(told(lines, arguments.together, busy)))
    first, most = lines[0], lines[-1]
    missed = most.create > BAR * first.create or most.catalog > BAR * first.catalog
    return int(arguments.check and missed)


def measure(directory: str, together: bool, counts: list[int]) -> Iterator[Line]:
    with viewkeeper.open(f"lmdb:{directory}/db") as db:
        db.sql(
            "CREATE TABLE lineitem (k BIGINT, shipdate DATE, price DECIMAL(12,2), disc DECIMAL(4,2), qty INT,"
            " PRIMARY KEY (k))"
        )
        db.put("lineitem", rows(range(1000)))
        made = 0
        for count in counts:
            while made < count - MEASURED:
                made += 1
                create(db, made, together)
            times, cpus, read, written = [], [], [], []
            while made < count:
                made += 1
                with catalyst_seconds() as spent:
                    before, wall, cpu = records(db), time.perf_counter(), time.process_time()
                    create(db, made, together)
                    times.append(time.perf_counter() - wall)
                    cpus.append(time.process_time() - cpu)
                    read.append(spent[0])
                after = records(db)
                written.append(sum(len(v) for name, v in after.items() if before.get(name) != v))
            batches = []
            for again in range(1 + BATCHES):
                db.put("lineitem", rows([TOUCHING + 7_000 * (10 * count + again)]))
                wall, cpu = time.perf_counter(), time.process_time()
                db.refresh()
                batches.append((time.perf_counter() - wall, time.process_time() - cpu))
            later = sorted(batches[1:])[BATCHES // 2]
            medians = (statistics.median(found) for found in (times, cpus, read))
            yield Line(count, *medians, int(statistics.median(written)), batches[0][0], *later)


def create(db: Any, number: int, together: bool) -> None:
    options = "" if together else " WITH (share = false)"
    db.sql(
        f"CREATE MATERIALIZED VIEW q{number}{options} AS SELECT sum(price * disc) AS revenue FROM lineitem"
        f" WHERE shipdate >= DATE'1994-01-01' + INTERVAL {number % 300} DAYS AND disc < 0.05 AND qty < {number}"
    )


def rows(keys: Any) -> pa.Table:
    found = list(keys)
    return pa.table(
        {
            "k": pa.array(found, pa.int64()),
            "shipdate": pa.array([DAY + datetime.timedelta(days=k % 700) for k in found]),
            "price": pa.array([Decimal(k % 10_000) / 100 for k in found], pa.decimal128(12, 2)),
            "disc": pa.array([Decimal(k % 10) / 100 for k in found], pa.decimal128(4, 2)),
            "qty": pa.array([k % 50 for k in found], pa.int32()),
        }
    )


def records(db: Any) -> dict[bytes, bytes]:
    """The records of the catalog."""
    with db._store._opened.read() as state:
        found = {bytes(k): bytes(v) for k, v in state.meta.items(b"")}
    return {k: v for k, v in found.items() if k.startswith(b"catalog")}


def show(lines: list[Line]) -> None:
    print(
        f"{'views':>6} {'create':>9} {'ratio':>6} {'cpu':>9} {'catalyst':>9} {'catalog':>9} {'ratio':>6} {'first':>9}"
        f" {'refresh':>9} {'cpu':>9}"
    )
    first = lines[0]
    for line in lines:
        print(
            f"{line.views:>6} {1000 * line.create:>6.1f} ms {line.create / first.create:>6.2f}"
            f" {1000 * line.cpu:>6.1f} ms {1000 * line.catalyst:>6.1f} ms"
            f" {line.catalog:>7} B {line.catalog / first.catalog:>6.2f}"
            f" {1000 * line.first:>6.1f} ms {1000 * line.refresh:>6.1f} ms {1000 * line.refresh_cpu:>6.1f} ms"
        )
    most = lines[-1]
    for name, ratio in (("create", most.create / first.create), ("catalog", most.catalog / first.catalog)):
        print(f"{name} of view {most.views}: {ratio:.2f} × that of view {first.views}; bar {BAR}")


def told(lines: list[Line], together: bool, busy: float) -> Iterator[str]:
    """The same as a page."""
    first, most = lines[0], lines[-1]
    how = "those that differ in constants together" if together else "views kept apart (share = false)"
    yield "# What a view costs to define when many are there: the last run\n"
    yield f"`python benchmarks/definitions.py --views {most.views}{' --together' * together}`, {os.cpu_count()} cores,"
    yield f"load of the machine before {busy}, {how}. The figures are those of definitions.json.\n"
    yield "| views | CREATE | ratio | processor | catalog written | ratio | a row: first | later | processor |"
    yield "|" + "---:|" * 9
    for line in lines:
        create, cpu, begun, later, spent = (
            f"{1000 * seconds:,.1f} ms"
            for seconds in (line.create, line.cpu, line.first, line.refresh, line.refresh_cpu)
        )
        ratios = f"{line.create / first.create:.2f}", f"{line.catalog / first.catalog:.2f}"
        cells = (f"{line.views:,}", create, ratios[0], cpu, f"{line.catalog:,} B", ratios[1], begun, later, spent)
        yield f"| {' | '.join(cells)} |"
    held = "held" if max(most.create / first.create, most.catalog / first.catalog) <= BAR else "missed"
    yield f"\nBar: {BAR} at {most.views:,} views, {held}. The row is one that all views add up.\n"


if __name__ == "__main__":
    raise SystemExit(main())
