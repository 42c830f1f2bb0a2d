"""Batches of 22 views whose lookups are made together, and apart, by turns; statements and lookups are counted.

scattered       lines and orders updated wherever they are
orders          whole orders made, deleted and updated
dimensions      up to as many rows of customer, part, supplier and partsupp, and a nation that moves
few dimensions  0.1 % of customer, part, supplier and partsupp

The first batch of each kind is of either sort, and does not count: it opens files and prepares statements. Who runs a
batch together is left to the database, which tries threads and processes and goes on with what was faster; batches
apart are run by this process alone. Statements and lookups are those of batches that this process ran alone.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import viewkeeper as vk
from bars.check import recomputed
from bars.setting import Setting, settled
from bars.views import FULL, viewed
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.runtime import executor
from viewkeeper.runtime.processes.scheduler import ProcessScheduler
from viewkeeper.state.cursor import LookupCursor
from viewkeeper.state.run import Arrangement
from viewkeeper.verify.benchmark_check import apply_changes
from viewkeeper.verify.reference_model import Change
from viewkeeper.workloads.tpch.changes import TpchModel

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
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    duckdb: list[float] = []
    for number in range(1 + times):
        for way in WAYS:
            runs[way].append(_one(db, model, make(), way))
            settled(db)
        if number:
            duckdb.append(sum(recomputed(db, model).values()))
        told = ", ".join(f"{way} {runs[way][-1]['seconds'] * 1e3:.0f} ms by {runs[way][-1]['by']}" for way in WAYS)
        print(f"{kind} {number}: {told}, duckdb {duckdb[-1] * 1e3 if duckdb else 0:.0f} ms", flush=True)
    found: dict[str, Any] = {way: _medians(runs[way][1:]) for way in WAYS}
    against = statistics.median(duckdb)
    ratios = sorted(r["seconds"] / d for r, d in zip(runs["together"][1:], duckdb, strict=True))
    beside: dict[str, Any] = {"duckdb": against, "ratio": statistics.median(ratios), "ratios": ratios}
    beside["run by"] = Counter(str(r["by"]) for r in runs["together"][1:])
    return {**found, **beside, "changes": int(found["together"]["changes"])}


def _one(db: vk.Database, model: TpchModel, changes: Sequence[Change], mode: str) -> dict[str, Any]:
    apply_changes(db, changes)
    model.apply(list(changes))
    with _counted() as counts, nullcontext() if mode == "together" else _apart():
        started = time.perf_counter()
        report = db.refresh("driver")
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "changes": report.changes, "by": report.why.partition("run by ")[2], **counts}


@contextmanager
def _apart() -> Iterator[None]:
    """Lookups of views by themselves, and all of them here."""
    with (
        patch.object(executor, "shared", lambda flow, *_: flow),
        patch.object(ProcessScheduler, "shares", lambda *_: ()),
        patch.object(ProcessScheduler, "note", lambda *_: None),
    ):
        yield


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of what they took; what is counted here is what a batch has that shares its work with nobody, so the most."""
    found = {key: statistics.median(r[key] for r in runs) for key in ("seconds", "changes")}
    return found | {key: max(r[key] for r in runs) for key in ("statements", "lookups")}


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
        patch.object(PreparedStatements, "run", counting("statements", PreparedStatements.run)),
        patch.object(Arrangement, "probed", counting("lookups", Arrangement.probe_pieces)),
        patch.object(LookupCursor, "find", counting("lookups", LookupCursor.unique)),
        patch.object(LookupCursor, "matched", counting("lookups", LookupCursor.iter_matches)),
    ):
        yield counts
