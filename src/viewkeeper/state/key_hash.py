"""Key hashes: DuckDB's `hash`, reproduced in numpy for keys of integers, dates, decimals and short dictionaries of
strings.

Most keys have such types, and a statement costs some tenths of a millisecond however few rows it has. Both ways must
give the same hashes: each process compares them once on values of all types, and if DuckDB's hash has changed, numpy's
is not used.

A string column often has few distinct values, the same in every batch: DuckDB hashes each distinct string once, and the
hash is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.model.arrow_buffers import one_chunk
from viewkeeper.model.names import quoted
from viewkeeper.resources.prepared_statements import PreparedStatements
from viewkeeper.state.hash_index import Hashes

NULL_HASH = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR, _HALF_WORD_BITS = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
_WORD_TYPES = {pa.int64(): np.uint64, pa.int32(): np.uint32, pa.date32(): np.uint32}
_MAX_DIGITS = {np.uint32: 9, np.uint64: 18}
MAX_DICTIONARY_VALUES = 64
"""Distinct values of a column up to which each value is hashed or numbered separately."""
SAMPLE_ROWS = 1_000
"""Sample size for estimating whether a longer column has more distinct values than that."""
_MAX_CACHED_STRINGS, _MAX_STRING_LENGTH = 1 << 14, 128
_STRING_HASHES: dict[str, int] = {}
"""Cached DuckDB hashes of strings that are not long."""


def hash_sql(columns: tuple[str, ...]) -> str:
    """Return the SQL expression of the hash by which rows are distributed and arranged; an empty key puts all rows
    together."""
    return f"hash({', '.join(quoted(c) for c in columns)})" if columns else "0::UBIGINT"


def hash_keys(statements: PreparedStatements, rows: pa.Table, key: tuple[str, ...]) -> Hashes:
    """Return the hash of each row's key columns."""
    found = hash_keys_vectorised(rows, key, statements)
    if found is None:
        result = statements.run(f"SELECT {hash_sql(key)} AS h FROM input", input=rows.select(list(key)))
        found = result["h"].to_numpy()
    return found


def hash_keys_vectorised(
    rows: pa.Table, key: Sequence[str], statements: PreparedStatements | None = None
) -> Hashes | None:
    """Return the hashes without a statement; None if a column's type is not supported. `statements` is needed only for
    strings whose hashes are not cached."""
    if not key:  # all rows together
        return np.zeros(rows.num_rows, np.uint64)
    if (
        any(not _is_vectorised(rows.schema.field(name).type, statements) for name in key)
        or not _is_duckdb_hash_reproduced()
    ):
        return None
    return _combine_columns(rows, key, statements)


def _is_vectorised(arrow_type: pa.DataType, statements: PreparedStatements | None) -> bool:
    return _is_number(arrow_type) or (statements is not None and arrow_type == pa.string())


def _is_number(arrow_type: pa.DataType) -> bool:
    return arrow_type in _WORD_TYPES or pa.types.is_decimal128(arrow_type)


def is_bijective(key_types: Sequence[pa.DataType]) -> bool:
    """Return whether different keys of these types have different hashes, apart from NULL."""
    return len(key_types) == 1 and key_types[0] in _WORD_TYPES and _is_duckdb_hash_reproduced()


def _combine_columns(rows: pa.Table, key: Sequence[str], statements: PreparedStatements | None = None) -> Hashes | None:
    """Return the combined hash of the key columns; None if a string column has too many distinct values."""
    found: Hashes | None = None
    for name in key:
        array = one_chunk(rows.column(name))
        column_hashes = _hash_column(array) if _is_number(array.type) else _hash_strings(array, statements)
        if column_hashes is None:
            return None
        found = column_hashes if found is None else (_fold(found) * _FACTOR) ^ column_hashes
    if found is None:
        raise Defect("A key without columns has no hash.")
    return found


def has_high_cardinality(array: pa.Array) -> bool:
    """Return whether a sample of a long column shows more than `MAX_DICTIONARY_VALUES` distinct values."""
    return len(array) > SAMPLE_ROWS and len(array.slice(0, SAMPLE_ROWS).unique()) > MAX_DICTIONARY_VALUES


def _hash_strings(array: pa.Array, statements: PreparedStatements | None) -> Hashes | None:
    if has_high_cardinality(array):
        return None
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_pylist() if len(encoded.dictionary) <= MAX_DICTIONARY_VALUES else None
    if values is None or statements is None:
        return None
    hash_by_value = {value: _STRING_HASHES.get(value) for value in values}
    missing = [value for value, cached in hash_by_value.items() if cached is None]
    if missing:
        hashed = statements.run("SELECT hash(s) AS h FROM input", input=pa.table({"s": pa.array(missing, pa.string())}))
        hash_by_value |= dict(zip(missing, hashed["h"].to_pylist(), strict=True))
        if len(_STRING_HASHES) < _MAX_CACHED_STRINGS:
            _STRING_HASHES.update(
                (s, cached)
                for s, cached in hash_by_value.items()
                if cached is not None and len(s) <= _MAX_STRING_LENGTH
            )
    hash_values = np.array([*hash_by_value.values(), int(NULL_HASH)], np.uint64)
    found: Hashes = hash_values[np.asarray(encoded.indices.fill_null(len(values)))]
    return found


def _hash_column(array: pa.Array) -> Hashes:
    mixed = (
        _hash_decimals(array)
        if pa.types.is_decimal(array.type)
        else _mix(_buffer_words(array, _WORD_TYPES[array.type]))
    )
    return np.where(np.asarray(array.is_null()), NULL_HASH, mixed) if array.null_count else mixed


def _hash_decimals(array: pa.Array) -> Hashes:
    """Hash decimals as DuckDB does: up to 9 digits as a 32-bit word, up to 18 digits as a 64-bit word, longer ones as
    the XOR of the hashes of both halves."""
    low, high = _buffer_words(array, np.dtype((np.uint64, 2))).T
    if array.type.precision > _MAX_DIGITS[np.uint64]:
        return _mix(low) ^ _mix(high)
    return _mix(low.astype(np.uint32) if array.type.precision <= _MAX_DIGITS[np.uint32] else low)


def _buffer_words(array: pa.Array, word: Any) -> npt.NDArray[Any]:
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), word)
    found: npt.NDArray[Any] = np.frombuffer(data, word, len(array), array.offset * np.dtype(word).itemsize)
    return found


def _mix(words: npt.NDArray[Any]) -> Hashes:
    mixed = words.astype(np.uint64)
    for _ in range(2):
        mixed = _fold(mixed) * _FACTOR
    return _fold(mixed)


def _fold(words: Hashes) -> Hashes:
    return words ^ (words >> _HALF_WORD_BITS)


@cache
def _is_duckdb_hash_reproduced() -> bool:
    """Return whether the installed DuckDB hashes values as this module does."""
    numbers = [None, 0, 1, -1, 2**31 - 1, -(2**31), 123_456_789]
    digits = {f"d{n}": [None, 0, 1, -1, 10**n - 1, 1 - 10**n, 10**n // 3, 7, -8] for n in (2, 4, 9, 15, 18, 19, 38)}
    rows = pa.table(
        {
            "a": pa.array([*numbers, 2**63 - 1, -(2**63)], pa.int64()),
            "b": pa.array([*numbers[::-1], 7, 8], pa.int32()),
            "c": pa.array([*numbers, 7, 8], pa.int32()).cast(pa.date32()),
            **{name: pa.array(values, pa.decimal128(int(name[1:]), 0)) for name, values in digits.items()},
        }
    )
    keys = [("a",), ("b",), ("c",), ("a", "b"), ("c", "a", "b"), ("a", *digits), *((name,) for name in digits)]
    with PreparedStatements(threads=1) as statements:
        for key in keys:
            expected = statements.run(f"SELECT {hash_sql(key)} AS h FROM input", input=rows)["h"].to_numpy()
            found = _combine_columns(rows, key)
            if found is None or not np.array_equal(expected, found):
                return False
    return True
