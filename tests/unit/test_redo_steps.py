"""A batch of a redo: its tables are written at the same time, and it is published when all of them are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.resources.directory import StateDirectory
from viewkeeper.store.redo import claim
from viewkeeper.store.redo.claim import LedgerState
from viewkeeper.store.redo.redo_file import Redo, TableRedo

KEYS = pa.table({"key": pa.array([b"k"], pa.binary())})
NUMBER = 7


class Record:
    """A ledger in memory."""

    location = "here"

    def __init__(self) -> None:
        self.standing = LedgerState(published=NUMBER - 1, catalog=1, claim=None)

    def replace_state(
        self,
        change: Callable[[LedgerState], LedgerState | None],
        published: Mapping[str, Any] | None = None,
        catalog: Mapping[str, Any] | None = None,
    ) -> LedgerState:
        self.standing = change(self.standing) or self.standing
        return self.standing


def claimed(tmp_path: Path, tables: int) -> tuple[Record, StateDirectory, claim.Claim]:
    made = [TableRedo(f"t{i}", {}, False, (), KEYS, KEYS.slice(0, 0)) for i in range(tables)]
    redo = Redo({"number": NUMBER}, None, tuple(made))
    record, directory = Record(), StateDirectory(tmp_path)
    mine = claim.claim_batch(record, directory, redo, "me", 1)
    assert mine is not None
    return record, directory, mine


def test_tables_are_written_at_the_same_time(tmp_path: Path) -> None:
    record, directory, mine = claimed(tmp_path, 6)
    both, seen = threading.Barrier(2), []

    def write(table: TableRedo, number: int) -> None:
        both.wait(30)  # one that is written alone would wait in vain
        seen.append((table.name, number))

    claim.finish_batch(record, directory, mine, write)
    assert sorted(seen) == [(f"t{i}", NUMBER) for i in range(6)]
    assert record.standing.published == NUMBER


def test_a_table_that_fails_keeps_the_batch_back(tmp_path: Path) -> None:
    record, directory, mine = claimed(tmp_path, 50)
    written = []

    def write(table: TableRedo, number: int) -> None:
        if table.name == "t0":
            raise OSError("no more")
        written.append(table.name)

    with pytest.raises(OSError, match="no more"):
        claim.finish_batch(record, directory, mine, write)
    assert record.standing.published == NUMBER - 1
    claim.finish_batch(record, directory, mine, lambda table, number: written.append(table.name))
    assert set(written) == {f"t{i}" for i in range(50)}
    assert record.standing.published == NUMBER


def test_a_batch_without_tables_is_published(tmp_path: Path) -> None:
    record, directory, mine = claimed(tmp_path, 0)
    claim.finish_batch(record, directory, mine, lambda table, number: None)
    assert record.standing.published == NUMBER
