"""Batches of 22 views whose lookups are made together, and apart, by turns; statements and lookups are counted.

scattered       lines and orders updated wherever they are
orders          whole orders made, deleted and updated
dimensions      up to as many rows of customer, part, supplier and partsupp, and a nation that moves
few dimensions  0.1 % of customer, part, supplier and partsupp

The first batch of each kind is of either sort, and does not count: it opens files and prepares statements.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import viewkeeper as vk
from bars.check import recomputed
from bars.setting import Setting, settled
from bars.views import FULL, viewed
from viewkeeper.maintain import stage
from viewkeeper.operators.arrangement import Arrangement
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.places import Lying
from viewkeeper.tpch.changes import TpchModel
from viewkeeper.verify.model import Change
from viewkeeper.verify.yardstick import apply

WAYS = ("apart", "together")


def measure(setting: Setting) -> dict[str, Any]:
    with viewed(setting, FULL) as (db, model):
        rows = setting.orders * 50 // 3
        kinds: dict[str, Callable[[], list[Change]]] = {
            "scattered": lambda: model.scattered_batch(rows),
            "orders": lambda: model.orders_batch(*[setting.orders] * 3),
            "few dimensions": lambda: model.dimensions_batch(setting.orders, 0.001, nations=False),
            "dimensions": lambda: model.dimensions_batch(setting.orders),
        }
        return {"shared": {kind: _by_turns(db, model, kind, make, setting.batches) for kind, make in kinds.items()}}


def _by_turns(db: vk.Database, model: TpchModel, kind: str, make: Callable[[], list[Change]], times: int) -> Any:
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    duckdb: list[float] = []
    for number in range(1 + times):
        for way in WAYS:
            runs[way].append(_one(db, model, make(), way))
            settled(db)
        if number:
            duckdb.append(sum(recomputed(db, model).values()))
        told = ", ".join(f"{way} {runs[way][-1]['seconds'] * 1e3:.0f} ms" for way in WAYS)
        print(f"{kind} {number}: {told}, duckdb {duckdb[-1] * 1e3 if duckdb else 0:.0f} ms", flush=True)
    found = {way: _medians(runs[way][1:]) for way in WAYS}
    against = statistics.median(duckdb)
    ratios = sorted(r["seconds"] / d for r, d in zip(runs["together"][1:], duckdb, strict=True))
    beside = {"duckdb": against, "ratio": statistics.median(ratios), "ratios": ratios}
    return {**found, **beside, "changes": int(found["together"]["changes"])}


def _one(db: vk.Database, model: TpchModel, changes: Sequence[Change], way: str) -> dict[str, float]:
    apply(db, changes)
    model.apply(list(changes))
    with _counted() as counts, patch.object(stage, "shared", stage.shared if way == "together" else _apart):
        started = time.perf_counter()
        report = db.refresh("driver")
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "changes": report.changes, **counts}


def _apart(flow: Any, *_: Any) -> Any:
    return flow


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(r[key] for r in runs) for key in runs[0]}


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Statements, and lookups in arrangements, that are made within the block."""
    counts: Counter[str] = Counter(statements=0, lookups=0)

    def counting(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return work(*args, **named)

        return counted

    with (
        patch.object(Duck, "run", counting("statements", Duck.run)),
        patch.object(Arrangement, "probed", counting("lookups", Arrangement.probed)),
        patch.object(Lying, "find", counting("lookups", Lying.find)),
        patch.object(Lying, "matched", counting("lookups", Lying.matched)),
    ):
        yield counts
