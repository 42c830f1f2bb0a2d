"""A maintainer prepares what the one before it came to need; whatever is wrong with that is no matter."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.conftest import planned_shop
from tests.contract.planned import fill, item

from viewkeeper.database import Database
from viewkeeper.operators import segment_execution
from viewkeeper.operators.aggregation import preaggregate
from viewkeeper.resources.directory import Directory
from viewkeeper.runtime import statement_warmup
from viewkeeper.state import consolidate

KINDS = ["lmdb", "atomic rows only, state behind a URL"]


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(statement_warmup, "_AFTER", 0.0)
    for module in (preaggregate, consolidate):  # few rows need few statements: these shall need theirs
        monkeypatch.setattr(module, "_MOST_ROWS", -1)
    monkeypatch.setattr(segment_execution, "quickly_passed", lambda *_: None)
    with planned_shop(request, tmp_path, monkeypatch) as db:
        fill(db, 30, "totals", "bosses")
        change(db, 1)
        yield db


def change(db: Database, price: int) -> int:
    """The statements that a batch had to prepare."""
    db.put("items", [item(n, price) for n in range(0, 30, 2)])
    crew = db._maintain().stage.crew
    before = crew.first.made
    assert db.refresh().changes
    return crew.first.made - before


def anew(db: Database) -> statement_warmup.Preparing:
    """Another maintainer, that has prepared what it could."""
    db._holding.end()
    found = db._maintain().preparing
    assert found.done.wait(30)
    return found


def test_the_first_batch_finds_its_statements_prepared(shop: Database) -> None:
    shop._holding.end()
    Directory(shop._store.state_path).remove(statement_warmup.FILE)
    anew(shop)
    cold = change(shop, 2)
    anew(shop)
    assert cold >= 4
    assert change(shop, 3) <= cold // 3  # a merge of runs may be due now that was not then
    assert shop.read("totals").to_pylist()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"fingerprint": "another"}', "no statement"])
def test_what_is_noted_is_no_truth(shop: Database, damage: str) -> None:
    shop._holding.end()
    directory = Directory(shop._store.state_path)
    path = directory.fetch(statement_warmup.FILE)
    if damage == "no statement":
        said = json.loads(path.read_text())
        said["statements"] = [["SELEKT 1", []], ["SELECT x FROM nowhere", []]]
        damage = json.dumps(said)
    path.write_text(damage)
    directory.save(statement_warmup.FILE)
    anew(shop)
    assert change(shop, 3) > 0
    assert {r["total"] for r in shop.read("totals").to_pylist()} == {5 * 3 + 5 * 5}
    anew(shop)
    assert change(shop, 4) <= 2, "noted again"


def test_a_maintainer_ends_while_it_prepares(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, crew = threading.Event(), type(shop._maintain().stage.crew)
    prepare = crew.prepare

    def slowly(*args: Any) -> None:
        begun.set()
        time.sleep(0.05)
        prepare(*args)

    monkeypatch.setattr(crew, "prepare", slowly)
    shop._holding.end()
    maintainer = shop._maintain()
    assert begun.wait(30)
    assert change(shop, 6) > 0, "a batch does not wait for the rest"
    shop._holding.end()
    assert not maintainer.preparing._thread.is_alive()


def test_a_directory_that_takes_nothing_keeps_no_batch(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as denied:
        denied.setattr(statement_warmup.Preparing, "_write", full)
        anew(shop)
        shop.sql("DROP MATERIALIZED VIEW bosses")
        change(shop, 7)
        shop._holding.end()
    assert change(shop, 8) >= 0
