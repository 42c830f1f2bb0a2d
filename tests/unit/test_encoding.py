"""A call's rows as bytes in key order, against each row by itself, sorted."""

from __future__ import annotations

from itertools import chain
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewkeeper.errors import TooLarge
from viewkeeper.model import types
from viewkeeper.model.codec import encode_rows
from viewkeeper.model.keys import encode_keys
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.ordered import encoding
from viewkeeper.store.ordered.encoding import encoded

TABLE = Table(
    1,
    "t",
    (Column("a", types.INT), Column("b", types.STRING), Column("n", types.BIGINT), Column("s", types.STRING)),
    (KeyPart("a"), KeyPart("b", descending=True)),
)
KEY = ["a", "b"]
ROWS = st.dictionaries(
    st.tuples(st.none() | st.integers(-3, 300), st.none() | st.sampled_from(["", "x", "xy", "\0", "é"])),
    st.tuples(st.none() | st.integers(-9, 9), st.none() | st.text("ab", max_size=3)),
    max_size=60,
)


def rows_of(given: dict[Any, Any], chunks: int) -> pa.Table:
    rows = [dict(zip(TABLE.arrow.names, (*key, *rest), strict=True)) for key, rest in given.items()]
    whole = pa.Table.from_pylist(rows, TABLE.arrow)
    step = max(1, -(-len(rows) // chunks))
    return pa.concat_tables([TABLE.arrow.empty_table(), *(whole.slice(at, step) for at in range(0, len(rows), step))])


def one_by_one(rows: pa.Table) -> list[tuple[bytes, bytes]]:
    """The slow twin."""
    each = [rows.slice(at, 1).combine_chunks() for at in range(rows.num_rows)]
    return sorted((encode_keys(TABLE, row)[0].as_py(), encode_rows(TABLE, row)[0].as_py()) for row in each)


def listed(puts: pa.Table, deletes: pa.Table) -> list[list[tuple[bytes, bytes]]]:
    return [list(zip(k.to_pylist(), a.to_pylist(), strict=True)) for k, a in encoded(TABLE, puts, deletes)]


def in_order(pieces: list[list[tuple[bytes, bytes]]]) -> list[tuple[bytes, bytes]]:
    """A piece after the other; a single one is put in order by who applies it."""
    return list(chain(*pieces)) if len(pieces) != 1 else sorted(pieces[0])


@given(
    puts=ROWS,
    deletes=ROWS,
    chunks=st.sampled_from([1, 3, 50]),
    in_slice=st.sampled_from([1, 7, 1000]),
    much=st.booleans(),
    by_two=st.sampled_from([1, 1000]),
)
def test_slices_in_key_order_are_the_rows_one_by_one(
    puts: dict[Any, Any], deletes: dict[Any, Any], chunks: int, in_slice: int, much: bool, by_two: int
) -> None:
    put, gone = rows_of(puts, chunks), rows_of(deletes, chunks)
    how = {"_SLICE_ROWS": in_slice, "SLICES_FOR_MORE": by_two, "is_much": lambda size: much}
    with patch.multiple(encoding, **how):
        found = listed(put, gone.select(KEY))
    assert max(map(len, found), default=0) <= in_slice
    pieces = -(-len(puts) // in_slice)
    assert in_order(found[:pieces]) == one_by_one(put)
    assert in_order(found[pieces:]) == [(key, b"") for key, _ in one_by_one(gone)]


@pytest.mark.parametrize("much", [False, True])
def test_a_row_that_is_too_large_is_named_by_its_own_key(much: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of({(n, "x"): (n, "s" * (300 if n == 7 else 3)) for n in range(20, -1, -1)}, 2)
    monkeypatch.setattr("viewkeeper.store.ordered.images.LARGEST_ROW", 200)
    monkeypatch.setattr(encoding, "_SLICE_ROWS", 4)
    monkeypatch.setattr(encoding, "is_much", lambda size: much)
    with pytest.raises(TooLarge, match="a = 7, b = 'x'"):
        listed(rows, rows.slice(0, 0).select(KEY))


def test_bytes_that_one_array_cannot_hold_are_not_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of({(n, "x"): (n, "s") for n in range(20, -1, -1)}, 1)
    monkeypatch.setattr(encoding, "_SLICE_ROWS", 4)
    monkeypatch.setattr(encoding, "_LONGEST", 100)
    monkeypatch.setattr(encoding, "_fetched", None)
    assert in_order(listed(rows, rows.slice(0, 0).select(KEY))) == one_by_one(rows)
