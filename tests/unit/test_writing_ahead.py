"""A large durable transaction of LMDB lets the system begin to write its pages before the commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import viewkeeper
from viewkeeper.store.lmdb import environment, writeback


def test_what_was_written_is_asked_for_until_the_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, enough = [], threading.Event()

    def begin(descriptor: int) -> bool:
        asked.append(descriptor)
        if len(asked) == 3:
            enough.set()
        return True

    monkeypatch.setattr(writeback, "_writeback_function", lambda: begin)
    (tmp_path / "data.mdb").write_bytes(b"pages")
    with writeback.start_writeback(tmp_path / "data.mdb"):
        assert enough.wait(60)
    times = len(asked)
    assert "viewkeeper-write-ahead" not in {thread.name for thread in threading.enumerate()}
    assert len(asked) == times


@pytest.mark.parametrize("there", [True, False])
def test_a_file_that_cannot_be_asked_about_is_left_to_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    refused = threading.Event()
    monkeypatch.setattr(writeback, "_writeback_function", lambda: lambda descriptor: bool(refused.set()))
    if there:
        (tmp_path / "data.mdb").write_bytes(b"pages")
    with writeback.start_writeback(tmp_path / "data.mdb"):
        assert not there or refused.wait(60)


def test_a_system_that_does_not_know_it_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "_writeback_function", lambda: None)
    before = threading.active_count()
    with writeback.start_writeback(tmp_path / "data.mdb"):
        assert threading.active_count() == before


@pytest.mark.parametrize("durability", ["commit", "group", "none"])
def test_large_calls_that_are_flushed_write_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    begun = []

    @contextmanager
    def noted(data: Path) -> Iterator[None]:
        begun.append(data.name)
        with writeback.start_writeback(data):
            yield

    monkeypatch.setattr(environment, "start_writeback", noted)
    monkeypatch.setattr(environment, "MIN_WRITEBACK_BYTES", 100_000)
    rows = pa.table({"id": pa.array(range(20_000), pa.int64()), "v": pa.array(range(20_000), pa.int64())})
    with viewkeeper.open(f"lmdb:{tmp_path / 'db'}", durability=durability) as db:
        db.sql("CREATE TABLE t (id BIGINT, v BIGINT, PRIMARY KEY (id))")
        db.put("t", rows.slice(0, 10))
        assert begun == []
        db.put("t", rows)
        assert begun == ([] if durability == "none" else ["data.mdb"])
        assert db.read("t").sort_by("id").equals(rows.cast(db.read("t").schema))
