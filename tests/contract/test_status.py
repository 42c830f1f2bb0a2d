"""What a database says about its own work: stages, queues, and when nothing will wait any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.contract import planned

import viewkeeper as vk
from viewkeeper.cli.output import print_report
from viewkeeper.read import status


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    planned.install(monkeypatch.setattr)
    with vk.open(f"lmdb:{tmp_path / 'shop'}") as db:
        yield planned.tables(db, "totals")


def put(db: Any, first: int, rows: int) -> None:
    db.put("items", [{"item_id": n, "category": "a", "price": 1} for n in range(first, first + rows)])


def test_every_stage_has_a_rate_and_a_queue(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert [s.name for s in shop.status().stages] == ["capture", "rounds", "commit", "merge"]
    for n in range(30):
        put(shop, 10 * n, 10)
        shop.refresh()
    put(shop, 300, 25)
    found = shop.status()
    capture, rounds, commit, merge = found.stages
    assert (capture.queue, rounds.queue, commit.queue) == (25, 0, 0)
    assert 0 <= merge.queue < 100
    for stage in (capture, rounds, commit):
        assert stage.seconds > 0
        # All rows pass every stage, so rate × time is the same for each: the rows of a batch.
        assert stage.rows_per_second * stage.seconds == pytest.approx(10, rel=0.01)
        assert 0 < stage.busy_share < 1
    assert sum(s.busy_share for s in (capture, rounds, commit)) == pytest.approx(found.recent["busy_share"], abs=0.01)
    assert found.catch_up_seconds is None or found.catch_up_seconds > 0
    shop.refresh()
    assert shop.status().stages[0].queue == 0
    assert shop.status().catch_up_seconds == 0.0
    print_report(found, "json")
    assert json.loads(capsys.readouterr().out)["stages"][0]["queue"] == 25
    print_report(found, "table")
    assert "rows_per_second" in capsys.readouterr().out


def test_the_time_to_catch_up_follows_from_what_comes_and_what_is_done() -> None:
    recent = {"capacity_per_second": 5000.0, "changes_per_second": 1000.0}
    assert status._catch_up_seconds(recent, 8000) == 2.0
    assert status._catch_up_seconds({**recent, "changes_per_second": 5000.0}, 8000) is None, "it never does"
    assert status._catch_up_seconds(recent, 0) == 0.0
