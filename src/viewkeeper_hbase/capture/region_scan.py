"""Parallel capture: the scans of a window and the reads of changed rows, in one piece of work per region.

A piece is a range of row keys, cut at the region boundaries of the moment; it does not name a region. So a region
that splits or moves while its piece is read changes nothing: the scanner resumes behind the last row that it
returned (`thrift.scan`), and every key is in exactly one piece.
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
from viewkeeper.store.contract.store import ParallelMap
from viewkeeper_hbase.capture import time_windows
from viewkeeper_hbase.capture.time_windows import WindowScan
from viewkeeper_hbase.layout.close_scan import ScanStatistics, read_changed_rows
from viewkeeper_hbase.layout.layout import DecodedRows, Layout, table_layout
from viewkeeper_hbase.layout.layout_cache import read_if_exists
from viewkeeper_hbase.layout.row_reader import join_rows
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.request_encoder import TimeRange
from viewkeeper_hbase.thrift.task_clients import worker_client
from viewkeeper_hbase.url import parse_url

WindowRequest = tuple[Layout, int, int]
"""A time window of a table: layout, start position (exclusive), end position (inclusive)."""


@dataclass(frozen=True)
class WindowPiece:
    """The time window of one range of row keys."""

    url: str
    table: Table
    after: int
    up_to: int
    start: bytes
    stop: bytes


@dataclass(frozen=True)
class RowsPiece:
    """Row keys of one region's range, and what to read of their rows."""

    url: str
    table: Table
    keys: pa.Array
    columns: tuple[str, ...]
    span: TimeRange | None


def scan_windows(
    parallel_map: ParallelMap, url: str, client: HBaseClient, requests: Sequence[WindowRequest]
) -> list[WindowScan]:
    """Call `time_windows.scan_window` for several tables, with one task per region of each. A table that does not
    exist has none."""
    pieces: list[WindowPiece] = []
    counts = []
    for layout, after, up_to in requests:
        regions = read_if_exists(layout, partial(client.admin.list_regions, layout.name)) or []
        edges = [*(region.start for region in regions), b""]
        pieces += [WindowPiece(url, layout.table, after, up_to, a, b) for a, b in pairwise(edges)]
        counts.append(len(regions))
    scans = iter(parallel_map(_scan_piece, pieces))
    return [
        time_windows.concat_scans(a, b, list(islice(scans, n))) for (_, a, b), n in zip(requests, counts, strict=True)
    ]


def read_rows_by_region(
    parallel_map: ParallelMap,
    url: str,
    client: HBaseClient,
    layout: Layout,
    keys: pa.Array,
    columns: Sequence[str],
    span: TimeRange | None,
) -> DecodedRows:
    """Call `close_scan.read_changed_rows` with one task per region."""
    starts = [region.start for region in client.admin.list_regions(layout.name)]
    ordered = keys.sort()
    edges = [0, *(bisect_left(ordered, start, key=lambda key: key.as_py()) for start in starts[1:]), len(ordered)]
    pieces = [
        RowsPiece(url, layout.table, ordered.take(pa.array(np.arange(low, high))), tuple(columns), span)
        for low, high in pairwise(edges)
        if low < high
    ]
    return join_rows(layout, columns, parallel_map(_read_piece, pieces))


def _scan_piece(piece: WindowPiece) -> WindowScan:
    client, layout = _client_and_layout(piece.url, piece.table)
    return time_windows.scan_window(client, layout, piece.after, piece.up_to, start=piece.start, stop=piece.stop)


def _read_piece(piece: RowsPiece) -> DecodedRows:
    client, layout = _client_and_layout(piece.url, piece.table)
    return read_changed_rows(client, layout, piece.keys, piece.columns, piece.span, ScanStatistics())


def _client_and_layout(url: str, table: Table) -> tuple[HBaseClient, Layout]:
    return worker_client(url), table_layout(parse_url(url).namespace, table)
