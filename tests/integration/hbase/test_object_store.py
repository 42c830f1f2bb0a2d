"""State in a real object store (MinIO): few requests, successors without copies, a store that is away for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("thriftpy2")

from tests.contract import planned
from tests.contract.planned import check, fill, item
from tests.contract.small_hbase import SmallHBase
from tests.objects import ObjectStore, objects

from viewkeeper.commit import cleanup
from viewkeeper.database import Database
from viewkeeper.errors import StoreError
from viewkeeper.state import run_file
from viewkeeper.store.registry import open_store

__all__ = ["objects"]
pytestmark = [pytest.mark.deep]


@pytest.fixture
def url(objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(cleanup, "_MIN_INTERVAL", 0.0)
    monkeypatch.setattr(run_file, "PIECE_ROWS", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = SmallHBase()
    yield f"hbase://{server.host}:{server.port}/shop?create=true&lease=1&retries=1&state=s3://viewkeeper/{tmp_path.name}"
    server.close()


def opened(url: str) -> Database:
    return Database(open_store(url, "w"), mode="w", spark=None, progress=None, retention=0.0)


def change(db: Database, step: int) -> None:
    db.put("items", [item(n, (n * step) % 90) for n in range(step, 400, 3)])
    db.delete("items", [(step * 7) % 1_000])


def test_a_batch_waits_for_two_requests(objects: ObjectStore, url: str) -> None:
    with opened(url) as db:
        fill(db, 1_000, "totals", "bosses")
        waited = []
        for step in range(12):
            change(db, step)
            began = time.monotonic()
            db.refresh("driver")
            ended = time.monotonic()
            waited.append([f"{method} {path}" for when, method, path in objects.requests if began <= when <= ended])
        check(db)
        # Removals go on beside the batch; everything else that it asks for, it waits for.
        for requests in waited[1:]:
            assert len([r for r in requests if r.startswith("PUT") and not r.endswith("/") and "-m" not in r]) == 2
            assert [r for r in requests if r.startswith(("GET", "POST"))] == []


def test_a_successor_without_copies_reads_only_what_it_needs(
    objects: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(url) as db:
        fill(db, 1_000, "totals", "bosses")
        for step in range(9):
            change(db, step)
            db.refresh("driver")
    for round_ in range(3):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache{round_}"))
        with opened(url) as db:
            change(db, 20 + round_)
            db.refresh("driver")
            check(db)
            assert all(f.ok for f in db.doctor().findings), db.doctor()


def test_a_store_that_is_away_costs_a_batch_and_no_change(objects: ObjectStore, url: str) -> None:
    with opened(url) as db:
        fill(db, 1_000, "totals", "bosses")
        for step in range(6):
            change(db, step)
            if step % 2:
                back = threading.Event()
                with objects.pause():
                    threading.Timer(10.0, back.set).start()
                    trying = threading.Thread(target=_refresh, args=(db, errors := []))
                    trying.start()
                    back.wait()
                trying.join()
                assert all("could not be" in error.message for error in errors)
            db.refresh("driver")
            check(db)


def _refresh(db: Database, errors: list[StoreError]) -> None:
    try:
        db.refresh("driver")
    except StoreError as error:
        errors.append(error)
