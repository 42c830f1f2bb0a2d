"""Live maintenance: how stale a view is while writers write, and what that costs them.

    staleness     a writer puts 50 rows at a time at the offered rate; each put carries its time, and a watcher of the
                  view's change stream (another process) notes when the put is visible: p50, p95, p99
    writers       how long a put takes with 0, 1, 5 and 22 views, and with nobody maintaining
    strategies    staleness and work of each strategy at one load, as in the dissertation's section 6.4

The bars (5,000 changes a second, durable commits): p50 at most 50 ms, p99 at most 250 ms, writers at most 10 % slower.
Writer, maintainer and watcher are separate processes, as they are in use.

    python benchmarks/live.py [--small] [--seconds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 50
"""Rows a put."""

TABLE = "CREATE TABLE events (id BIGINT, kind STRING, amount DECIMAL(12,2), at DOUBLE, PRIMARY KEY (id))"
PUTS = "SELECT at, count(*) AS n, sum(amount) AS total FROM events GROUP BY at"
"""A row for each put whose rows are not all replaced yet: a new one shows that its put has become visible."""

OTHERS = [
    f"SELECT kind, count(*) AS n, sum(amount) AS total FROM events WHERE id % {n + 2} = 0 GROUP BY kind"
    for n in range(0, 21)
]
BARS = {"p50_ms": 50.0, "p99_ms": 250.0, "slowdown": 0.10}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--small", action="store_true", help="a minute in all, to see that it runs")
    options.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    options.add_argument("--json", type=Path, default=None, help="write the results there")
    options.add_argument("--role", nargs=2, metavar=("ROLE", "OPTIONS"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.role:
        ROLES[given.role[0]](json.loads(given.role[1]))
        return
    seconds = 4.0 if given.small else given.seconds
    loads = (5_000,) if given.small else (500, 2_000, 5_000, 10_000, 20_000)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vk-live-") as scratch:
        results["staleness"] = [staleness(f"{scratch}/load{load}", load, 1, seconds) for load in loads]
        show("staleness by offered load (1 view)", results["staleness"])
        counts = (0, 1) if given.small else (0, 1, 5, 22)
        results["writers"] = [writers(f"{scratch}/views{n}", 5_000, n, seconds) for n in counts]
        base = results["writers"][0]["put_p50_ms"]
        for row in results["writers"]:
            row["slowdown"] = round(row["put_p50_ms"] / base - 1, 3)
        show("what views cost the writers (5,000 changes a second)", results["writers"])
        strategies = ("IMB", "ISN") if given.small else ("IN", "IMB", "SC", "SN", "ISC", "ISN")
        results["strategies"] = [staleness(f"{scratch}/{s}", 1_000, 1, seconds, s) for s in strategies]
        show("strategies (1,000 changes a second, interval 1 s)", results["strategies"])
    verdict(results)
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def staleness(place: str, load: int, views: int, seconds: float, strategy: str = "IMB") -> dict[str, Any]:
    """Seconds from the start of a put to when another process sees it in the view."""
    url = prepare(place, views, strategy)
    maintainer = role("maintainer", {"url": url})
    maintainer.stdout.readline()  # type: ignore[union-attr]
    watcher = role("watcher", {"url": url, "seconds": seconds + 3})
    watcher.stdout.readline()  # type: ignore[union-attr]
    wrote = said(role("writer", {"url": url, "load": load, "seconds": seconds}))
    seen = said(watcher)
    worked = said(maintainer)
    stale = 1000 * np.array(seen["staleness"] or [np.nan])
    return {
        "strategy": strategy,
        "offered": load,
        "written": round(wrote["rows"] / wrote["seconds"]),
        "p50_ms": round(float(np.percentile(stale, 50)), 1),
        "p95_ms": round(float(np.percentile(stale, 95)), 1),
        "p99_ms": round(float(np.percentile(stale, 99)), 1),
        "batches": worked["batches"],
        "batch_p50_ms": round(1000 * worked["recent"].get("p50_seconds", 0), 1),
    }


def writers(place: str, load: int, views: int, seconds: float) -> dict[str, Any]:
    """How long puts take beside so many maintained views."""
    url = prepare(place, views, "IMB")
    maintainer = role("maintainer", {"url": url}) if views else None
    if maintainer is not None:
        maintainer.stdout.readline()  # type: ignore[union-attr]
    wrote = said(role("writer", {"url": url, "load": load, "seconds": seconds}))
    if maintainer is not None:
        said(maintainer)
    puts = 1000 * np.array(wrote["puts"])
    return {
        "views": views,
        "written": round(wrote["rows"] / wrote["seconds"]),
        "put_p50_ms": round(float(np.percentile(puts, 50)), 2),
        "put_p99_ms": round(float(np.percentile(puts, 99)), 2),
    }


def prepare(place: str, views: int, strategy: str) -> str:
    import viewkeeper as vk

    url = f"lmdb:{place}"
    with vk.open(url) as db:
        db.sql(TABLE)
        for number, query in enumerate([PUTS, *OTHERS][:views]):
            db.sql(f"CREATE MATERIALIZED VIEW v{number} WITH (strategy = '{strategy}', interval = 1) AS {query}")
    return url


# -- the processes ----------------------------------------------------------------------------------------------------


def role(name: str, options: dict[str, Any]) -> subprocess.Popen[str]:
    arguments = [sys.executable, __file__, "--role", name, json.dumps(options)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a process found, after its input was closed and it has ended."""
    out, _ = process.communicate()
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def writer(options: dict[str, Any]) -> None:
    import pyarrow as pa

    import viewkeeper as vk

    chance = np.random.default_rng(1)
    puts: list[float] = []
    pause = ROWS / options["load"]
    with vk.open(options["url"]) as db:
        started = due = time.time()
        while time.time() < started + options["seconds"]:
            ids = chance.choice(100_000, ROWS, replace=False)
            began = time.time()
            rows = {
                "id": pa.array(ids),
                "kind": pa.array([f"k{i}" for i in ids % 10]),
                "amount": pa.array([str(a) for a in chance.integers(0, 1000, ROWS)]),
                "at": pa.array(np.full(ROWS, began)),
            }
            at = time.perf_counter()
            db.put("events", pa.table(rows))
            puts.append(time.perf_counter() - at)
            due += pause
            time.sleep(max(0.0, due - time.time()))
        print(json.dumps({"rows": ROWS * len(puts), "seconds": time.time() - started, "puts": puts}))


def maintainer(options: dict[str, Any]) -> None:
    import viewkeeper as vk

    with vk.open(options["url"]) as db, db.maintain() as running:
        print("ready", flush=True)
        sys.stdin.read()
        print(json.dumps({"batches": running.batches, "recent": db.status().recent}))


def watcher(options: dict[str, Any]) -> None:
    """When each put became visible in the view."""
    import viewkeeper as vk

    found: list[float] = []
    with vk.open(options["url"], mode="r") as db:
        end = time.time() + 600
        for delta in db.subscribe("v0", progress=0.2):
            now = time.time()
            if delta.kind == "rows":
                print("ready", flush=True)
                end = now + options["seconds"]
            elif delta.kind == "changes":
                found.extend(now - c.after["at"] for c in delta.changes() if c.kind == "insert" and c.after)
            if now > end:
                break
    print(json.dumps({"staleness": found}))


ROLES = {"writer": writer, "maintainer": maintainer, "watcher": watcher}


# -- what is printed --------------------------------------------------------------------------------------------------


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    names = list(rows[0])
    print("  " + "  ".join(f"{name:>12}" for name in names))
    for row in rows:
        print("  " + "  ".join(f"{row[name]:>12}" for name in names))


def verdict(results: dict[str, Any]) -> None:
    row = next(r for r in results["staleness"] if r["offered"] == 5_000)
    slow = max(r["slowdown"] for r in results["writers"] if r["views"] == 1)
    print()
    for name, seen in (("p50_ms", row["p50_ms"]), ("p99_ms", row["p99_ms"]), ("slowdown", slow)):
        print(f"  {name:<10} {seen:>8}   bar {BARS[name]:>6}   {'holds' if seen <= BARS[name] else 'MISSED'}")


if __name__ == "__main__":
    main()
