"""Rows of changed keys are the same, read one by one or by scans, on a real HBase and on the small one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.contract.small_hbase import SmallHBase

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper_hbase.layout import close_scan
from viewkeeper_hbase.layout.close_scan import AdaptiveBackoff, ScanStatistics, read_changed_rows
from viewkeeper_hbase.layout.layout import DecodedRows, Layout, table_layout
from viewkeeper_hbase.layout.row_reader import read_rows
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway
from viewkeeper_hbase.thrift.scan import ScanRequest

ROWS = 1_200
COLUMNS = ["id", "a", "b"]
NOW = 1_700_000_000_000


@pytest.fixture(params=[pytest.param("hbase", marks=[pytest.mark.hbase, pytest.mark.slow]), "small"])
def where(request: pytest.FixtureRequest) -> Iterator[HBaseClient]:
    server: Any = request.getfixturevalue("hbase") if request.param == "hbase" else SmallHBase()
    with HBaseClient(Gateway(server.host, server.port)) as client:
        yield client
    if request.param == "small":
        server.close()


class Kept:
    """A table with versions, deletes of rows and columns, values nobody can read, and one that keeps no versions."""

    def __init__(self, client: HBaseClient, versions: int) -> None:
        self.client = client
        namespace = f"vk_{secrets.token_hex(6)}"
        client.admin.create_namespace(namespace)
        columns = tuple(Column(name, types.parse_type("bigint")) for name in COLUMNS)
        self.layout: Layout = table_layout(namespace, Table(7, "kept", columns, (KeyPart("id"),)))
        client.admin.create(
            self.layout.name, [ColumnFamily(b"c", max_versions=versions, keep_deleted_cells=versions > 1)]
        )
        self.draw = np.random.default_rng(3)
        self._put(np.arange(0, 2 * ROWS, 2), NOW)
        for later in range(1, 6):
            self._put(self.draw.choice(2 * ROWS, 200, replace=False), NOW + 10 * later)
            gone = self.keys(self.draw.choice(2 * ROWS, 100, replace=False))
            client.delete_rows(self.layout.name, gone, (), time=NOW + 10 * later + 3)
            less = self.keys(self.draw.choice(2 * ROWS, 100, replace=False))
            client.delete_rows(self.layout.name, less, (b"c:a",), time=NOW + 10 * later + 4)
        odd = self.keys(self.draw.choice(2 * ROWS, 60, replace=False))
        client.put_rows(self.layout.name, odd, {b"c:b": pa.array([b"?"] * len(odd))}, time=NOW + 70)

    def _put(self, ids: Any, at: int) -> None:
        rows = pa.table({"id": ids, "a": ids + at, "b": pa.array(ids, mask=ids % 5 == 0)})
        keys, cells = self.layout.encode(rows.cast(self.layout.table.arrow))
        self.client.put_rows(self.layout.name, keys, cells, time=at)

    def keys(self, ids: Any) -> pa.Array:
        return self.layout.encode_row_keys(pa.table({"id": pa.array(np.asarray(ids), pa.int64())}))

    def one_by_one(self, keys: pa.Array, span: tuple[int, int] | None) -> DecodedRows:
        return read_rows(self.client, self.layout, keys, COLUMNS, span)

    def together(
        self,
        keys: pa.Array,
        span: tuple[int, int] | None,
        tried: ScanStatistics | None = None,
        after: int | None = None,
    ) -> DecodedRows:
        return read_changed_rows(self.client, self.layout, keys, COLUMNS, span, tried or ScanStatistics(), after)


def same(left: DecodedRows, right: DecodedRows) -> bool:
    assert len(left.keys.unique()) == len(left.keys) == left.rows.num_rows
    order = [found.rows.sort_by("id") for found in (left, right)]
    return order[0].equals(order[1]) and sorted(left.rejected) == sorted(right.rejected)


@pytest.mark.parametrize("versions", [50, 1])
def test_rows_read_by_ranges_are_those_read_by_keys(
    where: HBaseClient, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(where, versions)
    asked: list[int] = []

    def counted(*what: Any) -> DecodedRows:
        asked.append(len(what[2]))
        return read_rows(*what)

    monkeypatch.setattr(close_scan, "read_rows", counted)
    every = np.arange(2 * ROWS)
    many = {
        "all": every,
        "half": kept.draw.choice(2 * ROWS, ROWS, replace=False),
        "few": kept.draw.choice(2 * ROWS, 60, replace=False),
        "a stretch": every[800:1_700],
        "a stretch among few": np.r_[
            kept.draw.choice(1_000, 30, replace=False), every[1_100:2_100], [2 * ROWS - 2, 2 * ROWS - 1]
        ],
        "beyond the end": np.arange(2 * ROWS - 50, 2 * ROWS + 500),
        "not there": np.arange(3 * ROWS, 3 * ROWS + 200),
    }
    gets = {}
    for name, ids in many.items():
        keys = kept.keys(ids).take(pa.array(kept.draw.permutation(len(ids))))
        for span in (None, (0, NOW + 1), (0, NOW + 34)):
            asked.clear()
            assert same(kept.together(keys, span), kept.one_by_one(keys, span)), (name, span)
            gets[name] = sum(asked)
    assert gets["all"] == gets["half"] == gets["a stretch"] == 0
    assert gets["few"] >= 40


def test_of_rows_that_were_put_whole_new_cells_are_enough(where: HBaseClient, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, tried = Kept(where, 50), ScanStatistics()
    spans: list[Any] = []

    def scan(table: str, wanted: ScanRequest) -> Any:
        spans.append(wanted.span)
        return HBaseClient.scan(where, table, wanted)

    monkeypatch.setattr(where, "scan", scan)
    every = kept.keys(np.arange(2 * ROWS))
    assert same(kept.together(every, (0, NOW + 1), tried, 0), kept.one_by_one(every, (0, NOW + 1)))
    assert spans == [(0, NOW + 1)]  # nobody knows yet what lies there
    for cut, ids in ((34, every), (38, every), (58, kept.keys(kept.draw.choice(2 * ROWS, ROWS, replace=False)))):
        for after in (0, NOW - 1, NOW + 9, NOW + 30, NOW + 33):
            spans.clear()
            tried.new_cell_scans, tried.max_rows = AdaptiveBackoff(), ROWS
            span = (0, NOW + cut + 1)
            assert same(kept.together(ids, span, tried, after), kept.one_by_one(ids, span)), (cut, after)
            assert (after + 1, NOW + cut + 1) in spans
    kept._put(np.arange(2 * ROWS), NOW + 80)
    spans.clear()
    tried.new_cell_scans, tried.max_rows = AdaptiveBackoff(), ROWS
    assert same(kept.together(every, (0, NOW + 81), tried, NOW + 79), kept.one_by_one(every, (0, NOW + 81)))
    assert spans == [(NOW + 80, NOW + 81)]  # and of nothing else


def test_what_lies_in_a_range_is_known_by_the_scans_through_it() -> None:
    tried, keys = ScanStatistics(), pa.array([b"c", b"d", b"e"])
    assert not tried.is_range_dense(keys)
    tried.record_scan(b"b", b"f", 20)
    assert tried.is_range_dense(keys)  # 23 at most
    assert not tried.is_range_dense(pa.array([b"a", b"d"]))
    assert not tried.is_range_dense(pa.array([b"c", b"d"]))  # 27
    tried.record_scan(b"a", b"c", 2)
    assert (tried.start, tried.stop, tried.max_rows) == (b"a", b"f", 29)
    tried.record_scan(b"b", b"c", 2)
    assert tried.max_rows == 29
    tried.record_scan(b"a", b"g", 9)
    assert (tried.start, tried.stop, tried.max_rows) == (b"a", b"g", 9)


def test_where_keys_lie_far_apart_it_is_seldom_tried(where: HBaseClient) -> None:
    kept, tried = Kept(where, 50), ScanStatistics()
    close = tried.dense_scans
    far = kept.keys(np.arange(0, 2 * ROWS, 12))
    assert same(kept.together(far, None, tried), kept.one_by_one(far, None))
    left = close.keys_to_skip
    assert left > 0
    kept.together(far, None, tried)
    assert close.keys_to_skip == left - len(far)
    while close.keys_to_skip >= len(far):
        kept.together(far, None, tried)
    kept.together(far, None, tried)
    assert close.keys_to_skip > left  # tried again, and now it waits longer
    close.keys_to_skip = 0
    kept.together(kept.keys(np.arange(2 * ROWS)), None, tried)
    assert (close.keys_to_skip, close.next_backoff) == (0, ScanStatistics().dense_scans.next_backoff)


def test_a_table_of_ours_that_was_never_made_has_no_rows(where: HBaseClient) -> None:
    layout = table_layout(
        "default",
        Table(7, f"never_{secrets.token_hex(4)}", (Column("id", types.parse_type("bigint")),), (KeyPart("id"),)),
    )
    keys = layout.encode_row_keys(pa.table({"id": pa.array(range(100), pa.int64())}))
    assert read_changed_rows(where, layout, keys, ["id"], None, ScanStatistics()).rows.num_rows == 0
