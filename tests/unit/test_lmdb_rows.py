"""Changes applied to a table's rows in LMDB, against a dict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lmdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.lmdb import rows

TABLE = Table(1, "t", (Column("a", types.INT),), (KeyPart("a"),))
KEYS = st.integers(0, 40).map(lambda n: b"k%02d" % n) | st.just(b"L" * 600) | st.just(b"l" * 495 + b"m" * 100)
CALL = st.dictionaries(KEYS, st.sampled_from([b"", b"1", b"2", b"22"]), max_size=40)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, Any]]:
    path: Path = tmp_path_factory.mktemp("rows")
    with lmdb.open(str(path), max_dbs=2, map_size=1 << 24) as opened:
        yield opened, opened.open_db(b"rows"), opened.open_db(b"meta")


@given(calls=st.lists(CALL, max_size=5), at_once=st.sampled_from([1, 3, 1000]), tried=st.sampled_from([1, 16]))
@settings(deadline=None)
def test_rows_and_images_are_those_of_a_dict(
    environment: tuple[Any, Any, Any], calls: list[dict[bytes, bytes]], at_once: int, tried: int
) -> None:
    """Deletes, new keys among the known and after the last, rows that stay the same; some at a time and all at once."""
    opened, db, meta = environment
    there: dict[bytes, bytes] = {}
    with opened.begin(write=True) as txn, patch.multiple(rows, _AT_ONCE=at_once, _TRIED=tried):
        for call in calls:
            keys, after = (pa.array([*side], pa.binary()) for side in (call, call.values()))
            found = rows.apply(txn, db, meta, TABLE, keys, after)
            images = zip(*(side.to_pylist() for side in (found.keys, found.before, found.after)), strict=True)
            changed = [(key, there.get(key, b""), row) for key, row in call.items() if there.get(key, b"") != row]
            assert sorted(images) == sorted(changed)
            there = {key: row for key, row in (there | call).items() if row}
            read = [row for piece in rows.scan(txn, db, meta, 1, None, None, None) for row in piece.to_pylist()]
            assert read == [row for _, row in sorted(there.items())]
        txn.abort()
