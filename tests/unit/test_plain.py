"""Rows of plain values: the same bytes as those of Arrow's columns, one by one."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.errors import CorruptState
from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys, encode_plain_key
from viewkeeper.model.encoding.row_slots import OlderRowLayout, RowFieldReader, to_plain_value
from viewkeeper.model.encoding.rows import decode_plain_row, encode_plain_row, encode_rows
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.ordered import log_format
from viewkeeper.store.ordered.row_images import RowImages, binary_array

KINDS = {
    "t": types.TINYINT,
    "i": types.INT,
    "l": types.BIGINT,
    "s": types.STRING,
    "x": types.BINARY,
    "b": types.BOOLEAN,
    "d": types.DATE,
    "at": types.TIMESTAMP,
    "m": types.decimal(12, 3),
    "w": types.decimal(38, 0),
    "f": types.DOUBLE,
}
TABLE = Table(1, "all", tuple(Column(n, t) for n, t in KINDS.items()), tuple(KeyPart(n) for n in KINDS))
TURNED = Table(2, "turned", TABLE.columns, tuple(KeyPart(n, descending=True, nulls_last=True) for n in KINDS))


def _rows(seed: int) -> pa.Table:
    chance = random.Random(seed)
    made = {
        "t": lambda: chance.randrange(-128, 128),
        "i": lambda: chance.randrange(-(2**31), 2**31),
        "l": lambda: chance.choice((-(2**63), 2**63 - 1, 0)),
        "s": lambda: chance.choice(("", "a\0b", "é", "longer than most")),
        "x": lambda: chance.choice((b"", b"\0", b"\xff\0\1")),
        "b": lambda: chance.random() < 0.5,
        "d": lambda: dt.date(1969, 12, 30) + dt.timedelta(chance.randrange(5)),
        "at": lambda: dt.datetime(1969, 12, 31, 23, 59, 59, chance.randrange(10**6)),
        "m": lambda: Decimal(chance.randrange(-(10**9), 10**9)) / 1000,
        "w": lambda: Decimal(chance.choice((10**37, -(10**37), -1, 0))),
        "f": lambda: chance.choice((0.5, -1e300, 1.25)),
    }
    found: dict[str, list[Any]] = {n: [None if chance.random() < 0.2 else made[n]() for _ in range(50)] for n in KINDS}
    return pa.table({f.name: pa.array(found[f.name], f.type) for f in TABLE.arrow})


@pytest.mark.parametrize("seed", range(5))
def test_rows_and_keys_are_the_same_bytes(seed: int) -> None:
    rows = _rows(seed)
    encoded = encode_rows(TABLE, rows).to_pylist()
    found = [decode_plain_row(TABLE, row) for row in encoded]
    assert [encode_plain_row(TABLE, row) for row in found] == encoded
    for table in (TABLE, TURNED):
        assert [encode_plain_key(table, row) for row in found] == encode_keys(table, rows).to_pylist()
    assert {row["m"] for row in found} == {None if m is None else int(m * 1000) for m in rows["m"].to_pylist()}


@pytest.mark.parametrize("seed", range(5))
def test_some_columns_are_read_as_they_lie(seed: int) -> None:
    encoded = encode_rows(TABLE, _rows(seed)).to_pylist()
    for names in (["s"], ["x", "i"], ["w", "s", "t"], ["b", "m"], list(KINDS)):
        reader = RowFieldReader(TABLE, names)
        for row in encoded:
            slots, expected = reader.read(row), decode_plain_row(TABLE, row)
            assert {n: to_plain_value(KINDS[n], slots[reader.positions[n]]) for n in names} == {
                n: expected[n] for n in names
            }


def test_a_row_without_nulls_need_only_be_unpacked() -> None:
    values = {"t": 1, "i": -5, "l": 2**40, "s": "é", "x": b"\0\1", "b": True, "d": 3, "at": 4, "m": 5, "w": -(10**30)}
    row = encode_plain_row(TABLE, values | {"f": 0.5})
    reader = RowFieldReader(TABLE, ["x", "s", "i"])
    unpacked = reader.unpack(row)
    assert unpacked[0] == reader.header_without_nulls
    assert [to_plain_value(KINDS[n], reader.column_getter(n)(row, unpacked)) for n in "xsi"] == [
        decode_plain_row(TABLE, row)[n] for n in "xsi"
    ]


def test_a_row_of_fewer_columns_is_another_s() -> None:
    reader = RowFieldReader(TABLE.with_column(Column("later", types.INT)), ["i"])
    with pytest.raises(OlderRowLayout):
        reader.read(encode_rows(TABLE, _rows(0))[0].as_py())


class Kept:
    """A log of what is put, in order."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []

    def put(self, key: bytes, value: bytes, *, append: bool = False) -> None:
        self.keys.append(key)
        self.values.append(value)

    def get(self, key: bytes) -> bytes | None:
        return dict(zip(self.keys, self.values, strict=True)).get(key)

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((k, v) for k, v in zip(self.keys, self.values, strict=True) if k >= start)


def test_few_entries_of_the_log_are_read_one_by_one() -> None:
    keys, rows = [b"a", b"b", b"c"], [b"", b"one", b"another"]
    kinds = [
        RowImages(binary_array(keys), binary_array(rows), binary_array(rows[::-1])),
        RowImages(binary_array(keys), binary_array([b""] * 3), binary_array(rows)),
    ]
    kinds.append(RowImages(binary_array(keys), binary_array(rows), binary_array([b""] * 3)))
    kept = Kept()
    for position, images in enumerate(kinds, 4):
        log_format.append_images(kept, position, 0, 7, 1.5, images)  # type: ignore[arg-type]
        log_format.append_images(kept, position, 1, 8, 1.5, kinds[0])  # type: ignore[arg-type]
    expected = [*zip(rows, rows[::-1], strict=True), *((b"", row) for row in rows), *((row, b"") for row in rows)]
    assert log_format.read_row_images(kept, 0, 9, 7, 9) == expected  # type: ignore[arg-type]
    assert log_format.read_row_images(kept, 4, 5, 7, 9) == expected[3:6]  # type: ignore[arg-type]
    assert log_format.read_row_images(kept, 0, 9, 7, 8) is None  # type: ignore[arg-type]
    kept.values[2] = kept.values[2][:-1] + b"?"
    with pytest.raises(CorruptState, match="Position 5"):
        log_format.read_row_images(kept, 0, 9, 7, 9)  # type: ignore[arg-type]


CALLS = st.lists(st.tuples(st.booleans(), st.sampled_from((1, 1, 1, 2, 3, 7, 30))), max_size=12)


@given(CALLS, st.integers(0, 3), st.integers(1, 9))
def test_shares_of_the_log_follow_each_other_and_are_alike(
    calls: list[tuple[bool, int]], after: int, parts: int
) -> None:
    """`calls`: whether each is of the table, and of how many chunks. Each share begins where the one before ends."""
    one, upto = RowImages(*(binary_array([b"x"]) for _ in range(3))), max(1, len(calls) - 1)
    kept = Kept()
    for position, (own, chunks) in enumerate(calls, 1):
        for chunk in range(chunks):
            log_format.append_images(kept, position, chunk, 7 if own else 8, 1.5, one)  # type: ignore[arg-type]
    whole = [e.position for e in log_format.entries(kept, after, upto, [7])]  # type: ignore[arg-type]
    shares = [log_format.partition_bounds(kept, after, upto, 7, part, parts) for part in range(parts)]  # type: ignore[arg-type]
    found = [[e.position for e in log_format.entries_between(kept, *edges, [7])] for edges in shares]  # type: ignore[arg-type]
    assert [position for share in found for position in share] == whole
    assert max(map(len, found)) - min(map(len, found)) <= 1


SOME = st.binary(max_size=9)


@given(st.lists(st.tuples(SOME, SOME, SOME), min_size=1, max_size=40), st.integers(1, 300), st.integers(0, 3))
def test_chunks_of_any_size_hold_the_same_images(rows: list[tuple[bytes, bytes, bytes]], most: int, skip: int) -> None:
    """`skip`: arrays that do not begin where their buffers do."""
    sides = [binary_array([b"before"] * skip + list(side)).slice(skip) for side in zip(*rows, strict=True)]
    bodies = list(log_format.encode_chunks(7, 1.5, RowImages(*sides), most))
    assert all(map(log_format.has_valid_checksum, bodies))
    found = log_format.concat_entries(
        [log_format.LogEntry(1, 7, 1.5, int.from_bytes(body[16:20], "little"), body) for body in bodies]
    )
    assert [side.to_pylist() for side in (found.keys, found.before, found.after)] == [s.to_pylist() for s in sides]
    kept, lists = Kept(), [side.to_pylist() for side in sides]
    log_format.append_rows(kept, 5, 0, 7, 1.5, (lists[0], lists[1], lists[2]), most)  # type: ignore[arg-type]
    assert kept.values == bodies
