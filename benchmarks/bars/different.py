"""Many different views of one schema: selections, groups and joins drawn at random over TPC-H's foreign keys.

What a batch takes of all of them together (`together`: lookups and conditions shared), of all of them in one batch with
nothing shared (`apart`), and one after the other: some of them, each as the only view of a batch, times their number.
Views are drawn as `tests/property/test_shared.py` draws them: what is joined, what is asked, shown and measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

import pyarrow as pa

import viewkeeper as vk
from bars.setting import Peak, settled
from bars.shared import _apart, _counted
from viewkeeper.runtime import executor

JOINS = {
    "orders": ("lineitem", "l_orderkey = o_orderkey"),
    "customer": ("orders", "o_custkey = c_custkey"),
    "nation": ("customer", "c_nationkey = n_nationkey"),
}
"""What is joined, to what, and how."""

CONDITIONS = {
    "lineitem": (
        "l_quantity < {quantity}",
        "l_discount BETWEEN 0.0{low} AND 0.0{high}",
        "l_shipdate >= DATE '199{low}-0{high}-01'",
        "l_returnflag = '{flag}'",
        "l_shipmode IN ('{mode}', 'AIR')",
        "l_shipinstruct LIKE '{start}%'",
    ),
    "orders": ("o_orderdate < DATE '199{high}-0{low}-15'", "o_orderstatus = '{status}'", "o_totalprice > {price}"),
    "customer": ("c_mktsegment <> '{segment}'", "c_acctbal > {balance}"),
    "nation": ("n_regionkey = {region}", "n_name > '{start}'"),
}
SHOWN = {
    "lineitem": ("l_returnflag", "l_linestatus", "l_shipmode", "l_shipdate", "l_suppkey"),
    "orders": ("o_orderstatus", "o_orderpriority", "o_orderdate"),
    "customer": ("c_mktsegment", "c_nationkey"),
    "nation": ("n_name", "n_regionkey"),
}
MEASURES = (
    "count(*)",
    "sum(l_quantity)",
    "sum(l_extendedprice)",
    "sum(l_extendedprice * (1 - l_discount))",
    "avg(l_discount)",
    "max(l_extendedprice)",
    "min(l_quantity)",
)
APART = 10
"""Views that are also the only one of a batch."""
TOGETHER = 100
"""Views that are made at once."""
WAYS = ("apart", "together")
MANY = 500
"""Views from which on the batches with nothing shared, which take minutes, are one and one that does not count."""


@dataclass(frozen=True)
class Found:
    """Seconds of a batch, its processor time, statements and lookups; `one_by_one`: of as many batches of one view."""

    views: int
    define: float
    together: float
    apart: float
    one_by_one: float
    together_cpu: float
    apart_cpu: float
    statements: tuple[int, int]
    lookups: tuple[int, int]
    differ: int
    memory: float


def random_query(rng: Random) -> str:
    joined = ["lineitem"]
    for name, (to, _) in JOINS.items():
        if to in joined and rng.random() < 0.6:
            joined.append(name)
    source = joined[0] + "".join(f" JOIN {name} ON {JOINS[name][1]}" for name in joined[1:])
    values = {
        "quantity": rng.randrange(5, 51),
        "low": rng.randrange(2, 5),
        "high": rng.randrange(5, 9),
        "flag": rng.choice("ANR"),
        "mode": rng.choice(("RAIL", "SHIP", "MAIL", "TRUCK")),
        "start": rng.choice("CDJNT"),
        "status": rng.choice("FOP"),
        "price": rng.randrange(1_000, 300_000),
        "segment": rng.choice(("AUTOMOBILE", "BUILDING", "MACHINERY")),
        "balance": rng.randrange(-900, 9_000),
        "region": rng.randrange(5),
    }
    asked = [c.format(**values) for name in joined for c in CONDITIONS[name] if rng.random() < 0.35]
    where = f" WHERE {' AND '.join(asked)}" if asked else ""
    shown = rng.sample([c for name in joined for c in SHOWN[name]], rng.randrange(1, 3))
    calls = rng.sample(MEASURES, rng.randrange(1, 4))
    told = ", ".join(f"{c} AS m{i}" for i, c in enumerate(calls))
    return f"SELECT {', '.join(shown)}, {told} FROM {source}{where} GROUP BY {', '.join(shown)}"


def random_queries(count: int, seed: int = 1) -> dict[str, str]:
    rng, found = Random(seed), dict[str, None]()
    while len(found) < count:
        found[random_query(rng)] = None
    return {f"d{i}": text for i, text in enumerate(found)}


def measure(db: vk.Database, counts: Sequence[int], changes: Iterator[pa.Table], batches: int) -> Iterator[Found]:
    """With more and more views, those of before among them; first some of them, each as the only view."""
    views = random_queries(max(counts))
    sample = list(views)[:: max(1, min(counts) // APART)][:APART]
    alone = []
    for name in sample:
        db.sql(f"CREATE MATERIALIZED VIEW {name} AS {views[name]}")
        alone.append(min(_batch(db, next(changes), "together")[0] for _ in range(2)))
        db.drop_views([name])
    made, define = 0, 0.0
    for count in sorted(counts):
        with Peak() as peak:
            started = time.perf_counter()
            while made < count:
                more = list(views.items())[made : min(made + TOGETHER, count)]
                db.create_views(dict(more))
                made += len(more)
                print(f"{made:,} views after {define + time.perf_counter() - started:.0f} s", flush=True)
            define += time.perf_counter() - started
            times = {way: 1 if way == "apart" and count >= MANY else batches for way in WAYS}
            runs = {way: [_batch(db, next(changes), way) for _ in range(1 + times[way])][1:] for way in WAYS}
        for name in sample:
            db.sql(f"CREATE MATERIALIZED VIEW alone_{name} WITH (share = false) AS {views[name]}")
        differ = sum(not db.read(name).equals(db.read(f"alone_{name}")) for name in sample)
        db.drop_views([f"alone_{name}" for name in sample])
        middle = {way: [statistics.median(run[i] for run in found) for i in range(4)] for way, found in runs.items()}
        apart, together = middle["apart"], middle["together"]
        yield Found(
            count,
            define,
            together[0],
            apart[0],
            count * statistics.mean(alone),
            together[1],
            apart[1],
            (int(together[2]), int(apart[2])),
            (int(together[3]), int(apart[3])),
            differ,
            peak.bytes / 1e9,
        )


def _batch(db: vk.Database, lines: pa.Table, mode: str) -> tuple[float, float, int, int]:
    db.put("lineitem", lines)
    settled(db)
    with (
        _counted() as counts,
        patch.object(executor, "shared", executor.shared_variant if mode == "together" else _apart),
    ):
        wall, cpu = time.perf_counter(), time.process_time()
        db.refresh("driver")
        return time.perf_counter() - wall, time.process_time() - cpu, counts["statements"], counts["lookups"]


def show(found: Found) -> None:
    print(
        f"{found.views:,} different views: defined and loaded in {found.define:.1f} s; a batch together"
        f" {found.together:.3f} s ({found.together_cpu:.3f} cpu, {found.statements[0]} statements,"
        f" {found.lookups[0]} lookups), with nothing shared {found.apart:.3f} s ({found.apart_cpu:.3f} cpu,"
        f" {found.statements[1]} statements, {found.lookups[1]} lookups), one after the other about"
        f" {found.one_by_one:.1f} s ({found.one_by_one / found.together:.1f} times as long); {found.differ} of those"
        " compared differ",
        flush=True,
    )
