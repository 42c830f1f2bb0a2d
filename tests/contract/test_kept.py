"""Parts of tables that a load keeps: of whole tables and of selections, each found again, none instead of another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.conftest import ITEMS, items

from viewkeeper.capture.partition_store import PartitionStore
from viewkeeper.capture.partitions import TablePartition
from viewkeeper.model import types
from viewkeeper.model.filtered_table import Comparison, filter_table
from viewkeeper.model.schema import Table
from viewkeeper.store.lmdb import LmdbStore

DEAR = filter_table(ITEMS, (Comparison("price", types.decimal(12, 2), ">", ("9.99",)),))
CHEAP = filter_table(ITEMS, (Comparison("price", types.decimal(12, 2), "<", ("0.50",)),))
NAMES = [c.name for c in ITEMS.columns]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore(tmp_path / "db")
    opened.change_catalog(lambda catalog: catalog.with_table(ITEMS))
    yield opened
    opened.close()


def saved(store: LmdbStore, directory: Path, table: Table, *parts: TablePartition) -> None:
    kept = PartitionStore(store, directory)
    for part in parts:
        kept.save(table, part)
    kept.close()


def part(start: bytes | None, stop: bytes | None, *keys: int) -> TablePartition:
    return TablePartition(start, stop, 0, items(*((k, "a") for k in keys)))


def found(store: LmdbStore, directory: Path, table: Table) -> list[list[int]]:
    kept = PartitionStore(store, directory)
    ids = [p.rows["id"].to_pylist() for p in kept.find_partitions(table, NAMES)]
    kept.close()
    return sorted(ids)


@pytest.mark.parametrize("table", [ITEMS, DEAR], ids=["whole", "selected"])
def test_every_part_that_was_saved_is_found(store: LmdbStore, tmp_path: Path, table: Table) -> None:
    saved(store, tmp_path, table, part(None, b"5", 1, 2), part(b"5", b"7", 5), part(b"7", None, 8, 9))
    assert found(store, tmp_path, table) == [[1, 2], [5], [8, 9]]
    assert len(list(tmp_path.glob("load-*"))) == 2 * 3, "rows and a record of each"


def test_a_part_of_a_selection_is_no_part_of_the_table_nor_of_another_selection(
    store: LmdbStore, tmp_path: Path
) -> None:
    saved(store, tmp_path, DEAR, part(None, None, 1))
    assert found(store, tmp_path, ITEMS) == found(store, tmp_path, CHEAP) == []
    saved(store, tmp_path, ITEMS, part(None, None, 1, 2, 3))
    assert found(store, tmp_path, ITEMS) == [[1, 2, 3]]
    assert found(store, tmp_path, DEAR) == [[1]]


def test_a_tables_parts_are_forgotten_with_those_of_its_selections(store: LmdbStore, tmp_path: Path) -> None:
    other = Table(11, "others", ITEMS.columns, ITEMS.key)
    for table in (ITEMS, DEAR, CHEAP, other):
        saved(store, tmp_path, table, part(None, b"5", 1), part(b"5", None, 7))
    (tmp_path / "load-1.0123456789abcdef-00.vkp").touch()  # as an earlier version named them
    PartitionStore(store, tmp_path).delete_partitions(frozenset([ITEMS.id]))
    assert [found(store, tmp_path, t) for t in (ITEMS, DEAR, CHEAP)] == [[], [], []]
    assert found(store, tmp_path, other) == [[1], [7]]
    assert not list(tmp_path.glob("load-1.*"))
    PartitionStore(store, tmp_path).delete_partitions(frozenset([other.id]))
    assert not list(tmp_path.glob("load-*"))
    assert store.holds() == []
