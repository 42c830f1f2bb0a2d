"""How a view's rows are compared with Spark's."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.verify.benchmark_check import find_differences, is_order_dependent
from viewkeeper.verify.reference_model import primary_keys
from viewkeeper.workloads.tpcds import SCHEMAS


def rows(*values: Any, type_: pa.DataType | None = None) -> pa.Table:
    return pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, type_ or pa.float64())})


@pytest.mark.parametrize(
    ("one", "other", "near", "equal"),
    [
        (math.nan, math.nan, False, True),
        (0.0, -0.0, False, False),
        (0.1 + 0.2, 0.3, False, False),
        (0.1 + 0.2, 0.3, True, True),
        (1.0, 1.001, True, False),
        (1.0, None, True, False),
        (None, None, False, True),
        (math.inf, -math.inf, True, False),
    ],
)
def test_floats_are_equal_by_their_bits_or_where_told_by_nine_digits(
    one: float | None, other: float | None, near: bool, equal: bool
) -> None:
    assert (find_differences("v", 1, rows(one), rows(other), ["k"], approximate=near) == []) is equal


def test_zeros_of_a_key_are_one() -> None:
    assert find_differences("v", 1, rows(0.0), rows(-0.0), ["k", "v"]) == []


def test_rows_count_as_often_as_they_are_there_and_types_must_agree() -> None:
    twice = rows(1.0, 1.0).select(["v"])
    (found,) = find_differences("v", 2, twice, twice.slice(1))
    assert (found.view, found.batch, found.expected, found.actual) == ("v", 2, {"v": 1.0}, None)
    as_decimal = rows(Decimal("1.0"), type_=pa.decimal128(10, 1))
    (found,) = find_differences("v", 2, rows(1.0), as_decimal)
    assert (found.expected, found.actual) == ({"k": "int64", "v": "double"}, {"k": "int64", "v": "decimal128(10, 1)"})


def test_what_spark_sums_in_no_order_is_known_by_its_function() -> None:
    assert is_order_dependent("SELECT stddev_samp(x) FROM t")
    assert is_order_dependent("SELECT VARIANCE (x) FROM t")
    assert not is_order_dependent("SELECT avg(var) AS stddev FROM t")


def test_the_keys_of_tables_are_read_from_their_statements() -> None:
    keys = primary_keys(SCHEMAS)
    assert len(keys) == 24
    assert keys["inventory"] == ("inv_date_sk", "inv_item_sk", "inv_warehouse_sk")
    assert keys["store_sales"] == ("ss_item_sk", "ss_ticket_number")
