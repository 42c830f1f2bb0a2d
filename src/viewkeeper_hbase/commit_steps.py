"""What is HBase's about committing a batch (`store/redo`): its cells, whose time is the batch's number.

Done twice, cells of the same time are the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.contract.store import Batch, ParallelMap, ViewChange
from viewkeeper.store.redo import claim, redo_file
from viewkeeper.store.redo.claim import Claim
from viewkeeper.store.redo.delta_files import DeltaFile, DeltaFiles
from viewkeeper.store.redo.redo_file import Redo, TableRedo
from viewkeeper_hbase.layout.layout import VIEW_VERSIONS, Layout
from viewkeeper_hbase.metadata import DatabaseState, MetaTable, PastBatch, PublishedBatch
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.errors import AlreadyExists, OutcomeUnknown
from viewkeeper_hbase.thrift.task_clients import worker_client
from viewkeeper_hbase.url import parse_url

_REGION_ROWS = 200_000
_MAX_REGIONS = 16
_KEY = "key"
_STALE_WRITER_SECONDS = 5.0
"""Seconds after which a writer of cells looks whether somebody else has done it."""
_PIECE_ROWS = 20_000
"""Rows that are written as one piece of work, where pieces are spread."""


def encode_table_redo(layout: Layout, change: ViewChange, is_new: bool) -> TableRedo:
    """What a view's change writes to its HBase table, which is `fresh` if it must be made."""
    keys, cells = layout.encode(change.puts)
    family = layout.column_family()
    return TableRedo(
        layout.name,
        {"name": family.name.decode(), "max_versions": family.max_versions},
        is_new,
        _split_points(keys) if is_new else (),
        pa.table([keys, *cells.values()], names=[_KEY, *(c.decode() for c in cells)]),
        pa.table({_KEY: layout.encode_row_keys(change.deletes)}),
    )


def next_published_batch(
    previous: PublishedBatch | None,
    batch: Batch,
    head: int,
    delta_files: Sequence[tuple[int, str]],
    forgotten_position: int,
) -> PublishedBatch:
    """The batch, the batches back to which views can be read with this one, whose position is after the head, and the
    deltas of views that are not stored: table and file of this batch's, and those of before after what is forgotten."""
    known = previous.readable_batches if previous is not None else ()
    position = max(head, known[-1].position if known else 0) + 1
    now = PastBatch(batch.number, position, time.time())
    told = DeltaFiles() if previous is None else previous.delta_files.without_older(forgotten_position)
    told = told.with_files([DeltaFile(batch.number, position, now.time, table, file) for table, file in delta_files])
    return PublishedBatch(batch, (*known[1 - VIEW_VERSIONS :], now), told)


@dataclass(frozen=True)
class RedoPiece:
    """Some rows of one table of a claimed redo, which whoever writes them reads by himself."""

    url: str
    directory: str
    file: str
    digest: str
    table: str
    puts: tuple[int, int]
    deletes: tuple[int, int]


def finish_claimed_batch(
    meta_table: MetaTable,
    directory: StateDirectory,
    claimed: Claim,
    url: str = "",
    parallel_map: ParallelMap | None = None,
    redo: Redo | None = None,
) -> DatabaseState:
    """Steps 3c and 4 of a claimed batch, by whoever claimed it, who has its redo, or by a successor.

    With `spread`, large tables are written piece by piece by whoever does its work, each over a connection of his own.
    A piece that is written twice, or by two at once, leaves the same cells: so step 3c may be repeated in any part.
    """

    begun = time.time()

    def write(table: TableRedo, number: int) -> None:
        # Whoever was asleep may come when the batch is long published and HBase has forgotten a later batch's deletes.
        if time.time() - begun > _STALE_WRITER_SECONDS and meta_table.read_state().published >= number:
            return
        _create_if_new(meta_table.client, table)
        if parallel_map is None or table.puts.num_rows + table.deletes.num_rows < 2 * _PIECE_ROWS:
            write_cells(meta_table.client, table, number)
            return
        of = (url, str(directory), claimed.file, claimed.digest, table.name)
        pieces = [RedoPiece(*of, (at, at + _PIECE_ROWS), (0, 0)) for at in range(0, table.puts.num_rows, _PIECE_ROWS)]
        pieces += [
            RedoPiece(*of, (0, 0), (at, at + _PIECE_ROWS)) for at in range(0, table.deletes.num_rows, _PIECE_ROWS)
        ]
        parallel_map(_write_piece, pieces)

    return claim.finish_batch(meta_table, directory, claimed, write, redo)


def _write_piece(piece: RedoPiece) -> None:
    redo = _read_redo(piece.directory, piece.file, piece.digest)
    if MetaTable(worker_client(piece.url), parse_url(piece.url).namespace).read_state().published >= redo.number:
        return  # an attempt that comes late
    table = next(t for t in redo.tables if t.name == piece.table)
    puts, deletes = ((stop - start, start) for start, stop in (piece.puts, piece.deletes))
    rows = replace(table, puts=table.puts.slice(puts[1], puts[0]), deletes=table.deletes.slice(deletes[1], deletes[0]))
    write_cells(worker_client(piece.url), rows, redo.number)


@lru_cache(maxsize=1)
def _read_redo(directory: str, file: str, digest: str) -> Redo:
    """Read once a worker, and its digest checked once."""
    return redo_file.read_redo(StateDirectory(directory), file, digest)


def _create_if_new(client: HBaseClient, table: TableRedo) -> None:
    if table.is_new:
        family = ColumnFamily(
            table.family["name"].encode(), max_versions=table.family["max_versions"], keep_deleted_cells=True
        )
        create_table(client, table.name, family, table.splits)


def write_cells(client: HBaseClient, table: TableRedo, number: int) -> None:
    """Step 3c for rows of a table. A row that is replaced gets all its cells anew; those of NULLs are deleted."""
    keys = table.puts[_KEY].combine_chunks()
    cells = {name.encode(): table.puts[name] for name in table.puts.column_names if name != _KEY}
    if len(keys):
        client.put_rows(table.name, keys, cells, time=number)
    for column, values in cells.items():
        if values.null_count and not table.is_new:
            client.delete_rows(table.name, keys.filter(pc.is_null(values).combine_chunks()), [column], time=number)
    if table.deletes.num_rows:
        client.delete_rows(table.name, table.deletes[_KEY].combine_chunks(), time=number)


def create_table(client: HBaseClient, name: str, family: ColumnFamily, splits: Sequence[bytes] = ()) -> None:
    """Make a table, unless somebody was faster."""
    try:
        client.admin.create(name, [family], splits=splits)
    except (AlreadyExists, OutcomeUnknown):
        if not client.admin.exists(name):
            raise


def _split_points(keys: pa.Array) -> tuple[bytes, ...]:
    """Keys that cut a first load into regions of similar size."""
    parts = min(_MAX_REGIONS, len(keys) // _REGION_ROWS)
    if parts < 2:
        return ()
    ordered = keys.take(pc.sort_indices(keys))
    return tuple(ordered[int(at)].as_py() for at in np.linspace(0, len(keys), parts + 1)[1:-1])
