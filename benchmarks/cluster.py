"""What grows where: bulk batches and first loads on Spark, with one core and with two, each in a process of its own.

    python benchmarks/cluster.py [--small] [--rows 2000000] [--changes 1000000][--batches 3]
                                 [--json FILE] [--markdown FILE]

    load       two views over so many rows: sums by shop and day, and each sale with its shop's city
    batch      so many sales updated in one call; the second view gets as many changed rows
    driver     bytes that tasks sent to the driver for each changed row, and the driver's memory at its highest, beyond
               what it had before the batches (mapped files not counted)

A session for each number of cores. At the end both views are audited.
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
from bars.setting import Peak, machine, session, settled

VIEWS = {
    "totals": "SELECT shop, day, count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop, day",
    "placed": "SELECT s.id, s.amount, p.city FROM sales s JOIN shops p ON s.shop = p.shop",
}
SHOPS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a hundredth of the rows, one batch")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    if asked.small:
        asked.rows, asked.changes, asked.batches = asked.rows // 100, asked.changes // 100, 1
    if asked.cores is not None:
        print(json.dumps(measured(asked.cores, asked.rows, asked.changes, asked.batches)))
        return
    sizes = [f"--{name}={getattr(asked, name)}" for name in ("rows", "changes", "batches")]
    found = {}
    for cores in (1, 2):
        command = [sys.executable, __file__, f"--cores={cores}", *sizes]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[str(cores)] = json.loads(done.stdout.splitlines()[-1])
        print(f"{cores}: {found[str(cores)]}", file=sys.stderr, flush=True)
    said = {"machine": machine(), "rows": asked.rows, "changes": asked.changes, "cores": found}
    print(text(said))
    if asked.json is not None:
        asked.json.write_text(json.dumps(said, indent=1) + "\n")
    if asked.markdown is not None:
        asked.markdown.write_text(text(said))


def measured(cores: int, rows: int, changes: int, batches: int) -> dict[str, Any]:
    from viewkeeper.maintain import lanes
    from viewkeeper.rounds import spark as lane

    heard: list[int] = []
    collected = lane._collected

    def listened(flow: Any, results: Any, *rest: Any) -> Any:
        heard.append(sum(len(payload) for _, _, _, payload in results))
        return collected(flow, results, *rest)

    lane._collected = listened
    lanes.Lanes.choose = lambda *_: lanes.Choice("spark", "it is measured")  # type: ignore[method-assign]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with (
        tempfile.TemporaryDirectory(prefix="vk-cluster-") as place,
        vk.open(f"lmdb:{place}/db", durability="none", spark=session(cores)) as db,
    ):
        db.sql("CREATE TABLE shops (shop INT, city STRING, PRIMARY KEY (shop))")
        db.sql("CREATE TABLE sales (id BIGINT, shop INT, day INT, amount DECIMAL(9,2), PRIMARY KEY (id))")
        shops = pa.array(np.arange(SHOPS), pa.int32())
        db.put("shops", pa.table({"shop": shops, "city": pa.array([f"city {n % 300}" for n in range(SHOPS)])}))
        db.put("sales", sales(np.arange(rows), 0))
        loads = [timed(lambda n=n, q=q: db.sql(f"CREATE MATERIALIZED VIEW {n} AS {q}")) for n, q in VIEWS.items()]  # type: ignore[misc]
        random, times, lost = np.random.default_rng(3), [], list(heard)
        heard.clear()
        with Peak() as peak:
            for turn in range(1 + batches):  # the first warms the workers
                db.put("sales", sales(random.choice(rows, changes, replace=False), turn + 1))
                times.append(timed(lambda: db.refresh("spark")))
                settled(db)
        assert db.audit().differences == 0
    return {
        "load": sum(loads),
        "load_bytes_a_row": sum(lost) / rows,
        "batch": statistics.median(times[1:]),
        "bytes_a_change": heard[-1] / changes,
        "peak_bytes": peak.bytes,
        "times": times,
    }


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def sales(ids: Any, turn: int) -> pa.Table:
    amounts = pa.array((ids * 7 + turn * 13) % 9_000, pa.int32()).cast(pa.decimal128(12, 2)).cast(pa.decimal128(9, 2))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "shop": pa.array(ids % SHOPS, pa.int32()),
            "day": pa.array(ids % 365, pa.int32()),
            "amount": amounts,
        }
    )


def text(said: dict[str, Any]) -> str:
    one, two = said["cores"]["1"], said["cores"]["2"]
    rows = [
        (name, f"{one[key]:.2f} s", f"{two[key]:.2f} s", f"{one[key] / two[key]:.2f}x", "≥ 1.7x")
        for name, key in (
            (f"first load, {said['rows']:,} rows", "load"),
            (f"batch, {said['changes']:,} changes", "batch"),
        )
    ]
    rows.append(
        ("bytes to the driver a change", f"{one['bytes_a_change']:.2f}", f"{two['bytes_a_change']:.2f}", "", "")
    )
    peaks = [f"{found['peak_bytes'] / 1e6:.0f} MB" for found in (one, two)]
    rows.append(("the driver's memory, at most", *peaks, "", ""))
    lines = [
        "# Bulk on Spark: the last run",
        "",
        "`python benchmarks/cluster.py`, LMDB, a local master.",
        "",
        f"{said['machine']['processor']}; {said['machine']['versions']}.",
        "",
        "| | 1 core | 2 cores | ratio | bar |",
        "| --- | ---: | ---: | ---: | ---: |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
