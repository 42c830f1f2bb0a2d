"""`vk bench`: the time of a batch compared with recomputation, on this machine, in one run.

A batch changes a number of orders with their lines: a third new, a third deleted, a third updated. Recomputation is
DuckDB running the same queries over the same tables in memory, which is as fast as recomputation gets. Its time grows
with the data, the time of a batch with the change.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import viewkeeper
from viewkeeper.cli.progress import quiet_jvm
from viewkeeper.verify.benchmark_check import apply_changes, create_views, load_tables
from viewkeeper.verify.reference_model import ReferenceModel
from viewkeeper.workloads.tpch import QUERIES, views
from viewkeeper.workloads.tpch.changes import TpchModel


def bench(files: Path, numbers: Sequence[int], sizes: Sequence[int], repeat: int, seed: int) -> pa.Table:
    """A row for each batch size: changed rows, milliseconds of a batch and of recomputation, and their ratio."""
    model = TpchModel(files, seed)
    rows = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="vk-bench-") as directory,
            viewkeeper.open(f"lmdb:{directory}/db") as db,
        ):
            load_tables(db, model)
            with quiet_jvm():
                create_views(db, views(numbers))
            for size in sizes:
                third = max(1, size // 3)
                batches, changed = [], []
                for _ in range(repeat):
                    changes = model.orders_batch(third, third, third)
                    model.apply(changes)
                    apply_changes(db, changes)
                    report = db.refresh("driver")
                    batches.append(report.seconds)
                    changed.append(report.changes)
                recompute_seconds = statistics.median(_recompute_seconds(model, numbers) for _ in range(min(repeat, 3)))
                batch_seconds = statistics.median(batches)
                rows.append(
                    {
                        "orders": 3 * third,
                        "changed_rows": int(statistics.median(changed)),
                        "batch_ms": round(1000 * batch_seconds, 2),
                        "recompute_ms": round(1000 * recompute_seconds, 2),
                        "times_faster": round(recompute_seconds / batch_seconds, 2),
                        "rows_per_second": int(statistics.median(changed) / batch_seconds),
                    }
                )
    finally:
        model.close()
    return pa.Table.from_pylist(rows)


def _recompute_seconds(model: ReferenceModel, numbers: Sequence[int]) -> float:
    started = time.perf_counter()
    for number in numbers:
        model.rows(QUERIES[number])
    return time.perf_counter() - started
