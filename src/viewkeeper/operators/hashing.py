"""Hashes of keys: DuckDB's, worked out by numpy where the columns are integers.

Most keys are, and a statement costs some tenths of a millisecond however few its rows. Both ways give the same numbers:
that is tried once in every process, on values of all kinds, and if DuckDB's hash were another, numpy's is not used.

A column of strings often has few different ones, the same in every batch: of each, DuckDB is asked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from viewkeeper.errors import Defect
from viewkeeper.model.chunks import one_chunk
from viewkeeper.operators.duck import Duck
from viewkeeper.operators.finding import Hashes
from viewkeeper.operators.segments import hash_sql

NULL_HASH = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR, _HALF = np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
_WORDS = {pa.int64(): np.uint64, pa.int32(): np.uint32, pa.date32(): np.uint32}
_FEW_STRINGS = 64
"""Different strings of a column up to which each is looked up by itself."""
_SAMPLE = 1_000
"""Rows of a column that has more, which usually show whether there are more."""
_MOST_STRINGS, _LONGEST = 1 << 14, 128
_STRINGS: dict[str, int] = {}
"""The hashes that DuckDB told of strings that are not long."""


def hashes(duck: Duck, rows: pa.Table, key: tuple[str, ...]) -> Hashes:
    """Of each row's key columns."""
    found = quick_hashes(rows, key, duck)
    if found is None:
        named = duck.run(f"SELECT {hash_sql(key)} AS h FROM input", input=rows.select(list(key)))
        found = named["h"].to_numpy()
    return found


def quick_hashes(rows: pa.Table, key: Sequence[str], duck: Duck | None = None) -> Hashes | None:
    """The same without a statement; None where that cannot be done. `duck` is asked for strings that are not known."""
    if not key:  # all rows together
        return np.zeros(rows.num_rows, np.uint64)
    if any(not _is_quick(rows.schema.field(name).type, duck) for name in key) or not _is_known():
        return None
    return _combined(rows, key, duck)


def _is_quick(kind: pa.DataType, duck: Duck | None) -> bool:
    return kind in _WORDS or (duck is not None and kind == pa.string())


def is_bijective(key: Sequence[pa.DataType]) -> bool:
    """Whether different keys of these types have different hashes, NULL apart."""
    return len(key) == 1 and key[0] in _WORDS and _is_known()


def _combined(rows: pa.Table, key: Sequence[str], duck: Duck | None = None) -> Hashes | None:
    """None if a column has many different strings."""
    found: Hashes | None = None
    for name in key:
        array = one_chunk(rows.column(name))
        one = _hashed(array) if array.type in _WORDS else _of_strings(array, duck)
        if one is None:
            return None
        found = one if found is None else (_folded(found) * _FACTOR) ^ one
    if found is None:
        raise Defect("A key without columns has no hash.")
    return found


def _of_strings(array: pa.Array, duck: Duck | None) -> Hashes | None:
    if len(array) > _SAMPLE and len(array.slice(0, _SAMPLE).unique()) > _FEW_STRINGS:
        return None
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_pylist() if len(encoded.dictionary) <= _FEW_STRINGS else None
    if values is None or duck is None:
        return None
    known = {value: _STRINGS.get(value) for value in values}
    missing = [value for value, code in known.items() if code is None]
    if missing:
        told = duck.run("SELECT hash(s) AS h FROM input", input=pa.table({"s": pa.array(missing, pa.string())}))
        known |= dict(zip(missing, told["h"].to_pylist(), strict=True))
        if len(_STRINGS) < _MOST_STRINGS:
            _STRINGS.update((s, code) for s, code in known.items() if code is not None and len(s) <= _LONGEST)
    codes = np.array([*known.values(), int(NULL_HASH)], np.uint64)
    found: Hashes = codes[np.asarray(encoded.indices.fill_null(len(values)))]
    return found


def _hashed(array: pa.Array) -> Hashes:
    word = _WORDS[array.type]
    data = array.buffers()[1]
    words = np.frombuffer(data, word)[array.offset :][: len(array)] if data is not None else np.zeros(len(array), word)
    mixed = words.astype(np.uint64)
    for _ in range(2):
        mixed = _folded(mixed) * _FACTOR
    mixed = _folded(mixed)
    return np.where(np.asarray(array.is_null()), NULL_HASH, mixed) if array.null_count else mixed


def _folded(words: Hashes) -> Hashes:
    return words ^ (words >> _HALF)


@cache
def _is_known() -> bool:
    """Whether this DuckDB hashes integers as this module does."""
    numbers = [None, 0, 1, -1, 2**31 - 1, -(2**31), 123_456_789]
    rows = pa.table(
        {
            "a": pa.array([*numbers, 2**63 - 1, -(2**63)], pa.int64()),
            "b": pa.array([*numbers[::-1], 7, 8], pa.int32()),
            "c": pa.array([*numbers, 7, 8], pa.int32()).cast(pa.date32()),
        }
    )
    with Duck(threads=1) as duck:
        for key in (("a",), ("b",), ("c",), ("a", "b"), ("c", "a", "b")):
            told = duck.run(f"SELECT {hash_sql(key)} AS h FROM input", input=rows)["h"].to_numpy()
            found = _combined(rows, key)
            if found is None or not np.array_equal(told, found):
                return False
    return True
