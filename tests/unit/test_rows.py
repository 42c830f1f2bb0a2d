"""A user's rows: every shape gives the same table, and what does not fit is refused with its place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.errors import BadValue
from viewkeeper.model import types
from viewkeeper.model.intake.rows import keys_table, last_by_key, rows_table, updates_table
from viewkeeper.model.schema import Column, KeyPart, Table

ITEMS = Table(
    1,
    "items",
    (
        Column("item_id", types.BIGINT, nullable=False),
        Column("category", types.STRING),
        Column("price", types.decimal(12, 2)),
        Column("stock", types.INT),
    ),
    (KeyPart("item_id"),),
)
PAIRS = Table(
    2,
    "pairs",
    (Column("n", types.INT), Column("b", types.STRING), Column("a", types.INT)),
    (KeyPart("b"), KeyPart("a")),
)
ROWS = [
    {"item_id": 1, "category": "toys", "price": Decimal("9.99"), "stock": 3},
    {"item_id": 2, "category": None, "price": Decimal("0.50"), "stock": None},
]


def one(type_: str, nullable: bool = True) -> Table:
    """A table with one column of a type beside its key."""
    return Table(
        9,
        "t",
        (Column("k", types.INT, nullable=False), Column("c", types.parse_type(type_), nullable)),
        (KeyPart("k"),),
    )


def put(type_: str, value: Any) -> Any:
    """What one Python value becomes in a column of this type."""
    return rows_table(one(type_), [{"k": 1, "c": value}])["c"][0].as_py()


def put_arrow(type_: str, values: pa.Array) -> list[Any]:
    return rows_table(one(type_), pa.table({"k": np.arange(len(values)), "c": values}))["c"].to_pylist()


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        lambda: ROWS,
        lambda: tuple(ROWS),
        lambda: (dict(r) for r in ROWS),
        lambda: pa.Table.from_pylist(ROWS),
        lambda: pa.RecordBatch.from_pylist(ROWS),
        lambda: pa.RecordBatchReader.from_batches((t := pa.Table.from_pylist(ROWS)).schema, t.to_batches()),
        lambda: pd.DataFrame(ROWS),
        lambda: pd.DataFrame(ROWS, index=["x", "y"]),
        lambda: pl.DataFrame(ROWS),
        lambda: pl.DataFrame(ROWS).with_columns(pl.col("category").cast(pl.Categorical)),
    ],
)
def test_every_shape_gives_the_same_table(shape: Callable[[], Any]) -> None:
    made = rows_table(ITEMS, shape())
    assert made.schema == ITEMS.arrow
    assert made.to_pylist() == ROWS


def test_one_dict_is_one_row_and_names_have_no_case() -> None:
    made = rows_table(ITEMS, {"PRICE": "9.99", "Item_Id": 7})
    assert made.to_pylist() == [{"item_id": 7, "category": None, "price": Decimal("9.99"), "stock": None}]


def test_rows_may_spell_and_leave_out_columns_each_in_its_way() -> None:
    made = rows_table(ITEMS, [{"item_id": 1, "stock": 2}, {"ITEM_ID": 2, "category": "x"}])
    assert [(r["item_id"], r["stock"], r["category"]) for r in made.to_pylist()] == [(1, 2, None), (2, None, "x")]


@pytest.mark.parametrize(
    "nothing", [[], pa.table({"item_id": pa.array([], pa.int64())}), pd.DataFrame({"item_id": []})]
)
def test_no_rows_give_an_empty_table(nothing: Any) -> None:
    assert rows_table(ITEMS, nothing) == ITEMS.arrow.empty_table()


def test_missing_values_of_pandas_are_null() -> None:
    frame = pd.DataFrame({"item_id": [1, 2], "stock": [5, np.nan], "category": ["a", np.nan], "price": ["1", None]})
    made = rows_table(ITEMS, frame)
    assert made["stock"].to_pylist() == [5, None]
    assert made["category"].to_pylist() == ["a", None]
    assert made["price"].to_pylist() == [Decimal("1.00"), None]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([{"item_id": 1, "colour": "red"}], "'colour'"),
        (pa.table({"item_id": [1], "_count": [1]}), "'_count'"),
        (pd.DataFrame({"item_id": [1], 5: [1]}), "no column 5"),
        ([{"item_id": 1, "Stock": 1, "stock": 2}], "row 1: 'Stock' and 'stock'"),
        (pa.table({"item_id": [1], "ITEM_ID": [1]}), "column item_id is there twice"),
        (pa.Table.from_arrays([pa.array([1])] * 2, ["item_id"] * 2), "'item_id' is there twice"),
        ([{"category": "x"}], "no column item_id"),
        (pd.DataFrame({"stock": [1]}), "no column item_id"),
        ({}, "no column item_id"),
        ([{"item_id": 1}, {"category": "x"}], "items.item_id, row 2: NULL"),
        ([{"item_id": None}], "items.item_id, row 1: NULL"),
        (pa.table({"item_id": [1, 2, None]}), "items.item_id, row 3: NULL"),
        ([{"item_id": 1}, 5], "row 2: 5 is no dict"),
        (5, "5 is no row"),
        ("abc", "'abc' is no row"),
        (None, "None is no row"),
    ],
)
def test_rows_that_do_not_fit_the_table(rows: Any, names: str) -> None:
    with pytest.raises(BadValue) as caught:
        rows_table(ITEMS, rows)
    assert names in caught.value.message
    assert "items" in caught.value.message
    assert caught.value.hint


def test_not_null_columns_outside_the_key() -> None:
    with pytest.raises(BadValue, match=r"t\.c, row 2: NULL"):
        rows_table(one("int", nullable=False), [{"k": 1, "c": 1}, {"k": 2}])
    with pytest.raises(BadValue, match=r"t\.c, row 1: NULL"):
        rows_table(one("int", nullable=False), pa.table({"k": [1]}))


# -- values ------------------------------------------------------------------------------------------------------------

PARIS = timezone(timedelta(hours=2))
ONE = datetime(2024, 1, 1, 1)


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [
        ("boolean", np.bool_(True), True),
        ("tinyint", -128, -128),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("int", np.int64(5), 5),
        ("double", 3, 3.0),
        ("double", float("inf"), float("inf")),
        ("float", 0.1, pytest.approx(0.1, rel=1e-7)),
        ("decimal(12,2)", "9.990", Decimal("9.99")),
        ("decimal(12,2)", "-1e3", Decimal("-1000.00")),
        ("decimal(12,2)", 7, Decimal("7.00")),
        ("decimal(12,2)", Decimal("1E+2"), Decimal("100.00")),
        ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
        ("decimal(38,38)", "0." + "9" * 38, Decimal("0." + "9" * 38)),
        ("string", "é\x00", "é\x00"),
        ("binary", bytearray(b"\x00\xff"), b"\x00\xff"),
        ("date", date(1, 1, 1), date(1, 1, 1)),
        ("date", "9999-12-31", date(9999, 12, 31)),
        ("timestamp", datetime(2024, 2, 29, 12, 30, tzinfo=PARIS), datetime(2024, 2, 29, 10, 30)),
        ("timestamp", datetime(2024, 2, 29, 12, 30), datetime(2024, 2, 29, 12, 30)),
        ("timestamp", "2024-02-29T12:30:00.000001+02:00", datetime(2024, 2, 29, 10, 30, 0, 1)),
        ("timestamp", "2024-02-29 12:30:00", datetime(2024, 2, 29, 12, 30)),
        ("timestamp", "2024-02-29", datetime(2024, 2, 29)),
        ("timestamp_ntz", datetime(2024, 2, 29, 12, 30), datetime(2024, 2, 29, 12, 30)),
        ("timestamp_ntz", "2024-02-29 12:30:00", datetime(2024, 2, 29, 12, 30)),
        ("timestamp", None, None),
    ],
)
def test_python_values(type_: str, value: Any, stored: Any) -> None:
    assert put(type_, value) == stored


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("boolean", 1),
        ("tinyint", 128),
        ("int", 2**31),
        ("bigint", 2**63),
        ("bigint", 10**40),
        ("int", True),
        ("int", "5"),
        ("int", 5.0),
        ("double", "1.5"),
        ("double", True),
        ("double", 2**53 + 1),
        ("float", 1e300),
        ("decimal(12,2)", 1.5),
        ("decimal(12,2)", True),
        ("decimal(12,2)", "9.999"),
        ("decimal(12,2)", "12345678901"),
        ("decimal(12,2)", 10**10),
        ("decimal(12,2)", Decimal("NaN")),
        ("decimal(12,2)", "abc"),
        ("decimal(12,2)", ""),
        ("decimal(38,38)", 10**10),
        ("decimal(38,38)", "10000000000"),
        ("decimal(38,38)", 1),
        ("string", 5),
        ("string", b"bytes"),
        ("string", "\ud800"),
        ("binary", "text"),
        ("date", datetime(2024, 1, 1)),
        ("date", "2024-02-30"),
        ("date", 5),
        ("timestamp", date(2024, 1, 1)),
        ("timestamp", "yesterday"),
        ("timestamp", "2024-01-01 00:00:00.1234567"),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp_ntz", "2024-01-01T00:00:00Z"),
        ("int", [1]),
    ],
)
def test_python_values_that_do_not_fit_name_their_row(type_: str, value: Any) -> None:
    rows = [{"k": i, "c": None} for i in range(7)]
    rows[4]["c"] = value
    with pytest.raises(BadValue) as caught:
        rows_table(one(type_), rows)
    assert "t.c, row 5:" in caught.value.message
    assert repr(value)[:20] in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("type_", "values", "stored"),
    [
        ("int", pa.array([1, None], pa.uint64()), [1, None]),
        ("int", pa.array([1.0, None]), [1, None]),
        ("bigint", pa.array([None, None]), [None, None]),
        ("double", pa.array([2**53, -5]), [2.0**53, -5.0]),
        ("float", pa.array([0.5, None]), [0.5, None]),
        ("decimal(12,2)", pa.array([5, None], pa.int8()), [Decimal("5.00"), None]),
        ("decimal(12,2)", pa.array([Decimal("1.500")]), [Decimal("1.50")]),
        ("decimal(12,2)", pa.array(["1.5", None]), [Decimal("1.50"), None]),
        ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("string", pa.array(["a", None], pa.string_view()), ["a", None]),
        ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("date", pa.array([datetime(2024, 1, 1)], pa.timestamp("ns")), [date(2024, 1, 1)]),
        ("date", pa.array(["2024-01-01"]), [date(2024, 1, 1)]),
        ("timestamp", pa.array([datetime(2024, 1, 1)], pa.timestamp("ns", "Asia/Tokyo")), [datetime(2024, 1, 1)]),
        ("timestamp", pa.array(["2024-01-01", None]), [datetime(2024, 1, 1), None]),
        ("timestamp", pa.array(["2024-01-01 01:00", "2024-01-01T01:00:00+01:00"]), [ONE, ONE - timedelta(hours=1)]),
    ],
)
def test_arrow_values(type_: str, values: pa.Array, stored: list[Any]) -> None:
    assert put_arrow(type_, values) == stored


BAD_UTF8 = pa.Array.from_buffers(
    pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 2, 4], np.int32)), pa.py_buffer(b"ab\xff\xfe")]
)


@pytest.mark.parametrize(
    ("type_", "values", "row"),
    [
        ("tinyint", pa.array([1, 2, 300]), 3),
        ("int", pa.array([1.0, 1.5]), 2),
        ("int", pa.array([float("nan")]), 1),
        ("double", pa.array([1, 2**53 + 1]), 2),
        ("float", pa.array([0.5, 0.1]), 2),
        ("float", pa.array([1e300]), 1),
        ("decimal(12,2)", pa.array([Decimal("1.50"), Decimal("1.501")]), 2),
        ("decimal(38,38)", pa.array([0, 10**10]), 2),
        ("decimal(38,38)", pa.array(["0", None, "10000000000"]), 3),
        ("decimal(12,2)", pa.array(["0", "zero"]), 2),
        ("string", BAD_UTF8, 3),
        ("date", pa.array([datetime(2024, 1, 1), datetime(2024, 1, 1, 1)]), 2),
        ("date", pa.array([0, 2_932_897], pa.int32()).view(pa.date32()), 2),
        ("timestamp", pa.array([0, 1001]).view(pa.timestamp("ns")), 2),
        ("timestamp", pa.array([0, 2**62]).view(pa.timestamp("us")), 2),
        ("timestamp_ntz", pa.array([-(2**62)]).view(pa.timestamp("us")), 1),
        ("timestamp", pa.array(["2024-01-01", "2024-13-01"]), 2),
    ],
)
def test_arrow_values_that_do_not_fit_name_their_row(type_: str, values: pa.Array, row: int) -> None:
    with pytest.raises(BadValue, match=rf"t\.c, row {row}:"):
        put_arrow(type_, values)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("boolean", pa.array([1])),
        ("int", pa.array(["1"])),
        ("int", pa.array([True])),
        ("double", pa.array([Decimal("1.5")])),
        ("decimal(12,2)", pa.array([1.5])),
        ("string", pa.array([b"x"])),
        ("string", pa.array([["x"]])),
        ("binary", pa.array(["x"])),
        ("date", pa.array([1])),
        ("timestamp", pa.array([1])),
        ("timestamp", pa.array([date(2024, 1, 1)])),
        ("timestamp_ntz", pa.array([datetime(2024, 1, 1)], pa.timestamp("us", "UTC"))),
    ],
)
def test_arrow_types_that_do_not_fit_are_named(type_: str, values: pa.Array) -> None:
    with pytest.raises(BadValue) as caught:
        put_arrow(type_, values)
    assert f"Arrow type {values.type} does not fit {type_.upper()}" in caught.value.message


@given(st.lists(st.one_of(st.none(), st.decimals(-(10**13), 10**13, allow_nan=False, places=3)), max_size=6))
def test_a_decimal_is_stored_exactly_or_refused(values: list[Decimal | None]) -> None:
    fits = all(v is None or (v == round(v, 2) and abs(v) < 10**10) for v in values)
    rows = [{"k": i, "c": v} for i, v in enumerate(values)]
    arrow = pa.table({"k": np.arange(len(values)), "c": pa.array(values, pa.decimal128(20, 3))})
    for given_ in (rows, arrow):
        if fits:
            assert rows_table(one("decimal(12,2)"), given_)["c"].to_pylist() == values
        else:
            with pytest.raises(BadValue):
                rows_table(one("decimal(12,2)"), given_)


# -- keys and updates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (7, [7]),
        ((7,), [7]),
        ([1, 2], [1, 2]),
        ([(1,), 2], [1, 2]),
        (range(3), [0, 1, 2]),
        ([], []),
        (np.array([4, 5]), [4, 5]),
        (pa.array([4, 5], pa.int32()), [4, 5]),
        (pd.Series([4, 5]), [4, 5]),
        (pa.table({"ITEM_ID": [4]}), [4]),
        (pl.DataFrame({"item_id": [4]}), [4]),
        (pd.DataFrame({"item_id": [4]}), [4]),
        ({"item_id": 4}, [4]),
    ],
)
def test_keys_of_one_column(keys: Any, expected: list[int]) -> None:
    made = keys_table(ITEMS, keys)
    assert made.schema == pa.schema([("item_id", pa.int64())])
    assert made["item_id"].to_pylist() == expected


@pytest.mark.parametrize("keys", [("x", 1), [("x", 1)], {"a": 1, "b": "x"}, pa.table({"a": [1], "b": ["x"]})])
def test_composite_keys_come_in_key_order(keys: Any) -> None:
    assert keys_table(PAIRS, keys).to_pylist() == [{"b": "x", "a": 1}]
    assert keys_table(PAIRS, keys).column_names == ["b", "a"]


@pytest.mark.parametrize(
    ("table", "keys", "names"),
    [
        (ITEMS, None, "items.item_id, row 1: NULL"),
        (ITEMS, "1", "items.item_id, row 1: '1'"),
        (ITEMS, [1, "x"], "items.item_id, row 2: 'x'"),
        (ITEMS, (1, 2), "2 value(s)"),
        (PAIRS, "x", "1 value(s)"),
        (PAIRS, [("x", 1), ("y",)], "key 2"),
        (PAIRS, {"b": "x"}, "no column a"),
        (ITEMS, pa.table({"item_id": [1], "stock": [2]}), "no key column 'stock'"),
    ],
)
def test_keys_that_do_not_fit(table: Table, keys: Any, names: str) -> None:
    with pytest.raises(BadValue) as caught:
        keys_table(table, keys)
    assert names in caught.value.message
    assert caught.value.hint


def test_updates_have_a_key_and_only_the_changed_columns() -> None:
    key, columns = updates_table(ITEMS, 7, {"Price": "1.50", "category": None})
    assert key.to_pylist() == [{"item_id": 7}]
    assert columns.to_pylist() == [{"category": None, "price": Decimal("1.50")}]
    assert columns.schema == pa.schema([ITEMS.arrow.field("category"), ITEMS.arrow.field("price")])


@pytest.mark.parametrize(
    ("key", "columns", "names"),
    [
        (7, {}, "columns to change"),
        (7, [("stock", 1)], "columns to change"),
        (7, {"item_id": 8}, "part of the key"),
        (7, {"colour": 8}, "'colour'"),
        (7, {"stock": "many"}, "items.stock, row 1: 'many'"),
        ([7, 8], {"stock": 1}, "one key, not 2"),
    ],
)
def test_updates_that_do_not_fit(key: Any, columns: Any, names: str) -> None:
    with pytest.raises(BadValue) as caught:
        updates_table(ITEMS, key, columns)
    assert names in caught.value.message


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2)), max_size=12))
def test_the_last_row_of_a_key_wins(keys: list[tuple[str, int]]) -> None:
    rows = [{"b": b, "a": a, "n": n} for n, (b, a) in enumerate(keys)]
    last = {(r["b"], r["a"]): r["n"] for r in rows}
    kept = last_by_key(PAIRS, rows_table(PAIRS, rows))
    assert kept["n"].to_pylist() == sorted(last.values())


@given(st.lists(st.integers(-3, 3), max_size=8))
def test_the_last_row_of_an_integer_key_wins(keys: list[int]) -> None:
    kept = last_by_key(ITEMS, rows_table(ITEMS, [{"item_id": k, "stock": n} for n, k in enumerate(keys)]))
    assert kept["stock"].to_pylist() == sorted({k: n for n, k in enumerate(keys)}.values())


def test_last_by_key_takes_key_columns_alone() -> None:
    assert last_by_key(ITEMS, keys_table(ITEMS, [3, 1, 3])).to_pylist() == [{"item_id": 1}, {"item_id": 3}]


def test_columns_that_are_made_side_by_side_are_the_same_and_so_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [{**ROWS[0], "price": "x", "stock": 1 << 40}]
    made, said = [], []
    for many in (1 << 40, 0):
        monkeypatch.setattr("viewkeeper.model.intake.rows._PARALLEL_ROWS", many)
        made.append(rows_table(ITEMS, ROWS))
        with pytest.raises(BadValue) as refused:
            rows_table(ITEMS, bad)
        said.append(str(refused.value))
    assert made[0].equals(made[1])
    assert said[0] == said[1]
    assert "items.price, row 1" in said[0]
