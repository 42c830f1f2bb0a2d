"""A base table as it was at a cut, from a scan of the store while writers go on.

A large one is read in parts, which are kept on disk until the load that reads them is done (`kept`); what a load before
it has read is brought to the cut (`parts`) and not read again. A store that cannot show the past is scanned in parts
*before* the cut is chosen: `scan_live`.
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
"""Told of long work: what is being done ("scanning orders"), how far it is, and of how much."""


class Cancellation(BaseException):
    """Raised by a `Progress` to end the work that it is told of, as Ctrl-C would: nothing of it is published."""


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
    """The table at the cut, as a delta from nothing: from parts that were read, and scans of what they leave open."""
    found = [
        *partitions,
        *(partition_store.find_partitions(table, columns) if partition_store is not None and not partitions else ()),
    ]
    pieces, known = [], []
    for part in found:
        rows = partition_at_cut(store, table, columns, part, cut, consolidate)
        if rows is not None:
            pieces.append(with_weight(rows, 1))
            known.append(part)
    left = list(missing_ranges(known, partition_bounds(store, table)))
    if left and not store.can_scan_at(table):
        raise CutMoved
    done = sum(p.num_rows for p in pieces)
    if done and left and progress is not None:
        progress(f"resuming {table.name}", done, max(done, store.count(table)))
    for start, stop in left:
        rows, clean = scan_table_at(store, table, columns, cut, memory, progress, start, stop, done)
        rows = rows if clean else consolidate(rows)
        if partition_store is not None and len(left) > 1:
            partition_store.save(table, TablePartition(start, stop, cut, rows.drop_columns([WEIGHT])))
        pieces.append(rows)
        done += rows.num_rows
    return pa.concat_tables(pieces)


def scan_live(
    store: Store,
    table: Table,
    columns: Sequence[str],
    progress: Progress | None,
    partition_store: PartitionStore | None = None,
) -> list[TablePartition]:
    """The table as it is found, part by part while writers go on, for a store that cannot show the past."""
    parts = partition_store.find_partitions(table, columns) if partition_store is not None else []
    expected, done = store.count(table), sum(p.rows.num_rows for p in parts)
    left = list(missing_ranges(parts, partition_bounds(store, table)))
    if done and progress is not None:
        progress(f"resuming {table.name}", done, max(done, expected))
    for start, stop in left:
        position = store.head()  # before the first row is read: what was written up to here is seen
        batches: list[pa.RecordBatch] = []
        for batch in store.scan(table, columns, start=start, stop=stop):
            batches.append(batch)
            done += batch.num_rows
            if progress is not None:
                progress(f"scanning {table.name}", done, max(done, expected))
        rows = pa.Table.from_batches(batches, pa.schema([table.arrow.field(c) for c in columns])).combine_chunks()
        part = TablePartition(start, stop, position, rows, store.head())
        parts.append(partition_store.save(table, part) if partition_store is not None and len(left) > 1 else part)
    return parts


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
    """The table (or a key range of it) at the cut as a delta from nothing, and whether it has no retractions in it.

    `done`: rows that were read before, for the progress report.
    """
    expected = store.count(table)
    schema = pa.schema([*(table.arrow.field(c) for c in columns), pa.field(WEIGHT, pa.int64())])

    def scanned() -> Iterator[pa.RecordBatch]:
        read = rows_done
        for batch in store.scan_at(table, columns, cut, start=start, stop=stop):
            yield batch
            read += batch.num_rows
            if progress is not None:
                progress(f"scanning {table.name}", read, max(read, expected))

    rows = memory.collect(scanned(), schema)  # many chunks: each of its users makes what it needs of them
    weights = rows[WEIGHT].to_numpy()
    return rows, bool((weights == 1).all())
