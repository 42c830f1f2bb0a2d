"""Answers of any shape as JSON and CSV: no digit, no byte and no column is lost."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from viewkeeper.model import types
from viewkeeper.server.http.formats import CSV, JSON, LINES, create_writer
from viewkeeper.server.http.json_values import json_rows, number_duplicate_names

BIG = (1 << 53) + 1


def test_columns_of_one_name_are_all_there() -> None:
    rows = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_2"])
    assert number_duplicate_names(rows.column_names) == ["a", "a_3", "a_2"]
    assert json.loads(create_writer(LINES, rows.schema, True).write_all(rows, {})) == {"a": 1, "a_3": 2, "a_2": 3}
    assert create_writer(CSV, rows.schema).write_all(rows, {}) == b"a,a_3,a_2\r\n1,2,3\r\n"


def test_what_is_inside_of_a_value_is_exact_too() -> None:
    kind = pa.struct([("n", pa.int64()), ("d", pa.decimal128(9, 2)), ("b", pa.binary())])
    rows = pa.table(
        {
            "many": pa.array([[BIG, None]], pa.list_(pa.int64())),
            "one": pa.array([{"n": BIG, "d": Decimal("1.50"), "b": b"\x00\xff"}], kind),
            "by": pa.array([[("k", BIG)]], pa.map_(pa.string(), pa.int64())),
            "span": pa.array([timedelta(days=1, seconds=2.5)], pa.duration("us")),
            "none": pa.array([None], pa.list_(pa.int64())),
        }
    )
    (row,) = json.loads(create_writer(JSON, rows.schema).write_all(rows, {}))["rows"]
    assert row == {
        "many": [str(BIG), None],
        "one": {"n": str(BIG), "d": "1.50", "b": "AP8="},
        "by": [["k", str(BIG)]],
        "span": "PT86402.5S",
        "none": None,
    }
    native = create_writer(LINES, rows.schema, True).write_all(rows, {})
    assert b'"d":1.50' in native
    assert f'"many":[{BIG},null]'.encode() in native
    assert f'"[""{BIG}"",null]",'.encode() in create_writer(CSV, rows.schema).write_all(rows, {})


@pytest.mark.parametrize(
    "name", ["bigint", "int", "string", "timestamp", "timestamp_ntz", "decimal(12,2)", "binary", "date"]
)
def test_types_are_called_as_in_tables(name: str) -> None:
    assert types.sql_type_name(types.external_type(types.parse_type(name))) == name


def test_small_decimals_are_written_without_an_exponent() -> None:
    values = [Decimal("0"), Decimal("-0.0000000001"), None, Decimal("12.5")]
    rows = pa.table({"x": pa.array(values, pa.decimal128(38, 10)), "y": pa.array(values[:1] * 4, pa.decimal128(9, 2))})
    assert [tuple(row.values()) for row in json_rows(rows)] == [
        ("0.0000000000", "0.00"),
        ("-0.0000000001", "0.00"),
        (None, "0.00"),
        ("12.5000000000", "0.00"),
    ]
