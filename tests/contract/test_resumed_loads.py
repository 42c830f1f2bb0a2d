"""A first load over large tables that is killed or interrupted: what it had read is not read again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.limited import OnlyNow
from tests.contract.planned import DEAR, TABLES, TOTALS

from viewkeeper.capture import partition_store, partitions
from viewkeeper.database import Database
from viewkeeper.store.lmdb import LmdbStore

PART, ROWS = 1000, 10_000
CREATE = f"CREATE MATERIALIZED VIEW totals AS {TOTALS}"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(partitions, "PARTITION_ROWS", PART)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = LmdbStore(tmp_path / "db")
    with Database(store, mode="w", spark=None, progress=None) as db:
        for statement in TABLES:
            db.sql(statement)
        db.put("items", [item(n) for n in range(ROWS)])
    return tmp_path / "db"


def item(number: int, category: str = "a") -> dict[str, Any]:
    return {"item_id": number, "category": category, "price": number % 7}


class Watched(Database):
    """Counts the rows that are scanned, and may be interrupted after some parts."""

    def __init__(self, path: Path, kind: type[LmdbStore] = LmdbStore, interrupt_after: int | None = None) -> None:
        self.said: list[tuple[str, int, int]] = []
        self.scanned = 0
        self.interrupt_after = interrupt_after
        super().__init__(kind(path), mode="w", spark=None, progress=self.report)
        for name in ("scan", "scan_at"):
            setattr(self._store, name, self.counted(getattr(self._store, name)))

    def report(self, what: str, done: int, expected: int) -> None:
        if not what.startswith("working out"):
            self.said.append((what, done, expected))

    def counted(self, scan: Any) -> Any:
        def rows(table: Any, *args: Any, **options: Any) -> Iterator[Any]:
            for batch in scan(table, *args, **options):
                self.scanned += 0 if table.is_view else batch.num_rows
                if self.interrupt_after is not None and self.scanned > self.interrupt_after * PART:
                    raise KeyboardInterrupt
                yield batch

        return rows

    def files(self) -> list[Path]:
        return sorted(Path(self._store.state_path).glob("load-*"))


def check(db: Database) -> None:
    groups: dict[str, tuple[int, int]] = {}
    for row in db.read("items").to_pylist():
        n, total = groups.get(row["category"], (0, 0))
        groups[row["category"]] = (n + 1, total + row["price"])
    assert {r["category"]: (r["n"], r["total"]) for r in db.read("totals").to_pylist()} == groups


def changes(db: Database) -> None:
    """To rows that were read and to others; the log is cut as far as it may be."""
    chance = random.Random(3)
    for _ in range(5):
        db.put("items", [item(chance.randrange(ROWS + 500), chance.choice("abc")) for _ in range(40)])
        db.delete("items", [chance.randrange(ROWS) for _ in range(20)])


def test_a_load_that_is_killed_goes_on_with_the_parts_it_had(path: Path) -> None:
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from tests.contract import planned
        from viewkeeper.capture import partitions
        import viewkeeper as vk
        planned.install()
        partitions.PARTITION_ROWS = {PART}
        with vk.open("lmdb:" + sys.argv[1], retention=0) as db:
            db.sql({CREATE!r})
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        env={**os.environ, "VK_CRASH_AT": "load.part.after@4"},
        timeout=240,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with Watched(path) as db:
        changes(db)
        db.sql(CREATE)
        what, had, _ = db.said[0]
        assert what == "resuming items"
        assert had == pytest.approx(4 * PART, rel=0.1)
        assert db.scanned <= ROWS + 500 - had + 500, "only the rest was read"
        assert db.said[-1][0] == "scanning items"
        check(db)
        assert db.files() == []
        assert [h for h in db._store.holds() if h.name == partition_store.HOLD_NAME] == []
        changes(db)
        db.refresh()
        check(db)


@pytest.mark.parametrize("kind", [LmdbStore, OnlyNow])
def test_a_creation_that_is_interrupted_is_resumed_by_giving_it_again(path: Path, kind: Any) -> None:
    with Watched(path, kind, interrupt_after=3) as db:
        with pytest.raises(KeyboardInterrupt):
            db.sql(CREATE)
        assert db.status().views == ()
        read, had = db.scanned, len(db.files())
        assert had == 2 * 3, "rows and a record of each part"
        assert "unfinished load" in {f.check for f in db.doctor().findings}
        changes(db)
        db.interrupt_after = 7
        with pytest.raises(KeyboardInterrupt):  # again: parts of different times
            db.sql(CREATE)
        assert len(db.files()) > had
        changes(db)
        db.interrupt_after, before = None, db.scanned
        db.sql(CREATE)
        assert db.scanned - before < ROWS - read + PART
        check(db)
        assert db.files() == []


def test_parts_that_do_not_help_are_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Watched(path, interrupt_after=4) as db:
        with pytest.raises(KeyboardInterrupt):
            db.sql(f"CREATE MATERIALIZED VIEW dear AS {DEAR}")
        db.interrupt_after, db.scanned = None, 0
        db.sql(CREATE)  # needs a column that they have not
        assert db.scanned >= ROWS
        check(db)
        db.sql("DROP MATERIALIZED VIEW totals")
        db.interrupt_after, db.scanned = 4, 0
        with pytest.raises(KeyboardInterrupt):
            db.sql(CREATE)
        rows = [f for f in db.files() if f.suffix == ".vkp"]
        rows[0].write_bytes(rows[0].read_bytes()[:-100] + bytes(100))  # damaged
        rows[1].unlink()
        db.interrupt_after, db.scanned = None, 0
        db.sql(CREATE)
        assert ROWS - 2 * PART - 100 < db.scanned < ROWS - PART
        check(db)
        db.sql("DROP MATERIALIZED VIEW totals")
        db.interrupt_after, db.scanned = 4, 0
        with pytest.raises(KeyboardInterrupt):
            db.sql(CREATE)
        db._store.release_hold(partition_store.HOLD_NAME)
        changes(db)
        db._acquire_maintainer().cleanup.retention = 0.0
        db.refresh()
        db._store.truncate(db._store.head())  # the log is gone, from which they would be brought up to date
        db.interrupt_after, db.scanned = None, 0
        db.sql(CREATE)
        assert db.scanned >= ROWS - 200
        check(db)


def test_parts_are_forgotten_after_a_day(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Watched(path, interrupt_after=4) as db:
        with pytest.raises(KeyboardInterrupt):
            db.sql(CREATE)
        assert db.files()
    monkeypatch.setattr(partition_store, "RETENTION_SECONDS", -1.0)
    with Watched(path) as db:
        db.refresh()
        assert db.files() == []
