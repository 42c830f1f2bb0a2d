"""A state of RocksDB: by key and by walk it is the same one, and stays so while others write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from viewkeeper.store.rocksdb import maps


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db"


class Busy:
    """A database to which others write just when a snapshot of it was taken, a few times."""

    def __init__(self, db: Rdict) -> None:
        self._db, self._left = db, 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def snapshot(self) -> Any:
        found = self._db.snapshot()
        if self._left:
            self._left -= 1
            self._db[b"a"] = b"%d left" % self._left
        return found


def test_reads_by_key_and_walks_are_of_the_same_state(path: Path) -> None:
    db = Rdict(str(path), Options(raw_mode=True))
    state = maps.SnapshotReader(Busy(db))
    db[b"a"] = b"later"
    assert state.get(b"a") == b"0 left"
    assert list(state.walk("values", b"a", b"b")) == [b"0 left"]
    del state
    db.close()


@pytest.mark.parametrize(("first", "rows", "size"), [(1, 1, 100), (2, 7, 1 << 20), (16, 4096, 1), (16, 4096, 300)])
def test_a_past_state_is_walked_in_parts_of_any_size(
    path: Path, monkeypatch: pytest.MonkeyPatch, first: int, rows: int, size: int
) -> None:
    monkeypatch.setattr(maps, "_FIRST_WALK_ROWS", first)
    monkeypatch.setattr(maps, "_MAX_WALK_ROWS", rows)
    monkeypatch.setattr(maps, "_MAX_WALK_BYTES", size)
    db = Rdict(str(path), Options(raw_mode=True))
    old = {b"k%03d" % n: b"old" * (n % 90) for n in range(200)}
    for key, value in old.items():
        db[key] = value
    state = maps.SnapshotReader(db)
    db.delete_range(b"k050", b"k100")
    db[b"k0000"] = db[b"k150"] = b"new"
    db.flush()
    db.compact_range(None, None)
    for start, stop in ((b"k", b"l"), (b"k049", b"k101"), (b"k1490", b"k151"), (b"k2", b"l"), (b"k003", b"k003")):
        within = {key: value for key, value in old.items() if start <= key < stop}
        assert list(state.walk("keys", start, stop)) == list(within)
        assert list(state.walk("values", start, stop)) == list(within.values())
        assert list(state.walk("items", start, stop)) == list(within.items())
    db.close()
    assert dict(state.walk("items", b"k", b"l")) == old, "who still reads when it is closed reads to the end"
