"""How long after a kill reads are fresh again, and what durability costs.

    python benchmarks/recovery.py [--small] [--rows 10000,100000,1000000] [--json results.json]

    recovery     a maintainer is killed with SIGKILL in mid-batch, its changes waiting in the log. From the start of
                 recovery to the first read of a view that has them: in a process that has the lease (`standby`), and in
                 one that starts from nothing (`restart`: with the start of Python and the imports). `mend`: the same
                 when a state file was damaged as well, so that state is made anew first.
    durability   batches of 100 changed rows, each a write call and a refresh, by what is flushed: nothing, groups, or
                 every commit (the dissertation's figure 4.5.9 has none, group and immediate logging).

The views are a join with an aggregate, a minimum by group, and a top 10, over one table of the given size.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk

VIEWS = {
    "revenue": "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM orders o JOIN customers c "
    "ON o.customer = c.customer GROUP BY c.region",
    "least": "SELECT customer, min(amount) AS least FROM orders GROUP BY customer",
    "top": "SELECT order_id, amount FROM orders ORDER BY amount DESC, order_id LIMIT 10",
}

_VICTIM = """
    import sys, time, viewkeeper as vk
    with vk.open(sys.argv[1]) as db:
        db.put("orders", {"order_id": 0, "customer": 0, "amount": time.time_ns() % 1_000_000})
        db.refresh("driver")
"""
_READER = """
    import sys, time, viewkeeper as vk
    with vk.open(sys.argv[1]) as db:
        db.refresh("driver")
        assert db.get("least", 0)["least"] >= 0
        print(time.time())
"""


def orders(first: int, count: int, rng: np.random.Generator) -> pa.Table:
    return pa.table(
        {
            "order_id": np.arange(first, first + count),
            "customer": rng.integers(0, max(10, count // 10), count),
            "amount": rng.integers(1, 1_000_000, count),
        }
    )


def build(url: str, rows: int, spark: Any) -> None:
    rng = np.random.default_rng(1)
    with vk.open(url, spark=spark, durability="none") as db:
        db.sql("CREATE TABLE orders (order_id BIGINT, customer BIGINT, amount BIGINT, PRIMARY KEY (order_id))")
        db.sql("CREATE TABLE customers (customer BIGINT, region BIGINT, PRIMARY KEY (customer))")
        many = max(10, rows // 10)
        db.put("customers", pa.table({"customer": np.arange(many), "region": np.arange(many) % 25}))
        for first in range(0, rows, 100_000):
            db.put("orders", orders(first, min(100_000, rows - first), rng))
        for name, query in VIEWS.items():
            db.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")


def run(code: str, url: str, **armed: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", textwrap.dedent(code), url]
    return subprocess.run(program, env=os.environ | armed, capture_output=True, text=True, check=False)


def kill(url: str) -> None:
    ended = run(_VICTIM, url, VK_CRASH_AT="commit.3.middle")
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def recovery(url: str, repeat: int) -> dict[str, float]:
    """Medians in seconds."""
    found: dict[str, list[float]] = {"standby": [], "restart": [], "mend": []}
    for _ in range(repeat):
        kill(url)
        with vk.open(url) as db:
            started = time.perf_counter()
            db.refresh("driver")
            db.get("least", 0)
            found["standby"].append(time.perf_counter() - started)
        kill(url)
        started = time.time()
        ended = run(_READER, url)
        assert ended.returncode == 0, ended.stderr
        found["restart"].append(float(ended.stdout) - started)
        kill(url)
        largest = max((Path(url.removeprefix("lmdb:")) / "state").glob("*.vkr"), key=lambda p: p.stat().st_size)
        with largest.open("r+b") as file:
            file.truncate(largest.stat().st_size // 2)
        with vk.open(url) as db:
            started = time.perf_counter()
            assert db.refresh("driver").mended
            db.get("least", 0)
            found["mend"].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in found.items()}


def durability(url: str, how: str, batches: int) -> dict[str, float]:
    rng = np.random.default_rng(len(how))  # other rows each time: the same again would be no change
    puts, refreshes = [], []
    with vk.open(url, durability=how) as db:
        db.refresh("driver")
        for batch in range(batches):
            rows = orders(batch * 100, 100, rng)
            started = time.perf_counter()
            db.put("orders", rows)
            put = time.perf_counter()
            db.refresh("driver")
            puts.append(put - started)
            refreshes.append(time.perf_counter() - put)
    return {"put_ms": 1000 * statistics.median(puts), "refresh_ms": 1000 * statistics.median(refreshes)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small table, few batches")
    parser.add_argument("--rows", default="10000,100000,1000000", help="table sizes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the results there")
    given = parser.parse_args()
    sizes = [10_000] if given.small else [int(n) for n in given.rows.split(",")]
    batches = 20 if given.small else given.batches
    results: dict[str, Any] = {"recovery": [], "durability": []}
    with tempfile.TemporaryDirectory(prefix="vk-recovery-") as place:
        print(f"{'rows':>10} {'state MB':>9} {'standby s':>10} {'restart s':>10} {'mend s':>8}")
        for rows in sizes:
            url = f"lmdb:{place}/db{rows}"
            build(url, rows, None)
            with vk.open(url, mode="r") as db:
                size = db.status().state_bytes / 1e6
            line = {"rows": rows, "state_mb": size, **recovery(url, 1 if given.small else given.repeat)}
            results["recovery"].append(line)
            print(
                f"{rows:>10} {size:>9.1f} {line['standby']:>10.3f} {line['restart']:>10.3f} {line['mend']:>8.3f}",
                flush=True,
            )
        print(f"\n{'durability':>10} {'put ms':>9} {'refresh ms':>11}")
        for how in ("none", "group", "commit"):
            line = {"durability": how, **durability(f"lmdb:{place}/db{sizes[-1]}", how, batches)}
            results["durability"].append(line)
            print(f"{how:>10} {line['put_ms']:>9.2f} {line['refresh_ms']:>11.2f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
