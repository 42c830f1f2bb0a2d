"""Capture region by region: the reads of a window as pieces of work that other processes can do.

A piece is a range of row keys, cut where the regions lay when it was made; it does not name a region. So one that
splits or moves while its piece is read changes nothing: the scan goes on behind the last row seen (`scanning`), and no
key is in two pieces or in none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.store.base import Spread
from viewkeeper.store.hbase import windows
from viewkeeper.store.hbase.batches import TimeRange
from viewkeeper.store.hbase.client import Client
from viewkeeper.store.hbase.clients import client_of
from viewkeeper.store.hbase.layout import Layout, Rows, layout_of
from viewkeeper.store.hbase.reading import join_rows, read_rows
from viewkeeper.store.hbase.url import parse
from viewkeeper.store.hbase.windows import Look


@dataclass(frozen=True)
class LookPiece:
    """A window of one range of row keys."""

    url: str
    table: Table
    after: int
    upto: int
    start: bytes
    stop: bytes


@dataclass(frozen=True)
class RowsPiece:
    """Some row keys of one range, and what to read of their rows."""

    url: str
    table: Table
    keys: pa.Array
    columns: tuple[str, ...]
    span: TimeRange | None


def look(spread: Spread, url: str, client: Client, layout: Layout, after: int, upto: int) -> Look:
    """`windows.look`, each region by itself."""
    starts = [region.start for region in client.tables.regions(layout.name)]
    pieces = [LookPiece(url, layout.table, after, upto, a, b) for a, b in pairwise([*starts, b""])]
    return windows.joined(after, upto, spread(_look, pieces))


def rows(
    spread: Spread,
    url: str,
    client: Client,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
) -> Rows:
    """`Reader.rows`, each region by itself."""
    starts = [region.start for region in client.tables.regions(layout.name)]
    ordered = keys.sort()
    edges = [0, *(bisect_left(ordered, start, key=lambda key: key.as_py()) for start in starts[1:]), len(ordered)]
    pieces = [
        RowsPiece(url, layout.table, ordered.take(pa.array(np.arange(low, high))), tuple(columns), span)
        for low, high in pairwise(edges)
        if low < high
    ]
    return join_rows(layout, columns, spread(_rows, pieces))


def _look(piece: LookPiece) -> Look:
    client, layout = _opened(piece.url, piece.table)
    return windows.look(client, layout, piece.after, piece.upto, start=piece.start, stop=piece.stop)


def _rows(piece: RowsPiece) -> Rows:
    client, layout = _opened(piece.url, piece.table)
    return read_rows(client, layout, piece.keys, piece.columns, piece.span)


def _opened(url: str, table: Table) -> tuple[Client, Layout]:
    return client_of(url), layout_of(parse(url).namespace, table)
