"""A view that is loaded beside batches, rebuilds and other loads keeps what it needs: its log and its files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned
from tests.contract.planned import DEAR, TABLES, TOTALS

import viewkeeper as vk
from viewkeeper import failpoints
from viewkeeper.commit import cleanup, publisher
from viewkeeper.maintain.load import loader


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(loader, "_FINAL_ROWS", 0)
    monkeypatch.setattr(cleanup, "_MIN_INTERVAL", 0.0)
    with vk.open(f"lmdb:{tmp_path / 'db'}", retention=0) as opened:
        for statement in TABLES:
            opened.sql(statement)
        opened.sql(f"CREATE MATERIALIZED VIEW dear AS {DEAR}")
        opened.put("items", [item(n) for n in range(200)])
        opened.refresh()
        yield opened


def item(number: int) -> dict[str, Any]:
    return {"item_id": number, "category": "abc"[number % 3], "price": number}


def test_rebuilds_beside_a_load_do_not_take_its_files(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load has caught up once, and waits with files that no batch lists while others load, publish and tidy."""
    monkeypatch.setattr(publisher, "id", lambda _: 7, raising=False)  # numbers of objects are given again
    caught_up, go_on = threading.Event(), threading.Event()
    original = failpoints.hit

    def point(name: str) -> None:
        original(name)
        if threading.current_thread() is creation:
            if name == "load.1.after":
                db.put("items", [item(n) for n in range(200, 300)])
            if name == "load.2.after":
                caught_up.set()
                go_on.wait(60)

    failed: list[Exception] = []

    def create() -> None:
        try:
            db.sql(f"CREATE MATERIALIZED VIEW totals AS {TOTALS}")
        except Exception as error:
            failed.append(error)
            caught_up.set()

    creation = threading.Thread(target=create)
    monkeypatch.setattr(failpoints, "hit", point)
    creation.start()
    assert caught_up.wait(60)
    state = Path(db._store.state_path)
    listed = set(db._acquire_maintainer().publisher.state.manifest.files())
    mine = {p.name for p in state.glob("b*.vkr")} - listed
    assert mine
    for n in range(5):
        db._acquire_maintainer().state_repair.rebuild()
        db.put("items", item(1000 + n))
        db.refresh()
    assert mine <= {p.name for p in state.glob("b*.vkr")}, "files of a load that is under way were removed"
    go_on.set()
    creation.join(60)
    assert failed == []
    assert db._store.note("mended") is None
    db.refresh()
    rows = db.read("items").to_pylist()
    expected = {c: sum(r["price"] for r in rows if r["category"] == c) for c in "abc"}
    assert {r["category"]: r["total"] for r in db.read("totals").to_pylist()} == expected
