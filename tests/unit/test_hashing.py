"""DuckDB's hash by numpy: the same numbers, or not used."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state import key_hash

LONGS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def duck():
    with PreparedStatements(threads=1) as duck:
        yield duck


def told(duck: PreparedStatements, rows: pa.Table, key: tuple[str, ...]) -> list[int]:
    columns = ", ".join(key)
    return duck.run(f"SELECT hash({columns}) AS h FROM input", input=rows)["h"].to_pylist()


@given(LONGS)
def test_integers_and_dates_hash_as_duckdb_hashes_them(duck: PreparedStatements, values: list[int | None]) -> None:
    longs = pa.array(values, pa.int64())
    small = pa.array([None if v is None else v % 2**31 - 2**30 for v in values], pa.int32())
    rows = pa.table({"a": longs, "b": small, "c": small.cast(pa.date32())})
    for key in (("a",), ("b",), ("c",), ("b", "a"), ("a", "c", "b")):
        found = key_hash.hash_keys_vectorised(rows, key)
        assert found is not None
        assert found.tolist() == told(duck, rows, key)


@given(data=st.data(), precision=st.integers(1, 38), other=st.integers(1, 38))
def test_decimals_hash_as_duckdb_hashes_them(
    duck: PreparedStatements, data: st.DataObject, precision: int, other: int
) -> None:
    columns = {}
    for name, digits in (("d", precision), ("e", other)):
        most = 10**digits - 1
        numbers = st.none() | st.integers(-most, most) | st.sampled_from([0, 1, -1, most, -most])
        values = data.draw(st.lists(numbers, min_size=6, max_size=6))
        whole = pa.array(values, pa.decimal128(digits, 0))
        scaled = pa.decimal128(digits, data.draw(st.integers(0, digits)))
        columns[name] = pa.Array.from_buffers(scaled, len(whole), whole.buffers())
    rows = pa.table({**columns, "a": pa.array([1, 2, 3, None, 5, 6], pa.int64())})
    for key in (("d",), ("d", "e"), ("a", "e"), ("e", "a", "d")):
        found = key_hash.hash_keys_vectorised(rows.slice(1), key)
        assert found is not None
        assert found.tolist() == told(duck, rows.slice(1), key)


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(12, 2), pa.decimal128(38, 0)])
def test_a_slice_hashes_as_its_rows_do(kind: pa.DataType) -> None:
    rows = pa.table({"a": pa.array([1, None, 3, 4], kind)})
    whole = key_hash.hash_keys_vectorised(rows, ("a",))
    part = key_hash.hash_keys_vectorised(rows.slice(1, 2), ("a",))
    assert whole is not None
    assert part is not None
    assert part.tolist() == whole.tolist()[1:3]


@given(
    texts=st.lists(
        st.none() | st.text(max_size=20) | st.sampled_from(["R", "N", "1-URGENT"]), min_size=1, max_size=100
    ),
    start=st.integers(0, 3),
)
def test_strings_hash_as_duckdb_hashes_them(duck: PreparedStatements, texts: list[str | None], start: int) -> None:
    """Those of a column with few different ones, by themselves and with others."""
    rows = pa.table({"s": pa.array(texts, pa.string()), "a": pa.array(range(len(texts)), pa.int64())}).slice(start)
    for key in (("s",), ("s", "a"), ("a", "s"), ("s", "s")):
        found = key_hash.hash_keys_vectorised(rows, key, duck)
        if found is None:
            assert len(set(texts) - {None}) > key_hash._FEW_STRINGS
        else:
            assert found.tolist() == told(duck, rows, key)


def test_many_different_strings_are_left_to_duckdb(duck: PreparedStatements) -> None:
    rows = pa.table({"s": [f"name {i}" for i in range(100)]})
    assert key_hash.hash_keys_vectorised(rows, ("s",), duck) is None
    assert key_hash.hash_keys(duck, rows, ("s",)).tolist() == told(duck, rows, ("s",))


def test_long_strings_are_hashed_and_not_remembered(duck: PreparedStatements) -> None:
    rows = pa.table({"s": ["x" * 1_000, "short", "x" * 1_000]})
    for _ in range(2):
        assert key_hash.hash_keys(duck, rows, ("s",)).tolist() == told(duck, rows, ("s",))
    assert "short" in key_hash._STRING_HASHES
    assert "x" * 1_000 not in key_hash._STRING_HASHES


def test_without_a_key_all_rows_are_together(duck: PreparedStatements) -> None:
    rows = pa.table({"a": ["x", "y"]})
    assert key_hash.hash_keys(duck, rows, ()).tolist() == [0, 0]


def test_other_types_are_left_to_duckdb(duck: PreparedStatements) -> None:
    rows = pa.table({"a": ["x", "y"], "b": pa.array([1, 2], pa.int64())})
    assert key_hash.hash_keys_vectorised(rows, ("b", "a")) is None
    assert key_hash.hash_keys(duck, rows, ("b", "a")).tolist() == told(duck, rows, ("b", "a"))


def test_if_duckdb_hashed_otherwise_numpy_would_not_be_used(
    monkeypatch: pytest.MonkeyPatch, duck: PreparedStatements
) -> None:
    rows = pa.table({"a": pa.array([1, 2], pa.int64())})
    monkeypatch.setattr(key_hash, "_FACTOR", np.uint64(3))
    key_hash._is_duckdb_hash_reproduced.cache_clear()
    try:
        assert key_hash.hash_keys_vectorised(rows, ("a",)) is None
        assert key_hash.hash_keys(duck, rows, ("a",)).tolist() == told(duck, rows, ("a",))
    finally:
        key_hash._is_duckdb_hash_reproduced.cache_clear()
