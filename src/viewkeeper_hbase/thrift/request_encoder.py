"""Encodes calls with batches of rows from Arrow columns, without an object per row.

The calls (binary protocol, numbers big-endian, `s` = i32 length, bytes; parts in [] may be missing):

    message     80 01 00 01 | s method | i32 0 | 0b 0001 s table | 0f 0002 0c i32 rows | row ... | 00
    putMultiple     0b 0001 s key | 0f 0002 0c i32 cells | cell ... | [0a 0003 i64 time] | 00
                    cell: 0b 0001 s family | 0b 0002 s qualifier | 0b 0003 s value | 00
    deleteMultiple  0b 0001 s key | [0f 0002 0c i32 columns | column ...] | [0a 0003 i64 time] | 08 0004 i32 k | 00
                    k: 1 deletes columns or rows, 2 families
    getMultiple     0b 0001 s key | [0f 0002 0c i32 columns | column ...] | [0c 0004 range] | [08 0005 i32 n] | 00
                    column: 0b 0001 s family | [0b 0002 s qualifier] | [0a 0003 i64 time] | 00
                    range: 0a 0001 i64 from | 0a 0002 i64 to | 00

Within a batch only keys, values, cell counts and times differ, so a row is a join of constants and Arrow arrays,
and the joined array's own bytes are the call. Calls are cut below the gateway's limit: a framed gateway refuses
more than 2 MB unless `hbase.regionserver.thrift.framed.max_frame_size_in_mb` sets another limit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.errors import BadValue, TooLarge
from viewkeeper.model.arrow_buffers import one_chunk

MAX_CALL_BYTES = 2_000_000 - 64_000
"""Maximum bytes of one call, including its header."""
ROWS_PER_CHUNK = 10_000

Message = bytes
TimeRange = tuple[int, int]
"""From (inclusive) and to (exclusive)."""


def encode_puts(
    table: bytes, keys: pa.Array, columns: Mapping[bytes, pa.Array], time: int | pa.Array | None
) -> Iterator[tuple[Message, int]]:
    """Yield putMultiple calls, each with its number of rows. A null is a cell that is not written; a row needs one
    cell."""
    for part in _row_chunks(keys, columns, time):
        cells = [_encode_cells(column, values) for column, values in part.columns.items()]
        counts = np.zeros(len(part.keys), np.int32)
        for values in part.columns.values():
            counts += np.asarray(values.is_valid())
        if len(counts) and not counts.min():
            raise BadValue(
                f"A row for HBase table {table.decode()} has no cell at all.",
                hint="Write at least one column of each row.",
            )
        pieces = [
            b"\x0b\x00\x01",
            _length_prefixed(part.keys),
            b"\x0f\x00\x02\x0c",
            _big_endian(counts, ">i4"),
            *cells,
            *_encode_time(part.time),
            b"\x00",
        ]
        yield from _cut_into_calls("putMultiple", table, _join_pieces(pieces))


def encode_deletes(
    table: bytes, keys: pa.Array, columns: Sequence[bytes], time: int | pa.Array | None
) -> Iterator[tuple[Message, int]]:
    """Yield deleteMultiple calls for whole rows, or for all versions of some columns or families, up to a time."""
    of_families = [split_column(column)[1] is None for column in columns]
    if columns and any(of_families) != all(of_families):
        raise BadValue("Families and single columns cannot be deleted in one call.", hint="Call once for each.")
    kind = b"\x08\x00\x04" + struct.pack(">i", 2 if any(of_families) else 1) + b"\x00"
    for part in _row_chunks(keys, {}, time):
        if columns:
            # HBase uses the row's time only for whole rows; a column has its own time, here the same for all rows.
            if isinstance(time, pa.Array):
                raise BadValue(
                    "Column deletes of one call have one time.", hint="Delete whole rows, or call once for each time."
                )
            selection: list[Any] = [_encode_columns(columns, time)]
        else:
            selection = _encode_time(part.time)
        yield from _cut_into_calls(
            "deleteMultiple",
            table,
            _join_pieces([b"\x0b\x00\x01", _length_prefixed(part.keys), *selection, kind]),
        )


def encode_gets(
    table: bytes, keys: pa.Array, columns: Sequence[bytes], span: TimeRange | None, versions: int | None
) -> Iterator[tuple[Message, int]]:
    """Yield getMultiple calls, each with its number of rows."""
    options = _encode_columns(columns, None) if columns else b""
    if span is not None:
        options += b"\x0c\x00\x04" + struct.pack(">BhqBhqB", 10, 1, span[0], 10, 2, span[1], 0)
    if versions is not None:
        options += struct.pack(">Bhi", 8, 5, versions)
    for part in _row_chunks(keys, {}, None):
        yield from _cut_into_calls(
            "getMultiple", table, _join_pieces([b"\x0b\x00\x01", _length_prefixed(part.keys), options + b"\x00"])
        )


def split_column(column: bytes) -> tuple[bytes, bytes | None]:
    """Split `family:qualifier`; `family` alone has no qualifier, `family:` an empty one."""
    family, colon, qualifier = column.partition(b":")
    return family, qualifier if colon else None


class _RowChunk:
    """Consecutive rows, few enough for the 32-bit offsets of one array."""

    def __init__(self, keys: pa.Array, columns: Mapping[bytes, pa.Array], time: int | pa.Array | None) -> None:
        self.keys = keys
        self.columns = columns
        self.time = time


def _row_chunks(keys: pa.Array, columns: Mapping[bytes, pa.Array], time: int | pa.Array | None) -> Iterator[_RowChunk]:
    keys, columns = _to_binary(keys), {name: _to_binary(values) for name, values in columns.items()}
    if keys.null_count or (len(keys) and not pc.min(pc.binary_length(keys)).as_py()):
        raise BadValue("A row key for HBase is empty or null.", hint="Every row needs a key of at least one byte.")
    for at in range(0, len(keys), ROWS_PER_CHUNK):
        part = {name: values.slice(at, ROWS_PER_CHUNK) for name, values in columns.items()}
        yield _RowChunk(
            keys.slice(at, ROWS_PER_CHUNK), part, time.slice(at, ROWS_PER_CHUNK) if isinstance(time, pa.Array) else time
        )


def _to_binary(values: Any) -> pa.Array:
    values = one_chunk(values)
    return values if values.type == pa.binary() else values.cast(pa.binary())


def _encode_cells(column: bytes, values: pa.Array) -> pa.Array:
    family, qualifier = split_column(column)
    head = (
        b"\x0b\x00\x01" + _encode_string(family) + b"\x0b\x00\x02" + _encode_string(qualifier or b"") + b"\x0b\x00\x03"
    )
    return pc.binary_join_element_wise(head, _length_prefixed(values), b"\x00", b"")


def _encode_columns(columns: Sequence[bytes], time: int | None) -> bytes:
    encoded = b"\x0f\x00\x02\x0c" + struct.pack(">i", len(columns))
    for column in columns:
        family, qualifier = split_column(column)
        encoded += (
            b"\x0b\x00\x01"
            + _encode_string(family)
            + (b"" if qualifier is None else b"\x0b\x00\x02" + _encode_string(qualifier))
        )
        encoded += (b"" if time is None else struct.pack(">Bhq", 10, 3, time)) + b"\x00"
    return encoded


def _encode_time(time: int | pa.Array | None) -> list[Any]:
    if time is None:
        return []
    if isinstance(time, int):
        return [struct.pack(">Bhq", 10, 3, time)]
    return [b"\x0a\x00\x03", _big_endian(np.asarray(time), ">i8")]


def _encode_string(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _length_prefixed(values: pa.Array) -> pa.Array:
    """Prefix each value with its length; null stays null."""
    lengths = _big_endian(np.asarray(pc.fill_null(pc.binary_length(values), 0)), ">i4")
    return pc.binary_join_element_wise(lengths, values, b"")


def _big_endian(numbers: npt.NDArray[Any], form: str) -> pa.Array:
    flat = numbers.astype(form)
    return pa.Array.from_buffers(pa.binary(flat.itemsize), len(flat), [None, pa.py_buffer(flat)]).cast(pa.binary())


def _join_pieces(pieces: list[Any]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, b"", null_handling="replace", null_replacement=b"")


def _cut_into_calls(method: str, table: bytes, rows: pa.Array) -> Iterator[tuple[Message, int]]:
    """Cut joined rows into calls."""
    head = (
        b"\x80\x01\x00\x01"
        + _encode_string(method.encode())
        + bytes(4)
        + b"\x0b\x00\x01"
        + _encode_string(table)
        + b"\x0f\x00\x02\x0c"
    )
    ends = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
    data = memoryview(rows.buffers()[2])
    max_row_bytes = MAX_CALL_BYTES - len(head) - 5
    at = 0
    while at < len(rows):
        stop = int(np.searchsorted(ends, ends[at] + max_row_bytes, side="right")) - 1
        if stop == at:
            raise TooLarge(
                f"A row of {int(ends[at + 1] - ends[at]):,} bytes for HBase table {table.decode()} is over the"
                f" {max_row_bytes:,} bytes that its gateway takes in one call.",
                hint="Make the row smaller.",
            )
        yield b"".join((head, struct.pack(">i", stop - at), data[ends[at] : ends[stop]], b"\x00")), stop - at
        at = stop
