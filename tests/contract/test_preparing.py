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
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.runtime import statement_warmup
from viewkeeper.state import consolidate

KINDS = ["lmdb", "atomic rows only, state behind a URL"]


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(statement_warmup, "_START_DELAY", 0.0)
    for module, limit in ((preaggregate, "_MAX_ROWS"), (consolidate, "_MAX_SORTED_ROWS")):
        monkeypatch.setattr(module, limit, -1)  # so that few rows need statements too
    monkeypatch.setattr(segment_execution, "run_segment_vectorised", lambda *_: None)
    with planned_shop(request, tmp_path, monkeypatch) as db:
        fill(db, 30, "totals", "bosses")
        change(db, 1)
        yield db


def change(db: Database, price: int) -> int:
    """The statements that a batch had to prepare."""
    db.put("items", [item(n, price) for n in range(0, 30, 2)])
    crew = db._acquire_maintainer().executor.pool
    before = crew.primary.prepared_count
    assert db.refresh().changes
    return crew.primary.prepared_count - before


def anew(db: Database) -> statement_warmup.StatementWarmup:
    """Another maintainer, that has prepared what it could."""
    db._maintainer_ref.end()
    found = db._acquire_maintainer().statement_warmup
    assert found.done.wait(30)
    return found


def test_the_first_batch_finds_its_statements_prepared(shop: Database) -> None:
    shop._maintainer_ref.end()
    StateDirectory(shop._store.state_path).remove(statement_warmup.STATEMENTS_FILE)
    anew(shop)
    cold = change(shop, 2)
    anew(shop)
    assert cold >= 4
    assert change(shop, 3) <= cold // 3  # a merge of runs may be due now that was not then
    assert shop.read("totals").to_pylist()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"fingerprint": "another"}', "no statement"])
def test_what_is_noted_is_no_truth(shop: Database, damage: str) -> None:
    shop._maintainer_ref.end()
    directory = StateDirectory(shop._store.state_path)
    path = directory.fetch(statement_warmup.STATEMENTS_FILE)
    if damage == "no statement":
        said = json.loads(path.read_text())
        said["statements"] = [["SELEKT 1", []], ["SELECT x FROM nowhere", []]]
        damage = json.dumps(said)
    path.write_text(damage)
    directory.upload(statement_warmup.STATEMENTS_FILE)
    anew(shop)
    assert change(shop, 3) > 0
    assert {r["total"] for r in shop.read("totals").to_pylist()} == {5 * 3 + 5 * 5}
    anew(shop)
    assert change(shop, 4) <= 2, "noted again"


def test_a_maintainer_ends_while_it_prepares(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, crew = threading.Event(), type(shop._acquire_maintainer().executor.pool)
    prepare = crew.prepare

    def slowly(*args: Any) -> None:
        begun.set()
        time.sleep(0.05)
        prepare(*args)

    monkeypatch.setattr(crew, "prepare", slowly)
    shop._maintainer_ref.end()
    maintainer = shop._acquire_maintainer()
    assert begun.wait(30)
    assert change(shop, 6) > 0, "a batch does not wait for the rest"
    shop._maintainer_ref.end()
    assert not maintainer.statement_warmup._thread.is_alive()


def test_a_directory_that_takes_nothing_keeps_no_batch(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as denied:
        denied.setattr(statement_warmup.StatementWarmup, "_write_file", full)
        anew(shop)
        shop.sql("DROP MATERIALIZED VIEW bosses")
        change(shop, 7)
        shop._maintainer_ref.end()
    assert change(shop, 8) >= 0
