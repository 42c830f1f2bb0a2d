"""Keys as bytes: the order of the bytes is the order of the values, and one tuple encodes like a whole column."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drawn import WHOLE

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.encoding.key_decoding import shared_key_values
from viewkeeper.model.encoding.keys import encode_key, encode_keys, encode_whole_key, key_range, prefix_range, successor
from viewkeeper.model.schema import Column, KeyPart, Table

DATES = st.dates()
INSTANTS = st.datetimes(timezones=st.just(dt.UTC))
TYPES: dict[str, st.SearchStrategy[Any]] = {
    **WHOLE,
    "float": st.floats(width=32),
    "double": st.floats(),
    "decimal(12,2)": st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2),
    "decimal(38,6)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -6))
    ),
    "string": st.text(st.characters(exclude_categories=["Cs"], include_characters="\x00"), max_size=6),
    "binary": st.binary(max_size=6),
    "date": DATES,
    "timestamp": INSTANTS,
    "timestamp_ntz": st.datetimes(),
}


def table_of(*columns: tuple[str, bool, bool]) -> Table:
    """A table whose key is one column for each (type, descending, nulls last)."""
    return Table(
        1,
        "t",
        tuple(Column(f"c{at}", types.parse_type(type_)) for at, (type_, _, _) in enumerate(columns)),
        tuple(KeyPart(f"c{at}", desc, last) for at, (_, desc, last) in enumerate(columns)),
    )


def rows_of(table: Table, keys: list[tuple[Any, ...]]) -> pa.Table:
    arrays = []
    for at, field in enumerate(table.arrow):
        values = [key[at] for key in keys]
        if pa.types.is_timestamp(field.type):
            values = [v if v is None or v.tzinfo is None else v.astimezone(dt.UTC).replace(tzinfo=None) for v in values]
        arrays.append(pa.array(values, field.type))
    return pa.table(arrays, schema=table.arrow)


@st.composite
def keyed(draw: st.DrawFn) -> tuple[Table, list[tuple[Any, ...]]]:
    """A table with a random key, and some keys of it."""
    parts = draw(
        st.lists(st.tuples(st.sampled_from(list(TYPES)), st.booleans(), st.booleans()), min_size=1, max_size=3)
    )
    one = st.tuples(*(st.none() | TYPES[type_] for type_, _, _ in parts))
    return table_of(*parts), draw(st.lists(one, max_size=8))


def compare(table: Table, left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
    """The order that SQL says: NULLs where the key part puts them, NaN greatest, −0.0 equal to 0.0."""
    for part, a, b in zip(table.key, left, right, strict=True):
        if a is None or b is None:
            if a is not b:
                return (1 if a is None else -1) * (1 if part.nulls_last else -1)
            continue
        a_rank, b_rank = ((1, 0.0) if isinstance(v, float) and math.isnan(v) else (0, v) for v in (a, b))
        if a_rank != b_rank:
            below = a_rank < b_rank
            return 1 if below == part.descending else -1
    return 0


@given(keyed())
def test_one_tuple_encodes_like_a_whole_column(case: tuple[Table, list[tuple[Any, ...]]]) -> None:
    table, keys = case
    assert encode_keys(table, rows_of(table, keys)).to_pylist() == [encode_whole_key(table, key) for key in keys]


@given(keyed())
def test_byte_order_is_value_order(case: tuple[Table, list[tuple[Any, ...]]]) -> None:
    table, keys = case
    for left in keys:
        for right in keys:
            a, b = encode_whole_key(table, left), encode_whole_key(table, right)
            assert (a > b) - (a < b) == compare(table, left, right)
    by_bytes = sorted(keys, key=lambda key: encode_whole_key(table, key))
    by_value = sorted(keys, key=cmp_to_key(lambda a, b: compare(table, a, b)))
    assert [encode_whole_key(table, k) for k in by_bytes] == [encode_whole_key(table, k) for k in by_value]


@given(keyed(), st.data())
def test_a_prefix_range_says_which_values_its_keys_begin_with(
    case: tuple[Table, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """All of them, to the last digit; but nothing of NULL, and of floats, whose zeros are equal."""
    table, keys = case
    rows = rows_of(table, keys)
    for at, key in enumerate(keys):
        known = data.draw(st.integers(0, len(table.key)))
        start, stop = prefix_range(table, key[:known])
        found = shared_key_values(table, start, stop)[1]
        wanted = [rows.column(place).combine_chunks().slice(at, 1) for place in range(known)]
        assert len(found) == known
        for one, value in zip(found, wanted, strict=True):
            told = None if value.null_count or pa.types.is_floating(value.type) else value
            assert (None if one is None else one.to_pylist()) == (None if told is None else told.to_pylist())
            assert one is None or one.type == value.type


@given(keyed(), st.data())
def test_a_prefix_range_holds_exactly_the_keys_with_that_prefix(
    case: tuple[Table, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    table, keys = case
    if not keys:
        return
    prefix = data.draw(st.sampled_from(keys))[: data.draw(st.integers(0, len(table.key)))]
    start, stop = prefix_range(table, prefix)
    for key in keys:
        whole = encode_whole_key(table, key)
        inside = (start is None or whole >= start) and (stop is None or whole < stop)
        assert inside == (encode_key(table, key[: len(prefix)]) == encode_key(table, prefix))


def test_the_bytes_are_the_documented_ones() -> None:
    """Stored databases depend on these: a change needs a new format."""
    one = {
        ("bigint", 1): "01 8000000000000001",
        ("bigint", -1): "01 7fffffffffffffff",
        ("tinyint", -128): "01 00",
        ("int", None): "00",
        ("boolean", True): "01 01",
        ("string", "a\x00b"): "01 61 00ff 62 0000",
        ("binary", b""): "01 0000",
        ("decimal(12,2)", Decimal("1.5")): "01 80000000000000000000000000000096",
        ("decimal(12,2)", Decimal("-0.01")): "01 7fffffffffffffffffffffffffffffff",
        ("date", dt.date(1970, 1, 2)): "01 80000001",
        ("timestamp", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)): "01 80000000000f4240",
        ("double", 1.0): "01 bff0000000000000",
        ("double", -1.0): "01 400fffffffffffff",
        ("double", -0.0): "01 8000000000000000",
        ("float", math.nan): "01 ffc00000",
    }
    for (type_, value), expected in one.items():
        assert encode_key(table_of((type_, False, False)), (value,)).hex() == expected.replace(" ", ""), (type_, value)
    assert encode_key(table_of(("int", False, True)), (None,)) == b"\x02"
    assert encode_key(table_of(("tinyint", True, True)), (None,)) == b"\xff"
    assert encode_key(table_of(("tinyint", True, True)), (0,)) == b"\xfe\x7f"
    assert encode_key(table_of(("tinyint", True, False)), (None,)) == b"\xfd"


def test_every_nan_and_both_zeros_are_one_key() -> None:
    table = table_of(("double", False, False))
    odd_nan = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0]
    keys = encode_keys(table, pa.table({"c0": pa.array([math.nan, odd_nan, 0.0, -0.0, math.inf])})).to_pylist()
    assert keys[0] == keys[1] > keys[4] > keys[2] == keys[3]


def test_a_column_slice_encodes_its_own_rows() -> None:
    table = table_of(("string", False, False), ("decimal(12,2)", False, False), ("boolean", False, False))
    rows = pa.table(
        [["x", None, "zz", "w"], [Decimal("1"), Decimal("2"), None, Decimal("4")], [True, False, None, True]],
        schema=table.arrow,
    )
    assert encode_keys(table, rows.slice(1, 2)).to_pylist() == encode_keys(table, rows).to_pylist()[1:3]
    chunked = pa.concat_tables([rows.slice(2), rows.slice(0, 2)])
    assert encode_keys(table, chunked).to_pylist() == encode_keys(table, rows.take([2, 3, 0, 1])).to_pylist()


@pytest.mark.parametrize(
    ("type_", "given_", "same"),
    [
        ("decimal(12,2)", "9.90", Decimal("9.9")),
        ("decimal(12,2)", 7, Decimal("7.00")),
        ("decimal(12,2)", Decimal("1E+3"), Decimal(1000)),
        ("decimal(12,2)", Decimal("0E-9"), Decimal(0)),
        ("date", "2024-02-29", dt.date(2024, 2, 29)),
        ("timestamp", dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)),
        (
            "timestamp",
            dt.datetime(2024, 1, 1, 14, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC),
        ),
        ("double", 3, 3.0),
        ("binary", bytearray(b"x"), b"x"),
    ],
)
def test_values_may_be_written_in_several_ways(type_: str, given_: Any, same: Any) -> None:
    table = table_of((type_, False, False))
    assert encode_key(table, (given_,)) == encode_key(table, (same,))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("bigint", "1"),
        ("bigint", 2**63),
        ("tinyint", 128),
        ("int", 1.0),
        ("int", True),
        ("boolean", 1),
        ("decimal(12,2)", 0.5),
        ("decimal(12,2)", "1.234"),
        ("decimal(12,2)", Decimal("1E+10")),
        ("decimal(12,2)", "x"),
        ("decimal(12,2)", Decimal("NaN")),
        ("decimal(12,2)", Decimal("1E+999999")),
        ("string", 5),
        ("string", "\ud800"),
        ("binary", "text"),
        ("date", dt.datetime(2024, 1, 1)),
        ("date", "2024-02-30"),
        ("timestamp", dt.date(2024, 1, 1)),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("double", "1"),
        ("double", 2**53 + 1),
        ("float", 1e39),
        ("double", 10**400),
    ],
)
def test_a_value_that_does_not_fit_names_the_column(type_: str, value: Any) -> None:
    with pytest.raises(BadValue, match=r"t\.c0: "):
        encode_key(table_of((type_, False, False)), (value,))


def test_a_key_of_the_wrong_length_is_refused() -> None:
    table = table_of(("int", False, False), ("int", False, False))
    with pytest.raises(BadValue, match="2 column"):
        encode_whole_key(table, (1,))
    with pytest.raises(BadValue, match="3 values"):
        encode_key(table, (1, 2, 3))


def test_bounds_of_a_range_may_be_partial() -> None:
    table = table_of(("int", False, False), ("string", False, False))
    start, stop = key_range(table, (1,), (3, "m"))
    keys = [(0, "z"), (1, ""), (2, "q"), (3, "a"), (3, "m"), (4, "")]
    inside = [k for k in keys if start <= encode_whole_key(table, k) < stop]  # type: ignore[operator]
    assert inside == [(1, ""), (2, "q"), (3, "a")]
    assert key_range(table, None, None) == (None, None)


def test_the_successor_of_a_prefix() -> None:
    assert successor(b"ab") == b"ac"
    assert successor(b"a\xff\xff") == b"b"
    assert successor(b"\xff") is None
    assert successor(b"") is None


def test_a_table_without_key_columns_has_one_key() -> None:
    table = Table(1, "total", (Column("n", types.BIGINT),), ())
    assert encode_whole_key(table, ()) == b"\x00"
    assert encode_keys(table, pa.table({"n": [7]})).to_pylist() == [b"\x00"]
    assert prefix_range(table, ()) == (None, None)
