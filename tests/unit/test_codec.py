"""Rows as bytes: what was written is read, all of it or some columns, many rows or one, after ADD COLUMN too."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drawn import WHOLE

from viewkeeper.errors import BadValue, CorruptState
from viewkeeper.model import types
from viewkeeper.model.encoding.rows import decode_row, decode_rows, encode_rows
from viewkeeper.model.schema import Column, KeyPart, Table

VALUES: dict[str, st.SearchStrategy[Any]] = {
    **WHOLE,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal(9,0)": st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal),
    "decimal(18,4)": st.decimals(Decimal("-99999999999999.9999"), Decimal("99999999999999.9999"), places=4),
    "decimal(38,10)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -10))
    ),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "binary": st.binary(max_size=20),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamp_ntz": st.datetimes(),
}


def table_of(*names: str) -> Table:
    return Table(
        1, "t", tuple(Column(f"c{at}", types.parse_type(name)) for at, name in enumerate(names)), (KeyPart("c0"),)
    )


@st.composite
def filled(draw: st.DrawFn) -> tuple[Table, pa.Table]:
    """A table of random column types, and rows of it."""
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=20))
    table = table_of(*names)
    rows = draw(st.lists(st.tuples(*(st.none() | VALUES[name] for name in names)), max_size=6))
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(table.arrow)]
    return table, pa.table(columns, schema=table.arrow)


@given(filled())
def test_what_is_encoded_is_decoded(case: tuple[Table, pa.Table]) -> None:
    table, rows = case
    decoded = decode_rows(table, encode_rows(table, rows))
    decoded.validate(full=True)
    assert decoded.equals(rows)


@given(filled(), st.data())
def test_any_columns_in_any_order(case: tuple[Table, pa.Table], data: st.DataObject) -> None:
    table, rows = case
    wanted = data.draw(st.lists(st.sampled_from(rows.column_names), unique=True))
    decoded = decode_rows(table, encode_rows(table, rows), wanted)
    assert decoded.equals(rows.select(wanted))
    assert decoded.num_rows == rows.num_rows


@given(filled())
def test_one_row_as_python_values_is_what_arrow_says(case: tuple[Table, pa.Table]) -> None:
    table, rows = case
    expected = rows.cast(table.external_schema).to_pylist()
    assert [decode_row(table, value) for value in encode_rows(table, rows).to_pylist()] == expected


def test_python_types_are_the_outside_ones() -> None:
    table = table_of("decimal(12,2)", "date", "timestamp", "timestamp_ntz", "decimal(38,3)", "boolean", "string")
    instant = dt.datetime(2024, 2, 29, 12, 30, 1, 5)
    row = [Decimal("9.90"), dt.date(1969, 12, 31), instant, instant, Decimal("-1e-3"), True, "é"]
    rows = pa.table([[value] for value in row], schema=table.arrow)
    found = decode_row(table, encode_rows(table, rows)[0].as_py())
    assert list(found.values()) == [*row[:2], instant.replace(tzinfo=dt.UTC), *row[3:]]
    assert str(found["c0"]) == "9.90"
    assert found["c2"].tzinfo is dt.UTC
    assert found["c3"].tzinfo is None


@given(filled(), st.data())
def test_a_slice_encodes_its_own_rows(case: tuple[Table, pa.Table], data: st.DataObject) -> None:
    table, rows = case
    start = data.draw(st.integers(0, rows.num_rows))
    assert encode_rows(table, rows.slice(start)).to_pylist() == encode_rows(table, rows).to_pylist()[start:]
    values = encode_rows(table, rows)
    assert decode_rows(table, values[start:]).equals(rows.slice(start))


def test_equal_rows_are_equal_bytes_whatever_a_null_hides() -> None:
    table = table_of("bigint", "decimal(30,0)", "string", "boolean")
    hidden = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\x00"), pa.py_buffer(b"\x07" * 8)])
    wide = pa.Array.from_buffers(pa.decimal128(30, 0), 1, [pa.py_buffer(b"\x00"), pa.py_buffer(b"\x07" * 16)])
    text = pa.Array.from_buffers(
        pa.string(), 1, [pa.py_buffer(b"\x00"), pa.py_buffer(b"\x00\x00\x00\x00\x03\x00\x00\x00"), pa.py_buffer(b"abc")]
    )
    dirty = pa.table([hidden, wide, text, pa.array([None], pa.bool_())], schema=table.arrow)
    clean = pa.table([[None], [None], [None], [None]], schema=table.arrow)
    assert encode_rows(table, dirty).to_pylist() == encode_rows(table, clean).to_pylist()


def test_nan_and_infinity_survive() -> None:
    table = table_of("double", "float")
    rows = pa.table([[math.nan, -math.inf, -0.0], [math.inf, math.nan, 0.0]], schema=table.arrow)
    decoded = decode_rows(table, encode_rows(table, rows))
    assert math.isnan(decoded["c0"][0].as_py())
    assert decoded["c0"].to_pylist()[1:] == [-math.inf, 0.0]
    assert math.copysign(1, decoded["c0"][2].as_py()) == -1


@given(filled(), st.data())
def test_rows_from_before_a_column_was_added_have_null_there(case: tuple[Table, pa.Table], data: st.DataObject) -> None:
    old, rows = case
    added = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    new = replace(
        old, columns=(*old.columns, *(Column(f"added{at}", types.parse_type(name)) for at, name in enumerate(added)))
    )
    widened = rows
    for at, name in enumerate(added):
        widened = widened.append_column(f"added{at}", pa.nulls(rows.num_rows, types.arrow(types.parse_type(name))))
    filled_in = widened.slice(0, 1)
    values = pa.concat_arrays([encode_rows(old, rows), encode_rows(new, filled_in), encode_rows(old, rows)])
    expected = pa.concat_tables([widened, filled_in, widened])
    assert decode_rows(new, values).equals(expected)
    assert [decode_row(new, v) for v in values.to_pylist()] == expected.cast(new.external_schema).to_pylist()


@given(st.data())
def test_columns_that_come_and_go_leave_every_row_readable(data: st.DataObject) -> None:
    """Rows of every time are read by the table of every time: no value shows under another column, or again."""
    table = table_of("bigint")
    shapes, rows, written, values = [], [], [], []
    for _ in range(data.draw(st.integers(1, 8))):
        droppable = [c.name for c in table.columns[1:]]
        if droppable and data.draw(st.booleans()):
            table = table.without_column(data.draw(st.sampled_from(droppable)))
        else:
            name = data.draw(
                st.sampled_from([n for n in ("a", "b", "c", "d", "e", "f", "g", "h") if n not in droppable])
            )
            table = table.with_column(Column(name, types.parse_type(data.draw(st.sampled_from(list(VALUES))))))
        row = {c.internal_name: data.draw(st.none() | VALUES[str(c.type)]) for c in table.columns[1:]} | {
            "c0": len(rows)
        }
        columns = [pa.array([row[c.internal_name]], types.arrow(c.type)) for c in table.columns]
        values.append(encode_rows(table, pa.table(columns, schema=table.arrow)))
        shapes.append(table)
        rows.append(row)
        written.append({c.internal_name for c in table.columns})
    assert Table.from_json(table.to_json()) == table
    final = shapes[-1]
    for now in shapes:
        reader = now.with_later_version(final)
        found = decode_rows(reader, pa.concat_arrays(values))
        found.validate(full=True)
        expected = pa.table(
            [
                pa.array(
                    [
                        row[c.internal_name] if c.internal_name in had else None
                        for row, had in zip(rows, written, strict=True)
                    ],
                    f.type,
                )
                for c, f in zip(now.columns, now.arrow, strict=True)
            ],
            schema=now.arrow,
        )
        assert found.equals(expected)
        assert [decode_row(reader, v.as_py()) for v in pa.concat_arrays(values)] == expected.cast(
            now.external_schema
        ).to_pylist()
        assert (
            decode_rows(reader.internal, pa.concat_arrays(values))
            .rename_columns(expected.column_names)
            .equals(expected)
        )


def test_a_bag_keeps_its_hidden_count() -> None:
    bag = Table(1, "v", (Column("c", types.STRING),), (KeyPart("c"),), is_view=True, is_bag=True)
    rows = pa.table({"c": ["a"], "¤count": [3]})
    value = encode_rows(bag, rows)
    assert decode_row(bag, value[0].as_py()) == {"c": "a", "¤count": 3}
    assert decode_rows(bag, value).to_pylist() == [{"c": "a", "¤count": 3}]


def test_damaged_rows_are_reported_not_returned() -> None:
    table = table_of("bigint", "string")
    good = encode_rows(table, pa.table({"c0": [1], "c1": ["abc"]}))[0].as_py()
    for bad in (b"\x09" + good[1:], good[:6], good[:-1], b"\x01\x09\x00" + good[3:]):
        with pytest.raises(CorruptState):
            decode_rows(table, pa.array([bad], pa.binary()))


def test_a_date_that_python_has_not_names_its_column() -> None:
    table = table_of("date", "timestamp")
    value = encode_rows(table, pa.table([pa.array([10**7], pa.int32()).cast(pa.date32()), [None]], schema=table.arrow))
    with pytest.raises(BadValue, match=r"t\.c0"):
        decode_row(table, value[0].as_py())
    assert decode_rows(table, value)["c0"].cast(pa.int32()).to_pylist() == [10**7]
