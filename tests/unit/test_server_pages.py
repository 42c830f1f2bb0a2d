"""Pages of a view without a unique key, whose rows may be divided between them. How often all views are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.model import types
from viewkeeper.model.encoding.keys import encode_keys
from viewkeeper.model.schema import COUNT, Column, KeyPart, Table
from viewkeeper.server.endpoints.rows import _split_page
from viewkeeper.server.errors import HttpStatusError
from viewkeeper.server.pinned_snapshots import PageCursor
from viewkeeper.server.status_feed import refresh_pause

BAG = Table(1, "bag", (Column("k", types.STRING),), (KeyPart("k"),), is_view=True, is_bag=True)
STORED = pa.table({"k": ["a", "b", "c"], COUNT: pa.array([1, 5, 2], pa.int64())}, schema=BAG.arrow)
SERVING: Any = SimpleNamespace(store=SimpleNamespace(range_keys=encode_keys))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 8, 9])
def test_pages_of_a_bag_are_its_rows(limit: int) -> None:
    keys = encode_keys(BAG, STORED).to_pylist()
    start, skip, seen = keys[0], 0, []
    for _ in range(20):
        place = keys.index(start)
        rows, more = _split_page(SERVING, BAG, STORED.slice(place, limit + 1).to_batches(), limit, skip)
        assert 0 < rows.num_rows <= limit
        seen += rows["k"].to_pylist()
        if more is None:
            break
        start, skip = more
    assert seen == ["a", "b", "b", "b", "b", "b", "c", "c"]


def test_a_cursor_is_read_again_and_nothing_else_is_one() -> None:
    cursor = PageCursor("uuid", 7, 3, b"\x00key", 2, None)
    assert PageCursor.parse(cursor.to_text()) == cursor
    for text in ("", "x", "W10", "bnVsbA", "ü", cursor.to_text()[:-3]):
        with pytest.raises(HttpStatusError):
            PageCursor.parse(text)


def test_looks_that_take_long_are_rare() -> None:
    assert refresh_pause(0.01) == 1.0
    assert refresh_pause(0.5) == 5.0  # of ten thousand views, on a busy machine
