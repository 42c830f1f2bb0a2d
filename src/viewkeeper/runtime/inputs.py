"""Input sources: where the input rows of a batch's operators come from, in either lane.

The driver reads a source whole; Spark tasks fetch its splits themselves. The deltas of a batch are in memory already;
in the Spark lane, a large delta is a range of the change log instead. A backfill reads a table's image (files that
every task can map), or scans the store by key ranges at one exact cut, each task in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from viewkeeper.capture.partition_store import PartitionStore, read_partition, write_partition
from viewkeeper.capture.partitions import TablePartition, is_large, missing_ranges, partition_at_cut
from viewkeeper.capture.snapshot import Progress, scan_table_at, table_at_cut
from viewkeeper.model.delta import with_weight
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.resources.memory import MAX_PIECE_ROWS, MemoryBudget
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import RunEntry, group_pieces, open_run
from viewkeeper.store.contract.store import Store
from viewkeeper.store.registry import open_store


class InputSplit(Protocol):
    """A part of an input source, which a task fetches by itself."""

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table: ...


class InputSource(Protocol):
    """The output rows of an operator that does not run in this batch because its output is available elsewhere."""

    @property
    def count(self) -> int | None:
        """The number of rows, or None if it is unknown before reading."""

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        """Return all rows as a consolidated delta; many rows are spilled to a file."""

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        """Divide the rows among `task_count` tasks; the scheduler assigns splits to tasks in turn.

        There is at most one split for each task, or the same number for each.
        """


@dataclass(frozen=True)
class MemoryRows:
    """Rows in memory; a split of them is sent to its task inside the Spark job."""

    table: pa.Table

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        return self.table

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        return self.table

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        step = max(1, -(-self.table.num_rows // task_count))
        return [MemoryRows(self.table.slice(at, step)) for at in range(0, self.table.num_rows, step)]


@dataclass(frozen=True)
class FileRows:
    """A range of rows in an Arrow file that the task maps."""

    path: str
    start: int
    stop: int

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        with pa.memory_map(self.path) as file:
            return pa.ipc.open_file(file).read_all().slice(self.start, self.stop - self.start)


def is_empty(source: InputSource) -> bool:
    """Whether the source certainly has no rows.

    A store's row count is not used: it is not the count at the cut, because rows are inserted and deleted meanwhile.
    """
    return isinstance(source, (MemoryRows, ImageRows)) and source.count == 0


def write_splits(rows: pa.Table, path: str, count: int) -> Sequence[InputSplit]:
    """Write the rows to a file that tasks can map, instead of sending them, and return `count` ranges of it."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    bounds = [rows.num_rows * number // count for number in range(count + 1)]
    return [FileRows(path, start, stop) for start, stop in pairwise(bounds)]


@dataclass(frozen=True)
class Deferred:
    """Rows that the driver computes when they are read."""

    compute: Callable[[], pa.Table]

    @property
    def count(self) -> None:
        return None

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        rows = self.compute()
        return memory.spill(rows) if rows.nbytes > memory.buffer_bytes else rows

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        return MemoryRows(self.compute()).splits(statements, task_count, memory)


@dataclass(frozen=True)
class ImageRows:
    """A base table read from its image, whole or a range of hashes."""

    directory: str
    entries: tuple[RunEntry, ...]
    columns: tuple[str, ...]
    low: int = 0
    high: int = 2**64 - 1

    @property
    def count(self) -> int:
        return sum(e.rows for e in self.entries)

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        part_count = -(-sum(e.length for e in self.entries) // memory.buffer_bytes) if len(self.entries) > 1 else 1
        if part_count == 1:
            return self.fetch(statements, memory)
        return pa.concat_tables(
            [memory.spill(split.fetch(statements, memory)) for split in self.splits(statements, 4 * part_count, memory)]
        )

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        entries = [e for e in self.entries if e.overlaps(self.low, self.high)] or self.entries[:1]
        runs = [_hash_range(open_run(self.directory, e, verify=False), self.low, self.high) for e in entries]
        rows = Arrangement(tuple(runs)).rows(list(self.columns))
        # A single run is consolidated already: merging consolidates, and a backfill's rows are distinct by key.
        return rows if len(group_pieces(entries)) == 1 else consolidate(statements, rows)

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        bounds = [2**64 * number // task_count for number in range(task_count + 1)]
        return [ImageRows(self.directory, self.entries, self.columns, low, high - 1) for low, high in pairwise(bounds)]


@dataclass(frozen=True)
class LogRange:
    """The changes of a table by write calls after `after` up to `cut`, read from the change log: whole, or a partition.

    A single call names a key once, so its partitions need not be consolidated with each other. With
    `has_several_calls` they must be, before the first expression is evaluated on them.
    """

    url: str
    table: Table
    columns: tuple[str, ...]
    after: int
    cut: int
    count: int
    has_several_calls: bool = False
    partition: int = 0
    partitions: int = 1

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        return self.fetch(statements, memory)

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        store = open_store(self.url, "r")
        try:
            request = (self.table, self.columns, self.after, self.cut)
            return store.changes_partition(*request, self.partition, self.partitions)
        finally:
            store.close()

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        """Divide the range into partitions of about one piece of memory, the same number for each task."""
        fields = (self.url, self.table, self.columns, self.after, self.cut, self.count, self.has_several_calls)
        # An update has two rows: before and after.
        count = task_count * max(1, -(-2 * self.count // (task_count * MAX_PIECE_ROWS)))
        return [LogRange(*fields, partition, count) for partition in range(count)]


@dataclass(frozen=True)
class TableScanSplit:
    """A range of keys of a base table, scanned from the store at a cut.

    `saved_file` holds the rows of the range that an earlier backfill has read. If `save_directory` is set, the rows
    that are read here are saved there, so that a later backfill can use them.
    """

    url: str
    table: Table
    columns: tuple[str, ...]
    cut: int
    start: bytes | None = None
    stop: bytes | None = None
    saved_file: str = ""
    save_directory: str | None = None

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        store = open_store(self.url, "r")
        try:
            saved = read_partition(self.saved_file, self.columns) if self.saved_file else None
            if saved is not None:
                rows_at_cut = partition_at_cut(
                    store, self.table, self.columns, saved, self.cut, partial(consolidate, statements)
                )
                if rows_at_cut is not None:
                    return with_weight(rows_at_cut, 1)
            rows, is_consolidated = scan_table_at(
                store, self.table, self.columns, self.cut, memory, None, self.start, self.stop
            )
        finally:
            store.close()
        rows = rows if is_consolidated else consolidate(statements, rows)
        if self.save_directory is not None:
            write_partition(
                self.save_directory,
                self.table,
                TablePartition(self.start, self.stop, self.cut, rows.drop_columns([WEIGHT])),
            )
        return rows


@dataclass(frozen=True)
class TableScan:
    """A scan of a base table that has no image yet, or an image with fewer columns."""

    store: Store
    table: Table
    columns: tuple[str, ...]
    cut: int
    progress: Progress | None
    partitions: tuple[TablePartition, ...] = ()
    """The parts of the table that were scanned already."""
    partition_store: PartitionStore | None = None

    @property
    def count(self) -> int:
        return self.store.count(self.table)

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        consolidator = partial(consolidate, statements)
        request = (self.store, self.table, self.columns, self.cut, consolidator, memory)
        return table_at_cut(*request, self.progress, self.partitions, self.partition_store)

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        if not self.store.can_scan_at(self.table):
            return MemoryRows(self.read(statements, memory)).splits(statements, task_count, memory)
        saved = [] if self.partition_store is None else self.partition_store.find_partitions(self.table, self.columns)
        save_directory = None
        if self.partition_store is not None and is_large(self.store, self.table):
            self.partition_store.hold_log(self.cut)
            save_directory = self.partition_store.shared_directory
        if saved and self.progress is not None:
            saved_rows = sum(part.rows.num_rows for part in saved)
            self.progress(f"resuming {self.table.name}", saved_rows, max(saved_rows, self.count))
        fields = (self.store.url, self.table, self.columns, self.cut)
        missing = missing_ranges(saved, self.store.split_points(self.table, task_count))
        return [
            *(TableScanSplit(*fields, part.start, part.stop, saved_file=part.file) for part in saved),
            *(TableScanSplit(*fields, start, stop, save_directory=save_directory) for start, stop in missing),
        ]


def _hash_range(run: Run, low: int, high: int) -> Run:
    first = int(np.searchsorted(run.hashes, np.uint64(low), "left"))
    last = int(np.searchsorted(run.hashes, np.uint64(high), "right"))
    return Run(run.rows.slice(first, last - first))
