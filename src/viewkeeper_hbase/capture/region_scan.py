"""Capture region by region: the reads of a window as pieces of work that other processes can do.

A piece is a range of row keys, cut where the regions lay when it was made; it does not name a region. So one that
splits or moves while its piece is read changes nothing: the scan goes on behind the last row seen (`scanning`), and no
key is in two pieces or in none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa

from viewkeeper.model.schema import Table
from viewkeeper.store.contract.store import Spread
from viewkeeper_hbase.capture import time_windows
from viewkeeper_hbase.capture.time_windows import Look
from viewkeeper_hbase.layout.close_scan import Tried, rows_of
from viewkeeper_hbase.layout.layout import Layout, Rows, layout_of
from viewkeeper_hbase.layout.layout_cache import if_there
from viewkeeper_hbase.layout.row_reader import join_rows
from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.task_clients import client_of
from viewkeeper_hbase.url import parse

Asked = tuple[Layout, int, int]
"""A window of a table: after which position, and up to which."""


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


def scan_regions(spread: Spread, url: str, client: Client, asked: Sequence[Asked]) -> list[Look]:
    """`windows.look` of several tables as one piece of work, each region by itself. A table that is away has none."""
    pieces: list[LookPiece] = []
    counts = []
    for layout, after, upto in asked:
        regions = if_there(layout, partial(client.tables.regions, layout.name)) or []
        edges = [*(region.start for region in regions), b""]
        pieces += [LookPiece(url, layout.table, after, upto, a, b) for a, b in pairwise(edges)]
        counts.append(len(regions))
    found = iter(spread(_look, pieces))
    return [time_windows.joined(a, b, list(islice(found, n))) for (_, a, b), n in zip(asked, counts, strict=True)]


def rows(
    spread: Spread,
    url: str,
    client: Client,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
) -> Rows:
    """`nearby.rows_of`, each region by itself."""
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
    return time_windows.scan_window(client, layout, piece.after, piece.upto, start=piece.start, stop=piece.stop)


def _rows(piece: RowsPiece) -> Rows:
    client, layout = _opened(piece.url, piece.table)
    return rows_of(client, layout, piece.keys, piece.columns, piece.span, Tried())


def _opened(url: str, table: Table) -> tuple[Client, Layout]:
    return client_of(url), layout_of(parse(url).namespace, table)
