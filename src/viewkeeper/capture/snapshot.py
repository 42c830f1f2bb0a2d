"""A base table as it was at a cut, from a scan of the store while writers go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.store.base import Store


def table_at(
    store: Store,
    table: Table,
    columns: Sequence[str],
    cut: int,
    progress: Callable[[str, int, int], None] | None,
    start: bytes | None = None,
    stop: bytes | None = None,
) -> tuple[pa.Table, bool]:
    """The table (or a key range of it) at the cut as a delta from nothing, and whether it has no retractions in it."""
    expected = store.count(table)
    schema = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())])
    batches: list[pa.RecordBatch] = []
    done = 0
    for batch in store.scan_at(table, columns, cut, start=start, stop=stop):
        batches.append(batch)
        done += batch.num_rows
        if progress is not None:
            progress(f"scanning {table.name}", done, max(done, expected))
    rows = pa.Table.from_batches(batches, schema)  # many chunks: each of its users makes what it needs of them
    weights = rows[WEIGHT].to_numpy()
    return rows, bool((weights == 1).all())
