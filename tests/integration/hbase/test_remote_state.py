"""State and redo files behind a URL: whoever takes over on another machine has no copies of them, and needs none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.contract.small_hbase import SmallHBase
from tests.integration.hbase.shop import expected, fill, totals

import viewkeeper as vk
from viewkeeper.errors import BadValue, StoreError
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.state import run_file
from viewkeeper_hbase import commit_steps


@pytest.fixture
def small() -> Iterator[SmallHBase]:
    server = SmallHBase()
    yield server
    server.close()


@pytest.mark.parametrize("lane", ["driver", "spark"])
def test_a_successor_on_another_machine_goes_on_from_the_files_behind_the_url(
    small: SmallHBase, spark: Any, tmp_path: Path, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "remote" / "state"
    url = f"hbase://{small.host}:{small.port}/shop?create=true&lease=1&state={place.as_uri()}"
    workers = StateDirectory(place.as_uri())  # Spark's workers have the environment that they were started with
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    if lane == "driver":
        monkeypatch.setattr(run_file, "PIECE_ROWS", 16)  # runs are in pieces, also when they are merged
    try:
        with vk.open(url, spark=spark) as db:
            fill(db)
            db.put("items", [{"id": n, "category": "abc"[n % 3], "price": n} for n in range(100)])
            assert db.refresh(lane).lane == lane
            assert totals(db) == expected(db)
            db.put("items", [{"id": n, "category": "late", "price": n} for n in range(50)])
            with monkeypatch.context() as patch:
                patch.setattr(commit_steps, "write_cells", _fails)
                with pytest.raises(StoreError, match="the machine is gone"):
                    db.refresh(lane)
        assert list(place.glob("b*.vkr"))
        assert list((place / "redo").glob("*.redo"))

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        with vk.open(url, spark=spark) as db:
            for n in range(8):
                db.put("items", {"id": 500 + n, "category": "new", "price": 5})
                db.refresh(lane)
            assert totals(db) == expected(db)
            assert totals(db)["late"][0] == 50
            assert all(finding.ok for finding in db.doctor().findings if finding.check.startswith("state"))
            db.sql("DROP MATERIALIZED VIEW totals")
            db._acquire_maintainer().publisher.state.wait_for_collection()  # files are removed in the background
            # What a merge in the background reads and writes goes when the next maintainer opens.
            assert {p.name for p in place.glob("b*.vkr")} <= db._acquire_maintainer().publisher.compactor.files
        with vk.open(url, spark=spark) as db:
            db.refresh(lane)
            db._acquire_maintainer().publisher.state.wait_for_collection()  # files are removed in the background
            assert not list(place.glob("b*.vkr"))
    finally:
        shutil.rmtree(workers, ignore_errors=True)


def test_a_place_that_nobody_can_open_is_refused_at_once(small: SmallHBase) -> None:
    with pytest.raises(BadValue, match="gopher://here cannot be opened"):
        vk.open(f"hbase://{small.host}:{small.port}/shop?create=true&state=gopher://here")


def _fails(*_: Any) -> None:
    raise StoreError("the machine is gone")
