"""Snapshot reads: a base table as it was at a cut, from scans of the store while writers continue.

A large table is read in partitions, which stay on disk until the load that reads them is finished (`partition_store`).
Partitions that an earlier load has read are brought to the cut (`partitions`) and not read again. If the store cannot
read the past, the table is scanned in partitions *before* the cut is chosen (`scan_live`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from viewkeeper.capture.partition_store import PartitionStore
from viewkeeper.capture.partitions import (
    Consolidator,
    CutMoved,
    TablePartition,
    missing_ranges,
    partition_at_cut,
    partition_bounds,
)
from viewkeeper.model.delta import with_weight
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.resources.memory import MemoryBudget
from viewkeeper.store.contract.store import Store

Progress = Callable[[str, int, int], None]
"""Callback for long work: the step ("scanning orders"), the amount done, and the total amount."""


class Cancellation(BaseException):
    """Raised by a `Progress` callback to cancel the work, as Ctrl-C would; nothing is published."""


def table_at_cut(
    store: Store,
    table: Table,
    columns: Sequence[str],
    cut: int,
    consolidate: Consolidator,
    memory: MemoryBudget,
    progress: Progress | None = None,
    partitions: Sequence[TablePartition] = (),
    partition_store: PartitionStore | None = None,
) -> pa.Table:
    """Return the table at the cut as a delta from the empty table, from the partitions read before and scans of the
    rest."""
    found = [
        *partitions,
        *(partition_store.find_partitions(table, columns) if partition_store is not None and not partitions else ()),
    ]
    pieces, used = [], []
    for partition in found:
        rows = partition_at_cut(store, table, columns, partition, cut, consolidate)
        if rows is not None:
            pieces.append(with_weight(rows, 1))
            used.append(partition)
    missing = list(missing_ranges(used, partition_bounds(store, table)))
    if missing and not store.can_scan_at(table):
        raise CutMoved
    rows_done = sum(p.num_rows for p in pieces)
    if rows_done and missing and progress is not None:
        progress(f"resuming {table.name}", rows_done, max(rows_done, store.count(table)))
    for start, stop in missing:
        rows, clean = scan_table_at(store, table, columns, cut, memory, progress, start, stop, rows_done)
        rows = rows if clean else consolidate(rows)
        if partition_store is not None and len(missing) > 1:
            partition_store.save(table, TablePartition(start, stop, cut, rows.drop_columns([WEIGHT])))
        pieces.append(rows)
        rows_done += rows.num_rows
    return pa.concat_tables(pieces)


def scan_live(
    store: Store,
    table: Table,
    columns: Sequence[str],
    progress: Progress | None,
    partition_store: PartitionStore | None = None,
) -> list[TablePartition]:
    """Scan a table partition by partition while writers continue, for a store that cannot read the past."""
    found = partition_store.find_partitions(table, columns) if partition_store is not None else []
    expected, rows_done = store.count(table), sum(p.rows.num_rows for p in found)
    missing = list(missing_ranges(found, partition_bounds(store, table)))
    if rows_done and progress is not None:
        progress(f"resuming {table.name}", rows_done, max(rows_done, expected))
    for start, stop in missing:
        position = store.head()  # before the first row is read: the scan sees all writes up to here
        batches: list[pa.RecordBatch] = []
        for batch in store.scan(table, columns, start=start, stop=stop):
            batches.append(batch)
            rows_done += batch.num_rows
            if progress is not None:
                progress(f"scanning {table.name}", rows_done, max(rows_done, expected))
        rows = pa.Table.from_batches(batches, pa.schema([table.arrow.field(c) for c in columns])).combine_chunks()
        partition = TablePartition(start, stop, position, rows, store.head())
        found.append(
            partition_store.save(table, partition) if partition_store is not None and len(missing) > 1 else partition
        )
    return found


def scan_table_at(
    store: Store,
    table: Table,
    columns: Sequence[str],
    cut: int,
    memory: MemoryBudget,
    progress: Progress | None,
    start: bytes | None = None,
    stop: bytes | None = None,
    rows_done: int = 0,
) -> tuple[pa.Table, bool]:
    """Return the table, or a key range of it, at the cut as a delta from the empty table, and whether all weights are
    one.

    `rows_done`: rows read before, for the progress report.
    """
    expected = store.count(table)
    schema = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())])

    def scan_batches() -> Iterator[pa.RecordBatch]:
        read = rows_done
        for batch in store.scan_at(table, columns, cut, start=start, stop=stop):
            yield batch
            read += batch.num_rows
            if progress is not None:
                progress(f"scanning {table.name}", read, max(read, expected))

    rows = memory.collect(scan_batches(), schema)  # many chunks: each consumer combines the columns that it needs
    weights = rows[WEIGHT].to_numpy()
    return rows, bool((weights == 1).all())
