"""What the fast way reads from and writes to a gateway is what thriftpy2 reads and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("thriftpy2")

from viewkeeper.errors import BadValue, TooLarge
from viewkeeper_hbase.thrift import reply_decoder, request_encoder
from viewkeeper_hbase.thrift.cells import Cells
from viewkeeper_hbase.thrift.connection import Gateway, _memory_protocol, reply_frame, thrift_interface

HBASE = thrift_interface()
# Bytes that look like the layout itself: a value may hold anything, another reply included.
TRAPS = (
    b"\x0b\x00\x01\x00\x00",
    b"\x0b\x00\x01\x00\x00\x00\x01f\x0b\x00\x02\x00\x00\x00\x01q\x0b\x00\x03\x00\x00\x00\x00",
    b"\x0b\x00\x01\x00\x00\x00\x01r\x0f\x00\x02\x0c\x00\x00\x00\x01",
    b"\x0b\x00\x01\x00\x00\xff\xff",
    b"\x0f\x00\x02\x0c\x00\x00\x00\x00\x02\x00\x03\x00\x02\x00\x04\x00\x00",
    b"\x02\x00\x03\x00\x02\x00\x04\x00\x00\x0b\x00\x01",
)
values = st.one_of(
    st.binary(max_size=30), st.lists(st.sampled_from(TRAPS), min_size=1, max_size=3).map(b"".join), st.just(b"x" * 300)
)
keys = st.one_of(st.binary(min_size=1, max_size=12), st.sampled_from(TRAPS))
families = st.sampled_from([b"f", b"cf", b"\x0b\x00\x01\x00\x00"])
qualifiers = st.one_of(
    st.sampled_from([b"", b"a", b"b", b"a_long_qualifier_name_1", b"a_long_qualifier_name_2"]), values
)
times = st.integers(-(2**63), 2**63 - 1)
kinds = st.sampled_from([4, 8, 10, 12, 14])


def cell(family: bytes, qualifier: bytes, value: bytes, time: int, kind: int | None, tags: bytes | None = None) -> Any:
    return HBASE.TColumnValue(family, qualifier, value, timestamp=time, type=kind, tags=tags)


def result(key: bytes | None, cells: list[Any]) -> Any:
    return HBASE.TResult(row=key, columnValues=cells, stale=False, partial=False)


usual_cells = st.builds(cell, families, qualifiers, values, times, kinds)
odd_cells = st.builds(cell, families, qualifiers, values, times, st.none() | kinds, st.none() | values)
rows = st.builds(result, keys, st.lists(usual_cells, min_size=1, max_size=5))
misses = st.builds(result, st.none(), st.just([]))
odd_rows = st.builds(result, keys, st.lists(odd_cells, max_size=3))


def as_lists(cells: Cells) -> list[tuple[bytes | None, list[tuple[bytes, bytes, int, int]]]]:
    """All that Cells says, by its public properties."""
    names, which = cells.columns
    values = cells.values.to_pylist()
    keys = cells.keys.to_pylist()
    found: list[tuple[bytes | None, list[tuple[bytes, bytes, int, int]]]] = [(key, []) for key in keys]
    for i, row in enumerate(cells.row.tolist()):
        found[row][1].append((names[which[i]], values[i], int(cells.time[i]), int(cells.kind[i])))
    return found


def expected(results: list[Any]) -> list[tuple[bytes | None, list[tuple[bytes, bytes, int, int]]]]:
    return [
        (
            r.row,
            [
                (c.family + b":" + c.qualifier, c.value, c.timestamp, 4 if c.type is None else c.type)
                for c in r.columnValues
            ],
        )
        for r in results
    ]


@given(st.lists(rows, max_size=8))
@example([result(b"k", [cell(b"f", b"q", TRAPS[1] * 3 + TRAPS[2], 1, 4)]) for _ in range(3)])
@example([result(b"k", [cell(b"f", b"a", b"2", 2, 4), cell(b"f", b"a", b"1", 1, 4)]) for _ in range(3)])
@example([])
def test_scanned_rows_are_read_all_at_once_and_exactly(results: list[Any]) -> None:
    frame = reply_frame("getScannerRows", results)
    start, count = reply_decoder._read_header(frame)
    together = reply_decoder._decode_vectorised(frame, start, count, has_misses=False)
    assert together is not None, "these rows are of the usual form: the walker is not needed"
    assert as_lists(together) == expected(results)
    assert as_lists(reply_decoder.decode_slowly(frame, start, count)) == expected(results)


@given(st.lists(st.one_of(rows, misses), max_size=8))
@example([result(None, [])])
@example([result(None, []), result(b"k", [cell(b"f", b"q", TRAPS[4], 1, 4)]), result(None, []), result(None, [])])
def test_keys_that_were_not_found_are_null_rows_in_their_place(results: list[Any]) -> None:
    frame = reply_frame("getMultiple", results)
    start, count = reply_decoder._read_header(frame)
    assert as_lists(reply_decoder.decode_frame(frame)) == expected(results)
    assert reply_decoder._decode_vectorised(frame, start, count, has_misses=True) is not None


@given(st.lists(st.one_of(rows, odd_rows, misses), max_size=6))
def test_a_reply_of_an_unusual_form_is_read_exactly_too(results: list[Any]) -> None:
    assert as_lists(reply_decoder.decode_frame(reply_frame("getScannerResults", results))) == expected(results)


@given(st.lists(rows, min_size=1, max_size=5), st.data())
def test_a_damaged_reply_is_refused_or_read_within_its_bytes(results: list[Any], data: st.DataObject) -> None:
    good = reply_frame("getScannerRows", results)
    place = data.draw(st.integers(30, len(good) - 1))
    bad = good.copy()
    bad[place] = data.draw(st.integers(0, 255))
    for frame in (bad, good[:place]):
        try:
            cells = reply_decoder.decode_frame(frame)
        except reply_decoder.UnreadableReply:
            continue
        if cells is not None:
            as_lists(cells)


@given(st.lists(rows, min_size=1, max_size=8))
def test_a_column_is_its_newest_cell_in_each_row(results: list[Any]) -> None:
    cells = reply_decoder.decode_frame(reply_frame("getScannerRows", results))
    assert cells is not None
    for column in (b"f:a", b"cf:", b"f:never"):
        newest = [
            next((c.value for c in r.columnValues if c.family + b":" + c.qualifier == column), None) for r in results
        ]
        assert cells.column(column).to_pylist() == newest
    batch = cells.to_batch({"a": b"f:a"}, time="t")
    assert batch.column("_key").to_pylist() == [r.row for r in results]
    assert batch.column("t").to_pylist() == [max(c.timestamp for c in r.columnValues) for r in results]


def test_an_exception_in_a_reply_is_not_taken_for_rows() -> None:
    buffer, protocol = _memory_protocol(Gateway("x"))
    protocol.write_message_begin("getScannerRows", 2, 1)
    HBASE.THBaseService.getScannerRows_result(io=HBASE.TIOError("gone", True)).write(protocol)
    assert reply_decoder.decode_frame(np.frombuffer(buffer.getvalue(), np.uint8)) is None


# -- calls ------------------------------------------------------------------------------------------------------------


def parsed(method: str, message: bytes) -> Any:
    _, protocol = _memory_protocol(Gateway("x"), message)
    assert protocol.read_message_begin()[:2] == (method, 1)
    arguments = getattr(HBASE.THBaseService, f"{method}_args")()
    arguments.read(protocol)
    return arguments


puts = st.lists(st.tuples(keys, st.none() | values, values, st.integers(0, 2**62)), min_size=1, max_size=6)


@given(puts, st.sampled_from(["none", "one", "each"]))
def test_a_call_with_many_puts_says_what_thriftpy2_would_say(given_rows: list[Any], timing: str) -> None:
    key, a, b, when = (list(column) for column in zip(*given_rows, strict=True))
    time = {"none": None, "one": 7, "each": pa.array(when, pa.int64())}[timing]
    columns = {b"f:a": pa.array(a, pa.binary()), b"g:": pa.array(b, pa.binary())}
    [(message, count)] = request_encoder.encode_puts(b"ns:t", pa.array(key, pa.binary()), columns, time)
    said = parsed("putMultiple", message)
    assert said.table == b"ns:t"
    assert count == len(key)
    times = {"none": [None] * count, "one": [7] * count, "each": when}[timing]
    assert said.tputs == [
        HBASE.TPut(
            row=k,
            columnValues=([] if x is None else [HBASE.TColumnValue(b"f", b"a", x)])
            + [HBASE.TColumnValue(b"g", b"", y)],
            timestamp=t,
        )
        for k, x, y, t in zip(key, a, b, times, strict=True)
    ]


@given(st.lists(keys, min_size=1, max_size=6), st.sampled_from([(), (b"f",), (b"f:a", b"g:")]), st.none() | st.just(9))
def test_calls_with_many_deletes_and_gets_say_what_thriftpy2_would_say(
    key: list[bytes], columns: tuple[bytes, ...], time: int | None
) -> None:
    wanted = [request_encoder.split_column(column) for column in columns]
    [(message, _)] = request_encoder.encode_deletes(b"t", pa.array(key, pa.binary()), columns, time)
    assert parsed("deleteMultiple", message).tdeletes == [
        HBASE.TDelete(
            row=k,
            columns=[HBASE.TColumn(f, q, time) for f, q in wanted] or None,
            timestamp=None if columns else time,
            deleteType=2 if columns == (b"f",) else 1,
        )
        for k in key
    ]
    [(message, _)] = request_encoder.encode_gets(
        b"t", pa.array(key, pa.binary()), columns, (0, 5) if time else None, time
    )
    assert parsed("getMultiple", message).tgets == [
        HBASE.TGet(
            row=k,
            columns=[HBASE.TColumn(f, q) for f, q in wanted] or None,
            timeRange=HBASE.TTimeRange(0, 5) if time else None,
            maxVersions=time,
        )
        for k in key
    ]


def test_calls_stay_below_what_a_gateway_takes_and_lose_no_row() -> None:
    key = pa.array([b"%06d" % i for i in range(25_000)])
    value = pa.array([b"v" * (i % 700) for i in range(25_000)])
    calls = list(request_encoder.encode_puts(b"t", key, {b"f:v": value}, 1))
    assert max(len(message) for message, _ in calls) <= request_encoder.MAX_CALL_BYTES
    assert len(calls) < 10
    said = [put for message, _ in calls for put in parsed("putMultiple", message).tputs]
    assert [put.row for put in said] == key.to_pylist()
    assert [put.columnValues[0].value for put in said] == value.to_pylist()


def test_rows_that_hbase_would_not_take_are_refused_before_anything_is_sent() -> None:
    one = pa.array([b"v"])
    with pytest.raises(BadValue, match="key"):
        next(request_encoder.encode_puts(b"t", pa.array([b""]), {b"f:v": one}, 1))
    with pytest.raises(BadValue, match="no cell"):
        next(request_encoder.encode_puts(b"t", one, {b"f:v": pa.array([None], pa.binary())}, 1))
    with pytest.raises(TooLarge, match="bytes"):
        next(request_encoder.encode_puts(b"t", one, {b"f:v": pa.array([b"v" * 3_000_000])}, 1))
