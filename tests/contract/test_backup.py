"""A backup is the database at one moment, whoever writes and maintains meanwhile; what is restored is one again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned

import viewkeeper as vk
from viewkeeper import failpoints
from viewkeeper.errors import ViewkeeperError


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'shop'}", durability="none") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.put("kinds", [{"category": c, "boss": c.upper()} for c in "abc"])
        db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
        db.sql(f"CREATE MATERIALIZED VIEW bosses AS {planned.BOSSES}")
        yield db


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"item_id": n, "category": "abc"[n % 3], "price": n} for n in numbers]


def test_a_backup_taken_while_others_write_is_one_state(shop: Any, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        for n in range(100_000):
            if stop.is_set():
                return
            shop.put("items", rows(n))

    with shop.maintain():
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for n in range(4):
                assert shop.backup(tmp_path / f"backup{n}") > 0
        finally:
            stop.set()
            writer.join()
    for n in range(4):
        with vk.open(f"lmdb:{tmp_path / f'backup{n}'}") as copy:
            report = copy.refresh()  # from the state that came with it: nothing is made anew
            assert report.lane in ("none", "driver")
            assert not report.mended
            there = copy.read("items").num_rows
            assert sum(row["n"] for row in copy.scan("totals")) == there
            assert sum(row["n"] for row in copy.scan("bosses")) == there
        assert not list((tmp_path / f"backup{n}").glob("linked*"))


def test_a_restored_database_goes_on_under_its_own_identity(shop: Any, tmp_path: Path) -> None:
    token = shop.put("items", rows(1, 2, 3))
    shop.refresh()
    shop.backup(tmp_path / "backup")
    vk.restore(tmp_path / "backup", f"lmdb:{tmp_path / 'again'}")
    with vk.open(f"lmdb:{tmp_path / 'again'}") as again:
        assert again.read("totals") == shop.read("totals")
        with pytest.raises(ViewkeeperError, match="another database"):
            again.get("totals", "a", after=token)
        again.put("items", rows(4))
        again.refresh()
        assert sum(row["n"] for row in again.scan("totals")) == 4
        assert [f for f in again.doctor().findings if not f.ok] == []
    assert sum(row["n"] for row in shop.scan("totals")) == 3


@pytest.mark.parametrize("kind", ["there", "a file", "no database"])
def test_what_cannot_be_done_changes_nothing(shop: Any, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "there":
        target.mkdir()
        (target / "mine").write_text("x")
        with pytest.raises(ViewkeeperError, match="there already"):
            shop.backup(target)
        assert (target / "mine").read_text() == "x"
    elif kind == "a file":
        target.write_text("x")
        with pytest.raises(ViewkeeperError):
            shop.backup(target)
    else:
        with pytest.raises(ViewkeeperError):
            vk.restore(tmp_path / "nothing", f"lmdb:{target}")
        assert not target.exists()


def test_an_interrupted_backup_leaves_nothing(shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        if name == "backup.copied":
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "hit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shop.backup(tmp_path / "target")
    assert not list(tmp_path.glob("target*"))
