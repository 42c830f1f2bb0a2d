"""Columns as the words in which they lie, against what Python says of their values."""

from __future__ import annotations

import struct
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.model.arrow_buffers import buffer_view, equal_bits, take_array, take_table_rows
from viewkeeper.model.delta import identical_rows, identical_rows_at

COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "integers": (pa.int64(), [1, 2, -3, 2**62], [1, 5, -3, -(2**62)]),
    "small": (pa.int8(), [1, 2, -3, 4], [1, 2, 3, 4]),
    "dates": (pa.date32(), [date(2024, 2, 29)] * 4, [date(2024, 2, 29), date(2024, 3, 1)] * 2),
    "decimals": (pa.decimal128(38, 2), [Decimal("1.00"), Decimal(10**30), Decimal(-1), Decimal(0)], [Decimal(1)] * 4),
    "doubles": (pa.float64(), [0.0, float("nan"), 1.5, -0.0], [-0.0, float("nan"), 1.5, -0.0]),
    "floats": (pa.float32(), [0.0, float("nan"), 1.5, -0.0], [0.0, 1.0, 1.5, 0.0]),
    "booleans": (pa.bool_(), [True, False, True, False], [True, True, True, False]),
    "strings": (pa.string(), ["a", "", "b", "c"], ["a", "", "x", "c"]),
    "with NULL": (pa.int32(), [1, None, None, 4], [1, None, 3, None]),
    "in a dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", "b"], ["b", "a", "a", "b"]),
    "none": (pa.int64(), [], []),
}


def _seen(value: Any) -> Any:
    """What tells a value apart from others: of a float its bits."""
    return struct.pack("<d", value) if isinstance(value, float) else value


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_are_identical_as_their_values_are(name: str) -> None:
    kind, one, other = COLUMNS[name]
    if "dictionary" in name:  # never in a delta: only that its numbers are not taken for its values
        assert buffer_view(pa.array(one, kind)) is None
        return
    expected = [_seen(a) == _seen(b) for a, b in zip(one, other, strict=True)]
    padded = [pa.array([*v[:1], *v, *v[:1]], kind)[1 : 1 + len(v)] if v else pa.array(v, kind) for v in (one, other)]
    for left, right in ((pa.array(one, kind), pa.array(other, kind)), padded):
        assert identical_rows(pa.table({"v": left}), pa.table({"v": right})).tolist() == expected
        found = equal_bits(left, right)
        assert found is None or found.tolist() == expected
    whole = pa.table({"v": pa.array([*one, *other], kind), "¤w": pa.array(range(2 * len(one)), pa.int64())})
    places = np.arange(len(one))
    assert identical_rows_at(whole, places, places + len(one), ignored_column="¤w").tolist() == expected
    chunks = pa.chunked_array([pa.array(one[:1], kind), pa.array(one[1:], kind)], kind)
    assert identical_rows(pa.table({"v": chunks}), pa.table({"v": pa.array(other, kind)})).tolist() == expected


@pytest.mark.parametrize("name", COLUMNS)
def test_taken_is_take(name: str) -> None:
    kind, values, _ = COLUMNS[name]
    array = pa.array(values, kind)
    places = pa.array(np.array([2, 0, 0, 3][: len(values)], np.int64))
    assert take_array(array, places).equals(array.take(places))
    with pytest.raises(pa.ArrowIndexError):
        take_array(array, pa.array([len(values)]))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("cuts", [(), (2,), (0, 1, 1, 3), (1, 2, 3, 4)])
def test_rows_of_several_chunks_are_taken_as_of_one(name: str, cuts: tuple[int, ...]) -> None:
    kind, one, other = COLUMNS[name]
    whole = pa.table({"n": np.arange(len(one)), "one": pa.array(one, kind), "other": pa.array(other, kind)})
    edges = [0, *cuts, whole.num_rows]
    table = pa.concat_tables([whole.slice(low, max(0, high - low)) for low, high in pairwise(edges)])
    random = np.random.default_rng(1)
    for count in (0, 1, 3, 20) if whole.num_rows else (0,):
        places = random.integers(0, max(1, whole.num_rows), count)
        found = take_table_rows(table, places)
        assert found.schema == table.schema
        assert found.column("n").to_pylist() == places.tolist()
        for column in ("one", "other"):
            expected = whole.column(column).take(pa.array(places)).to_pylist()
            assert [_seen(v) for v in found.column(column).to_pylist()] == [_seen(v) for v in expected]
