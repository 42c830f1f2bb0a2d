"""Rows as cells and back: keys, values, what is left of damaged ones, and how other tables are mapped."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drawn import WHOLE

from viewkeeper.errors import BadValue, TooLarge
from viewkeeper.model import types
from viewkeeper.model.encoding.key_decoding import decode_keys
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper_hbase.layout.layout import ColumnCells, table_layout
from viewkeeper_hbase.layout.value_encodings import ENCODINGS, decode, encode

VALUES: dict[str, st.SearchStrategy[Any]] = {
    **WHOLE,
    "float": st.floats(width=32, allow_nan=False).map(lambda f: f + 0.0),
    "double": st.floats(allow_nan=False).map(lambda f: f + 0.0),
    "decimal(12,2)": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "decimal(38,0)": st.integers(-(10**37), 10**37).map(Decimal),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "string": st.text(st.sampled_from("a\0ÿz"), max_size=4),
    "binary": st.binary(max_size=4),
}


@st.composite
def keyed(draw: st.DrawFn) -> tuple[Table, pa.Table]:
    """A table whose columns are all in its key, and some rows."""
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    columns = tuple(Column(f"c{i}", types.parse_type(name)) for i, name in enumerate(names))
    table = Table(1, "t", columns, tuple(KeyPart(c.name, draw(st.booleans()), draw(st.booleans())) for c in columns))
    count = draw(st.integers(0, 5))
    values = [draw(st.lists(st.none() | VALUES[str(c.type)], min_size=count, max_size=count)) for c in columns]
    return table, pa.table(values, schema=table.arrow)


@given(keyed())
def test_row_keys_give_their_columns_back(made: tuple[Table, pa.Table]) -> None:
    table, rows = made
    found, bad = decode_keys(table, encode_keys(table, rows))
    assert not bad.any()
    assert found.equals(rows)


@given(keyed(), st.lists(st.binary(max_size=12), min_size=1, max_size=4))
def test_keys_that_nobody_encoded_hurt_no_others(made: tuple[Table, pa.Table], junk: list[bytes]) -> None:
    table, rows = made
    keys = pa.concat_arrays([pa.array(junk, pa.binary()), encode_keys(table, rows), pa.array(junk, pa.binary())])
    found, bad = decode_keys(table, keys)
    middle = slice(len(junk), len(junk) + rows.num_rows)
    assert not bad[middle].any()
    assert found.slice(len(junk), rows.num_rows).equals(rows)
    for at in (*range(len(junk)), *range(len(keys) - len(junk), len(keys))):
        if not bad[at]:  # then it is one that an encoder could have made
            again = encode_keys(table, found.slice(at, 1))
            assert again[0].as_py() == keys[at].as_py() or any(c.type in types.FLOATS for c in table.columns)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_values_come_back_and_damaged_ones_are_told(encoding: str, name: str, data: st.DataObject) -> None:
    column = types.arrow(types.parse_type(name))
    values = pa.array(data.draw(st.lists(st.none() | VALUES[name], max_size=5)), column)
    cells = encode(encoding, types.parse_type(name), values)
    found, wrong = decode(encoding, types.parse_type(name), cells)
    assert wrong is None
    assert found.equals(values)
    if name != "binary":
        damaged = pa.concat_arrays([pa.array([b"\xff\xfe\xfd"], pa.binary()), cells.cast(pa.binary())])
        found, wrong = decode(encoding, types.parse_type(name), damaged)
        assert wrong is not None
        assert wrong.tolist() == [True] + [False] * len(values)
        assert found.slice(1).equals(values)


def test_decimals_of_others_may_have_another_scale_and_length() -> None:
    cells = [b"\0\0\0\1\x05", b"\0\0\0\2\xff", b"\0\0\0\3\x05", b"\0\0\0\3\x27\x10", None, b"\0\0\0\2"]
    found, wrong = decode("bytes", types.decimal(12, 2), pa.array(cells, pa.binary()))
    assert found.to_pylist() == [Decimal("0.50"), Decimal("-0.01"), None, Decimal("10.00"), None, None]
    assert wrong is not None
    assert wrong.tolist() == [False, False, True, False, False, True]


def mapped(key: str, *names: str, **options: str) -> Table:
    columns = [Column(f"k{i}", types.parse_type(name), False) for i, name in enumerate(names)]
    given = {"hbase.table": "ns:t", "hbase.key": key, "hbase.columns": "d:v", **options}
    parts = tuple(KeyPart(c.name) for c in columns)
    return Table(1, "t", (*columns, Column("v", types.BIGINT)), parts, options=tuple(sorted(given.items())))


@pytest.mark.parametrize(
    ("key", "types", "rows", "keys", "junk"),
    [
        ("text", ("int",), [(5,), (-7,)], [b"5", b"-7"], b"five"),
        ("text |", ("string", "date"), [("eu", dt.date(2024, 2, 29)), ("", dt.date(1, 1, 1))],
         [b"eu|2024-02-29", b"|0001-01-01"], b"eu"),
        ("bytes", ("int", "string"), [(1, "x"), (-1, "")], [b"\0\0\0\1x", b"\xff\xff\xff\xff"], b"\0\0"),
        ("bytes", ("bigint", "smallint"), [(1, 2)], [b"\0\0\0\0\0\0\0\1\0\2"], b"\0" * 11),
        ("ordered", ("string", "int"), [("a", 1)], [b"\1a\0\0\1\x80\0\0\1"], b"a"),
    ],
)  # fmt: skip
def test_row_keys_of_other_programs(
    key: str, types: tuple[str, ...], rows: Any, keys: list[bytes], junk: bytes
) -> None:
    table = mapped(key, *types)
    layout = table_layout("ns", table)
    schema = pa.schema([table.arrow.field(c.name) for c in table.key_columns])
    data = pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema)
    assert layout.row_key_encoding.encode(data).to_pylist() == keys
    assert [layout.row_key_encoding.encode_one(row) for row in rows] == keys
    found, bad = layout.row_key_encoding.decode(pa.array([junk, *keys], pa.binary()))
    assert bad.tolist() == [True] + [False] * len(keys)
    assert found.slice(1).equals(data)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (mapped("text", "int", "int"), "hbase.key"),
        (mapped("text |", "int"), "hbase.key"),
        (mapped("utf8", "int"), "utf8"),
        (mapped("bytes", "string", "int"), "k0"),
        (mapped("text", "int", **{"hbase.columns": "v"}), "'v'"),
        (mapped("text", "int", **{"hbase.columns": "d:a d:b"}), "more cells"),
        (mapped("text", "int", **{"hbase.columns": "w=d:a"}), "w=d:a"),
        (mapped("text", "int", **{"hbase.encoding": "xml"}), "xml"),
        (mapped("text", "int", **{"hbase.encoding": "k0=text"}), "k0"),
        (mapped("text", "int", **{"hbase.colums": "d:v"}), "hbase.colums"),
    ],
)
def test_mappings_that_say_nothing_sensible_are_refused(table: Table, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        table_layout("ns", table)


def test_a_dropped_column_leaves_the_mapping_and_its_family_says_which_rows_there_are() -> None:
    for columns in ("d:v e:w", "v=d:v w=e:w"):
        table = mapped("text", "int", **{"hbase.columns": columns, "hbase.encoding": "text w=bytes"})
        table = replace(table, columns=(*table.columns, Column("w", types.BIGINT)))
        layout = table_layout("ns", table.without_column("w"))
        assert {name: place.cell for name, place in layout.column_cells.items()} == {"v": b"d:v"}
        assert layout.families == (b"d", b"e")
        again = table.without_column("w").with_column(Column("w", types.BIGINT))
        for shape, name in ((again, "w"), (again.internal, "w#2")):
            assert table_layout("ns", shape).column_cells[name] == ColumnCells(b"e:w", "bytes"), (
                "another's table has what it has"
            )


def test_a_column_that_is_called_like_a_dropped_one_has_other_cells() -> None:
    table = Table(1, "t", (Column("k", types.INT, False), Column("v", types.BIGINT)), (KeyPart("k"),))
    again = table.without_column("V").with_column(Column("v", types.STRING))
    assert table_layout("ns", again).column_cells["v"].cell != table_layout("ns", table).column_cells["v"].cell
    assert table_layout("ns", again.internal).column_cells["v#2"] == table_layout("ns", again).column_cells["v"]


@pytest.mark.parametrize(("key", "value", "told"), [("k" * 40_000, "v", "key"), ("k", "v" * 3_000_000, "row")])
def test_a_row_that_hbase_cannot_hold_is_refused_by_name_before_it_is_written(key: str, value: str, told: str) -> None:
    table = Table(7, "t", (Column("k", types.STRING), Column("v", types.STRING)), (KeyPart("k"),))
    rows = pa.table([["a", key, "z"], ["x", value, "y"]], schema=table.arrow)
    with pytest.raises(TooLarge, match=rf"A {told} of t .*k = 'k") as refused:
        table_layout("ns", table).encode(rows)
    assert refused.value.table == 7
