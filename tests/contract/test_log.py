"""What a maintainer logs: one record a batch, with its figures as members of a JSON line."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.contract import planned

import viewkeeper as vk
from viewkeeper.cli.app import JsonLineFormatter


def test_a_batch_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    planned.install(monkeypatch.setattr)
    caplog.set_level(logging.INFO, "viewkeeper.batch")
    with vk.open(f"lmdb:{tmp_path / 'shop'}") as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.sql(f"CREATE MATERIALIZED VIEW totals AS {planned.TOTALS}")
        with db.maintain():
            token = db.put("items", {"item_id": 1, "category": "a", "price": 2})
            db.get("totals", "a", after=token, timeout=60)
    (record,) = [r for r in caplog.records if r.name == "viewkeeper.batch"]
    line = json.loads(JsonLineFormatter().format(record))
    assert {name: line[name] for name in ("level", "logger", "changes", "lane", "views")} == {
        "level": "info",
        "logger": "viewkeeper.batch",
        "changes": 1,
        "lane": "driver",
        "views": {"totals": 1},
    }
    assert line["message"].startswith(f"batch {line['epoch']}: 1 change, ")
