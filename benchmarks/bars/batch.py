"""A batch of new, deleted and updated orders, all views in one refresh, at the scale and at a tenth of it by turns.

DuckDB recomputes on two threads when no merge of ours runs beside it. The first batch is told apart: it opens the
state's files and prepares the statements. Merging happens behind a batch, and its seconds are shown on their own.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import viewkeeper as vk
from bars.check import recomputed
from bars.setting import Setting, anonymous_bytes, settled
from bars.views import FULL, TENTH, scales, viewed
from viewkeeper.verify.benchmark_check import apply_changes
from viewkeeper.verify.reference_model import Change, ReferenceModel


def measure(setting: Setting) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {FULL: [], TENTH: []}
    dimensions: list[float] = []
    with ExitStack() as stack:
        pairs = {n: stack.enter_context(viewed(setting, n, scale=s)) for n, s in scales(setting).items()}
        for batch in range(setting.batches + 1):
            for name, (db, model) in pairs.items():
                changes = model.orders_batch(setting.orders, setting.orders, setting.orders)
                runs[name].append(one(db, model, changes))
                told = ", ".join(f"{k} {v * 1e3:.0f} ms" for k, v in runs[name][-1].items() if isinstance(v, float))
                print(f"batch {batch}, {name}: {told}", flush=True)
            db, model = pairs[FULL]
            found = one(db, model, model.dimensions_batch(setting.orders))
            dimensions.append(found["ours"])
            print(f"batch {batch}, dimensions: {found['ours'] * 1e3:.0f} ms", flush=True)
        db, model = pairs[FULL]
        status = db.status()
        states = {v.name: v.state_bytes for v in status.views}
        return {
            "batch": {name: summary(found) for name, found in runs.items()},
            "dimensions": {"seconds": statistics.median(dimensions[1:]), "first": dimensions[0]},
            "by_view": by_view(runs[FULL][1:], states),
            "state": {"bytes": status.state_bytes, "base_bytes": base_bytes(db, model)},
            "anonymous_bytes": anonymous_bytes(),
        }


def one(db: vk.Database, model: ReferenceModel, changes: Sequence[Change]) -> dict[str, Any]:
    """One refresh in the driver lane, the writes not counted; then DuckDB's recompute, and the comparison."""
    apply_changes(db, changes)
    model.apply(list(changes))
    started = time.perf_counter()
    db.refresh("driver")
    ours = time.perf_counter() - started
    by = shares(db)
    merging = settled(db)
    duckdb = recomputed(db, model)
    return {"ours": ours, "merge": merging, "duckdb": sum(duckdb.values()), "shares": by, "recomputes": duckdb}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of all batches but the first; the ratio is the median of each batch's own."""
    warm = runs[1:]
    return {
        "first": runs[0]["ours"],
        **{key: statistics.median(r[key] for r in warm) for key in ("ours", "merge", "duckdb")},
        "ratio": statistics.median(r["ours"] / r["duckdb"] for r in warm),
        "runs": [{k: r[k] for k in ("ours", "merge", "duckdb")} for r in runs],
    }


def by_view(runs: Sequence[dict[str, Any]], states: dict[str, int]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for number in range(1, 23):
        view = f"q{number}"
        found[view]["ours"] = statistics.median(r["shares"][view] for r in runs)
        found[view]["duckdb"] = statistics.median(r["recomputes"][view] for r in runs)
        found[view]["state_bytes"] = states[view]
    return dict(found)


def shares(db: vk.Database) -> dict[str, float]:
    """Seconds of the last batch by view; an operator that several views share is split between them."""
    maintainer = db._acquire_maintainer()
    names = {v.table.id: v.table.name for v in maintainer.publisher.catalog.views}
    found: dict[str, float] = dict.fromkeys(names.values(), 0.0)
    for operator, seconds in maintainer.executor.clock.items():
        views = maintainer.publisher.dataflow.views_of(operator)
        for view in views:
            found[names[view]] += seconds / len(views)
    return found


def base_bytes(db: vk.Database, model: ReferenceModel) -> int:
    """Arrow bytes of the base columns that the views use."""
    flow = db._acquire_maintainer().publisher.dataflow
    return sum(
        model.rows(f"SELECT {', '.join(c.name for c in columns)} FROM {flow.tables[table].name}").nbytes
        for table, columns in flow.used_columns.items()
    )
