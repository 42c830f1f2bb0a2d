"""The HBase client against a real HBase: what the store above it relies on, one fact at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("thriftpy2")

from viewkeeper_hbase.devserver.server import Server
from viewkeeper_hbase.thrift import errors
from viewkeeper_hbase.thrift.admin import ColumnFamily
from viewkeeper_hbase.thrift.cells import DELETE_COLUMN, DELETE_FAMILY, PUT, Cells
from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.thrift.connection import Gateway
from viewkeeper_hbase.thrift.pool import RetryPolicy
from viewkeeper_hbase.thrift.scan import ScanRequest

pytestmark = [pytest.mark.hbase, pytest.mark.slow]

KEEPS = ColumnFamily(b"f", max_versions=100, keep_deleted_cells=True)


@pytest.fixture(scope="module")
def client(hbase: Server) -> Iterator[HBaseClient]:
    with HBaseClient(Gateway(hbase.host, hbase.port)) as one:
        one.check_gateway()
        yield one


@pytest.fixture(scope="module")
def make_table(client: HBaseClient) -> Iterator[Callable[..., str]]:
    """Makes tables in a namespace of the tests' own, and drops them."""
    namespace = f"vk_test_{os.getpid()}"
    client.admin.create_namespace(namespace)
    made: list[str] = []

    def make(families: tuple[ColumnFamily, ...] = (KEEPS,), **options: Any) -> str:
        made.append(f"{namespace}:t{len(made)}")
        client.admin.create(made[-1], families, **options)
        return made[-1]

    yield make
    for table in made:
        if client.admin.exists(table):
            client.admin.drop(table)
    client.admin.delete_namespace(namespace)


def numbered(count: int, width: int = 6) -> pa.Array:
    return pa.array([b"%0*d" % (width, i) for i in range(count)])


def keys_of(chunks: Iterator[Cells]) -> list[bytes]:
    return [key for cells in chunks for key in cells.keys.to_pylist()]


def rows_of(chunks: Iterator[Cells]) -> dict[bytes, list[tuple[bytes, bytes, int, int]]]:
    """By key: column, value, time and kind of each cell."""
    found: dict[bytes, list[tuple[bytes, bytes, int, int]]] = {}
    for cells in chunks:
        names, which = cells.columns
        keys, values = cells.keys.to_pylist(), cells.values.to_pylist()
        for i, row in enumerate(cells.row.tolist()):
            cell = (names[which[i]], values[i], int(cells.time[i]), int(cells.kind[i]))
            found.setdefault(keys[row], []).append(cell)
    return found


# -- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_is_made_as_described(client: HBaseClient, make_table: Callable[..., str]) -> None:
    table = make_table(
        (KEEPS, ColumnFamily(b"g", time_to_live=3600, attributes={b"COMPRESSION": b"GZ"})),
        splits=[b"m", b"c"],
        attributes={b"MAX_FILESIZE": b"12345678"},
    )
    described = client.admin.describe(table)
    f, g = described.family(b"f"), described.family(b"g")
    assert f is not None
    assert g is not None
    assert (f.max_versions, f.keep_deleted_cells, f.time_to_live) == (100, True, None)
    assert (g.max_versions, g.keep_deleted_cells, g.time_to_live) == (1, False, 3600)
    assert g.attributes[b"COMPRESSION"] == b"GZ"
    assert described.attributes[b"MAX_FILESIZE"] == b"12345678"
    assert [(r.start, r.stop) for r in client.admin.list_regions(table)] == [(b"", b"c"), (b"c", b"m"), (b"m", b"")]

    client.admin.alter(table, {b"MAX_FILESIZE": b"23456789"})
    client.admin.alter_family(table, replace(f, max_versions=7))
    client.admin.add_family(table, ColumnFamily(b"h"))
    described = client.admin.describe(table)
    assert described.attributes[b"MAX_FILESIZE"] == b"23456789"
    assert [(one.name, one.max_versions, one.keep_deleted_cells) for one in described.families] == [
        (b"f", 7, True),
        (b"g", 1, False),
        (b"h", 1, False),
    ]
    assert table in client.admin.list_tables(table.split(":")[0])


def test_what_is_not_there_is_told_by_name(client: HBaseClient, make_table: Callable[..., str]) -> None:
    table = make_table()
    address = client.pool.gateway.address
    reads: list[Callable[[], Any]] = [
        lambda: client.get("default:nope", b"k"),
        lambda: client.put("default:nope", b"k", {b"f:a": b"1"}, time=1),
        lambda: client.put_rows("default:nope", pa.array([b"k"]), {b"f:a": pa.array([b"1"])}, time=1),
        lambda: list(client.get_rows("default:nope", pa.array([b"k"]))),
        lambda: list(client.scan("default:nope")),
        lambda: client.admin.describe("default:nope"),
        lambda: client.admin.list_regions("default:nope"),
        lambda: client.get("nope:nope", b"k"),
    ]
    for read in reads:
        with pytest.raises(errors.NoSuchTable, match=f"{address}.*nope"):
            read()
    for call in (lambda: client.admin.list_tables("nope"), lambda: client.admin.create("nope:t", [KEEPS])):
        with pytest.raises(errors.NoSuchNamespace, match="nope"):
            call()
    with pytest.raises(errors.NoSuchNamespace, match="create_namespace 'nope'"):
        client.admin.require_namespace("nope")
    for write in (
        lambda: client.put(table, b"k", {b"x:a": b"1"}, time=1),
        lambda: client.put_rows(table, pa.array([b"k"]), {b"x:a": pa.array([b"1"])}, time=1),
        lambda: list(client.scan(table, ScanRequest(columns=(b"x",)))),
    ):
        with pytest.raises(errors.NoSuchFamily, match="family x does not exist"):
            write()
    with pytest.raises(errors.AlreadyExists):
        client.admin.create(table, [KEEPS])
    client.admin.disable(table)
    with pytest.raises(errors.NoSuchTable, match="disabled"):
        client.get(table, b"k")
    client.admin.enable(table)
    assert client.get(table, b"k") is None


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_read_as_of_a_time_is_the_row_of_that_time_deletes_included(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    table = make_table()
    for when in (10, 20, 30):
        client.put(table, b"k", {b"f:a": b"%d" % when, b"f:b": b"b"}, time=when)
    client.delete(table, b"k", time=40)
    client.put(table, b"k", {b"f:a": b"50"}, time=50)
    client.change(table, b"k", {b"f:c": b"60"}, [b"f:a"], time=60)
    client.delete(table, b"k", [b"f"], time=70)

    def as_of(when: int) -> dict[bytes, bytes] | None:
        row = client.get(table, b"k", span=(0, when + 1))
        return None if row is None else {column: cell.value for column, cell in row.items()}

    history = {
        9: None,
        10: {b"f:a": b"10", b"f:b": b"b"},
        25: {b"f:a": b"20", b"f:b": b"b"},
        39: {b"f:a": b"30", b"f:b": b"b"},
        40: None,
        55: {b"f:a": b"50"},
        60: {b"f:c": b"60"},
        70: None,
    }
    assert {when: as_of(when) for when in history} == history
    client.admin.disable(table)  # writes memory to files
    client.admin.enable(table)
    assert {when: as_of(when) for when in history} == history
    for when, row in history.items():
        scanned = rows_of(client.scan(table, ScanRequest(span=(0, when + 1))))
        assert {column: value for column, value, _, _ in scanned.get(b"k", [])} == (row or {})
        [got] = client.get_rows(table, pa.array([b"k"]), span=(0, when + 1))
        assert got.column(b"f:a").to_pylist() == [(row or {}).get(b"f:a")]


def test_many_rows_go_in_and_come_out_with_their_missing_cells(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    table = make_table(splits=[b"003000", b"009000"])
    count = 12_000
    keys = numbered(count)
    a = pa.array([None if i % 3 == 0 else b"a%d" % i for i in range(count)], pa.binary())
    b = pa.array([b"b" * (i % 50) for i in range(count)])
    times = pa.array([1 + i % 2 for i in range(count)], pa.int64())
    client.put_rows(table, keys, {b"f:a": a, b"f:b": b}, time=times)

    batches = [cells.to_batch({"a": b"f:a", "b": b"f:b"}, time="t") for cells in client.scan(table)]
    whole = pa.Table.from_batches(batches)
    assert whole["_key"].combine_chunks().equals(keys)
    assert whole["a"].combine_chunks().equals(a)
    assert whole["b"].combine_chunks().equals(b)
    assert whole["t"].combine_chunks().equals(times)
    assert len(batches) > 1

    mixed = pa.array([b"011999", b"nothing", b"000000", b"000001"])
    [got] = client.get_rows(table, mixed, (b"f:a",))
    assert got.keys.to_pylist() == [b"011999", None, None, b"000001"], "000000 has no f:a"
    assert got.column(b"f:a").to_pylist() == [None if 11999 % 3 == 0 else b"a11999", None, None, b"a1"]

    client.delete_rows(table, keys.slice(0, 6000), time=5)
    client.delete_rows(table, keys.slice(6000, 3000), (b"f:b",), time=5)
    client.delete_rows(table, keys.slice(9000, 3000), (b"f",), time=5)
    left = rows_of(client.scan(table))
    assert set(left) == {keys[i].as_py() for i in range(6000, 9000) if i % 3}
    assert all([column for column, *_ in cells] == [b"f:a"] for cells in left.values())
    assert keys_of(client.scan(table, ScanRequest(span=(0, 5)))) == keys.to_pylist(), "as of 4 all are there"


def test_a_claim_is_won_by_one(client: HBaseClient, make_table: Callable[..., str]) -> None:
    table = make_table()
    results: list[bytes] = []

    def claim(name: bytes) -> None:
        results.append(client.put_if_absent(table, b"batch-7", b"f:owner", name, time=7))

    threads = [threading.Thread(target=claim, args=(b"owner %d" % i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len(set(results)) == 1
    row = client.get(table, b"batch-7")
    assert row is not None
    assert row[b"f:owner"] == (results[0], 7)

    # A pointer moves only from what one knows.
    assert client.put_if(table, b"published", b"f:n", None, {b"f:n": b"1"}, time=1)
    assert not client.put_if(table, b"published", b"f:n", None, {b"f:n": b"9"}, time=9)
    assert client.put_if(table, b"published", b"f:n", b"1", {b"f:n": b"2"}, time=2)
    assert not client.put_if(table, b"published", b"f:n", b"1", {b"f:n": b"3"}, time=3)
    assert client.get(table, b"published") == {b"f:n": (b"2", 2)}


# -- changes ----------------------------------------------------------------------------------------------------------


def test_a_window_of_time_gives_every_changed_key_and_what_happened_to_it(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    table = make_table((KEEPS, ColumnFamily(b"g", max_versions=3)), splits=[b"000005"])
    client.put_rows(table, numbered(10), {b"f:a": numbered(10), b"g:b": numbered(10)}, time=10)
    client.put(table, b"000001", {b"f:a": b"new"}, time=20)
    client.put(table, b"000001", {b"f:a": b"newer"}, time=21)
    client.delete(table, b"000002", time=22)
    client.delete(table, b"000006", [b"f:a"], time=23)
    client.delete(table, b"000007", [b"f"], time=24)
    client.change(table, b"000008", {b"f:a": b"x"}, [b"g:b"], time=29)
    client.put(table, b"000009", {b"f:a": b"too late"}, time=30)

    changed = rows_of(client.scan_changed(table, (20, 30)))
    assert changed == {
        b"000001": [(b"f:a", b"", 21, PUT), (b"f:a", b"", 20, PUT)],
        b"000002": [(b"f:", b"", 22, DELETE_FAMILY), (b"g:", b"", 22, DELETE_FAMILY)],
        b"000006": [(b"f:a", b"", 23, DELETE_COLUMN)],
        b"000007": [(b"f:", b"", 24, DELETE_FAMILY)],
        b"000008": [(b"f:a", b"", 29, PUT), (b"g:b", b"", 29, DELETE_COLUMN)],
    }
    first, second = client.admin.list_regions(table)
    parts = [keys_of(client.scan_changed(table, (20, 30), start=r.start, stop=r.stop)) for r in (first, second)]
    assert parts == [[b"000001", b"000002"], [b"000006", b"000007", b"000008"]]
    assert keys_of(client.scan_changed(table, (20, 30), families=(b"g",))) == [b"000002", b"000008"]
    client.admin.disable(table)
    client.admin.enable(table)
    assert keys_of(client.scan_changed(table, (20, 30), families=(b"f",))) == list(changed), "markers outlive a flush"


# -- scans ------------------------------------------------------------------------------------------------------------


def test_a_scan_over_regions_is_in_key_order_and_keeps_to_its_bounds(
    client: HBaseClient, make_table: Callable[..., str]
) -> None:
    table = make_table(splits=[b"%06d" % i for i in range(1000, 8000, 1000)])
    keys = numbered(8000)
    client.put_rows(table, keys, {b"f:a": keys, b"f:b": keys}, time=1)
    known = keys.to_pylist()
    assert keys_of(client.scan(table)) == known
    assert keys_of(client.scan(table, ScanRequest(start=b"000990", stop=b"003010"))) == known[990:3010]
    assert keys_of(client.scan(table, ScanRequest(start=b"000990", limit=2500))) == known[990:3490]
    assert keys_of(client.scan(table, ScanRequest(start=b"5", stop=b"4"))) == []
    assert keys_of(client.scan(table, ScanRequest(filter="PrefixFilter('00777')"))) == known[7770:7780]
    assert all(cells.columns[0] == (b"f:b",) for cells in client.scan(table, ScanRequest(columns=(b"f:b",))))
    by_region = [keys_of(client.scan(table, ScanRequest(r.start, r.stop))) for r in client.admin.list_regions(table)]
    assert [key for part in by_region for key in part] == known
    assert len(by_region) == 8


def test_large_values_are_read_in_replies_of_bounded_size(client: HBaseClient, make_table: Callable[..., str]) -> None:
    table = make_table()
    big = pa.array([bytes([i % 256]) * 100_000 for i in range(400)])
    client.put_rows(table, numbered(400), {b"f:v": big}, time=1)
    sizes = []
    at = 0
    for cells in client.scan(table):
        assert cells.column(b"f:v").equals(big.slice(at, cells.rows))
        at += cells.rows
        sizes.append(len(cells.frame))
    assert at == 400
    assert max(sizes[1:]) < 4 << 20


# -- faults -----------------------------------------------------------------------------------------------------------


def test_a_scan_and_writes_go_on_when_the_gateway_is_killed_and_comes_back(
    hbase: Server, client: HBaseClient, make_table: Callable[..., str]
) -> None:
    table = make_table()
    keys = numbered(60_000)
    client.put_rows(table, keys, {b"f:a": keys}, time=1)
    patient = HBaseClient(
        Gateway(hbase.host, hbase.port), retry=RetryPolicy(max_retries=60, first_pause=0.2, max_pause=1.0)
    )
    chunks = patient.scan(table)
    seen = next(chunks).keys.to_pylist() + next(chunks).keys.to_pylist()
    hbase.kill_gateway()
    with pytest.raises(errors.Unavailable, match=f"{hbase.host}:{hbase.port}"):
        HBaseClient(Gateway(hbase.host, hbase.port), retry=RetryPolicy(max_retries=1)).get(table, b"000000")
    back = threading.Thread(target=hbase.start_gateway)
    back.start()
    patient.put(table, b"during", {b"f:a": b"x"}, time=2)
    for cells in chunks:
        seen += cells.keys.to_pylist()
    back.join()
    assert seen == [*keys.to_pylist(), b"during"]
    assert client.get(table, b"during") is not None, "the kept connections of the old gateway do no harm"


@pytest.mark.deep
def test_acknowledged_writes_survive_a_kill_of_hbase_and_reads_wait_for_it(
    hbase: Server, client: HBaseClient, make_table: Callable[..., str]
) -> None:
    table = make_table()
    keys = numbered(2_000)
    client.put_rows(table, keys, {b"f:a": keys}, time=1)
    before = hbase.status()
    hbase.kill_hbase()
    assert not hbase.status().answers
    hbase.start_hbase()
    after = hbase.status()
    assert (after.port, after.gateway_pid) == (before.port, before.gateway_pid), "the gateway was left alone"
    assert after.hbase_pid != before.hbase_pid
    patient = HBaseClient(
        Gateway(hbase.host, hbase.port), retry=RetryPolicy(max_retries=60, first_pause=0.2, max_pause=1.0)
    )
    assert keys_of(patient.scan(table)) == keys.to_pylist()


def test_a_region_that_splits_under_a_scan_loses_no_row(client: HBaseClient, make_table: Callable[..., str]) -> None:
    table = make_table(
        attributes={b"MAX_FILESIZE": str(2 << 20).encode(), b"MEMSTORE_FLUSHSIZE": str(1 << 20).encode()}
    )
    filler = pa.array([os.urandom(1000) for _ in range(2_000)])
    deadline = time.monotonic() + 90
    written = 0
    while len(client.admin.list_regions(table)) < 2 and time.monotonic() < deadline:
        keys = pa.array([b"%08d" % i for i in range(written, written + 2_000)])
        client.put_rows(table, keys, {b"f:v": filler}, time=1)
        written += 2_000
        assert sum(cells.rows for cells in client.scan(table, ScanRequest(filter="KeyOnlyFilter()"))) == written
        time.sleep(0.5)
    assert len(client.admin.list_regions(table)) >= 2, "no region has split in 90 s"
    assert keys_of(client.scan(table)) == [b"%08d" % i for i in range(written)]
