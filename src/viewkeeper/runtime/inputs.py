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

from viewkeeper.capture.partition_store import Kept, part_in, save_part
from viewkeeper.capture.partitions import Part, at_cut, gaps, is_large
from viewkeeper.capture.snapshot import Progress, table_at, whole_table
from viewkeeper.model.delta import weighted
from viewkeeper.model.schema import WEIGHT, Table
from viewkeeper.resources.memory import PIECE_ROWS, Memory
from viewkeeper.resources.prepared_statements import Duck
from viewkeeper.state.consolidate import consolidate
from viewkeeper.state.run import Arrangement, Run
from viewkeeper.state.run_file import RunEntry, open_run, wholes
from viewkeeper.store.contract.store import Store
from viewkeeper.store.registry import open_store


class Share(Protocol):
    """A part of the rows that a task can fetch where it runs."""

    def fetch(self, duck: Duck, memory: Memory) -> pa.Table: ...


class Given(Protocol):
    """The output of an operator that is not computed in this batch but known."""

    @property
    def count(self) -> int | None:
        """How many rows, if that is known beforehand."""

    def rows(self, duck: Duck, memory: Memory) -> pa.Table:
        """All rows, as a consolidated delta; in a file, if they are many."""

    def shares(self, duck: Duck, parts: int, memory: Memory) -> Sequence[Share]:
        """The same rows in shares for `parts` tasks, dealt out by turns: one for each at most, or as many for each."""


@dataclass(frozen=True)
class Rows:
    """Rows in memory; as a share they travel inside the job."""

    table: pa.Table

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def rows(self, duck: Duck, memory: Memory) -> pa.Table:
        return self.table

    def fetch(self, duck: Duck, memory: Memory) -> pa.Table:
        return self.table

    def shares(self, duck: Duck, parts: int, memory: Memory) -> Sequence[Share]:
        step = max(1, -(-self.table.num_rows // parts))
        return [Rows(self.table.slice(at, step)) for at in range(0, self.table.num_rows, step)]


@dataclass(frozen=True)
class FileRows:
    """A range of the rows in an Arrow file that the task can map."""

    path: str
    start: int
    stop: int

    def fetch(self, duck: Duck, memory: Memory) -> pa.Table:
        with pa.memory_map(self.path) as file:
            return pa.ipc.open_file(file).read_all().slice(self.start, self.stop - self.start)


def is_empty(given: Given) -> bool:
    """Whether it is known to have no rows. What a store counts says nothing of a cut: rows come and go meanwhile."""
    return isinstance(given, (Rows, ImageRows)) and given.count == 0


def filed(rows: pa.Table, path: str, parts: int) -> Sequence[Share]:
    """The rows written down, in `parts` shares: what is mapped need not travel."""
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    edges = [rows.num_rows * i // parts for i in range(parts + 1)]
    return [FileRows(path, start, stop) for start, stop in pairwise(edges)]


@dataclass(frozen=True)
class Computed:
    """Rows that the driver works out when they are asked for."""

    make: Callable[[], pa.Table]

    @property
    def count(self) -> None:
        return None

    def rows(self, duck: Duck, memory: Memory) -> pa.Table:
        found = self.make()
        return memory.aside(found) if found.nbytes > memory.waiting else found

    def shares(self, duck: Duck, parts: int, memory: Memory) -> Sequence[Share]:
        return Rows(self.make()).shares(duck, parts, memory)


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

    def rows(self, duck: Duck, memory: Memory) -> pa.Table:
        parts = -(-sum(e.length for e in self.entries) // memory.waiting) if len(self.entries) > 1 else 1
        if parts == 1:
            return self.fetch(duck, memory)
        return pa.concat_tables(
            [memory.aside(share.fetch(duck, memory)) for share in self.shares(duck, 4 * parts, memory)]
        )

    def fetch(self, duck: Duck, memory: Memory) -> pa.Table:
        entries = [e for e in self.entries if e.has(self.low, self.high)] or self.entries[:1]
        runs = [_between(open_run(self.directory, e, verify=False), self.low, self.high) for e in entries]
        rows = Arrangement(tuple(runs)).rows(list(self.columns))
        # One run is consolidated by itself: merging consolidates, and a first load's rows are distinct by key.
        return rows if len(wholes(entries)) == 1 else consolidate(duck, rows)

    def shares(self, duck: Duck, parts: int, memory: Memory) -> Sequence[Share]:
        edges = [2**64 * i // parts for i in range(parts + 1)]
        return [ImageRows(self.directory, self.entries, self.columns, low, high - 1) for low, high in pairwise(edges)]


@dataclass(frozen=True)
class LogRows:
    """What write calls did to a table, from the store's log: whole, or a share of it.

    One call names a key once, so its shares need not be consolidated with each other; those of `several` must be,
    before the first expression sees them.
    """

    url: str
    table: Table
    columns: tuple[str, ...]
    after: int
    upto: int
    count: int
    several: bool = False
    part: int = 0
    parts: int = 1

    def rows(self, duck: Duck, memory: Memory) -> pa.Table:
        return self.fetch(duck, memory)

    def fetch(self, duck: Duck, memory: Memory) -> pa.Table:
        store = open_store(self.url, "r")
        try:
            wanted = (self.table, self.columns, self.after, self.upto)
            return store.part_of_changes(*wanted, self.part, self.parts)
        finally:
            store.close()

    def shares(self, duck: Duck, parts: int, memory: Memory) -> Sequence[Share]:
        """A share that is read at once is one piece: a task has several of them where there is much."""
        whole = (self.url, self.table, self.columns, self.after, self.upto, self.count, self.several)
        pieces = parts * max(1, -(-2 * self.count // (parts * PIECE_ROWS)))  # of an update the row before and after
        return [LogRows(*whole, part, pieces) for part in range(pieces)]


@dataclass(frozen=True)
class StoreRows:
    """A base table scanned from the store at a cut, whole or a range of keys.

    `read`: the file with what a load before this one has read of it. `keep`: where what is read here outlives the job.
    """

    url: str
    table: Table
    columns: tuple[str, ...]
    cut: int
    start: bytes | None = None
    stop: bytes | None = None
    read: str = ""
    keep: str | None = None

    def fetch(self, duck: Duck, memory: Memory) -> pa.Table:
        store = open_store(self.url, "r")
        try:
            part = part_in(self.read, self.columns) if self.read else None
            if part is not None:
                there = at_cut(store, self.table, self.columns, part, self.cut, partial(consolidate, duck))
                if there is not None:
                    return weighted(there, 1)
            rows, clean = table_at(store, self.table, self.columns, self.cut, memory, None, self.start, self.stop)
        finally:
            store.close()
        rows = rows if clean else consolidate(duck, rows)
        if self.keep is not None:
            save_part(self.keep, self.table, Part(self.start, self.stop, self.cut, rows.drop_columns([WEIGHT])))
        return rows


@dataclass(frozen=True)
class StoreScan:
    """A base table that has no image yet (or a narrower one)."""

    store: Store
    table: Table
    columns: tuple[str, ...]
    cut: int
    progress: Progress | None
    parts: tuple[Part, ...] = ()
    """What was scanned of it already."""
    kept: Kept | None = None

    @property
    def count(self) -> int:
        return self.store.count(self.table)

    def rows(self, duck: Duck, memory: Memory) -> pa.Table:
        net = partial(consolidate, duck)
        wanted = (self.store, self.table, self.columns, self.cut, net, memory)
        return whole_table(*wanted, self.progress, self.parts, self.kept)

    def shares(self, duck: Duck, parts: int, memory: Memory) -> Sequence[Share]:
        if not self.store.shows_past(self.table):
            return Rows(self.rows(duck, memory)).shares(duck, parts, memory)
        found = [] if self.kept is None else self.kept.find(self.table, self.columns)
        keep = None
        if self.kept is not None and is_large(self.store, self.table):
            self.kept.begin(self.cut)
            keep = self.kept.shared
        if found and self.progress is not None:
            done = sum(part.rows.num_rows for part in found)
            self.progress(f"resuming {self.table.name}", done, max(done, self.count))
        whole = (self.store.url, self.table, self.columns, self.cut)
        left = gaps(found, self.store.split_points(self.table, parts))
        return [
            *(StoreRows(*whole, part.start, part.stop, read=part.file) for part in found),
            *(StoreRows(*whole, start, stop, keep=keep) for start, stop in left),
        ]


def _between(run: Run, low: int, high: int) -> Run:
    first = int(np.searchsorted(run.hashes, np.uint64(low), "left"))
    last = int(np.searchsorted(run.hashes, np.uint64(high), "right"))
    return Run(run.rows.slice(first, last - first))
