"""Where a batch's rows come from, in either lane: whole in the driver, or in shares that Spark tasks fetch themselves.

A batch's deltas are in memory already. A first load reads a table's image (files that every task can map) or scans the
store by key ranges, each task in a transaction of its own, at one exact cut.
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
    """A part of the rows that a task can fetch where it runs."""

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table: ...


class InputSource(Protocol):
    """The output of an operator that is not computed in this batch but known."""

    @property
    def count(self) -> int | None:
        """How many rows, if that is known beforehand."""

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        """All rows, as a consolidated delta; in a file, if they are many."""

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        """The same rows in shares for `parts` tasks, dealt out by turns: one for each at most, or as many for each."""


@dataclass(frozen=True)
class MemoryRows:
    """Rows in memory; as a share they travel inside the job."""

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
    """A range of the rows in an Arrow file that the task can map."""

    path: str
    start: int
    stop: int

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        with pa.memory_map(self.path) as file:
            return pa.ipc.open_file(file).read_all().slice(self.start, self.stop - self.start)


def is_empty(source: InputSource) -> bool:
    """Whether it is known to have no rows. What a store counts says nothing of a cut: rows come and go meanwhile."""
    return isinstance(source, (MemoryRows, ImageRows)) and source.count == 0


def write_splits(rows: pa.Table, path: str, count: int) -> Sequence[InputSplit]:
    """The rows written down, in `parts` shares: what is mapped need not travel."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    edges = [rows.num_rows * i // count for i in range(count + 1)]
    return [FileRows(path, start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True)
class Deferred:
    """Rows that the driver works out when they are asked for."""

    compute: Callable[[], pa.Table]

    @property
    def count(self) -> None:
        return None

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        found = self.compute()
        return memory.spill(found) if found.nbytes > memory.buffer_bytes else found

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        return MemoryRows(self.compute()).splits(statements, task_count, memory)


@dataclass(frozen=True)
class ImageRows:
    """A base table from its image, whole or a range of hashes."""

    directory: str
    entries: tuple[RunEntry, ...]
    columns: tuple[str, ...]
    low: int = 0
    high: int = 2**64 - 1

    @property
    def count(self) -> int:
        return sum(e.rows for e in self.entries)

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        parts = -(-sum(e.length for e in self.entries) // memory.buffer_bytes) if len(self.entries) > 1 else 1
        if parts == 1:
            return self.fetch(statements, memory)
        return pa.concat_tables(
            [memory.spill(share.fetch(statements, memory)) for share in self.splits(statements, 4 * parts, memory)]
        )

    def fetch(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        entries = [e for e in self.entries if e.overlaps(self.low, self.high)] or self.entries[:1]
        runs = [_hash_range(open_run(self.directory, e, verify=False), self.low, self.high) for e in entries]
        rows = Arrangement(tuple(runs)).rows(list(self.columns))
        # One run is consolidated by itself: merging consolidates, and a first load's rows are distinct by key.
        return rows if len(group_pieces(entries)) == 1 else consolidate(statements, rows)

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        edges = [2**64 * i // task_count for i in range(task_count + 1)]
        return [ImageRows(self.directory, self.entries, self.columns, low, high - 1) for low, high in pairwise(edges)]


@dataclass(frozen=True)
class LogRange:
    """What write calls did to a table, from the store's log: whole, or a share of it.

    One call names a key once, so its shares need not be consolidated with each other; those of `several` must be,
    before the first expression sees them.
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
            wanted = (self.table, self.columns, self.after, self.cut)
            return store.changes_partition(*wanted, self.partition, self.partitions)
        finally:
            store.close()

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        """A share that is read at once is one piece: a task has several of them where there is much."""
        whole = (self.url, self.table, self.columns, self.after, self.cut, self.count, self.has_several_calls)
        pieces = task_count * max(
            1, -(-2 * self.count // (task_count * MAX_PIECE_ROWS))
        )  # of an update the row before and after
        return [LogRange(*whole, part, pieces) for part in range(pieces)]


@dataclass(frozen=True)
class TableScanSplit:
    """A base table scanned from the store at a cut, whole or a range of keys.

    `read`: the file with what a load before this one has read of it. `keep`: where what is read here outlives the job.
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
            part = read_partition(self.saved_file, self.columns) if self.saved_file else None
            if part is not None:
                there = partition_at_cut(
                    store, self.table, self.columns, part, self.cut, partial(consolidate, statements)
                )
                if there is not None:
                    return with_weight(there, 1)
            rows, clean = scan_table_at(store, self.table, self.columns, self.cut, memory, None, self.start, self.stop)
        finally:
            store.close()
        rows = rows if clean else consolidate(statements, rows)
        if self.save_directory is not None:
            write_partition(
                self.save_directory,
                self.table,
                TablePartition(self.start, self.stop, self.cut, rows.drop_columns([WEIGHT])),
            )
        return rows


@dataclass(frozen=True)
class TableScan:
    """A base table that has no image yet (or a narrower one)."""

    store: Store
    table: Table
    columns: tuple[str, ...]
    cut: int
    progress: Progress | None
    partitions: tuple[TablePartition, ...] = ()
    """What was scanned of it already."""
    partition_store: PartitionStore | None = None

    @property
    def count(self) -> int:
        return self.store.count(self.table)

    def read(self, statements: PreparedStatements, memory: MemoryBudget) -> pa.Table:
        net = partial(consolidate, statements)
        wanted = (self.store, self.table, self.columns, self.cut, net, memory)
        return table_at_cut(*wanted, self.progress, self.partitions, self.partition_store)

    def splits(self, statements: PreparedStatements, task_count: int, memory: MemoryBudget) -> Sequence[InputSplit]:
        if not self.store.can_scan_at(self.table):
            return MemoryRows(self.read(statements, memory)).splits(statements, task_count, memory)
        found = [] if self.partition_store is None else self.partition_store.find_partitions(self.table, self.columns)
        keep = None
        if self.partition_store is not None and is_large(self.store, self.table):
            self.partition_store.hold_log(self.cut)
            keep = self.partition_store.shared_directory
        if found and self.progress is not None:
            done = sum(part.rows.num_rows for part in found)
            self.progress(f"resuming {self.table.name}", done, max(done, self.count))
        whole = (self.store.url, self.table, self.columns, self.cut)
        left = missing_ranges(found, self.store.split_points(self.table, task_count))
        return [
            *(TableScanSplit(*whole, part.start, part.stop, saved_file=part.file) for part in found),
            *(TableScanSplit(*whole, start, stop, save_directory=keep) for start, stop in left),
        ]


def _hash_range(run: Run, low: int, high: int) -> Run:
    first = int(np.searchsorted(run.hashes, np.uint64(low), "left"))
    last = int(np.searchsorted(run.hashes, np.uint64(high), "right"))
    return Run(run.rows.slice(first, last - first))
