"""How rows are reached: the queries of PNUTS 2009, section 7.3, and LATEST without waiting.

    python benchmarks/access.py [--small] [--part PART …] [--rows 125000] [--payload 4096] [--store lmdb] [--keep]

    scan       all rows, filtered                                   the paper: 75 s for 125,000 rows on three servers
    thin       by an index of (column, key), then the rows by key   the paper: more than 10 times covering
    covering   by an index that includes the payload                "index only"
    latest     one row of an index just after a put, without a batch; and again, nothing new written
    sync       what a synchronous view costs the writer: puts of 1 to 10,000 rows over 50,000, without one and with a
               sum by group or an index, by turns. Without flushing to disk, which all puts pay alike. (Starts Spark.)
    joins      items with 1, 10, 100 reviews each, clustered and stored: a batch that updates 100 items, and the joined
               rows of one item. (Starts Spark, which defines the stored join.)

Parts are lookups, latest, sync, joins; without --part the first two. `--store hbase` starts an HBase of its own, or
uses that of VK_HBASE, for lookups and joins. `--keep` writes each part into `results/access.json` and `.md`.

Columns a0 … hold so many different values that a lookup hits 1, 10, 1,000 and 10,000 rows (as far as there are rows).
Times are medians in milliseconds of wall clock; `cpu` is processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import viewkeeper as vk
from bars import reached

HITS = (1, 10, 1_000, 10_000)
AT_ONCE = 5_000

Times = tuple[float, float]
Place = Callable[[str], Any]
"""Opens the database of a name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, an eighth of the payload")
    parser.add_argument("--part", nargs="+", default=["lookups", "latest"], choices=tuple(PARTS))
    parser.add_argument("--rows", type=int, default=125_000)
    parser.add_argument("--payload", type=int, default=4_096)
    parser.add_argument("--store", default="lmdb", choices=("lmdb", "rocksdb", "hbase"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the results with those of other runs")
    asked = parser.parse_args()
    rows, payload = (asked.rows // 10, asked.payload // 8) if asked.small else (asked.rows, asked.payload)
    found: dict[str, Times] = {}
    load = round(os.getloadavg()[0], 1)
    with places(asked.store) as place:
        for part in asked.part:
            measured = PARTS[part](place, rows, payload)
            found |= measured
            if asked.keep:
                figures = {name: {"ms": wall, "cpu_ms": cpu} for name, (wall, cpu) in measured.items()}
                run = {"rows": rows, "payload": payload, "load": load, "figures": figures}
                reached.keep(part, asked.store, run)
    print(f"{'what':34}{'ms':>12}{'cpu ms':>12}")
    for name, (wall, cpu) in found.items():
        print(f"{name:34}{wall:12.3f}{cpu:12.3f}")
    if asked.json is not None:
        said = {"rows": rows, "payload": payload, "store": asked.store}
        asked.json.write_text(json.dumps(said | {n: {"ms": w, "cpu_ms": c} for n, (w, c) in found.items()}, indent=1))


@contextmanager
def places(store: str) -> Iterator[Place]:
    """Opens databases by name, in one directory or one HBase."""
    with tempfile.TemporaryDirectory(prefix="vk-access-") as directory:
        if store != "hbase":
            yield lambda name: vk.open(f"{store}:{directory}/{name}", durability="none")
            return
        from viewkeeper_hbase.devserver.server import Server

        server = Server(os.environ.get("VK_HBASE") or f"{directory}/hbase")
        ran = server.status().hbase
        server.start(timeout=240)
        try:
            run = secrets.token_hex(3)
            url = f"hbase://{server.host}:{server.port}/access_{run}"
            yield lambda name: vk.open(f"{url}_{name}?create=true", state=f"{directory}/{run}_{name}")
        finally:
            if not ran:
                server.stop()


def lookups(place: Place, rows: int, payload: int) -> dict[str, Times]:
    """Each query by scan, thin and covering index; what they find must be the same."""
    hits = [h for h in HITS if h <= rows]
    found: dict[str, Times] = {}
    with place("lookups") as db:
        columns = ", ".join(f"a{i} INT" for i in range(len(hits)))
        db.sql(f"CREATE TABLE b (k BIGINT, {columns}, p BINARY, PRIMARY KEY (k))")
        random = np.random.default_rng(1)
        for start in range(0, rows, AT_ONCE):
            count = min(AT_ONCE, rows - start)
            batch = {"k": pa.array(np.arange(start, start + count), pa.int64())}
            for i, hit in enumerate(hits):
                batch[f"a{i}"] = pa.array(random.integers(0, max(1, rows // hit), count), pa.int32())
            texts = random.integers(0, 256, (count, payload), dtype=np.uint8)
            batch["p"] = pa.array([row.tobytes() for row in texts], pa.binary())
            db.put("b", pa.table(batch))
        expected = {}
        for i, hit in enumerate(hits):
            query = _query(db, f"a{i}", rows // hit // 2)
            expected[hit] = query().num_rows
            found[f"scan, about {hit} hits"] = timed(query, 1)
        for kind, include in (("thin", ""), ("covering", " INCLUDE (p)")):
            for i, hit in enumerate(hits):
                db.sql(f"CREATE INDEX i ON b (a{i}){include}")
                query = _query(db, f"a{i}", rows // hit // 2)
                assert query().num_rows == expected[hit]
                found[f"{kind}, about {hit} hits"] = timed(query, 3 if hit >= 1_000 else 20)
                db.sql("DROP INDEX i")
    return found


def _query(db: Any, column: str, value: int) -> Callable[[], Any]:
    return lambda: db.read("b", where={column: value}, columns=["p"])


def latest(place: Place, rows: int, payload: int, rounds: int = 200) -> dict[str, Times]:
    """An index is a view of one table, as a sum is; it needs no Spark to be made."""
    with place("latest") as db:
        db.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
        db.put("t", [{"k": n, "v": n} for n in range(1_000)])
        db.sql("CREATE INDEX by_v ON t (v)")
        puts, after, again = [], [], []
        with place("latest") as reader:  # it does not maintain
            for n in range(rounds):
                puts.append(timed(partial(db.put, "t", {"k": n, "v": -n}), 1))
                read = partial(reader.get, "by_v", (-n, n), vk.LATEST)
                after.append(timed(read, 1))
                again.append(timed(read, 1))
        waited = timed(db.refresh, 1)
    each = {"put": puts, "latest, just after a put": after, "latest, nothing new": again, "a batch": [waited]}
    return {name: tuple(statistics.median(t[i] for t in times) for i in (0, 1)) for name, times in each.items()}  # type: ignore[misc]


def sync(place: Place, rows: int, payload: int) -> dict[str, Times]:
    """The same puts to tables that differ in the views that are kept in their writes."""
    views = {
        "plain": "",
        "with a sum": "CREATE MATERIALIZED VIEW s WITH (sync = true) AS"
        " SELECT g, count(*) AS n, sum(v) AS total FROM t GROUP BY g",
        "with an index": "CREATE INDEX i ON t (v) WITH (sync = true)",
    }
    random = np.random.default_rng(2)
    found: dict[str, Times] = {}
    with ExitStack() as stack:
        opened = {kind: stack.enter_context(place(f"sync_{n}")) for n, kind in enumerate(views)}
        first = _written(random, 50_000)
        for kind, db in opened.items():
            db.sql("CREATE TABLE t (k BIGINT, g STRING, v INT, PRIMARY KEY (k))")
            db.put("t", first)
            if views[kind]:
                db.sql(views[kind])
        for size, times in ((1, 300), (10, 200), (100, 100), (1_000, 40), (10_000, 15)):
            taken: dict[str, list[Times]] = {kind: [] for kind in views}
            for _ in range(times + 2):
                batch = _written(random, size)
                for kind, db in opened.items():
                    taken[kind].append(timed(partial(db.put, "t", batch), 1))
            for kind, each in taken.items():
                middle = [statistics.median(t[i] for t in each[2:]) for i in (0, 1)]
                found[f"put of {size}, {kind}"] = (middle[0], middle[1])
        if not opened["with a sum"].audit().is_right:
            raise SystemExit("The sum is wrong.")
    return found


def _written(random: Any, count: int) -> pa.Table:
    keys = np.unique(random.integers(0, 100_000, count))
    groups = [f"g{n}" for n in random.integers(0, 100, len(keys))]
    return pa.table({"k": keys, "g": groups, "v": pa.array(random.integers(0, 1_000, len(keys)), pa.int32())})


def joins(place: Place, _rows: int, payload: int) -> dict[str, Times]:
    """Clustered and stored, each in a database of its own."""
    found: dict[str, Times] = {}
    rows = min(100_000, _rows)
    stored = "SELECT r.item, r.review, i.name, r.stars FROM items i JOIN reviews r ON i.item = r.item"
    for fan_out in (1, 10, 100):
        for kind in ("clustered", "stored"):
            with place(f"{kind}{fan_out}") as db:
                db.sql("CREATE TABLE items (item INT, name STRING, PRIMARY KEY (item))")
                db.sql("CREATE TABLE reviews (item INT, review INT, stars INT, PRIMARY KEY (item, review))")
                items = rows // fan_out
                db.put("items", [{"item": n, "name": f"item {n}"} for n in range(items)])
                db.put("reviews", [{"item": n % items, "review": n, "stars": n % 6} for n in range(rows)])
                if kind == "clustered":
                    db.sql("CREATE MATERIALIZED VIEW page CLUSTER BY (item) OF items, reviews")
                else:
                    db.sql(f"CREATE MATERIALIZED VIEW page KEY (item, review) AS {stored}")
                batches = []
                for turn in range(6):
                    db.put("items", [{"item": n, "name": f"turn {turn}"} for n in range(100)])
                    batches.append(timed(db.refresh, 1))
                assert len(_joined(db, kind)) == fan_out
                found[f"{kind}, fan-out {fan_out}, batch"] = min(batches[1:])
                found[f"{kind}, fan-out {fan_out}, read"] = timed(partial(_joined, db, kind), 50)
    return found


def _joined(db: Any, kind: str) -> list[Any]:
    return list(db.join("page", 7) if kind == "clustered" else db.scan("page", prefix=7))


PARTS: Mapping[str, Callable[[Place, int, int], dict[str, Times]]] = {
    "lookups": lookups,
    "latest": latest,
    "sync": sync,
    "joins": joins,
}


def timed(work: Callable[[], Any], times: int) -> tuple[float, float]:
    """Median milliseconds of wall clock and of processor time."""
    walls, cpus = [], []
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
    return statistics.median(walls), statistics.median(cpus)


if __name__ == "__main__":
    main()
