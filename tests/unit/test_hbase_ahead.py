"""What is read ahead of a batch is taken by that batch alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.model import types
from viewkeeper.model.schema import Column, KeyPart, Table
from viewkeeper.store.base import Batch, Changed, Seen
from viewkeeper.store.hbase import ahead
from viewkeeper.store.hbase.ahead import Ahead, NotRipe
from viewkeeper.store.hbase.windows import Noted

ITEMS = Table(7, "items", (Column("id", types.INT, nullable=False), Column("v", types.INT)), (KeyPart("id"),))
SEEN = Noted(10, "")
COLUMNS = ["id", "v"]


def made(capture: Any = None, *, complete: bool = True) -> tuple[Ahead, list[tuple[Any, ...]]]:
    """One that has captured ITEMS once, and what it asks for."""
    asked: list[tuple[Any, ...]] = []

    def captured(table: Table, columns: list[str], after: int, upto: int, seen: Seen | None) -> Any:
        asked.append((table.id, columns, after, upto, seen))
        return Changed(None, pa.table({})), Noted(upto, "")

    found = Ahead(lambda cut: complete, capture or captured)
    assert found.take(ITEMS, COLUMNS, 5, 10, None) is None
    return found, asked


def test_the_batch_that_follows_takes_it_once() -> None:
    found, asked = made()
    found.begin(Batch(3, 10, {}, {7: SEEN}), 20)
    assert found.cut(10) == 20
    assert asked == [(7, COLUMNS, 10, 20, SEEN)]
    taken = found.take(ITEMS, COLUMNS, 10, 20, SEEN)
    assert taken is not None
    assert taken[1] == Noted(20, "")
    assert found.take(ITEMS, COLUMNS, 10, 20, SEEN) is None
    assert found.cut(10) is None


@pytest.mark.parametrize(
    ("columns", "after", "upto", "seen"),
    [
        (["id"], 10, 20, SEEN),
        (COLUMNS, 9, 20, SEEN),
        (COLUMNS, 10, 21, SEEN),
        (COLUMNS, 10, 20, Noted(9, "")),
        (COLUMNS, 10, 20, None),
    ],
)
def test_another_does_not(columns: list[str], after: int, upto: int, seen: Seen | None) -> None:
    found, _ = made()
    found.begin(Batch(3, 10, {}, {7: SEEN}), 20)
    assert found.cut(10) == 20
    assert found.take(ITEMS, columns, after, upto, seen) is None


def test_a_batch_that_follows_another_is_offered_nothing() -> None:
    found, _ = made()
    found.begin(Batch(3, 10, {}, {7: SEEN}), 20)
    assert found.cut(9) is None


def test_what_is_not_whole_is_offered_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> Any:
        raise NotRipe

    for found, _ in (made(complete=False), made(refuses)):
        found.begin(Batch(3, 10, {}, {7: SEEN}), 20)
        assert found.cut(10) is None
        assert found.take(ITEMS, COLUMNS, 10, 20, SEEN) is None
    found, asked = made()
    found.begin(Batch(3, 10, {}, {}), 20)  # the table is gone
    found.begin(Batch(3, 10, {}, {7: SEEN}), 10)  # the clock has not moved
    assert (found.cut(10), asked) == (None, [])
    monkeypatch.setattr(ahead, "_OLD", -1.0)
    found, _ = made()
    found.begin(Batch(3, 10, {}, {7: SEEN}), 20)
    assert found.cut(10) is None
