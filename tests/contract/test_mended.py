"""State that is made anew though nobody asked for it: the report, the log, `status` and `doctor` say so, and why."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.planned import BOSSES, TABLES, TOTALS

import viewkeeper as vk
from viewkeeper import expressions
from viewkeeper.errors import CorruptRun, StoreError


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'db'}") as db:
        for statement in TABLES:
            db.sql(statement)
        db.put("items", [{"item_id": n, "category": "a", "price": n} for n in range(9)])
        db.put("kinds", {"category": "a", "boss": "A"})
        db.sql(f"CREATE MATERIALIZED VIEW totals AS {TOTALS}")
        yield db


def damage(db: Any) -> None:
    """Flip a byte in every run, and forget the copies in memory."""
    db._maintainer_ref.end()
    state = db._acquire_maintainer().publisher.state
    for entry in [e for runs in state.manifest.runs.values() for e in runs]:
        path = state.directory / entry.file
        data = bytearray(path.read_bytes())
        data[entry.offset + entry.length // 2] ^= 0xFF
        path.write_bytes(data)


def told(db: Any, caplog: pytest.LogCaptureFixture, why: str, times: int = 1) -> None:
    assert any("made anew" in r.getMessage() and why in r.getMessage() for r in caplog.records)
    status = db.status()
    assert status.rebuilds == times
    assert why in status.mended
    [finding] = [f for f in db.doctor().findings if f.check == "mended"]
    assert why in finding.message
    assert db.read("totals").to_pylist() == [{"category": "a", "n": 9, "total": 36}]


def test_nothing_was_made_anew(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    shop.put("items", {"item_id": 1, "category": "a", "price": 1})
    assert shop.refresh().mended == ()
    assert (shop.status().rebuilds, shop.status().mended) == (0, None)
    assert not caplog.records


def test_state_of_another_version(shop: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    shop._maintainer_ref.end()
    made = expressions.fingerprint()
    monkeypatch.setattr(expressions, "fingerprint", lambda: "another duckdb")
    with caplog.at_level(logging.WARNING, "viewkeeper"):
        report = shop.refresh()
    assert report.mended == (f"it was made with {made}, this is another duckdb",)
    assert shop.refresh().mended == (), "said once"
    told(shop, caplog, "another duckdb")


def test_damage_that_a_batch_finds(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    damage(shop)
    shop.put("items", {"item_id": 1, "category": "a", "price": 1})
    shop.put("items", {"item_id": 3, "category": "a", "price": 3})
    shop.delete("items", 8)
    shop.put("items", {"item_id": 8, "category": "a", "price": 9})
    with caplog.at_level(logging.WARNING, "viewkeeper"):
        report = shop.refresh()
    assert "checksum" in report.mended[0]
    shop.put("items", {"item_id": 8, "category": "a", "price": 8})
    assert shop.refresh().mended == ()
    told(shop, caplog, "checksum")


def test_damage_that_a_statement_finds(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    damage(shop)
    with caplog.at_level(logging.WARNING, "viewkeeper"):
        shop.sql(f"CREATE MATERIALIZED VIEW bosses AS {BOSSES}")
    assert "checksum" in shop.refresh().mended[0], "the next report has it"
    told(shop, caplog, "checksum")


def test_state_that_only_a_worker_cannot_read_is_not_made_anew(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    maintainer = shop._acquire_maintainer()

    def elsewhere(*_: Any, **__: Any) -> Any:
        raise CorruptRun("The state file b1.vkr is damaged: it cannot be read.")

    shop.put("items", {"item_id": 1, "category": "a", "price": 2})
    epoch = shop.status().epoch
    with monkeypatch.context() as fault:
        fault.setattr(maintainer.executor, "run", elsewhere)
        with pytest.raises(StoreError, match="State that is whole here"):
            shop.refresh()
    assert (shop.status().epoch, shop.status().rebuilds) == (epoch, 0)
    assert shop.refresh().mended == ()
    assert shop.read("totals")["total"].to_pylist() == [37]
