"""The share of changed rows at which recomputing becomes faster than maintaining, for a few views, each alone.

Times between two shares are read off the straight line between them (both axes logarithmic). A view can be recomputed
by being made anew (the tables are scanned from LMDB), or by a DuckDB that has all tables in memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import viewkeeper as vk
from bars.check import recomputed
from bars.setting import Setting, opened, settled
from viewkeeper.verify.benchmark_check import apply_changes, create_views
from viewkeeper.verify.reference_model import Change, ReferenceModel
from viewkeeper.workloads.tpch import QUERIES, views

TABLE = {1: "lineitem", 3: "lineitem", 6: "lineitem", 13: "orders"}
"""The views, and the table whose rows change."""

SHARES = (0.001, 0.01, 0.05, 0.2, 0.5)


def measure(setting: Setting) -> dict[str, Any]:
    found = {}
    with opened(setting, "crossover", scale=setting.scale / 10) as (db, model):
        for view in db.status().views:
            db.sql(f"DROP MATERIALIZED VIEW {view.name}")
        for number in TABLE:
            found[f"q{number}"] = crossing(db, model, number)
    return {"crossover": found}


def crossing(db: vk.Database, model: ReferenceModel, number: int) -> dict[str, Any]:
    create_views(db, views([number]))  # once for the planner and the page cache
    db.sql(f"DROP MATERIALIZED VIEW q{number}")
    started = time.perf_counter()
    create_views(db, views([number]))
    anew = time.perf_counter() - started
    times = {share: maintained(db, model, number, share) for share in (SHARES[0], *SHARES)}
    duckdb = min(recomputed(db, model, [number])[f"q{number}"] for _ in range(3))
    db.sql(f"DROP MATERIALIZED VIEW q{number}")
    result = {
        "table": TABLE[number],
        "anew": anew,
        "duckdb": duckdb,
        "maintained": {str(share): seconds for share, seconds in times.items()},
        "share_anew": meets(times, anew),
        "share_duckdb": meets(times, duckdb),
    }
    print(f"q{number} crossover: {result}", flush=True)
    return result


def maintained(db: vk.Database, model: ReferenceModel, number: int, share: float) -> float:
    changes = [some(model, TABLE[number], share)]
    apply_changes(db, changes)
    model.apply(changes)
    started = time.perf_counter()
    db.refresh("driver")
    seconds = time.perf_counter() - started
    settled(db)
    recomputed(db, model, [number])
    return seconds


def some(model: ReferenceModel, table: str, share: float) -> Change:
    """A share of the table's rows, each with another discount or customer."""
    stamp = int(model.random.integers(1 << 30))
    other = {
        "lineitem": f"""((l_discount * 100 + 1 + hash(l_orderkey, l_linenumber, {stamp}) % 10) % 11 / 100)
            ::DECIMAL(15,2) AS l_discount""",
        "orders": f"1 + (hash(o_orderkey, {stamp}) % (SELECT max(c_custkey) FROM customer))::BIGINT AS o_custkey",
    }
    sample = f"{share * 100:g}% (bernoulli, {stamp % 10_000})"
    return Change(table, puts=model.rows(f"SELECT * REPLACE ({other[table]}) FROM {table} USING SAMPLE {sample}"))


def meets(times: Mapping[float, float], limit: float) -> float | None:
    """The share at which maintaining takes as long as `limit`; 0 if it always takes longer, None if it never does."""
    shares = sorted(times)
    if times[shares[0]] >= limit:
        return 0.0
    for low, high in pairwise(shares):
        if times[high] >= limit:
            part = math.log(limit / times[low]) / math.log(times[high] / times[low])
            return math.exp(math.log(low) + part * math.log(high / low))
    return None


assert set(TABLE) <= set(QUERIES)
