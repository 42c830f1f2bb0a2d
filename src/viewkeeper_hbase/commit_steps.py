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

from viewkeeper.resources.directory import Directory
from viewkeeper.store.contract.store import Batch, Spread, ViewChange
from viewkeeper.store.redo import claim, redo_file
from viewkeeper.store.redo.claim import Claim
from viewkeeper.store.redo.delta_files import Streamed, Streams
from viewkeeper.store.redo.redo_file import Redo, TableRedo
from viewkeeper_hbase.layout.layout import VIEW_VERSIONS, Layout
from viewkeeper_hbase.metadata import MetaTable, Past, Published, State
from viewkeeper_hbase.thrift.admin import Family
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.errors import AlreadyThere, OutcomeUnknown
from viewkeeper_hbase.thrift.task_clients import client_of
from viewkeeper_hbase.url import parse

_REGION_ROWS = 200_000
_MOST_REGIONS = 16
_KEY = "key"
_ASLEEP = 5.0
"""Seconds after which a writer of cells looks whether somebody else has done it."""
_PIECE_ROWS = 20_000
"""Rows that are written as one piece of work, where pieces are spread."""


def table_redo(layout: Layout, change: ViewChange, fresh: bool) -> TableRedo:
    """What a view's change writes to its HBase table, which is `fresh` if it must be made."""
    keys, cells = layout.encode(change.puts)
    family = layout.family()
    return TableRedo(
        layout.name,
        {"name": family.name.decode(), "max_versions": family.max_versions},
        fresh,
        _splits(keys) if fresh else (),
        pa.table([keys, *cells.values()], names=[_KEY, *(c.decode() for c in cells)]),
        pa.table({_KEY: layout.row_keys(change.deletes)}),
    )


def published_record(
    before: Published | None, batch: Batch, head: int, streams: Sequence[tuple[int, str]], forgotten: int
) -> Published:
    """The batch, the batches back to which views can be read with this one, whose position is after the head, and the
    deltas of views that are not stored: table and file of this batch's, and those of before after what is forgotten."""
    known = before.past if before is not None else ()
    position = max(head, known[-1].position if known else 0) + 1
    now = Past(batch.number, position, time.time())
    told = Streams() if before is None else before.streams.since(forgotten)
    told = told.plus([Streamed(batch.number, position, now.time, table, file) for table, file in streams])
    return Published(batch, (*known[1 - VIEW_VERSIONS :], now), told)


@dataclass(frozen=True)
class Piece:
    """Some rows of one table of a claimed redo, which whoever writes them reads by himself."""

    url: str
    directory: str
    file: str
    digest: str
    table: str
    puts: tuple[int, int]
    deletes: tuple[int, int]


def finish(
    records: MetaTable,
    directory: Directory,
    claimed: Claim,
    url: str = "",
    spread: Spread | None = None,
    redo: Redo | None = None,
) -> State:
    """Steps 3c and 4 of a claimed batch, by whoever claimed it, who has its redo, or by a successor.

    With `spread`, large tables are written piece by piece by whoever does its work, each over a connection of his own.
    A piece that is written twice, or by two at once, leaves the same cells: so step 3c may be repeated in any part.
    """

    begun = time.time()

    def write(table: TableRedo, number: int) -> None:
        # Whoever was asleep may come when the batch is long published and HBase has forgotten a later batch's deletes.
        if time.time() - begun > _ASLEEP and records.state().published >= number:
            return
        _make(records.client, table)
        if spread is None or table.puts.num_rows + table.deletes.num_rows < 2 * _PIECE_ROWS:
            write_cells(records.client, table, number)
            return
        of = (url, str(directory), claimed.file, claimed.digest, table.name)
        pieces = [Piece(*of, (at, at + _PIECE_ROWS), (0, 0)) for at in range(0, table.puts.num_rows, _PIECE_ROWS)]
        pieces += [Piece(*of, (0, 0), (at, at + _PIECE_ROWS)) for at in range(0, table.deletes.num_rows, _PIECE_ROWS)]
        spread(_write_piece, pieces)

    return claim.finish(records, directory, claimed, write, redo)


def _write_piece(piece: Piece) -> None:
    redo = _redo(piece.directory, piece.file, piece.digest)
    if MetaTable(client_of(piece.url), parse(piece.url).namespace).state().published >= redo.number:
        return  # an attempt that comes late
    table = next(t for t in redo.tables if t.name == piece.table)
    puts, deletes = ((stop - start, start) for start, stop in (piece.puts, piece.deletes))
    rows = replace(table, puts=table.puts.slice(puts[1], puts[0]), deletes=table.deletes.slice(deletes[1], deletes[0]))
    write_cells(client_of(piece.url), rows, redo.number)


@lru_cache(maxsize=1)
def _redo(directory: str, file: str, digest: str) -> Redo:
    """Read once a worker, and its digest checked once."""
    return redo_file.read(Directory(directory), file, digest)


def _make(client: Client, table: TableRedo) -> None:
    if table.fresh:
        family = Family(
            table.family["name"].encode(), max_versions=table.family["max_versions"], keep_deleted_cells=True
        )
        create(client, table.name, family, table.splits)


def write_cells(client: Client, table: TableRedo, number: int) -> None:
    """Step 3c for rows of a table. A row that is replaced gets all its cells anew; those of NULLs are deleted."""
    keys = table.puts[_KEY].combine_chunks()
    cells = {name.encode(): table.puts[name] for name in table.puts.column_names if name != _KEY}
    if len(keys):
        client.put_many(table.name, keys, cells, time=number)
    for column, values in cells.items():
        if values.null_count and not table.fresh:
            client.delete_many(table.name, keys.filter(pc.is_null(values).combine_chunks()), [column], time=number)
    if table.deletes.num_rows:
        client.delete_many(table.name, table.deletes[_KEY].combine_chunks(), time=number)


def create(client: Client, name: str, family: Family, splits: Sequence[bytes] = ()) -> None:
    """Make a table, unless somebody was faster."""
    try:
        client.tables.create(name, [family], splits=splits)
    except (AlreadyThere, OutcomeUnknown):
        if not client.tables.exists(name):
            raise


def _splits(keys: pa.Array) -> tuple[bytes, ...]:
    """Keys that cut a first load into regions of similar size."""
    parts = min(_MOST_REGIONS, len(keys) // _REGION_ROWS)
    if parts < 2:
        return ()
    ordered = keys.take(pc.sort_indices(keys))
    return tuple(ordered[int(at)].as_py() for at in np.linspace(0, len(keys), parts + 1)[1:-1])
