"""Rows of a commit written by others than the maintainer: in pieces, some of them twice, over a small HBase."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("thriftpy2")

from tests.contract import planned
from tests.contract.conftest import STORES

from viewkeeper.database import Database
from viewkeeper.errors import BadValue, StoreError
from viewkeeper_hbase import commit_steps
from viewkeeper_hbase.capture import region_scan
from viewkeeper_hbase.url import parse_url


@pytest.fixture
def shop(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    planned.install(monkeypatch.setattr)
    monkeypatch.setattr(commit_steps, "_PIECE_ROWS", 3)
    store = STORES["atomic rows only"](tmp_path, request)(overlap=0.2)
    with Database(store, mode="w", spark=None, progress=None) as db:
        for statement in planned.TABLES:
            db.sql(statement)
        db.sql(f"CREATE MATERIALIZED VIEW whole AS {planned.WHOLE}")
        yield db


def item(number: int, price: int = 100) -> dict[str, Any]:
    return {"item_id": number, "category": "abc"[number % 3] if number % 4 else None, "price": price}


class Others:
    """Does the first piece twice, as when Spark doubles a slow task, and the rest in another order; `fails` first."""

    def __init__(self, fails: int = 0) -> None:
        self.pieces: list[Any] = []
        self.asked: list[tuple[Any, list[str]]] = []
        """What was read, and of which tables."""
        self.fails = fails

    def __call__(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        if work is not commit_steps._write_piece:
            self.asked.append((work, [piece.table.name for piece in pieces]))
            return [work(piece) for piece in pieces]
        self.pieces += pieces
        for piece in [*reversed(pieces), pieces[0]]:
            work(piece)
            if self.fails:
                self.fails -= 1
                raise StoreError("The task was lost.")
        return [None] * len(pieces)


def test_pieces_written_by_others_and_twice_are_the_same_rows(shop: Database) -> None:
    others = Others()
    shop._store.set_parallel_map(others)
    shop.put("items", [item(n) for n in range(20)])
    shop.refresh()
    written = len(others.pieces)
    assert written > 4
    shop.put("items", [item(n, 100 + n) for n in range(0, 20, 2)])
    shop.delete("items", list(range(1, 20, 2)))
    shop._store.set_parallel_map(others)  # for one refresh
    shop.refresh()
    assert {piece.deletes != (0, 0) for piece in others.pieces[written:]} == {True, False}
    assert shop.audit().differences == 0


def test_the_windows_of_all_tables_are_one_piece_of_work(shop: Database) -> None:
    shop.sql(f"CREATE MATERIALIZED VIEW bosses AS {planned.BOSSES}")
    shop.put("items", [item(n) for n in range(20)])
    shop.put("kinds", [{"category": c, "boss": f"boss of {c}"} for c in "abc"])
    others = Others()
    shop._store.set_parallel_map(others)
    shop.refresh()
    assert [sorted(tables) for work, tables in others.asked if work is region_scan._scan_piece] == [["items", "kinds"]]
    assert shop.audit().differences == 0


def test_a_claimed_batch_whose_pieces_are_lost_is_finished(shop: Database) -> None:
    """It has been decided, so the maintainer writes the rest itself and says what happened."""
    shop.put("items", [item(n) for n in range(20)])
    epoch = shop.status().epoch
    shop._store.set_parallel_map(Others(fails=1))
    report = shop.refresh()
    assert "The task was lost." in " ".join(report.afterwards)
    assert shop.status().epoch == epoch + 1
    assert shop.audit().differences == 0


def test_a_piece_that_comes_late_writes_nothing(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """HBase may have forgotten the later batch's deletes by then: what it wrote would be there again."""
    others = Others()
    shop._store.set_parallel_map(others)
    shop.put("items", [item(n) for n in range(20)])
    shop.refresh()
    shop.delete("items", list(range(20)))
    shop.refresh()
    monkeypatch.setattr(commit_steps, "write_cells", lambda *_: pytest.fail("cells were written"))
    for piece in others.pieces:
        commit_steps._write_piece(piece)


def test_who_slept_through_a_commit_writes_nothing(shop: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = shop._store
    wrote: list[int] = []
    write_cells = commit_steps.write_cells

    def asleep(*how: Any) -> None:
        wrote.append(1)
        monkeypatch.setattr(commit_steps, "_STALE_WRITER_SECONDS", -1.0)  # from here on, time has passed
        write_cells(*how)

    monkeypatch.setattr(commit_steps, "write_cells", asleep)
    shop.put("items", [item(1), item(2)])
    finish = commit_steps.finish_claimed_batch

    def twice(*how: Any, **named: Any) -> Any:
        finish(*how, **named)  # a successor
        return finish(*how, **named)

    monkeypatch.setattr(commit_steps, "finish_claimed_batch", twice)
    shop.refresh()
    assert wrote == [1]
    assert store.published_batch().number == shop.status().epoch
    assert shop.audit().differences == 0


def test_a_small_commit_is_written_by_the_maintainer(shop: Database) -> None:
    others = Others()
    shop._store.set_parallel_map(others)
    shop.put("items", [item(1), item(2)])
    shop.refresh()
    assert not others.pieces
    assert shop.audit().differences == 0


def test_workers_spread_over_the_gateways_of_the_url() -> None:
    place = parse_url("hbase://one:9090/shop?gateways=two:9091,three&transport=buffered")
    talked = [place.choose_gateway(number) for number in range(4)]
    assert [f"{g.host}:{g.port}" for g in talked] == ["one:9090", "two:9091", "three:9090", "one:9090"]
    assert {g.transport for g in talked} == {"buffered"}
    with pytest.raises(BadValue, match=r"two:x in gateways= is no host:port"):
        parse_url("hbase://one/shop?gateways=two:x")
